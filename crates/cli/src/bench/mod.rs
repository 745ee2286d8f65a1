//! `anabranch bench`: arguments, and how a benchmark gets to its ranks. The measuring is in a file of each.

mod ccl;
mod device;
mod ep;
mod link;
mod p2p;
mod row;
mod shmem;
mod statistics;

use std::num::NonZeroU32;
use std::path::PathBuf;

use anabranch::Config;
use anabranch::jit::KernelSpec;
use anabranch::rdma::{Atomics, Provider};
use clap::{Args, Subcommand};

pub(crate) use ccl::NcclError;
pub(crate) use ccl::collective::Collective;
pub(crate) use ccl::sizes::Size;
pub(crate) use ccl::tune;
pub(crate) use ep::tune as tune_ep;

use ccl::CclArgs;
use ccl::overlap::{self, OverlapArgs};

use crate::ranks::{self, RankArgs, RankContext};
use crate::workload::Routing;
use anabranch::ep::{CombineCodec, CombineSource, DataType, DispatchCast, Mode, Payload};

/// `anabranch bench`.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Expert-parallel dispatch and combine, of a recorded trace unless told otherwise.
    Ep(EpArgs),
    /// Collectives: all_reduce, all_gather, reduce_scatter, all_to_all and others, beside NCCL with --compare.
    ///
    /// Sizes are bytes as nccl-tests counts them; `GB/s` is its bus bandwidth; `ratio` is the fastest peer's median time by
    /// this library's. `link` is the share of the speed of stores between all ranks, measured in the same run.
    Ccl(CclArgs),
    /// A matrix product beside a collective: how much each slows the other, by copy engine, by kernels, and NCCL's with --compare.
    ///
    /// `us` and `GB/s` are the collective's alone; `us_beside` is its time while products run, `product_us` and `product_us_beside` are
    /// the product's; both slow-downs are ratios of medians, of the slowest rank. `covered` is the least share of a measured time in
    /// which the other was running.
    Overlap(OverlapArgs),
    /// The symmetric heap in kernels: every operation at every scope with every byte compared, then the time of single ones by each route.
    ///
    /// `us` of the first part is the launch that did all of a row's operations, and of the second one operation of many in a launch of one
    /// block. What some route does not support is left out, with a warning.
    Shmem(shmem::ShmemArgs),
    /// Links: copies and stores between devices, and the latency of a flag.
    ///
    /// `link` is a mechanism's share of the fastest one's speed at the same pattern and size. Bytes are compared with what
    /// was sent; those of the latency rows in a launch of its own before the timed ones. A bare flag has none.
    P2p(P2pArgs),
}

/// The flags of every benchmark.
#[derive(Clone, Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(crate) ranks: RankArgs,
    /// Repetitions that are timed.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) iters: Option<u32>,
}

