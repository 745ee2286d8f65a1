//! What is done for a call: the algorithm and the shape of the launch. A function of values that are equal on all members.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::call::{Collective, Shape};
use crate::error::{Error, Result};
use crate::tuning::{Step, Table};

/// How a collective is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Algorithm {
    /// Flags inside the data, one hop: every member sends what it has to whom it concerns. Reductions are done by every member
    /// that gets the result.
    Packets,
    /// Flags inside the data, two hops: member j reduces part j and sends it round. `all_reduce` and `reduce`.
    TwoShotPackets,
    /// Through the peers' staging, a flag behind each step. Moves bytes between buffers that peers do not reach.
    Staged,
    /// Straight into the peers' outputs, between two meetings. Moves bytes.
    Direct,
    /// Each member reads its part from all inputs and writes the result to all outputs, between two meetings.
    Pull,
    /// Each member writes parts to their owners' staging; the owners reduce and hand the results round.
    Push,
    /// Straight into the peers' outputs or through their staging, in two hops: the root sends each member one part, which sends it
    /// to the others. `broadcast`.
    TwoHop,
    /// From each member to the next one only, in group order. For comparison with the others, and never chosen where nothing was
    /// measured: each byte takes as many hops as there are members.
    Ring,
    /// By copies that engines make, one to each member at a time, between two kernels of one block that meet: compute units stay free for
    /// other work, and small messages take longer than by kernels. Reductions go through the owners' staging, and a kernel sums. Never chosen
    /// where nothing was measured.
    CopyEngine,
    /// Through a ring of slots for each pair. All sends and receives, and nothing else: it cannot be asked for.
    Pipes,
    /// Chunks over links to whom they concern, also between machines ([`Across::Direct`](crate::Across::Direct)). Of communicators whose members
    /// are on several machines; configurations ask for it by `ccl.across` and not by this name, a [`Choice`] by either.
    NetworkDirect,
    /// The same, with what concerns several members of a machine going there once, or packed ([`Across::Node`](crate::Across::Node)).
    NetworkByNode,
}

impl Algorithm {
    /// Those that can be asked for.
    pub const ALL: [Self; 9] = [
        Self::Packets,
        Self::TwoShotPackets,
        Self::Staged,
        Self::Direct,
        Self::Pull,
        Self::Push,
        Self::TwoHop,
        Self::Ring,
        Self::CopyEngine,
    ];

    /// Its name in configurations and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Packets => "packets",
            Self::TwoShotPackets => "two-shot-packets",
            Self::Staged => "staged",
            Self::Direct => "direct",
            Self::Pull => "pull",
            Self::Push => "push",
            Self::TwoHop => "two-hop",
            Self::Ring => "ring",
            Self::CopyEngine => "copy-engine",
            Self::Pipes => "pipes",
            Self::NetworkDirect => "network-direct",
            Self::NetworkByNode => "network-by-node",
        }
    }

    /// Whether it can do a call of this shape; why not, otherwise.
    ///
    /// # Errors
    /// The reason, for [`Error::Algorithm`].
    pub fn allows(self, shape: &Shape) -> Result<(), &'static str> {
        let reduces = shape.collective.reduces();
        match self {
            Self::Pipes if shape.collective == Collective::SendReceive => Ok(()),
            Self::Pipes => Err("it is for sends and receives"),
            Self::NetworkDirect | Self::NetworkByNode => {
                Err("it is chosen where members are on several machines; ccl.across says which of the two")
            }
            _ if shape.collective == Collective::SendReceive => Err("sends and receives go through pipes"),
            Self::Packets if shape.uneven && shape.collective == Collective::AllToAll => {
                Err("members do not know how much others exchange")
            }
            Self::TwoShotPackets
                if matches!(shape.collective, Collective::AllReduce | Collective::Reduce) =>
            {
                Ok(())
            }
            Self::TwoShotPackets => Err("it is for all_reduce and reduce"),
            Self::TwoHop if shape.collective == Collective::Broadcast => Ok(()),
            Self::TwoHop => Err("it is for broadcast"),
            Self::Ring if shape.uneven => Err("it is for equal counts"),
            Self::Ring
                if matches!(
                    shape.collective,
                    Collective::AllToAll | Collective::Gather | Collective::Scatter | Collective::Barrier
                ) =>
            {
                Err("it is for all_reduce, reduce_scatter, reduce, all_gather and broadcast")
            }
            Self::Staged | Self::Direct if reduces => Err("it moves bytes and reduces nothing"),
            Self::Pull | Self::Push if !reduces => Err("it is for reductions"),
            Self::CopyEngine if shape.collective == Collective::Reduce => {
                Err("it is for all_reduce, reduce_scatter and what moves bytes")
            }
            Self::CopyEngine if shape.uneven && shape.collective == Collective::AllToAll => {
                Err("members do not know where others want their bytes")
            }
            Self::CopyEngine if shape.collective == Collective::ReduceScatter => Ok(()),
            Self::Direct | Self::CopyEngine if !shape.output.is_reached() => {
                Err("peers have to reach the output: make it symmetric, or register it")
            }
            Self::Pull if !shape.input.is_reached() => {
                Err("peers have to reach the input: make it symmetric, or register it")
            }
            Self::Pull if shape.collective != Collective::ReduceScatter && !shape.output.is_reached() => {
                Err("peers have to reach the output: make it symmetric, or register it")
            }
            Self::Packets
            | Self::Staged
            | Self::Direct
            | Self::Pull
            | Self::Push
            | Self::Ring
            | Self::CopyEngine => Ok(()),
        }
    }

    /// Whether flags are inside the data.
    pub const fn is_packets(self) -> bool {
        matches!(self, Self::Packets | Self::TwoShotPackets)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that names no algorithm.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no algorithm; allowed are {}", Algorithm::ALL.map(Algorithm::name).join(", "))]
pub struct UnknownAlgorithm {
    /// The word given.
    pub given: String,
}

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(text: &str) -> Result<Self, UnknownAlgorithm> {
        let found = Self::ALL.into_iter().find(|algorithm| algorithm.name() == text);
        found.ok_or_else(|| UnknownAlgorithm { given: text.to_owned() })
    }
}

