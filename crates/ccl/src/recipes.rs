//! The table of algorithms: the collectives that each can run, its requirements, its kernels and its launch size. To add an algorithm, add
//! its name to [`Algorithm`], its rows here and a kernel, and a lowering function if no variant of [`Kernels`] fits.

use std::hash::{Hash, Hasher};

use anabranch_hip_jit::Kernel;

use crate::device::args::{EngineReduceArgs, GatherManyArgs, MoveArgs, ReduceArgs};
use crate::device::kernels;
use crate::device::norm::ReduceNormArgs;
use crate::device::uneven::{UnevenArgs, UnevenReduceArgs};
use crate::types::{Algorithm, Collective, Shape};

/// A requirement. The error is the reason why a call does not meet it.
type Need = fn(&Shape) -> Result<(), &'static str>;

/// How one algorithm runs some collectives. A row of [`RECIPES`], compared by its place there.
#[derive(Debug)]
pub(crate) struct Recipe {
    pub(crate) algorithm: Algorithm,
    pub(crate) collectives: &'static [Collective],
    /// The reason in errors for collectives that no row of the algorithm names.
    pub(crate) is_for: &'static str,
    /// A further requirement on calls of these collectives.
    needs: Option<Need>,
    pub(crate) size: LaunchSize,
    pub(crate) kernels: Kernels,
    /// The kernel that also norms rows.
    pub(crate) normed: Option<Kernel<ReduceNormArgs>>,
    staging: Staging,
    /// Whether peers read inputs.
    reads_inputs: bool,
    /// Whether peers write outputs, if the outputs are mapped.
    writes_outputs: bool,
}

/// The kernels of a row, by type of their arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kernels {
    Moves {
        even: Kernel<MoveArgs>,
        /// For different counts.
        uneven: Option<Kernel<UnevenArgs>>,
        /// For several tensors at once.
        many: Option<Kernel<GatherManyArgs>>,
    },
    /// For a broadcast: the root sends each other member one part, and each of them sends its part to the others.
    TwoHops(Kernel<MoveArgs>),
    /// For a reduction to a root: the kernel in which the root has a part, and the one in phases.
    ToRoot(Kernel<ReduceArgs>, Kernel<ReduceArgs>),
    Reduces(Kernel<ReduceArgs>),
    /// For a reduce_scatter: the kernels for equal and for different counts.
    Scatters(Kernel<ReduceArgs>, Kernel<UnevenReduceArgs>),
    /// Copy engines move the bytes; nothing is reduced.
    Copies,
    /// Copy engines move the bytes, and this kernel reduces.
    CopiesAndSums(Kernel<EngineReduceArgs>),
    /// Those of sends and receives, which `lower::messages` lowers.
    Pipes,
    /// Those of internode calls, which `network` lowers.
    Internode,
}

/// Whether each step of a channel passes its staging, whose size then limits the bytes of the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Staging {
    /// No: a constant limits the bytes.
    Bypassed,
    /// Yes.
    Passed,
    /// Yes, and there is a variant in phases ([`Plan::phased`](crate::plan::Plan::phased)).
    Phased,
}

/// Threads per block of a launch, and the bytes from which its number of blocks follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaunchSize {
    /// Blocks follow from the bytes that a member sends to one peer.
    Packets,
    /// Blocks follow from the share of one member of these bytes.
    SharedPackets,
    /// Blocks follow from the bytes of the message.
    Bulk,
    /// Few blocks: copy engines are chosen to leave the compute units to other work.
    FewBlocks,
    /// One block of one wave.
    Barrier,
}

const MOVES: &[Collective] = &[
    Collective::AllGather,
    Collective::AllToAll,
    Collective::Broadcast,
    Collective::Gather,
    Collective::Scatter,
];
const REDUCES: &[Collective] = &[Collective::AllReduce, Collective::Reduce];

const ONLY_MOVES: &str = "it moves bytes and reduces nothing";
const ONLY_REDUCES: &str = "it is for reductions";
const OF_ENGINES: &str = "it is for all_reduce, reduce_scatter and collectives that only move bytes";

/// The fields that most rows share.
const PACKETS: Recipe = Recipe {
    algorithm: Algorithm::Packets,
    collectives: MOVES,
    is_for: "it is for collectives",
    needs: None,
    size: LaunchSize::Packets,
    kernels: Kernels::Moves {
        even: kernels::MOVE_PACKETS,
        uneven: Some(kernels::UNEVEN_PACKETS),
        many: Some(kernels::GATHER_MANY_PACKETS),
    },
    normed: None,
    staging: Staging::Bypassed,
    reads_inputs: false,
    writes_outputs: false,
};

