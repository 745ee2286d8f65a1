//! The arguments of `anabranch tune ep`, and what follows from them alone.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::path::PathBuf;

use anabranch::Error;
use anabranch_ep::launch::LaunchTable;
use anabranch_ep::{CombineCodec, CombineSource, DataType, DispatchCast, Mode, Payload};
use anyhow::{Context as _, bail};
use clap::Args;

use super::text_of;
use crate::ccl::tune::write_whole;
use crate::ep::arguments::{EpArgs, Layout, SyntheticArgs};
use crate::ranks::{BenchArgs, RankArgs, RankContext};
use crate::types::row_type;
use crate::workload::{Routing, Synthetic, Workload};

/// `anabranch tune ep`.
#[derive(Clone, Debug, Args)]
pub(crate) struct TuneEpArgs {
    #[command(flatten)]
    pub(crate) ranks: RankArgs,
    /// Tokens a rank, random routing [default: 1, 8, 32, 128, 512, 4096; and 1, 8, 32 without a GPU].
    #[arg(long, value_delimiter = ',', value_name = "N,...", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) tokens: Vec<u32>,
    /// Elements of a token.
    #[arg(long, default_value_t = 7168, value_name = "H")]
    pub(super) hidden: u32,
    /// Experts of all ranks.
    #[arg(long, default_value_t = 256, value_name = "E")]
    pub(super) experts: u32,
    /// Experts a token.
    #[arg(long, default_value_t = 8, value_name = "K")]
    pub(super) top_k: u32,
    /// Element types of the rows that dispatch sends [default: bf16, float8_e4m3fn].
    #[arg(long, value_parser = row_type, value_delimiter = ',', value_name = "TYPE,...")]
    pub(super) dispatch_dtype: Vec<DataType>,
    /// Element type of the rows that combine sums.
    #[arg(long, value_parser = row_type, default_value_t = DataType::Bf16, value_name = "TYPE")]
    pub(super) combine_dtype: DataType,
    /// What rows are turned into on their way back.
    #[arg(long, default_value_t = CombineCodec::None, value_name = "CODEC")]
    pub(super) combine_quant: CombineCodec,
    /// How received rows lie: auto, slotted or compact.
    #[arg(long, default_value_t = Mode::Auto, value_name = "MODE")]
    pub(super) mode: Mode,
    /// Most blocks of a launch [default: 16, 32, 48, 64, 96, 128 and as many as multiprocessors; 1, 2 and 4 without a GPU].
    #[arg(long, value_delimiter = ',', value_name = "N,...", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub(super) blocks: Vec<u32>,
    /// Waves of a block [default: 4, 8, 16; and 1, 2, 4 without a GPU].
    #[arg(long, value_delimiter = ',', value_name = "N,...", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(super) waves: Vec<u32>,
    /// Most waves that share a row [default: 1, and half, all and twice of two 16-byte units a lane].
    #[arg(long, value_delimiter = ',', value_name = "N,...", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) segments: Vec<u32>,
    /// Samples of each shape that is near the fastest; the others have fewer.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(super) samples: Option<u32>,
    /// Where the table goes, in place of standard output. What it has of the same device for other ranks, types or lengths of rows
    /// stays.
    #[arg(long, value_name = "FILE.toml")]
    pub(super) output: Option<PathBuf>,
}

impl TuneEpArgs {
    pub(super) fn sizes(&self, host: bool) -> Vec<u32> {
        let most = if host { 32 } else { 4096 };
        let usual = || [1, 8, 32, 128, 512, 4096].into_iter().filter(|tokens| *tokens <= most);
        sorted(if self.tokens.is_empty() { usual().collect() } else { self.tokens.clone() })
    }

    /// What `bench ep` would be asked for: one for each type of dispatched rows.
    pub(super) fn benches(&self, graph: bool) -> Vec<EpArgs> {
        let usual = || vec![DataType::Bf16, DataType::F8E4m3];
        let types = if self.dispatch_dtype.is_empty() { usual() } else { self.dispatch_dtype.clone() };
        let pulls = self.combine_quant == CombineCodec::None;
        let bench = |dispatch_dtype| EpArgs {
            bench: BenchArgs { ranks: self.ranks.clone(), iters: None },
            graph,
            dispatch_dtype,
            combine_dtype: Some(self.combine_dtype),
            mode: self.mode,
            max_recv: None::<NonZeroU32>,
            combine_quant: self.combine_quant,
            payload: Payload::Kernels,
            combine_source: Some(if pulls { CombineSource::Any } else { CombineSource::Buffer }),
            layout: Layout::TokenMajor,
            expert_capacity: None,
            expert_alignment: None,
            placement: None,
            plan: false,
            replay_routing: false,
            dispatch_cast: DispatchCast::None,
            compare: Vec::new(),
            nccl_library: None,
            trace: None,
            synthetic: SyntheticArgs {
                tokens: Vec::new(),
                hidden: Some(self.hidden),
                experts: Some(self.experts),
                top_k: Some(self.top_k),
                routing: None,
                seed: None,
            },
        };
        types.into_iter().map(bench).collect()
    }

    pub(super) fn workload(&self, bench: &EpArgs, tokens: u32, ranks: u32) -> anyhow::Result<Workload> {
        let synthetic = Synthetic {
            tokens: vec![tokens; ranks as usize],
            hidden: self.hidden as usize,
            experts: self.experts,
            top_k: self.top_k as usize,
            routing: Routing::Random,
            masked: 0.0,
            seed: 0,
        };
        Ok(Workload::from_synthetic(synthetic, bench.dispatch_dtype)?)
    }

    /// What the file has of this device.
    pub(super) fn table(&self, device: &str) -> anyhow::Result<LaunchTable> {
        let empty = LaunchTable { device: device.to_owned(), launches: Vec::new() };
        let Some(path) = self.output.as_ref().filter(|path| path.exists()) else { return Ok(empty) };
        let table = LaunchTable::read(path).map_err(Error::from)?;
        if table.device != device {
            bail!(
                "--output {} is a table of {:?}, and this device is {device:?}: take another file",
                path.display(),
                table.device
            );
        }
        Ok(table)
    }

    /// Writes what was measured so far, if a file was asked for and this rank writes it: whole, or not at all.
    pub(super) fn write(&self, context: &RankContext<'_>, table: &LaunchTable) -> anyhow::Result<()> {
        let Some(path) = self.output.as_ref().filter(|_| context.is_root()) else { return Ok(()) };
        write_whole(path, &text_of(table)).with_context(|| format!("--output {}", path.display()))
    }

    pub(super) fn blocks_of(&self, multiprocessors: u32) -> Vec<u32> {
        let usual = || {
            let some: &[u32] = if multiprocessors >= 32 { &[16, 32, 48, 64, 96, 128] } else { &[1, 2, 4] };
            let some = some.iter().copied().filter(|blocks| *blocks <= multiprocessors);
            some.chain((multiprocessors >= 32).then_some(multiprocessors)).collect()
        };
        sorted(if self.blocks.is_empty() { usual() } else { self.blocks.clone() })
    }

    pub(super) fn waves_of(&self, multiprocessors: u32) -> Vec<u32> {
        let usual = || if multiprocessors >= 32 { vec![4, 8, 16] } else { vec![1, 2, 4] };
        sorted(if self.waves.is_empty() { usual() } else { self.waves.clone() })
    }
}

/// Each once, ascending.
pub(super) fn sorted(numbers: Vec<u32>) -> Vec<u32> {
    numbers.into_iter().collect::<BTreeSet<_>>().into_iter().collect()
}
