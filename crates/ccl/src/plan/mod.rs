//! What is done for a call: the algorithm and the shape of the launch. A function of values that are equal on all members.

pub mod tuning;

use crate::lower::recipes::LaunchSize;
use crate::lower::{Plan, recipes};
use crate::types::{Algorithm, Collective, Error, Result, Shape};
use tuning::{Step, Table};

/// What the plan has to know of the devices: the same on all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Channels of the communicator: the most blocks of a launch.
    pub channels: u32,
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
    /// Those of [`Self::new`]; [`Error::Config`] for blocks that are not within 1 and the channels.
    pub fn chosen(shape: &Shape, limits: &Limits, table: Option<&Table>, choice: Choice) -> Result<Self> {
        let plan = Self::new(shape, limits, table, choice.algorithm)?;
        let blocks = match (choice.blocks, choice.block_bytes) {
            (Some(blocks), _) => blocks,
            (None, Some(bytes)) => blocks_of(shape, limits, plan.algorithm, bytes),
            (None, None) => plan.blocks,
        };
        if !(1..=limits.channels).contains(&blocks) {
            let allowed = "1 to the communicator's channels";
            return Err(Error::Config { field: "blocks", given: blocks.into(), allowed });
        }
        let blocks = if size_of(shape, plan.algorithm) == LaunchSize::Barrier { 1 } else { blocks };
        // The kernels' other forms have no phases.
        let phased = choice.phased.unwrap_or(plan.phased) && plan.algorithm == Algorithm::Push;
        Ok(Self { blocks, phased, ..plan })
    }

    /// The plan of a call across machines, by an algorithm that can do it.
    ///
    /// # Errors
    /// [`Error::Config`] for blocks that are not within 1 and the channels; [`Error::Algorithm`] for one that was asked for.
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
        if !(1..=limits.channels).contains(&blocks) {
            let allowed = "1 to the communicator's channels";
            return Err(Error::Config { field: "blocks", given: blocks.into(), allowed });
        }
        Ok(Self { blocks, ..plan })
    }

    fn with(shape: &Shape, limits: &Limits, algorithm: Algorithm, step: Option<&Step>) -> Self {
        let threads = match size_of(shape, algorithm) {
            LaunchSize::Barrier => limits.meeting_threads,
            LaunchSize::Packets | LaunchSize::SharedPackets => limits.packet_threads,
            LaunchSize::Bulk | LaunchSize::FewBlocks => limits.bulk_threads,
        };
        let block_bytes = step.map_or_else(|| limits.block_bytes(shape, algorithm), |step| step.block_bytes);
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
    pub fn block_bytes(&self, shape: &Shape, algorithm: Algorithm) -> u64 {
        match size_of(shape, algorithm) {
            LaunchSize::Packets | LaunchSize::SharedPackets => u64::from(self.packet_threads) * PAYLOAD,
            LaunchSize::FewBlocks => ENGINE_GRAIN,
            LaunchSize::Bulk | LaunchSize::Barrier => BULK_GRAIN,
        }
    }
}

/// The size of a launch. Kernels that are not in the table of recipes move bytes in bulk.
fn size_of(shape: &Shape, algorithm: Algorithm) -> LaunchSize {
    recipes::find(algorithm, shape).map_or(LaunchSize::Bulk, |recipe| recipe.size)
}

/// Blocks for what a member sends, so many bytes each.
fn blocks_of(shape: &Shape, limits: &Limits, algorithm: Algorithm, block_bytes: u64) -> u32 {
    let bytes = match size_of(shape, algorithm) {
        LaunchSize::Barrier => return 1,
        LaunchSize::Packets => shape.bytes(),
        LaunchSize::SharedPackets => shape.bytes().div_ceil(u64::from(shape.members)),
        LaunchSize::Bulk | LaunchSize::FewBlocks => shape.message_bytes(),
    };
    // Members do not know each other's counts: what does not depend on them decides.
    let bytes = if shape.uneven && shape.collective == Collective::AllToAll { u64::MAX } else { bytes };
    bytes.div_ceil(block_bytes.max(1)).clamp(1, u64::from(limits.channels)) as u32
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
    use crate::types::LocationKind;

    const LIMITS: Limits =
        Limits { channels: 64, packet_threads: 256, bulk_threads: 512, meeting_threads: 32 };

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
    fn expected_algorithm_is_allowed_and_never_the_copy_engine() {
        for collective in Collective::ALL {
            for members in [1, 2, 3, 4, 8] {
                for location in [LocationKind::Local, LocationKind::Symmetric, LocationKind::Registered] {
                    for bytes in (0..32).map(|power| 1_u64 << power) {
                        let expected = expected(collective, members, bytes, location);
                        assert_ne!(expected, Algorithm::CopyEngine);
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
