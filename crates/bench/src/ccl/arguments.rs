//! The flags of `anabranch bench ccl`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};

use super::collective::Collective;
use super::sizes::SizeArgs;
use crate::ranks::BenchArgs;
use crate::types::collective_type;
use anabranch_ccl::{Algorithm, DataType, ReduceOp};

/// `anabranch bench ccl`.
#[derive(Clone, Debug, Args)]
pub struct CclArgs {
    #[command(flatten)]
    pub(crate) bench: BenchArgs,
    /// Collectives, measured one after the other [default: all_reduce,all_gather,reduce_scatter,all_to_all].
    #[arg(long = "op", value_enum, value_delimiter = ',', value_name = "OP,...")]
    pub(crate) collectives: Vec<Collective>,
    #[command(flatten)]
    pub(crate) sizes: SizeArgs,
    /// Element type: bf16, f16, f32, f64, float8_e4m3fn, float8_e5m2, i8, u8, ..., bool, or torch's names.
    #[arg(long, value_parser = collective_type, default_value = "bf16", value_name = "TYPE")]
    pub(crate) dtype: DataType,
    /// The operator of reductions: sum, avg, product, min, max, band, bor, bxor, or premul_sum:SCALAR.
    #[arg(long, default_value = "sum", value_name = "OPERATOR")]
    pub(crate) reduce: Operator,
    /// Ranks of the world that form the group, in group order; the others are idle [default: all].
    #[arg(long, value_delimiter = ',', value_name = "RANK,...")]
    pub(crate) group: Vec<u32>,
    /// The root of broadcast, reduce, gather and scatter: its rank in the group.
    #[arg(long, default_value_t = 0, value_name = "GROUP RANK")]
    pub(crate) root: u32,
    /// Input and output share memory.
    #[arg(long)]
    pub(crate) in_place: bool,
    /// Memory of input and output.
    #[arg(long, value_enum, default_value_t = MemoryKind::Symmetric)]
    pub(crate) memory: MemoryKind,
    /// The algorithm [default: chosen by size].
    #[arg(long, value_name = "NAME")]
    pub(crate) algorithm: Option<String>,
    /// What moves the bytes [default: chosen by size]; an error for collectives without that transport.
    #[arg(long, value_enum, conflicts_with = "algorithm")]
    pub(crate) transport: Option<Transport>,
    /// Time replays of a captured graph.
    #[arg(long)]
    pub(crate) graph: bool,
    /// Also measure NCCL, on NVIDIA GPUs: on the same buffers, or on symmetric windows, which need memory from NCCL.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PEER,...")]
    pub(crate) compare: Vec<Peer>,
    /// NCCL's library or its folder [default: searched by the loader, then in Python's site-packages].
    #[arg(long, value_name = "PATH", requires = "compare")]
    pub(crate) nccl_library: Option<PathBuf>,
    /// Verify instead of measure, with known inputs, comparing every byte, also around the buffers: every collective, type,
    /// operator and algorithm, every group of up to four ranks (larger groups: runs of neighbours), odd counts and offsets, in place
    /// and out of place, and replays of graphs among eager calls and other groups.
    #[arg(long, conflicts_with_all = [
        "collectives", "sizes", "min", "max", "factor", "dtype", "reduce", "group", "root", "in_place", "memory", "algorithm",
        "transport", "graph", "compare", "plot", "iters",
    ])]
    pub(crate) check: bool,
    /// With --check, the number of graph replays.
    #[arg(long, default_value_t = 1000, requires = "check", value_name = "N")]
    pub(crate) replays: u64,
    /// Plot latency and bandwidth over size to this file.
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
}

/// What moves bytes from one rank to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    /// Copy engines, between barrier kernels.
    Sdma,
}

impl Transport {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sdma => "sdma",
        }
    }

    /// The algorithm that uses it.
    pub(crate) const fn algorithm(self) -> Algorithm {
        match self {
            Self::Sdma => Algorithm::CopyEngine,
        }
    }
}

impl CclArgs {
    /// The requested algorithm, by its name or by its transport.
    pub(crate) fn algorithm(&self) -> Option<&str> {
        let by_transport = self.transport.map(|transport| transport.algorithm().name());
        by_transport.or(self.algorithm.as_deref())
    }
}

/// Memory of tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MemoryKind {
    /// The symmetric heap, which peers access.
    Symmetric,
    /// Memory that peers cannot access.
    Local,
}

impl MemoryKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Symmetric => "symmetric",
            Self::Local => "local",
        }
    }
}

/// A library to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Peer {
    /// NCCL on the same buffers.
    Nccl,
    /// NCCL with symmetric windows.
    NcclSymmetric,
}

/// An operator as it is written on the command line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Operator(pub(crate) ReduceOp);

/// A word that names no operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no operator; allowed are {allowed}")]
pub(crate) struct UnknownOperator {
    given: String,
    allowed: String,
}

impl FromStr for Operator {
    type Err = UnknownOperator;

    fn from_str(text: &str) -> Result<Self, UnknownOperator> {
        let (name, scalar) = match text.split_once(':') {
            Some((name, scalar)) => (name, scalar.parse::<f64>().ok()),
            None => (text, None),
        };
        let named = ReduceOp::all(scalar.unwrap_or_default()).into_iter().find(|op| op.name() == name);
        // premul_sum needs a numeric scalar, and no other operator has one.
        let fits = |op: &ReduceOp| {
            matches!(op, ReduceOp::PreMulSum(_)) == scalar.is_some() && text.contains(':') == scalar.is_some()
        };
        named.filter(fits).map(Self).ok_or_else(|| {
            let written = ReduceOp::all(0.0).map(|op| match op {
                ReduceOp::PreMulSum(_) => format!("{}:SCALAR", op.name()),
                _ => op.name().to_owned(),
            });
            UnknownOperator { given: text.to_owned(), allowed: written.join(", ") }
        })
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ReduceOp::PreMulSum(scalar) => write!(f, "{}:{scalar}", self.0.name()),
            op => f.write_str(op.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_are_written_as_they_print() {
        for op in ReduceOp::all(0.5) {
            let operator = Operator(op);
            assert_eq!(operator.to_string().parse::<Operator>(), Ok(operator));
        }
        for text in ["", "SUM", "sum:2", "sum:", "premul_sum", "premul_sum:", "premul_sum:x", "mean"] {
            let refused = text.parse::<Operator>().unwrap_err().to_string();
            assert!(refused.contains("premul_sum:SCALAR"), "{text}: {refused}");
        }
    }
}
