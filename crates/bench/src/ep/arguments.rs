//! The arguments of `anabranch bench ep`.

use std::num::NonZeroU32;
use std::path::PathBuf;

use anabranch::ep::{COMBINED_TYPES, CombineCodec, CombineSource, DataType, DispatchCast, Mode, Payload};
use clap::Args;

use crate::ccl::arguments::Peer;
use crate::ranks::BenchArgs;
use crate::types::row_type;
use crate::workload::Routing;

/// `anabranch bench ep`.
#[derive(Clone, Debug, Args)]
pub struct EpArgs {
    #[command(flatten)]
    pub(crate) bench: BenchArgs,
    /// Time replays of a captured graph.
    #[arg(long)]
    pub(crate) graph: bool,
    /// Element type of the rows that dispatch is given, and sends unless it casts them: bf16, f16, f32, float8_e4m3fn,
    /// float8_e4m3fnuz or fp4.
    #[arg(long, value_parser = row_type, default_value_t = DataType::Bf16, value_name = "TYPE")]
    pub(crate) dispatch_dtype: DataType,
    /// What dispatch turns rows into before it sends them: none, fp8_block or fp8_block_fnuz, with an f32 scale for each block of
    /// 128. Beside it a dispatch of the same rows is measured that were cast before.
    #[arg(long, default_value_t = DispatchCast::None, value_name = "CAST")]
    pub(crate) dispatch_cast: DispatchCast,
    /// Element type of the rows that combine sums: bf16, f16 or f32 [default: as dispatched, and bf16 for smaller types].
    #[arg(long, value_parser = row_type, value_name = "TYPE")]
    pub(super) combine_dtype: Option<DataType>,
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
    pub(super) combine_source: Option<CombineSource>,
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
    pub(crate) compare: Vec<Peer>,
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
pub enum Layout {
    /// As dispatch delivers them: by source rank and token.
    TokenMajor,
    /// By expert: expand and contract between dispatch and combine.
    ExpertMajor,
}

impl EpArgs {
    /// Type of the rows that combine sums.
    pub(crate) fn combine_type(&self) -> DataType {
        let same = Some(self.dispatch_dtype).filter(|element| COMBINED_TYPES.contains(element));
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
pub struct SyntheticArgs {
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