/// `anabranch bench ep`.
#[derive(Clone, Debug, Args)]
pub(crate) struct EpArgs {
    #[command(flatten)]
    pub(crate) bench: BenchArgs,
    /// Time replays of a captured graph.
    #[arg(long)]
    pub(crate) graph: bool,
    /// Element type of the rows that dispatch is given, and sends unless it casts them: bf16, f16, f32, fp8_e4m3fn,
    /// fp8_e4m3fnuz or fp4.
    #[arg(long, default_value_t = DataType::Bf16, value_name = "TYPE")]
    pub(crate) dispatch_dtype: DataType,
    /// What dispatch turns rows into before it sends them: none, fp8_block or fp8_block_fnuz, with an f32 scale for each block of
    /// 128. Beside it a dispatch of the same rows is measured that were cast before.
    #[arg(long, default_value_t = DispatchCast::None, value_name = "CAST")]
    pub(crate) dispatch_cast: DispatchCast,
    /// Element type of the rows that combine sums: bf16, f16 or f32 [default: as dispatched, and bf16 for smaller types].
    #[arg(long, value_name = "TYPE")]
    combine_dtype: Option<DataType>,
    /// How received rows lie: slotted (each source has a part of the window), compact (counts first, rows without gaps), or auto
    /// (the settings' ep.mode, or slotted up to 512 tokens a rank).
    #[arg(long, default_value_t = Mode::Auto, value_name = "MODE")]
    pub(crate) mode: Mode,
    /// Rows that a rank takes in from all; copies that find no room are dropped [default: all that could come].
    #[arg(long, value_name = "N")]
    pub(crate) max_recv: Option<NonZeroU32>,
    /// What rows are turned into on their way back: none, fp8_direct, fp8_direct_fnuz, fp8_block, fp8_block_fnuz or fp4_block.
    #[arg(long, default_value_t = CombineCodec::None, value_name = "CODEC")]
    pub(crate) combine_quant: CombineCodec,
    /// Where the experts leave their output: in the combine window, from which peers pull it, or in a buffer, from which it is
    /// pushed [default: window, and buffer with a codec].
    #[arg(long, value_parser = source_of_one_way, value_name = "window|buffer")]
    combine_source: Option<CombineSource>,
    /// What moves rows: kernels, or copy-engine, which leaves the device to other work between the halves of an operation.
    #[arg(long, default_value_t = Payload::Kernels, value_name = "kernels|copy-engine")]
    pub(crate) payload: Payload,
    /// The order in which experts get their rows; expert-major has rows of its own for the way there and back.
    #[arg(long, value_enum, default_value_t = Layout::TokenMajor)]
    pub(crate) layout: Layout,
    /// Rows that each expert has room for in the expert-major layout, a multiple of the alignment [default: the worst case].
    #[arg(long, value_name = "ROWS")]
    pub(crate) expert_capacity: Option<u32>,
    /// Rows to a multiple of which each expert's rows are padded in the expert-major layout [default: 1].
    #[arg(long, value_name = "ROWS")]
    pub(crate) expert_alignment: Option<u32>,
    /// Time, beside dispatch, one with a routing that was kept: other rows that go the same way.
    #[arg(long)]
    pub(crate) replay_routing: bool,
    /// The ranks of each expert, `ranks_of_experts = [[0], [1, 0], ...]`: uneven, or some experts on several ranks [default: evenly].
    #[arg(long, value_name = "FILE.toml")]
    pub(crate) placement: Option<PathBuf>,
    /// Print what each rank would allocate, and run nothing.
    #[arg(long, requires = "ranks")]
    pub(crate) plan: bool,
    /// Peers that are measured beside, on NVIDIA GPUs: NCCL's all_to_all of as many bytes over the links, on plain memory and on
    /// symmetric windows.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PEER,...")]
    pub(crate) compare: Vec<ccl::arguments::Peer>,
    /// NCCL's library or its folder, in place of the one that the loader or Python's site-packages give.
    #[arg(long, value_name = "PATH", requires = "compare")]
    pub(crate) nccl_library: Option<PathBuf>,
    /// A trace of tokens with their routing, in place of the one that comes with the repository.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tokens", "hidden", "experts", "top_k", "routing", "seed"])]
    pub(crate) trace: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) synthetic: SyntheticArgs,
}

/// In which order experts get their rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Layout {
    /// As dispatch delivers them: by source rank and token.
    TokenMajor,
    /// By expert: expand and contract between dispatch and combine.
    ExpertMajor,
}

impl EpArgs {
    /// Type of the rows that combine sums.
    pub(crate) fn combine_type(&self) -> DataType {
        let same = Some(self.dispatch_dtype).filter(|element| element.is_combined());
        self.combine_dtype.or(same).unwrap_or(DataType::Bf16)
    }

    /// Type of the rows that dispatch sends.
    pub(crate) fn sent_type(&self) -> DataType {
        self.dispatch_cast.data_type().unwrap_or(self.dispatch_dtype)
    }

    /// Where the experts leave their output.
    pub(crate) fn combine_source(&self) -> CombineSource {
        let pushed = self.combine_quant != CombineCodec::None;
        self.combine_source.unwrap_or(if pushed { CombineSource::Buffer } else { CombineSource::Window })
    }
}

/// A benchmark goes one way.
fn source_of_one_way(text: &str) -> Result<CombineSource, String> {
    match text.parse() {
        Ok(CombineSource::Any) | Err(_) => Err("allowed are window and buffer".to_owned()),
        Ok(source) => Ok(source),
    }
}

/// Synthetic input; any of these turns the trace off, the others then have the defaults of DeepSeek-V3.
#[derive(Clone, Debug, Args)]
pub(crate) struct SyntheticArgs {
    /// Tokens a rank; several numbers are measured one after the other [default: 128].
    #[arg(long, value_delimiter = ',', value_name = "N,...")]
    pub(crate) tokens: Vec<u32>,
    /// Elements of a token [default: 7168].
    #[arg(long, value_name = "H")]
    pub(crate) hidden: Option<u32>,
    /// Experts of all ranks [default: 256].
    #[arg(long, value_name = "E")]
    pub(crate) experts: Option<u32>,
    /// Experts a token [default: 8].
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<u32>,
    /// Where tokens go [default: random].
    #[arg(long, value_enum)]
    pub(crate) routing: Option<Routing>,
    /// Another seed gives other tokens [default: 0].
    #[arg(long)]
    pub(crate) seed: Option<u64>,
}