/// A row for groups on several nodes. No collective, because a call between members whose memory is mapped cannot use it.
const INTERNODE: Recipe = Recipe {
    algorithm: Algorithm::NetworkDirect,
    collectives: &[],
    is_for: "it is for groups on several nodes; ccl.across selects network-direct or network-by-node",
    size: LaunchSize::Bulk,
    kernels: Kernels::Internode,
    ..PACKETS
};

pub(crate) static RECIPES: &[Recipe] = &[
    Recipe {
        needs: Some(|shape| known_counts(shape, "members do not know how much others exchange")),
        ..PACKETS
    },
    Recipe {
        collectives: &[Collective::Barrier],
        kernels: Kernels::Moves { even: kernels::BARRIER, uneven: None, many: None },
        ..PACKETS
    },
    Recipe {
        collectives: REDUCES,
        kernels: Kernels::Reduces(kernels::ONE_SHOT),
        normed: Some(kernels::ONE_SHOT_NORM),
        ..PACKETS
    },
    Recipe {
        collectives: &[Collective::ReduceScatter],
        kernels: Kernels::Scatters(kernels::SCATTER_PACKETS, kernels::UNEVEN_SCATTER_PACKETS),
        ..PACKETS
    },
    Recipe {
        algorithm: Algorithm::TwoShotPackets,
        collectives: REDUCES,
        is_for: "it is for all_reduce and reduce",
        size: LaunchSize::SharedPackets,
        kernels: Kernels::Reduces(kernels::TWO_SHOT),
        normed: Some(kernels::TWO_SHOT_NORM),
        ..PACKETS
    },
    Recipe {
        algorithm: Algorithm::Staged,
        is_for: ONLY_MOVES,
        size: LaunchSize::Bulk,
        kernels: Kernels::Moves {
            even: kernels::MOVE_STAGED,
            uneven: Some(kernels::UNEVEN_STAGED),
            many: Some(kernels::GATHER_MANY_STAGED),
        },
        staging: Staging::Passed,
        ..PACKETS
    },
    Recipe {
        algorithm: Algorithm::Direct,
        is_for: ONLY_MOVES,
        needs: Some(output_is_reached),
        size: LaunchSize::Bulk,
        kernels: Kernels::Moves {
            even: kernels::MOVE_DIRECT,
            uneven: Some(kernels::UNEVEN_DIRECT),
            many: Some(kernels::GATHER_MANY_DIRECT),
        },
        writes_outputs: true,
        ..PACKETS
    },
    Recipe {
        algorithm: Algorithm::Pull,
        collectives: REDUCES,
        is_for: ONLY_REDUCES,
        needs: Some(|shape| input_is_reached(shape).and_then(|()| output_is_reached(shape))),
        size: LaunchSize::Bulk,
        kernels: Kernels::Reduces(kernels::PULL),
        reads_inputs: true,
        writes_outputs: true,
        ..PACKETS
    },
    Recipe {
        algorithm: Algorithm::Pull,
        collectives: &[Collective::ReduceScatter],
        is_for: ONLY_REDUCES,
        needs: Some(input_is_reached),
        size: LaunchSize::Bulk,
        // A member reads its own part alone, by which `own_start` names it: one kernel for all counts.
        kernels: Kernels::Reduces(kernels::PULL),
        reads_inputs: true,
        ..PACKETS
    },
    Recipe {
        algorithm: Algorithm::Push,
        collectives: &[Collective::AllReduce],
        is_for: ONLY_REDUCES,
        size: LaunchSize::Bulk,
        kernels: Kernels::Reduces(kernels::PUSH),
        staging: Staging::Phased,
        writes_outputs: true,
        ..PACKETS
    },
    Recipe {
        algorithm: Algorithm::Push,
        collectives: &[Collective::Reduce],
        is_for: ONLY_REDUCES,
        size: LaunchSize::Bulk,
        kernels: Kernels::ToRoot(kernels::PUSH, kernels::PUSH_TO_ROOT),
        staging: Staging::Phased,
        writes_outputs: true,
        ..PACKETS
    },
    Recipe {
        algorithm: Algorithm::Push,
        collectives: &[Collective::ReduceScatter],
        is_for: ONLY_REDUCES,
        size: LaunchSize::Bulk,
        kernels: Kernels::Scatters(kernels::PUSH, kernels::UNEVEN_PUSH),
        staging: Staging::Phased,
        ..PACKETS
    },
    Recipe {
        algorithm: Algorithm::TwoHop,
        collectives: &[Collective::Broadcast],
        is_for: "it is for broadcast",
        size: LaunchSize::Bulk,
        kernels: Kernels::TwoHops(kernels::TWO_HOP),
        writes_outputs: true,
        ..PACKETS
    },
    Recipe {
        algorithm: Algorithm::CopyEngine,
        is_for: OF_ENGINES,
        needs: Some(|shape| {
            known_counts(shape, "members do not know the offsets in the outputs of their peers")?;
            output_is_reached(shape)
        }),
        size: LaunchSize::Barrier,
        kernels: Kernels::Copies,
        writes_outputs: true,
        ..PACKETS
    },
    Recipe {
        algorithm: Algorithm::CopyEngine,
        collectives: &[Collective::AllReduce],
        is_for: OF_ENGINES,
        needs: Some(output_is_reached),
        size: LaunchSize::FewBlocks,
        kernels: Kernels::CopiesAndSums(kernels::ENGINE_REDUCE),
        writes_outputs: true,
        ..PACKETS
    },
    Recipe {
        algorithm: Algorithm::CopyEngine,
        collectives: &[Collective::ReduceScatter],
        is_for: OF_ENGINES,
        size: LaunchSize::FewBlocks,
        kernels: Kernels::CopiesAndSums(kernels::ENGINE_REDUCE),
        ..PACKETS
    },
    Recipe {
        algorithm: Algorithm::Pipes,
        collectives: &[Collective::SendReceive],
        is_for: "it is for sends and receives",
        size: LaunchSize::Bulk,
        kernels: Kernels::Pipes,
        ..PACKETS
    },
    INTERNODE,
    Recipe { algorithm: Algorithm::NetworkByNode, ..INTERNODE },
];

