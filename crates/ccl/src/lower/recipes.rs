//! The table of algorithms: the collectives that each can run, its requirements, its kernels and its launch size. To add an algorithm, add
//! its name to [`Algorithm`], its rows here, a kernel and a lowering function.

use anabranch_hip_jit::Kernel;

use crate::device::args::{EngineReduceArgs, GatherManyArgs, MoveArgs, ReduceArgs};
use crate::device::kernels;
use crate::device::uneven::{UnevenArgs, UnevenReduceArgs};
use crate::types::{Algorithm, Collective, Shape};

/// A requirement. The error is the reason why a call does not meet it.
type Need = fn(&Shape) -> Result<(), &'static str>;

/// How one algorithm runs some collectives.
#[derive(Debug)]
pub(crate) struct Recipe {
    algorithm: Algorithm,
    collectives: &'static [Collective],
    /// The reason in errors for collectives that no row of the algorithm names.
    is_for: &'static str,
    /// A further requirement on calls of these collectives.
    needs: Option<Need>,
    pub(crate) size: LaunchSize,
    pub(crate) kernels: Kernels,
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
    Reduces(Kernel<ReduceArgs>),
    /// For a reduce_scatter: the kernels for equal and for different counts.
    Scatters(Kernel<ReduceArgs>, Kernel<UnevenReduceArgs>),
    /// Copy engines move the bytes; nothing is reduced.
    Copies,
    /// Copy engines move the bytes, and this kernel reduces.
    CopiesAndSums(Kernel<EngineReduceArgs>),
}

/// Threads per block of a launch, and the bytes from which its number of blocks follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaunchSize {
    /// Packet threads. Blocks follow from the bytes that a member sends to one peer.
    Packets,
    /// Packet threads. Blocks follow from the share of one member of these bytes.
    SharedPackets,
    /// Bulk threads. Blocks follow from the bytes of the message.
    Bulk,
    /// Bulk threads in few blocks: copy engines are chosen to leave the compute units to other work.
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
    reads_inputs: false,
    writes_outputs: false,
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
    Recipe { collectives: REDUCES, kernels: Kernels::Reduces(kernels::ONE_SHOT), ..PACKETS },
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
        collectives: REDUCES,
        is_for: ONLY_REDUCES,
        size: LaunchSize::Bulk,
        kernels: Kernels::Reduces(kernels::PUSH),
        writes_outputs: true,
        ..PACKETS
    },
    Recipe {
        algorithm: Algorithm::Push,
        collectives: &[Collective::ReduceScatter],
        is_for: ONLY_REDUCES,
        size: LaunchSize::Bulk,
        kernels: Kernels::Scatters(kernels::PUSH, kernels::UNEVEN_PUSH),
        ..PACKETS
    },
    Recipe {
        algorithm: Algorithm::TwoHop,
        collectives: &[Collective::Broadcast],
        is_for: "it is for broadcast",
        size: LaunchSize::Bulk,
        kernels: Kernels::Moves { even: kernels::TWO_HOP, uneven: None, many: None },
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

/// The row by which an algorithm runs a call of this shape between members whose memory is mapped.
///
/// # Errors
/// The reason why it cannot.
pub(crate) fn find(algorithm: Algorithm, shape: &Shape) -> Result<&'static Recipe, &'static str> {
    if matches!(algorithm, Algorithm::NetworkDirect | Algorithm::NetworkByNode) {
        return Err(
            "it is for groups on several nodes; ccl.across selects network-direct or network-by-node",
        );
    }
    if algorithm == Algorithm::Pipes {
        return Err("it is for sends and receives");
    }
    if shape.collective == Collective::SendReceive {
        return Err("sends and receives go through pipes");
    }
    let rows = || RECIPES.iter().filter(move |row| row.algorithm == algorithm);
    let Some(row) = rows().find(|row| row.collectives.contains(&shape.collective)) else {
        return Err(rows().next().map_or("it has no kernel", |row| row.is_for));
    };
    row.needs.map_or(Ok(()), |needs| needs(shape)).map(|()| row)
}

/// Whether peers read inputs, and whether peers write outputs. Such buffers have equal offsets and registrations on all members.
pub(crate) fn reached_by_peers(shape: &Shape, algorithm: Algorithm) -> (bool, bool) {
    find(algorithm, shape).map_or((false, false), |recipe| {
        (recipe.reads_inputs, recipe.writes_outputs && shape.output.is_reached())
    })
}

impl Algorithm {
    /// Whether the algorithm can run a call of this shape.
    ///
    /// # Errors
    /// The reason why it cannot, as in [`Error::Algorithm`](crate::types::Error::Algorithm).
    pub fn allows(self, shape: &Shape) -> Result<(), &'static str> {
        if (self, shape.collective) == (Self::Pipes, Collective::SendReceive) {
            return Ok(());
        }
        find(self, shape).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_algorithm_has_at_most_one_row_per_collective() {
        for algorithm in Algorithm::ALL {
            let rows = || RECIPES.iter().filter(move |row| row.algorithm == algorithm);
            assert!(rows().next().is_some(), "{algorithm}");
            for collective in Collective::ALL {
                let count = rows().filter(|row| row.collectives.contains(&collective)).count();
                assert!(count <= 1, "{algorithm}, {collective}: {count} rows");
            }
            assert!(rows().all(|row| Some(row.is_for) == rows().next().map(|row| row.is_for)), "{algorithm}");
        }
    }
}