impl SyntheticArgs {
    /// Whether any of them was given.
    pub(crate) fn is_given(&self) -> bool {
        !self.tokens.is_empty()
            || self.hidden.is_some()
            || self.experts.is_some()
            || self.top_k.is_some()
            || self.routing.is_some()
            || self.seed.is_some()
    }

    /// What decides where tokens go, as reports say it: the name of a routing, or the trace.
    pub(crate) fn routing_name(&self) -> String {
        let named = self.routing.or(self.is_given().then_some(Routing::Random));
        let value = named.and_then(|routing| clap::ValueEnum::to_possible_value(&routing));
        value.map_or_else(|| "trace".to_owned(), |value| value.get_name().to_owned())
    }
}

/// `anabranch bench p2p`.
#[derive(Clone, Debug, Args)]
pub(crate) struct P2pArgs {
    #[command(flatten)]
    pub(crate) bench: BenchArgs,
    /// Blocks of the copying kernels [default on a GPU: 64 for stores, 24 or more for loads].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) blocks: Option<u32>,
    /// Bytes a peer; several sizes are measured one after the other, and pairs with the largest. Units as in "64 MiB".
    #[arg(long, value_delimiter = ',', value_name = "SIZE,...")]
    pub(crate) bytes: Vec<anabranch::config::ByteSize>,
}

impl BenchCommand {
    fn ranks(&self) -> &RankArgs {
        match self {
            Self::Ccl(arguments) => &arguments.bench.ranks,
            Self::Overlap(arguments) => &arguments.bench.ranks,
            Self::Ep(arguments) => &arguments.bench.ranks,
            Self::P2p(arguments) => &arguments.bench.ranks,
            Self::Shmem(arguments) => &arguments.bench.ranks,
        }
    }

    /// What its ranks will launch, so that it is compiled before they start.
    fn kernels(&self) -> Vec<KernelSpec> {
        match self {
            Self::Ccl(arguments) => ccl::needed_kernels(arguments),
            Self::Overlap(arguments) => overlap::needed_kernels(arguments),
            Self::Ep(arguments) => ep::needed_kernels(arguments),
            Self::P2p(_) => p2p::needed_kernels(),
            Self::Shmem(_) => shmem::needed_kernels(),
        }
    }

    /// Input that cannot be used, and sizes that cannot fit, known without any rank.
    fn check(&self, config: &Config, ranks: u32) -> anyhow::Result<()> {
        match self {
            Self::Ccl(arguments) => ccl::check(arguments, config, ranks),
            Self::Overlap(arguments) => {
                arguments.bench.ranks.refuse_nodes("bench overlap")?;
                overlap::check(arguments, config, ranks)
            }
            Self::Ep(arguments) => ep::check(config, arguments, ranks),
            Self::P2p(arguments) => {
                arguments.bench.ranks.refuse_nodes("bench p2p")?;
                p2p::check(arguments, config, ranks)
            }
            Self::Shmem(arguments) => shmem::check(arguments, config, ranks),
        }
    }

    fn measure(&self, context: &RankContext<'_>) -> anyhow::Result<()> {
        match self {
            Self::Ccl(arguments) => ccl::measure(context, arguments),
            Self::Overlap(arguments) => overlap::measure(context, arguments),
            Self::Ep(arguments) => ep::measure(context, arguments),
            Self::P2p(arguments) => p2p::measure(context, arguments),
            Self::Shmem(arguments) => shmem::measure(context, arguments),
        }
    }
}

/// The benchmarks' own kernels, for prebuilding.
pub(crate) fn kernels() -> Vec<KernelSpec> {
    device::own_kernels()
}

/// Those of the library's kernels that benchmarks alone load, as worlds do in which ranks have NICs of this format.
pub(crate) fn nic_kernels(provider: Provider, atomics: Atomics) -> Vec<KernelSpec> {
    shmem::nic_kernels(provider, atomics)
}

/// Starts the ranks.
///
/// # Errors
/// See [`ranks::spawn`].
pub(crate) fn spawn(command: &BenchCommand) -> anyhow::Result<()> {
    if let BenchCommand::Ep(arguments) = command
        && arguments.plan
    {
        return ep::memory::print(arguments);
    }
    ranks::spawn(
        command.ranks(),
        "bench-rank",
        &command.kernels(),
        |config, ranks| command.check(config, ranks),
        |context| command.measure(context),
    )
}

/// Is one of them.
///
/// # Errors
/// See [`ranks::run_rank`].
pub(crate) fn run_rank(command: &BenchCommand) -> anyhow::Result<()> {
    ranks::run_rank(command.ranks(), |context| command.measure(context))
}
