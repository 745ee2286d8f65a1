//! What every rank puts in and must get out.
//!
//! Inputs repeat with a period that is a prime number of elements, so that a part which lands in a wrong place shows, and a
//! gigabyte is judged at the price of reading it: the oracle reduces one period.

use anabranch_conformance::ccl::oracle::{self, Data};

use super::collective::Collective;
use super::contender::Case;
use anabranch_ccl::ReduceOp;

/// Elements after which inputs repeat.
const PERIOD: u64 = 262_147;

const SEED: u64 = 0x00c0_ffee;

/// A stretch of a repeating sequence of elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sequence<'a> {
    /// One period.
    pattern: &'a [u8],
    /// The first element's number, from the start of a period on.
    first: u64,
    pub(crate) count: u64,
}

impl Sequence<'_> {
    /// `count` elements of `element` bytes from its element `start` on.
    pub(crate) fn bytes(&self, start: u64, count: u64, element: u64) -> Vec<u8> {
        let period = self.pattern.len();
        let mut position = ((self.first + start) * element) as usize % period;
        let mut left = (count * element) as usize;
        let mut bytes = Vec::with_capacity(left);
        while left > 0 {
            let piece = left.min(period - position);
            bytes.extend_from_slice(&self.pattern[position..position + piece]);
            left -= piece;
            position = 0;
        }
        bytes
    }
}

/// Inputs and outputs of a case.
#[derive(Clone, Debug)]
pub(crate) struct Reference {
    case: Case,
    /// One period of each member's input.
    inputs: Vec<Vec<u8>>,
    /// One period of what they reduce to, for collectives that reduce.
    reduced: Vec<u8>,
}

impl Reference {
    /// Makes one period of every member's input, and reduces it.
    ///
    /// # Errors
    /// An operator that means nothing for the type.
    pub(crate) fn new(case: &Case) -> anyhow::Result<Self> {
        Self::with_period(case, PERIOD)
    }

    fn with_period(case: &Case, period: u64) -> anyhow::Result<Self> {
        let period = period.min(case.elements.input.max(1));
        let ranks = case.group.size();
        let op = if case.collective.reduces() { case.reduce } else { ReduceOp::Sum };
        let data = Data::Exact.of(case.data_type, op, ranks, SEED);
        let inputs: Vec<_> = case.group.ranks().map(|rank| data.bytes(rank, 0..period)).collect();
        let reduced = if case.collective.reduces() {
            oracle::reduce(case.data_type, case.reduce, &inputs)?
        } else {
            Vec::new()
        };
        Ok(Self { case: case.clone(), inputs, reduced })
    }

    /// Whether every library that is right gives these bits: sums of these inputs are exact in any order, and so are their
    /// products. An average of floats is rounded after a division by the number of members, or before it, unless that is a power of
    /// two; a scalar of floats may be multiplied in either order.
    pub(crate) fn is_exact(&self) -> bool {
        match self.case.reduce {
            _ if !self.case.collective.reduces() => true,
            ReduceOp::Avg if self.case.data_type.is_float() => self.case.group.size().is_power_of_two(),
            ReduceOp::PreMulSum(_) | ReduceOp::PreMulSumAt(_) => !self.case.data_type.is_float(),
            _ => true,
        }
    }

    fn is_root(&self) -> bool {
        self.case.me == self.case.root
    }

    /// This rank's input; `None` where the collective does not read it.
    pub(crate) fn input(&self) -> Option<Sequence<'_>> {
        let from_root_only = matches!(self.case.collective, Collective::Broadcast | Collective::Scatter);
        (!from_root_only || self.is_root()).then(|| Sequence {
            pattern: &self.inputs[self.case.me.index()],
            first: 0,
            count: self.case.elements.input,
        })
    }

    /// What this rank must get out, in pieces that follow each other; `None` where nothing is promised.
    pub(crate) fn output(&self) -> Option<Vec<Sequence<'_>>> {
        let count = self.case.elements.count;
        let my_part = u64::from(self.case.me.get()) * count;
        let reduced = |first| vec![Sequence { pattern: &self.reduced, first, count }];
        let of_each = |first| self.inputs.iter().map(|pattern| Sequence { pattern, first, count }).collect();
        let of_root = |first| vec![Sequence { pattern: &self.inputs[self.case.root.index()], first, count }];
        match self.case.collective {
            Collective::AllReduce => Some(reduced(0)),
            Collective::Reduce => self.is_root().then(|| reduced(0)),
            Collective::ReduceScatter => Some(reduced(my_part)),
            Collective::AllGather => Some(of_each(0)),
            Collective::Gather => self.is_root().then(|| of_each(0)),
            Collective::AllToAll => Some(of_each(my_part)),
            Collective::Broadcast => Some(of_root(0)),
            Collective::Scatter => Some(of_root(my_part)),
        }
    }

    /// Compares bytes of the output that start `offset` bytes after its start.
    ///
    /// # Errors
    /// The first difference.
    pub(crate) fn compare(&self, offset: u64, expected: &[u8], found: &[u8]) -> Result<(), Difference> {
        let op = self.case.collective.reduces().then_some(self.case.reduce);
        let different = |source| Difference { offset, source };
        oracle::equal(self.case.data_type, op, expected, found).map_err(different)
    }
}

