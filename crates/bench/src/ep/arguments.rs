//! The arguments of `anabranch bench ep`.

use std::num::NonZeroU32;
use std::path::PathBuf;

use anabranch_ep::{COMBINED_TYPES, CombineCodec, CombineSource, DataType, DispatchCast, Mode, Payload};
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
    /// Element type of the tokens, which dispatch sends unless it casts them: bf16, f16, f32, float8_e4m3fn,
    /// float8_e4m3fnuz or fp4.
    #[arg(long, value_parser = row_type, default_value_t = DataType::Bf16, value_name = "TYPE")]
    pub(crate) dispatch_dtype: DataType,
    /// Cast of the rows in dispatch: none, fp8_block or fp8_block_fnuz, with an f32 scale per block of 128. A dispatch of rows that were
    /// cast before is measured too.
    #[arg(long, default_value_t = DispatchCast::None, value_name = "CAST")]
    pub(crate) dispatch_cast: DispatchCast,
    /// Element type of the rows that combine sums: bf16, f16 or f32 [default: as dispatched, and bf16 for smaller types].
    #[arg(long, value_parser = row_type, value_name = "TYPE")]
    pub(super) combine_dtype: Option<DataType>,
    /// Layout of received rows: slotted (each source has a part of the window), compact (counts first, rows without gaps), or auto
    /// (the settings' ep.mode, or slotted up to 512 tokens per rank).
    #[arg(long, default_value_t = Mode::Auto, value_name = "MODE")]
    pub(crate) mode: Mode,
    /// Most rows that a rank receives from all ranks; copies beyond them are dropped [default: the worst case].
    #[arg(long, value_name = "N")]
    pub(crate) max_recv: Option<NonZeroU32>,
    /// Encoding of the rows that combine pushes: none, fp8_direct, fp8_direct_fnuz, fp8_block, fp8_block_fnuz or fp4_block.
    #[arg(long, default_value_t = CombineCodec::None, value_name = "CODEC")]
    pub(crate) combine_quant: CombineCodec,
    /// Where the experts write their output: the combine window, from which peers pull it, or a buffer, which combine
    /// pushes [default: window, and buffer with a codec].
    #[arg(long, value_parser = single_source, value_name = "window|buffer")]
    pub(super) combine_source: Option<CombineSource>,
    /// What moves rows: kernels, or copy-engine, which leaves the device to other work between send and receive.
    #[arg(long, default_value_t = Payload::Kernels, value_name = "kernels|copy-engine")]
    pub(crate) payload: Payload,
    /// Order of the experts' rows; expert-major-steps adds report rows for expand and contract.
    #[arg(long, value_enum, default_value_t = Layout::TokenMajor)]
    pub(crate) layout: Layout,
    /// Rows per expert in the expert-major layout, a multiple of the alignment [default: the worst case].
    #[arg(long, value_name = "ROWS")]
    pub(crate) expert_capacity: Option<u32>,
    /// Alignment of each expert's rows in the expert-major layout, in rows [default: 1].
    #[arg(long, value_name = "ROWS")]
    pub(crate) expert_alignment: Option<u32>,
    /// Also time a dispatch of other rows with a saved routing.
    #[arg(long)]
    pub(crate) replay_routing: bool,
    /// File with the ranks of each expert, `ranks_of_experts = [[0], [1, 0], ...]` [default: an even placement].
    #[arg(long, value_name = "FILE.toml")]
    pub(crate) placement: Option<PathBuf>,
    /// Print the memory that each rank would allocate, and run nothing.
    #[arg(long, requires = "ranks")]
    pub(crate) plan: bool,
    /// Also measure NCCL, on NVIDIA GPUs: its all_to_all of as many bytes over the links, on plain memory or on
    /// symmetric windows.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PEER,...")]
    pub(crate) compare: Vec<Peer>,
    /// NCCL's library or its folder [default: searched by the loader, then in Python's site-packages].
    #[arg(long, value_name = "PATH", requires = "compare")]
    pub(crate) nccl_library: Option<PathBuf>,
    /// A trace of tokens with their routing [default: the trace in the repository].
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tokens", "hidden", "experts", "top_k", "routing", "seed"])]
    pub(crate) trace: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) synthetic: SyntheticArgs,
}

/// Order of the experts' rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Layout {
    /// As dispatch delivers them: by source rank and token.
    TokenMajor,
    /// By expert: dispatch expands, and combine contracts first.
    ExpertMajor,
    /// By expert, with expand and contract as calls between dispatch and combine.
    ExpertMajorSteps,
}

impl Layout {
    /// As on the command line.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::TokenMajor => "token-major",
            Self::ExpertMajor => "expert-major",
            Self::ExpertMajorSteps => "expert-major-steps",
        }
    }
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

    /// Where the experts write their output.
    pub(crate) fn combine_source(&self) -> CombineSource {
        let pushed = self.combine_quant != CombineCodec::None;
        self.combine_source.unwrap_or(if pushed { CombineSource::Buffer } else { CombineSource::Window })
    }
}

/// Refuses `any`: a benchmark measures one source.
fn single_source(text: &str) -> Result<CombineSource, String> {
    match text.parse() {
        Ok(CombineSource::Any) | Err(_) => Err("allowed are window and buffer".to_owned()),
        Ok(source) => Ok(source),
    }
}

/// Synthetic input; any of these replaces the trace, and the others then have the defaults of DeepSeek-V3.
#[derive(Clone, Debug, Args)]
pub struct SyntheticArgs {
    /// Tokens per rank; several numbers are measured one after the other [default: 128].
    #[arg(long, value_delimiter = ',', value_name = "N,...")]
    pub(crate) tokens: Vec<u32>,
    /// Elements of a token [default: 7168].
    #[arg(long, value_name = "H")]
    pub(crate) hidden: Option<u32>,
    /// Experts of all ranks [default: 256].
    #[arg(long, value_name = "E")]
    pub(crate) experts: Option<u32>,
    /// Experts per token [default: 8].
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<u32>,
    /// Routing of the tokens [default: random].
    #[arg(long, value_enum)]
    pub(crate) routing: Option<Routing>,
    /// Seed of the tokens and their routing [default: 0].
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

    /// The name of the routing in reports: a synthetic routing, or `trace`.
    pub(crate) fn routing_name(&self) -> String {
        let named = self.routing.or(self.is_given().then_some(Routing::Random));
        let value = named.and_then(|routing| clap::ValueEnum::to_possible_value(&routing));
        value.map_or_else(|| "trace".to_owned(), |value| value.get_name().to_owned())
    }
}
