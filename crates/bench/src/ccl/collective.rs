//! The collectives that are measured: what each rank holds, what moves, and how bandwidth is counted.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::sizes::elements_of_part;

/// A collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub(crate) enum Collective {
    AllReduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    Broadcast,
    Reduce,
    Gather,
    Scatter,
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AllReduce => "all_reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllToAll => "all_to_all",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
        })
    }
}

/// How many elements of which kind an operation has on each rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Elements {
    /// What C interfaces call `count`: of one rank's part where there are parts, of the whole otherwise.
    pub(crate) count: u64,
    /// In the input of each rank. Of scatter's the root's; others have none that counts.
    pub(crate) input: u64,
    /// In the output of each rank. Of gather's and reduce's the root's.
    pub(crate) output: u64,
    /// The size that is reported: elements by nccl-tests' convention.
    pub(crate) total: u64,
}

impl Collective {
    /// Measured by default.
    pub(crate) const DEFAULT: [Self; 4] =
        [Self::AllReduce, Self::AllGather, Self::ReduceScatter, Self::AllToAll];

    /// The library's name for it.
    pub(crate) const fn library(self) -> anabranch_ccl::Collective {
        use anabranch_ccl::Collective as Library;
        match self {
            Self::AllReduce => Library::AllReduce,
            Self::AllGather => Library::AllGather,
            Self::ReduceScatter => Library::ReduceScatter,
            Self::AllToAll => Library::AllToAll,
            Self::Broadcast => Library::Broadcast,
            Self::Reduce => Library::Reduce,
            Self::Gather => Library::Gather,
            Self::Scatter => Library::Scatter,
        }
    }

    /// Whether elements are combined, so that the operator matters.
    pub(crate) fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce)
    }

    /// Whether one rank is special.
    pub(crate) fn has_root(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter)
    }

    /// Whether one side has a part for each rank.
    fn has_parts(self) -> bool {
        !matches!(self, Self::AllReduce | Self::Broadcast | Self::Reduce)
    }

    /// Whether `--in-place` means something: the smaller of input and output lies within the other, where the rank's own
    /// part is. Broadcast is always so.
    pub(crate) fn can_be_in_place(self) -> bool {
        matches!(
            self,
            Self::AllReduce | Self::AllGather | Self::ReduceScatter | Self::Reduce | Self::Broadcast
        )
    }

    /// The elements of an operation of `bytes` bytes, counted as nccl-tests does, among `ranks` ranks.
    ///
    /// # Errors
    /// So few bytes that nothing is left.
    pub(crate) fn elements(self, bytes: u64, element_bytes: u64, ranks: u32) -> anyhow::Result<Elements> {
        let count = elements_of_part(bytes, element_bytes, ranks, self.has_parts())?;
        let all = if self.has_parts() { count * u64::from(ranks) } else { count };
        let (input, output) = match self {
            Self::AllReduce | Self::Broadcast | Self::Reduce => (count, count),
            Self::AllGather | Self::Gather => (count, all),
            Self::ReduceScatter | Self::Scatter => (all, count),
            Self::AllToAll => (all, all),
        };
        Ok(Elements { count, input, output, total: all })
    }

    /// What the bandwidth of the algorithm (size by time) is multiplied with to get that of the busiest link in one
    /// direction, whatever the algorithm: <https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md>; of
    /// gather and scatter, `GatherGetBw` and `ScatterGetBw` in that repository's `src`.
    pub(crate) fn bus_factor(self, ranks: u32) -> f64 {
        let others = f64::from(ranks) - 1.0;
        match self {
            Self::AllReduce => 2.0 * others / f64::from(ranks),
            Self::AllGather | Self::ReduceScatter | Self::AllToAll | Self::Gather | Self::Scatter => {
                others / f64::from(ranks)
            }
            Self::Broadcast | Self::Reduce => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_flag() {
        for one in Collective::value_variants() {
            assert_eq!(one.to_possible_value().unwrap().get_name(), one.to_string());
            assert_eq!(serde_json::to_value(one).unwrap(), one.to_string());
        }
    }

    #[test]
    fn sizes_are_counted_as_in_nccl_tests() {
        let shape = |one: Collective| {
            let Elements { count, input, output, total } = one.elements(1 << 20, 2, 4).unwrap();
            (count, input, output, total)
        };
        let (whole, part) = (1 << 19, 1 << 17);
        assert_eq!(shape(Collective::AllReduce), (whole, whole, whole, whole));
        assert_eq!(shape(Collective::Broadcast), (whole, whole, whole, whole));
        assert_eq!(shape(Collective::Reduce), (whole, whole, whole, whole));
        assert_eq!(shape(Collective::AllGather), (part, part, whole, whole));
        assert_eq!(shape(Collective::Gather), (part, part, whole, whole));
        assert_eq!(shape(Collective::ReduceScatter), (part, whole, part, whole));
        assert_eq!(shape(Collective::Scatter), (part, whole, part, whole));
        assert_eq!(shape(Collective::AllToAll), (part, whole, whole, whole));
    }

    #[test]
    fn bus_factors_of_four_ranks_and_of_one() {
        for (one, of_four, of_one) in [
            (Collective::AllReduce, 1.5, 0.0),
            (Collective::AllGather, 0.75, 0.0),
            (Collective::ReduceScatter, 0.75, 0.0),
            (Collective::AllToAll, 0.75, 0.0),
            (Collective::Gather, 0.75, 0.0),
            (Collective::Scatter, 0.75, 0.0),
            (Collective::Broadcast, 1.0, 1.0),
            (Collective::Reduce, 1.0, 1.0),
        ] {
            assert!((one.bus_factor(4) - of_four).abs() < 1e-12, "{one}");
            assert!((one.bus_factor(1) - of_one).abs() < 1e-12, "{one}");
        }
    }
}
