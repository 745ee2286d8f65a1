//! Calls of several tensors with known inputs, judged byte by byte: messages between members, and many tensors gathered in one
//! launch. Their tensors lie in memory of all kinds, each between canaries, and at the same offsets on all members.

mod draw;
mod fill;

use std::fmt;

use anabranch_hip::Stream;
use anabranch_ranks::GroupRank;

use super::Scratch;
use crate::ccl::oracle::Data;
use crate::ccl::oracle::inputs::mixed;
use anabranch_ccl::PointToPoint;
use anabranch_ccl::Result;
use anabranch_ccl::{Call, Collective, Shape};
use anabranch_ccl::{Choice, Communicator, DataType, ReduceOp, Work};
use anabranch_ccl::{LocationKind, Tensor};

pub use fill::FilledList;

/// Bytes before, between and behind tensors that must stay untouched.
const CANARY: u64 = 64;

/// Kinds of memory, each with a buffer of its own.
const LOCATIONS: [LocationKind; 3] = [LocationKind::Local, LocationKind::Symmetric, LocationKind::Registered];

/// Which calls are made of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ListForm {
    /// [`Call::AllGatherMany`] of all.
    GatherMany,
    /// [`Call::Batch`] of all messages.
    Batch,
    /// [`Call::Send`] and [`Call::Receive`] of one message after the other, on all members in the order of the list: so nobody
    /// waits in a circle.
    SendReceive,
}

impl ListForm {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::GatherMany, Self::Batch, Self::SendReceive];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::GatherMany => "all_gather of many",
            Self::Batch => "batch of messages",
            Self::SendReceive => "send and receive",
        }
    }
}

/// One tensor of each member, or a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Type of the elements.
    pub data_type: DataType,
    /// Elements of one input.
    pub count: u64,
    /// Where inputs are, or the sender's tensor.
    pub input: LocationKind,
    /// Where outputs are, or the receiver's tensor.
    pub output: LocationKind,
    /// Elements by which tensors start behind an aligned address.
    pub offset: u64,
    /// Of tensors that are gathered: the input is the member's part of the output.
    pub in_place: bool,
    /// Of messages: who sends, and who receives.
    pub route: (u32, u32),
}

impl Entry {
    fn bytes(&self) -> u64 {
        self.count * u64::from(self.data_type.bytes())
    }
}

/// Calls of several tensors on all members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListCase {
    /// Which calls.
    pub form: ListForm,
    /// Of what.
    pub entries: Vec<Entry>,
    /// Which inputs.
    pub seed: u64,
}

/// Where a member's tensors of an entry start, each in the buffer of its kind of memory.
#[derive(Clone, Copy, Debug)]
struct Slot {
    input: u64,
    output: u64,
}

impl ListCase {
    /// What the choice of an algorithm sees of it in a group of `members`.
    pub fn shape(&self, members: u32) -> Shape {
        if self.form != ListForm::GatherMany {
            let bytes = self.entries.iter().map(Entry::bytes).sum();
            return Shape::of_bytes(Collective::SendReceive, members, bytes);
        }
        let kind = |of: fn(&Entry) -> LocationKind| {
            let unreached = self.entries.iter().map(of).find(|kind| !kind.is_reached());
            unreached.unwrap_or(LocationKind::Symmetric)
        };
        let bytes = self.entries.iter().map(|entry| entry.bytes().next_multiple_of(16)).sum();
        Shape {
            input: kind(|entry| entry.input),
            output: kind(|entry| entry.output),
            ..Shape::of_bytes(Collective::AllGather, members, bytes)
        }
    }

    /// Elements of an entry's output.
    const fn output_count(&self, entry: &Entry, members: u32) -> u64 {
        match self.form {
            ListForm::GatherMany => entry.count * members as u64,
            ListForm::Batch | ListForm::SendReceive => entry.count,
        }
    }

