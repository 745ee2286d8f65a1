//! Chooses the [`Plan`] of a call. A function of values that are equal on all members.

pub mod tuning;

use crate::plan::{Choice, Limits, Plan};
use crate::recipes;
use crate::recipes::{LaunchSize, Recipe};
use crate::types::{Algorithm, Collective, Error, Result, Shape};
use tuning::{Step, Table};

/// Payload bytes of a packet.
const PAYLOAD: u64 = 8;
/// Bytes of a message per block, for bulk kernels.
const BULK_GRAIN: u64 = 32 << 10;
/// Bytes of a message per block where copy engines move the contributions and a kernel reduces. Large, because copy engines are chosen to
/// leave the compute units to other work.
const ENGINE_GRAIN: u64 = 1 << 20;
/// The longest message whose sum and norm one kernel does, unless an algorithm is requested.
const ROWS_UP_TO: u64 = 1 << 20;
/// The most payload that a member sends in one hop there, with more than two members.
const ONE_HOP_UP_TO: u64 = 256 << 10;
/// Bytes of a message from which `push` with phases is faster.
const PHASED_FROM: u64 = 48 << 20;

impl Plan {
    /// The plan of a call. The algorithm is the requested one, or that of a sum and norm in one kernel, or the fastest in `table`, or the expected fastest if `table` has no entry
    /// for the call.
    ///
    /// # Errors
    /// [`Error::Algorithm`] if the requested algorithm cannot run the call.
    pub fn new(
        shape: &Shape,
        limits: &Limits,
        table: Option<&Table>,
        asked: Option<Algorithm>,
    ) -> Result<Self> {
        // Members do not know the counts of other pairs, so the choice cannot depend on them.
        let known = !(shape.uneven && shape.collective == Collective::AllToAll);
        let step = table.filter(|_| known).and_then(|table| table.step(shape));
        let algorithm = match asked {
            // No other algorithm sends and receives.
            _ if shape.collective == Collective::SendReceive => Algorithm::Pipes,
            // A barrier has one algorithm, whatever is requested.
            _ if shape.collective == Collective::Barrier => Algorithm::Packets,
            Some(algorithm) => algorithm,
            None => limits
                .fastest_of_rows(shape)
                .unwrap_or_else(|| step.map_or_else(|| expected_fastest(shape), |step| step.algorithm)),
        };
        let refuse = |reason| Error::Algorithm { collective: shape.collective, algorithm, reason };
        let recipe = recipes::find(algorithm, shape).map_err(refuse)?;
        Ok(Self::with(shape, limits, recipe, step.filter(|step| step.algorithm == algorithm)))
    }

    /// The plan of a call with parts fixed by `choice`.
    ///
    /// # Errors
    /// As [`Self::new`]; [`Error::Config`] for blocks outside 1 to the number of channels.
    pub fn chosen(shape: &Shape, limits: &Limits, table: Option<&Table>, choice: Choice) -> Result<Self> {
        let plan = Self::new(shape, limits, table, choice.algorithm)?;
        let blocks = plan.chosen_blocks(shape, limits, choice)?;
        let blocks = if plan.recipe.size == LaunchSize::Barrier { 1 } else { blocks };
        let blocks = if plan.norms { blocks.min(limits.row_channels) } else { blocks };
        let phased = choice.phased.unwrap_or(plan.phased) && plan.recipe.has_phases();
        Ok(Self { blocks, phased, ..plan })
    }

    /// The plan of an internode call, by an algorithm that can run it.
    ///
    /// # Errors
    /// [`Error::Config`] for blocks outside 1 to the number of channels; [`Error::Algorithm`] if an intranode algorithm is requested.
    #[cfg(feature = "rdma")]
    pub(crate) fn internode(
        shape: &Shape,
        limits: &Limits,
        algorithm: Algorithm,
        choice: Choice,
    ) -> Result<Self> {
        if let Some(asked) = choice.algorithm.filter(|_| shape.collective != Collective::Barrier) {
            return Err(Error::Algorithm {
                collective: shape.collective,
                algorithm: asked,
                reason: ONE_NODE,
            });
        }
        let plan = Self::with(shape, limits, recipes::first_row(algorithm), None);
        Ok(Self { blocks: plan.chosen_blocks(shape, limits, choice)?, ..plan })
    }

    /// The blocks that `choice` fixes, or those of the plan.
    fn chosen_blocks(&self, shape: &Shape, limits: &Limits, choice: Choice) -> Result<u32> {
        let worth = |bytes| blocks_of(shape, limits, self.recipe.size, bytes);
        let blocks = choice.blocks.or(choice.block_bytes.map(worth)).unwrap_or(self.blocks);
        if (1..=limits.channels).contains(&blocks) {
            return Ok(blocks);
        }
        let allowed = "1 to the communicator's channels";
        Err(Error::Config { field: "blocks", given: blocks.into(), allowed })
    }