/// What the plan has to know of the devices: the same on all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Lanes of the channel: the most blocks of a launch.
    pub lanes: u32,
    /// Threads of a block that moves packets.
    pub packet_threads: u32,
    /// Threads of a block that moves bytes in bulk.
    pub bulk_threads: u32,
    /// Threads of a block that only meets the other members': as few as there can be, beside other work.
    pub meeting_threads: u32,
}

/// What is chosen for a call beforehand: by who tunes or tests. Equal on all members; `None` leaves it to the plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// The algorithm.
    pub algorithm: Option<Algorithm>,
    /// Blocks of the launch. Where copy engines move bytes and nothing is reduced there is one, whatever is given.
    pub blocks: Option<u32>,
    /// Bytes that are worth a block ([`Step::block_bytes`]), where `blocks` says nothing.
    pub block_bytes: Option<u64>,
    /// [`Plan::phased`]; means nothing for other algorithms than `push`.
    pub phased: Option<bool>,
}

/// What is done for one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Plan {
    /// How.
    pub algorithm: Algorithm,
    /// Blocks of the launch, each a lane.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Whether `push` writes to one peer at a time, all members to different ones, with meetings in between: links are fuller
    /// then, which pays for the meetings when messages are large.
    pub phased: bool,
}

/// Bytes that a packet carries.
const PAYLOAD: u64 = 8;
/// Bytes of a message that are worth a block, in bulk.
const BULK_GRAIN: u64 = 32 << 10;
/// The same where copy engines bring what a kernel sums: whoever asks for them wants the compute units for something else.
const ENGINE_GRAIN: u64 = 1 << 20;
/// Bytes of a message from which phases pay.
const PHASED_FROM: u64 = 48 << 20;

impl Plan {
    /// The plan of a call: the algorithm asked for, or the one that was measured to be fastest, or that is expected to be where there
    /// is no table or nothing in it for the call.
    ///
    /// # Errors
    /// [`Error::Algorithm`] when the algorithm asked for cannot do the call.
    pub fn new(
        shape: &Shape,
        limits: &Limits,
        table: Option<&Table>,
        asked: Option<Algorithm>,
    ) -> Result<Self> {
        // Members do not know how much others exchange: what depends on it cannot choose.
        let known = !(shape.uneven && shape.collective == Collective::AllToAll);
        let step = table.filter(|_| known).and_then(|table| table.step(shape));
        let algorithm = match asked {
            // There is one way.
            _ if shape.collective == Collective::SendReceive => Algorithm::Pipes,
            // There is one way to meet, whatever is asked for.
            _ if shape.collective == Collective::Barrier => Algorithm::Packets,
            Some(algorithm) => algorithm,
            None => step.map_or_else(|| expected_fastest(shape), |step| step.algorithm),
        };
        algorithm.allows(shape).map_err(|reason| Error::Algorithm {
            collective: shape.collective,
            algorithm,
            reason,
        })?;
        Ok(Self::with(shape, limits, algorithm, step.filter(|step| step.algorithm == algorithm)))
    }