fn known_counts(shape: &Shape, reason: &'static str) -> Result<(), &'static str> {
    if shape.uneven && shape.collective == Collective::AllToAll { Err(reason) } else { Ok(()) }
}

fn input_is_reached(shape: &Shape) -> Result<(), &'static str> {
    if shape.input.is_reached() {
        return Ok(());
    }
    Err("peers have to reach the input: make it symmetric, or register it")
}

fn output_is_reached(shape: &Shape) -> Result<(), &'static str> {
    if shape.output.is_reached() {
        return Ok(());
    }
    Err("peers have to reach the output: make it symmetric, or register it")
}

fn rows(algorithm: Algorithm) -> impl Iterator<Item = &'static Recipe> {
    RECIPES.iter().filter(move |row| row.algorithm == algorithm)
}

/// The first row of an algorithm; an internode algorithm has no other.
pub(crate) fn first_row(algorithm: Algorithm) -> &'static Recipe {
    #[expect(clippy::expect_used, reason = "a test looks every algorithm up")]
    rows(algorithm).next().expect("an algorithm has a row in the table of recipes")
}

/// The row by which an algorithm runs a call of this shape between members whose memory is mapped.
///
/// # Errors
/// The reason why it cannot.
pub(crate) fn find(algorithm: Algorithm, shape: &Shape) -> Result<&'static Recipe, &'static str> {
    match rows(algorithm).find(|row| row.collectives.contains(&shape.collective)) {
        Some(row) => row.needs.map_or(Ok(row), |needs| needs(shape).map(|()| row)),
        None if shape.collective == Collective::SendReceive => Err("sends and receives go through pipes"),
        None => Err(first_row(algorithm).is_for),
    }
}

impl Recipe {
    /// Whether the staging of a channel limits the bytes of its steps.
    pub(crate) fn is_staged(&self) -> bool {
        self.staging != Staging::Bypassed
    }

    /// Whether there is a variant in phases.
    pub(crate) fn has_phases(&self) -> bool {
        self.staging == Staging::Phased
    }

    /// Whether copy engines move the bytes.
    pub(crate) const fn is_by_copies(&self) -> bool {
        matches!(self.kernels, Kernels::Copies | Kernels::CopiesAndSums(_))
    }

    /// Whether peers read inputs, and whether peers write outputs. Such buffers have equal offsets and registrations on all members.
    pub(crate) const fn reached_by_peers(&self, shape: &Shape) -> (bool, bool) {
        (self.reads_inputs, self.writes_outputs && shape.output.is_reached())
    }
}

impl PartialEq for Recipe {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Recipe {}

impl Hash for Recipe {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::ptr::from_ref(self).hash(state);
    }
}

impl Algorithm {
    /// Whether the algorithm can run a call of this shape.
    ///
    /// # Errors
    /// The reason why it cannot, as in [`Error::Algorithm`](crate::types::Error::Algorithm).
    pub fn allows(self, shape: &Shape) -> Result<(), &'static str> {
        find(self, shape).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_algorithm_has_rows_and_at_most_one_per_collective() {
        let unnamed = [Algorithm::Pipes, Algorithm::NetworkDirect, Algorithm::NetworkByNode];
        for algorithm in Algorithm::ALL.into_iter().chain(unnamed) {
            let first = first_row(algorithm);
            for collective in Collective::ALL {
                let count = rows(algorithm).filter(|row| row.collectives.contains(&collective)).count();
                assert!(count <= 1, "{algorithm}, {collective}: {count} rows");
            }
            assert!(rows(algorithm).all(|row| row.is_for == first.is_for), "{algorithm}");
        }
    }
}