    /// Where everything is at a member, and the bytes of each kind of memory.
    fn layout(&self, members: u32, me: u32) -> (Vec<Slot>, [u64; LOCATIONS.len()]) {
        let mut ends = [0; LOCATIONS.len()];
        let mut place = |location: LocationKind, entry: &Entry, count: u64| {
            let size = u64::from(entry.data_type.bytes());
            let mut start = 0;
            for (end, _) in ends.iter_mut().zip(LOCATIONS).filter(|(_, kind)| *kind == location) {
                start = (*end + CANARY).next_multiple_of(16) + entry.offset * size;
                *end = start + count * size;
            }
            start
        };
        let slot = |entry: &Entry| {
            let output = place(entry.output, entry, self.output_count(entry, members));
            let input = if entry.in_place {
                output + u64::from(me) * entry.bytes()
            } else {
                place(entry.input, entry, entry.count)
            };
            Slot { input, output }
        };
        let slots = self.entries.iter().map(slot).collect();
        (slots, ends.map(|end| end + CANARY))
    }

    /// Bytes of [`Scratch`] that it needs in a group of `members`.
    pub fn scratch_bytes(&self, members: u32) -> u64 {
        self.layout(members, 0).1.into_iter().max().unwrap_or(0)
    }

    /// A member's input for an entry.
    fn input(&self, index: usize, entry: &Entry, members: u32, rank: u32) -> Vec<u8> {
        let seed = mixed(self.seed ^ (index as u64) << 40);
        let data = Data::Exact.of(entry.data_type, ReduceOp::Sum, members, seed);
        data.bytes(GroupRank::new(rank), 0..entry.count)
    }

    /// Makes its calls: prepares and launches them. Kernels of calls that are captured have to be loaded before, by an eager call
    /// of the same form and algorithm. Collective over the communicator's group. The works of this member; of messages it may
    /// have none.
    ///
    /// # Errors
    /// The errors of [`Communicator::prepare_as`] and [`Communicator::launch`].
    pub fn launch(
        &self,
        communicator: &mut Communicator,
        scratch: &Scratch,
        choice: Choice,
        stream: &Stream,
    ) -> Result<Vec<Work>> {
        let (members, me) = (communicator.size(), communicator.rank().get());
        let (slots, _) = self.layout(members, me);
        let input = |entry: &Entry, slot: &Slot| {
            scratch.tensor(entry.input, entry.data_type, slot.input, entry.count)
        };
        let output = |entry: &Entry, slot: &Slot| {
            let count = self.output_count(entry, members);
            scratch.tensor(entry.output, entry.data_type, slot.output, count)
        };
        let mut run = |call: &Call<'_>| {
            let prepared = communicator.prepare_as(call, choice)?;
            communicator.launch(&prepared, stream)
        };
        let entries = || self.entries.iter().zip(&slots);
        if self.form == ListForm::GatherMany {
            let pairs: Result<Vec<(Tensor<'_>, Tensor<'_>)>> =
                entries().map(|(entry, slot)| Ok((output(entry, slot)?, input(entry, slot)?))).collect();
            return Ok(vec![run(&Call::AllGatherMany(&pairs?))?]);
        }
        let mut messages = Vec::new();
        for (entry, slot) in entries() {
            let (from, to) = entry.route;
            if from == me {
                messages.push(PointToPoint::send(input(entry, slot)?, GroupRank::new(to)));
            }
            if to == me {
                messages.push(PointToPoint::receive(output(entry, slot)?, GroupRank::new(from)));
            }
        }
        if self.form == ListForm::Batch {
            // In whatever order they are listed: here in another one on every other member.
            if me % 2 == 1 {
                messages.sort_by_key(|message| !message.is_receive());
            }
            return Ok(vec![run(&Call::Batch(&messages))?]);
        }
        let one = |message: &PointToPoint<'_>| match *message {
            PointToPoint::Send { tensor, to } => run(&Call::Send { tensor, to }),
            PointToPoint::Receive { tensor, from } => run(&Call::Receive { tensor, from }),
        };
        messages.iter().map(one).collect()
    }
}

impl fmt::Display for ListCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} tensors, inputs {}: [", self.form.name(), self.entries.len(), self.seed)?;
        for (index, entry) in self.entries.iter().enumerate() {
            let Entry { data_type, count, input, output, offset, in_place, route: (from, to) } = entry;
            write!(f, "{}{count} {data_type}", if index == 0 { "" } else { ", " })?;
            if self.form != ListForm::GatherMany {
                write!(f, " from {from} to {to}")?;
            }
            write!(f, " ({input:?} to {output:?}, offset {offset}")?;
            write!(f, "{})", if *in_place { ", in place" } else { "" })?;
        }
        f.write_str("]")
    }
}