    fn with(shape: &Shape, limits: &Limits, recipe: &'static Recipe, step: Option<&Step>) -> Self {
        let threads = match recipe.size {
            LaunchSize::Barrier => limits.barrier_threads,
            LaunchSize::Packets | LaunchSize::SharedPackets | LaunchSize::Bulk | LaunchSize::FewBlocks => {
                limits.block_threads
            }
        };
        let block_bytes = step.map_or_else(|| limits.bytes_of(recipe.size), |step| step.block_bytes);
        let blocks = blocks_of(shape, limits, recipe.size, block_bytes);
        let expected = shape.members > 2 && shape.message_bytes() >= PHASED_FROM;
        let phased = recipe.has_phases() && step.map_or(expected, |step| step.phased);
        let rows = limits.rows(shape).filter(|_| recipe.normed.is_some());
        let blocks = rows.map_or(blocks, |rows| rows.clamp(1, limits.row_channels.into()) as u32);
        let threads = if rows.is_some() { limits.row_threads } else { threads };
        Self { algorithm: recipe.algorithm, blocks, threads, phased, norms: rows.is_some(), recipe }
    }
}

/// Why an intranode algorithm cannot run an internode call.
#[cfg(feature = "rdma")]
const ONE_NODE: &str = "members are on several nodes, and it needs the memory of all members mapped: set ccl.algorithm to auto; ccl.across \
                        selects network-direct or network-by-node";

impl Limits {
    /// Bytes per block of a call by this algorithm where no measurement exists.
    ///
    /// # Errors
    /// The reason why it cannot run the call, as of [`Algorithm::allows`].
    pub fn block_bytes(&self, shape: &Shape, algorithm: Algorithm) -> Result<u64, &'static str> {
        recipes::find(algorithm, shape).map(|recipe| self.bytes_of(recipe.size))
    }

    /// The rows of a call whose sum and norm one kernel can do.
    fn rows(&self, shape: &Shape) -> Option<u64> {
        let row = shape.norm_row.filter(|row| *row > 0 && self.row_channels > 0)?;
        (row * u64::from(shape.data_type.bytes()) <= self.row_bytes).then(|| shape.count / row)
    }

    /// The algorithm of a sum and norm in one kernel, where that is expected to be faster than a kernel for each. Arithmetic: half of a
    /// packet is payload, a second kernel takes some microseconds, and a second hop one, in which a link moves about 256 KiB in packets.
    fn fastest_of_rows(&self, shape: &Shape) -> Option<Algorithm> {
        self.rows(shape)?;
        let (bytes, peers) = (shape.bytes(), u64::from(shape.members) - 1);
        match bytes {
            _ if bytes > ROWS_UP_TO => None,
            _ if peers <= 1 || bytes * peers <= ONE_HOP_UP_TO => Some(Algorithm::Packets),
            _ => Some(Algorithm::TwoShotPackets),
        }
    }

    fn bytes_of(&self, size: LaunchSize) -> u64 {
        match size {
            LaunchSize::Packets | LaunchSize::SharedPackets => u64::from(self.block_threads) * PAYLOAD,
            LaunchSize::FewBlocks => ENGINE_GRAIN,
            LaunchSize::Bulk | LaunchSize::Barrier => BULK_GRAIN,
        }
    }
}

/// The number of blocks if each block gets `block_bytes` bytes of what a member sends.
fn blocks_of(shape: &Shape, limits: &Limits, size: LaunchSize, block_bytes: u64) -> u32 {
    let bytes = match size {
        LaunchSize::Barrier => return 1,
        LaunchSize::Packets => shape.bytes(),
        LaunchSize::SharedPackets => shape.bytes().div_ceil(u64::from(shape.members)),
        LaunchSize::Bulk | LaunchSize::FewBlocks => shape.message_bytes(),
    };
    // Members do not know the counts of other pairs: use all channels.
    let bytes = if shape.uneven && shape.collective == Collective::AllToAll { u64::MAX } else { bytes };
    bytes.div_ceil(block_bytes.max(1)).clamp(1, u64::from(limits.channels)) as u32
}

/// The choice by thresholds: the fastest algorithms measured on two to four fully connected GPUs. Depends only on values that are equal on
/// all members.
fn expected_fastest(shape: &Shape) -> Algorithm {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    let bytes = shape.message_bytes();
    let legal = |algorithm: Algorithm| algorithm.allows(shape).is_ok();
    let straight = || if legal(Algorithm::Direct) { Algorithm::Direct } else { Algorithm::Staged };
    match shape.collective {
        Collective::SendReceive => Algorithm::Pipes,
        // Counts that only pairs know cannot influence the choice.
        Collective::AllToAll if shape.uneven => straight(),
        // With two members, two hops send as many bytes as one.
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
        // Arithmetic, not measured; `anabranch tune` measures. In one hop (n - 1) S bytes leave the root. In two hops S bytes leave it, and
        // less than S each other member, at the cost of a barrier for each step: some microseconds, in which a link moves about 1 MiB.
        Collective::Broadcast if shape.members > 2 && bytes >= 4 * MIB => Algorithm::TwoHop,
        _ => straight(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::LocationKind;

    const LIMITS: Limits = Limits {
        channels: 64,
        block_threads: 256,
        barrier_threads: 32,
        row_channels: 32,
        row_threads: 256,
        row_bytes: 40 << 10,
    };

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
    fn large_broadcasts_between_three_or_more_take_two_hops() {
        let of = |members, bytes| expected(Collective::Broadcast, members, bytes, LocationKind::Symmetric);
        assert_eq!([of(3, 4 << 20), of(8, 1 << 30)], [Algorithm::TwoHop; 2]);
        assert_eq!([of(2, 1 << 30), of(4, (4 << 20) - 1)], [Algorithm::Direct; 2]);
        let local = |members| expected(Collective::Broadcast, members, 4 << 20, LocationKind::Local);
        assert_eq!([local(2), local(4)], [Algorithm::Staged, Algorithm::TwoHop]);
    }
}
