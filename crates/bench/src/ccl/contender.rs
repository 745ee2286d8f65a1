//! One measured operation, and the libraries that implement it.

use anabranch::{Group, GroupRank};
use anabranch_hip::{DeviceAddress, Stream};

use super::collective::{Collective, Elements};
use anabranch_ccl::{DataType, ReduceOp};

/// One operation of one size.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) collective: Collective,
    pub(crate) data_type: DataType,
    /// For collectives that reduce; ignored by others.
    pub(crate) reduce: ReduceOp,
    pub(crate) elements: Elements,
    pub(crate) in_place: bool,
    /// For collectives with a root; ignored by others.
    pub(crate) root: GroupRank,
    /// The members, in group order.
    pub(crate) group: Group,
    /// This rank in the group.
    pub(crate) me: GroupRank,
}

impl Case {
    /// Bytes by nccl-tests' convention.
    pub(crate) fn bytes(&self) -> u64 {
        self.size_of(self.elements.total)
    }

    /// Bytes of so many elements.
    pub(crate) fn size_of(&self, elements: u64) -> u64 {
        elements * u64::from(self.data_type.bytes())
    }

    /// Where input and output start in one area of memory, and how many bytes both take.
    pub(crate) fn places(&self) -> Places {
        let Elements { count, input, output, .. } = self.elements;
        let part = self.size_of(count) * u64::from(self.me.get());
        let (input_offset, output_offset, end) = match (self.collective, self.in_place) {
            (Collective::Broadcast, _) | (Collective::AllReduce | Collective::Reduce, true) => {
                (0, 0, self.size_of(input))
            }
            (Collective::AllGather, true) => (part, 0, self.size_of(output)),
            (Collective::ReduceScatter, true) => (0, part, self.size_of(input)),
            _ => {
                let after_input = self.size_of(input).next_multiple_of(ALIGNMENT);
                (0, after_input, after_input + self.size_of(output))
            }
        };
        Places { input: input_offset, output: output_offset, end }
    }
}

/// Bytes that the output's start is a multiple of, as an allocation of its own would be.
const ALIGNMENT: u64 = 4096;

/// Offsets in bytes from the start of an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    pub(crate) input: u64,
    pub(crate) output: u64,
    /// Bytes of the whole.
    pub(crate) end: u64,
}

/// How a library does a case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Description {
    /// The algorithm's name, if the library reports it.
    pub(crate) algorithm: Option<String>,
    /// Blocks of its kernel, if the library reports them.
    pub(crate) blocks: Option<u32>,
}

/// A library that does collectives, on one rank of a group.
///
/// Everything but [`Self::name`] and [`Self::describe`] is collective over the group: members call with equal cases.
pub(crate) trait Contender {
    /// Its name in results.
    fn name(&self) -> &'static str;

    /// Makes ready for a case: checks it, connects, registers. Communication with other members is allowed here only.
    ///
    /// # Errors
    /// A case that the library does not support; nothing has been launched.
    fn prepare(&mut self, case: &Case) -> anyhow::Result<()>;

    /// Where this library's input and output of the prepared case start, and how many bytes of memory there are.
    fn memory(&self) -> Area;

    /// Puts the prepared operation on the stream. May be captured into a graph.
    ///
    /// # Errors
    /// Errors of the library's call.
    fn enqueue(&mut self, stream: &Stream) -> anyhow::Result<()>;

    /// How it does the prepared case.
    fn describe(&self) -> Description;

    /// Frees its resources. Wait for the stream first.
    ///
    /// # Errors
    /// Errors of the library's calls.
    fn finish(self: Box<Self>) -> anyhow::Result<()>;
}

/// Device memory of one rank that input and output of all cases lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Area {
    pub(crate) start: DeviceAddress,
    pub(crate) bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(collective: Collective, in_place: bool) -> Case {
        Case {
            collective,
            data_type: DataType::Bf16,
            reduce: ReduceOp::Sum,
            elements: collective.elements(1000, 2, 4).unwrap(),
            in_place,
            root: GroupRank::new(0),
            group: Group::world(4).unwrap(),
            me: GroupRank::new(2),
        }
    }

    #[test]
    fn input_and_output_lie_apart_or_in_each_other() {
        let places = |collective, in_place| {
            let Places { input, output, end } = case(collective, in_place).places();
            (input, output, end)
        };
        assert_eq!(places(Collective::AllReduce, false), (0, 4096, 5096));
        assert_eq!(places(Collective::AllReduce, true), (0, 0, 1000));
        assert_eq!(places(Collective::Broadcast, false), (0, 0, 1000));
        // 1000 / 4 = 250 bytes, of which 240 are whole units; rank 2's part starts at 480 of 960.
        assert_eq!(places(Collective::AllGather, false), (0, 4096, 5056));
        assert_eq!(places(Collective::AllGather, true), (480, 0, 960));
        assert_eq!(places(Collective::ReduceScatter, true), (0, 480, 960));
        assert_eq!(places(Collective::ReduceScatter, false), (0, 4096, 4336));
        assert_eq!(places(Collective::AllToAll, false), (0, 4096, 5056));
    }

    #[test]
    fn bytes_are_those_that_are_moved() {
        assert_eq!(case(Collective::AllReduce, false).bytes(), 1000);
        assert_eq!(case(Collective::AllToAll, false).bytes(), 960);
    }
}
