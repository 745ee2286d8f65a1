//! The table of algorithms: for each the collectives that it does, what it needs, its kernels and how its arguments are made. To add an
//! algorithm, add its name to [`Algorithm`], its rows here, a kernel and a lowering function.

use anabranch_hip_jit::Kernel;

use crate::device::args::{EngineReduceArgs, GatherManyArgs, MoveArgs, ReduceArgs, UnevenArgs};
use crate::device::kernels;
use crate::types::{Algorithm, Collective, Shape};

/// Why a call cannot be done.
type Need = fn(&Shape) -> Result<(), &'static str>;

/// How one algorithm does some collectives.
#[derive(Debug)]
pub(crate) struct Recipe {
    algorithm: Algorithm,
    collectives: &'static [Collective],
    /// For errors: why the algorithm does not do the collectives that no row of it names.
    is_for: &'static str,
    /// What it needs besides: why it cannot do a call of one of these collectives.
    needs: Option<Need>,
    pub(crate) size: LaunchSize,
    pub(crate) kernels: Kernels,
    /// Whether peers read inputs.
    reads_inputs: bool,
    /// Whether peers write outputs that they reach.
    writes_outputs: bool,
}

/// The kernels of a row, with what they take.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kernels {
    Moves {
        even: Kernel<MoveArgs>,
        /// For counts that differ between members.
        uneven: Option<Kernel<UnevenArgs>>,
        /// For many tensors at once.
        many: Option<Kernel<GatherManyArgs>>,
    },
    Reduces(Kernel<ReduceArgs>),
    /// Copy engines move the bytes; nothing is reduced.
    Copies,
    /// Copy engines move the bytes, and this kernel sums.
    CopiesAndSums(Kernel<EngineReduceArgs>),
}

/// Which threads a launch has, and how many bytes are worth a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaunchSize {
    /// Threads for packets, one packet each; of all that a member sends to one peer.
    Packets,
    /// The same, of one member's share of it.
    SharedPackets,
    /// Threads for bulk data.
    Bulk,
    /// Threads for bulk data in few blocks: copy engines are chosen to leave the compute units to other work.
    FewBlocks,
    /// One block of as few threads as there can be.
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
const OF_ENGINES: &str = "it is for all_reduce, reduce_scatter and what moves bytes";

/// What most rows share.
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
        kernels: Kernels::Reduces(kernels::SCATTER_PACKETS),
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
        kernels: Kernels::Reduces(kernels::PUSH),
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
            known_counts(shape, "members do not know where others want their bytes")?;
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

/// How an algorithm does a call of this shape among members whose memory is mapped.
///
/// # Errors
/// Why it cannot.
pub(crate) fn find(algorithm: Algorithm, shape: &Shape) -> Result<&'static Recipe, &'static str> {
    if matches!(algorithm, Algorithm::NetworkDirect | Algorithm::NetworkByNode) {
        return Err("it is chosen where members are on several nodes; ccl.across says which of the two");
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

/// Whether peers read inputs, and whether they write outputs: then their places have to be equal on all members.
pub(crate) fn reached_by_peers(shape: &Shape, algorithm: Algorithm) -> (bool, bool) {
    find(algorithm, shape).map_or((false, false), |recipe| {
        (recipe.reads_inputs, recipe.writes_outputs && shape.output.is_reached())
    })
}

impl Algorithm {
    /// Whether it can do a call of this shape.
    ///
    /// # Errors
    /// Why it cannot, for [`Error::Algorithm`](crate::types::Error::Algorithm).
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
    fn each_algorithm_does_a_collective_by_one_row() {
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