/// Where an output differs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("from byte {offset} of the output on, {source}")]
pub(crate) struct Difference {
    offset: u64,
    source: oracle::Difference,
}

#[cfg(test)]
mod tests {
    use anabranch::{Group, GroupRank};
    use clap::ValueEnum as _;

    use super::*;
    use anabranch_ccl::DataType;

    const RANKS: u32 = 3;
    const ROOT: GroupRank = GroupRank::new(1);

    fn cases(collective: Collective) -> Vec<Case> {
        let members = (0..RANKS).map(GroupRank::new);
        let case = |me| Case {
            collective,
            data_type: DataType::Bf16,
            reduce: ReduceOp::Sum,
            elements: collective.elements(960, 2, RANKS).unwrap(),
            in_place: false,
            root: ROOT,
            group: Group::world(RANKS).unwrap(),
            me,
        };
        members.map(case).collect()
    }

    fn bytes(sequences: &[Sequence<'_>]) -> Vec<u8> {
        sequences.iter().flat_map(|sequence| sequence.bytes(0, sequence.count, 2)).collect()
    }

    /// The output of every rank by the oracle.
    fn judged(collective: Collective, inputs: &[Vec<u8>]) -> oracle::Expected {
        let (data_type, op) = (DataType::Bf16, ReduceOp::Sum);
        match collective {
            Collective::AllReduce => oracle::all_reduce(data_type, op, inputs),
            Collective::AllGather => oracle::all_gather(data_type, inputs),
            Collective::ReduceScatter => oracle::reduce_scatter(data_type, op, inputs),
            Collective::AllToAll => oracle::all_to_all(data_type, inputs),
            Collective::Broadcast => oracle::broadcast(data_type, inputs, ROOT),
            Collective::Reduce => oracle::reduce_to_root(data_type, op, inputs, ROOT),
            Collective::Gather => oracle::gather(data_type, inputs, ROOT),
            Collective::Scatter => oracle::scatter(data_type, &inputs[ROOT.index()], inputs.len(), ROOT),
        }
        .unwrap()
    }

    #[test]
    fn outputs_match_the_oracle_for_every_collective() {
        for collective in Collective::value_variants() {
            for period in [7, 131, u64::MAX] {
                let references: Vec<_> = cases(*collective)
                    .iter()
                    .map(|case| Reference::with_period(case, period).unwrap())
                    .collect();
                let whole = |reference: &Reference| {
                    let pattern = &reference.inputs[reference.case.me.index()];
                    Sequence { pattern, first: 0, count: reference.case.elements.input }.bytes(
                        0,
                        reference.case.elements.input,
                        2,
                    )
                };
                let inputs: Vec<_> = references.iter().map(whole).collect();
                let expected = judged(*collective, &inputs);
                for reference in &references {
                    let rank = reference.case.me;
                    let output = reference.output().map(|output| bytes(&output));
                    assert_eq!(output.as_deref(), expected.output(rank), "{collective} {rank}");
                    if let Some(input) = reference.input() {
                        assert_eq!(bytes(&[input]), inputs[rank.index()], "{collective} {rank}");
                    }
                }
            }
        }
    }

    #[test]
    fn wrong_output_is_named() {
        let case = &cases(Collective::AllGather)[0];
        let reference = Reference::new(case).unwrap();
        let right = bytes(&reference.output().unwrap());
        assert!(reference.compare(0, &right, &right).is_ok());
        let mut swapped = right.clone();
        let part = right.len() / 3;
        swapped[..part].copy_from_slice(&right[part..2 * part]);
        let difference = reference.compare(16, &right, &swapped).unwrap_err().to_string();
        assert!(difference.starts_with("from byte 16 of the output on, element"), "{difference}");
        let mut late = right.clone();
        late[right.len() - 1] ^= 0x40;
        assert!(reference.compare(0, &right, &late).is_err());
    }

    #[test]
    fn pieces_of_a_sequence_fit_together() {
        let pattern: Vec<u8> = (0..10).collect();
        let sequence = Sequence { pattern: &pattern, first: 3, count: 12 };
        let whole = sequence.bytes(0, 12, 2);
        assert_eq!(whole[..6], [6, 7, 8, 9, 0, 1]);
        let pieces = [sequence.bytes(0, 5, 2), sequence.bytes(5, 7, 2)].concat();
        assert_eq!(pieces, whole);
    }
}