    /// The plan of a call with something chosen beforehand.
    ///
    /// # Errors
    /// Those of [`Self::new`]; [`Error::Config`] for blocks that are not within 1 and the lanes.
    pub fn chosen(shape: &Shape, limits: &Limits, table: Option<&Table>, choice: Choice) -> Result<Self> {
        let plan = Self::new(shape, limits, table, choice.algorithm)?;
        let blocks = match (choice.blocks, choice.block_bytes) {
            (Some(blocks), _) => blocks,
            (None, Some(bytes)) => blocks_of(shape, limits, plan.algorithm, bytes),
            (None, None) => plan.blocks,
        };
        if !(1..=limits.lanes).contains(&blocks) {
            let allowed = "1 to the communicator's lanes";
            return Err(Error::Config { field: "blocks", given: blocks.into(), allowed });
        }
        let blocks = if meets_only(shape, plan.algorithm) { 1 } else { blocks };
        // The kernels' other forms have no phases.
        let phased = choice.phased.unwrap_or(plan.phased) && plan.algorithm == Algorithm::Push;
        Ok(Self { blocks, phased, ..plan })
    }

    /// The plan of a call across machines, by an algorithm that can do it.
    ///
    /// # Errors
    /// [`Error::Config`] for blocks that are not within 1 and the lanes; [`Error::Algorithm`] for one that was asked for.
    pub(crate) fn across(
        shape: &Shape,
        limits: &Limits,
        algorithm: Algorithm,
        choice: Choice,
    ) -> Result<Self> {
        let Choice { algorithm: asked, blocks, block_bytes, phased: _ } = choice;
        if let Some(asked) = asked.filter(|_| shape.collective != Collective::Barrier) {
            return Err(Error::Algorithm {
                collective: shape.collective,
                algorithm: asked,
                reason: ONE_MACHINE,
            });
        }
        let plan = Self::with(shape, limits, algorithm, None);
        let worth = |bytes| blocks_of(shape, limits, algorithm, bytes);
        let blocks = blocks.or(block_bytes.map(worth)).unwrap_or(plan.blocks);
        if !(1..=limits.lanes).contains(&blocks) {
            let allowed = "1 to the communicator's lanes";
            return Err(Error::Config { field: "blocks", given: blocks.into(), allowed });
        }
        Ok(Self { blocks, ..plan })
    }

    fn with(shape: &Shape, limits: &Limits, algorithm: Algorithm, step: Option<&Step>) -> Self {
        let threads = match algorithm {
            _ if meets_only(shape, algorithm) => limits.meeting_threads,
            _ if algorithm.is_packets() => limits.packet_threads,
            _ => limits.bulk_threads,
        };
        let block_bytes = step.map_or_else(|| limits.block_bytes(algorithm), |step| step.block_bytes);
        let blocks = blocks_of(shape, limits, algorithm, block_bytes);
        let expected = shape.members > 2 && shape.message_bytes() >= PHASED_FROM;
        let phased = algorithm == Algorithm::Push && step.map_or(expected, |step| step.phased);
        Self { algorithm, blocks, threads, phased }
    }
}

/// Why an algorithm of one machine cannot do a call across several.
const ONE_MACHINE: &str = "members are on several machines, and it stores to all members' memory: a communicator across machines has \
                           network-direct and network-by-node, which ccl.across chooses between; leave ccl.algorithm at auto";

impl Limits {
    /// Bytes that are worth a block where nothing was measured.
    pub const fn block_bytes(&self, algorithm: Algorithm) -> u64 {
        match algorithm {
            _ if algorithm.is_packets() => self.packet_threads as u64 * PAYLOAD,
            Algorithm::CopyEngine => ENGINE_GRAIN,
            _ => BULK_GRAIN,
        }
    }
}

/// Whether kernels do no more than to meet.
const fn meets_only(shape: &Shape, algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::CopyEngine) && !shape.collective.reduces()
}

/// Blocks for what a member sends, so many bytes each.
fn blocks_of(shape: &Shape, limits: &Limits, algorithm: Algorithm, block_bytes: u64) -> u32 {
    if meets_only(shape, algorithm) {
        return 1;
    }
    let bytes = match algorithm {
        Algorithm::Packets => shape.bytes(),
        Algorithm::TwoShotPackets => shape.bytes().div_ceil(u64::from(shape.members)),
        _ => shape.message_bytes(),
    };
    // Members do not know each other's counts: what does not depend on them decides.
    let bytes = if shape.uneven && shape.collective == Collective::AllToAll { u64::MAX } else { bytes };
    bytes.div_ceil(block_bytes.max(1)).clamp(1, u64::from(limits.lanes)) as u32
}

/// The choice by thresholds: what was fastest on two to four GPUs with all links to each other. Values that are equal on all
/// members decide.
fn expected_fastest(shape: &Shape) -> Algorithm {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    let bytes = shape.message_bytes();
    let legal = |algorithm: Algorithm| algorithm.allows(shape).is_ok();
    let straight = if legal(Algorithm::Direct) { Algorithm::Direct } else { Algorithm::Staged };
    match shape.collective {
        Collective::SendReceive => Algorithm::Pipes,
        // Counts that only pairs know cannot choose.
        Collective::AllToAll if shape.uneven => straight,
        // Of two, each sends the other everything either way: a second hop saves nothing.
        Collective::AllReduce | Collective::Reduce if shape.members <= 2 && bytes <= 384 * KIB => {
            Algorithm::Packets
        }
        Collective::AllReduce | Collective::Reduce if bytes <= 128 * KIB => Algorithm::Packets,
        Collective::AllReduce | Collective::Reduce if shape.members > 2 && bytes <= 640 * KIB => {
            Algorithm::TwoShotPackets
        }
        Collective::AllReduce | Collective::Reduce if bytes <= 6 * MIB && legal(Algorithm::Pull) => {
            Algorithm::Pull
        }
        Collective::ReduceScatter if bytes <= MIB => Algorithm::Packets,
        Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter => Algorithm::Push,
        _ if bytes <= 768 * KIB => Algorithm::Packets,
        // Arithmetic, not measured; `anabranch tune` measures. Straight from the root, (n - 1) S bytes leave it; in two hops 2 (n - 1) / n S
        // leave any member, for a meeting more: some microseconds, in which a link moves about a MiB.
        Collective::Broadcast if shape.members > 2 && bytes >= 4 * MIB => Algorithm::TwoHop,
        _ => straight,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LocationKind;

    const LIMITS: Limits = Limits { lanes: 64, packet_threads: 256, bulk_threads: 512, meeting_threads: 32 };

    fn expected(collective: Collective, members: u32, bytes: u64, location: LocationKind) -> Algorithm {
        let parts = match collective {
            Collective::AllReduce | Collective::Broadcast | Collective::Reduce => 1,
            _ => u64::from(members),
        };
        let shape = Shape {
            input: location,
            output: location,
            ..Shape::of_bytes(collective, members, bytes / parts)
        };
        Plan::new(&shape, &LIMITS, None, None).unwrap().algorithm
    }

    #[test]
    fn what_is_expected_to_be_fastest_is_allowed_and_never_the_ring_or_an_engine() {
        for collective in Collective::ALL {
            for members in [1, 2, 3, 4, 8] {
                for location in [LocationKind::Local, LocationKind::Symmetric, LocationKind::Registered] {
                    for bytes in (0..32).map(|power| 1_u64 << power) {
                        let expected = expected(collective, members, bytes, location);
                        assert!(!matches!(expected, Algorithm::Ring | Algorithm::CopyEngine), "{expected}");
                    }
                }
            }
        }
    }

    #[test]
    fn large_broadcasts_take_two_hops_where_that_saves_bytes() {
        let of = |members, bytes| expected(Collective::Broadcast, members, bytes, LocationKind::Symmetric);
        assert_eq!([of(3, 4 << 20), of(8, 1 << 30)], [Algorithm::TwoHop; 2]);
        assert_eq!([of(2, 1 << 30), of(4, (4 << 20) - 1)], [Algorithm::Direct; 2]);
        let local = |members| expected(Collective::Broadcast, members, 4 << 20, LocationKind::Local);
        assert_eq!([local(2), local(4)], [Algorithm::Staged, Algorithm::TwoHop]);
    }
}
