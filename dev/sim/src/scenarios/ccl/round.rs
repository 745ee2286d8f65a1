//! Which calls a run makes: forms in an order that the seed draws, with sizes, roots and places that it draws too.

use anabranch_ccl::plan::Limits;
use anabranch_ccl::{Algorithm, Choice, Collective, DataType, LocationKind, Plan, ReduceOp, Shape};
use anabranch_conformance::ccl::Case as Call;
use anabranch_conformance::ccl::oracle::Data;
use anabranch_ranks::GroupRank;

use super::super::bench::{WAVE, mixed};
use super::norm::Rows;
use crate::{Case, Failure, Protocol};

/// Bytes of a step through the staging, and of a tile.
pub(super) const PIECE: u64 = 16;
/// Packets of a source, stage and parity: more than a wave has lanes.
pub(super) const PACKET_UNITS: u32 = WAVE + 1;
/// Bytes of a packet's payload.
const PAYLOAD: u64 = 8;

/// A way through the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Barrier,
    Move(Algorithm),
    Uneven(Algorithm),
    /// All-reduce or reduce, of buffers that peers reach or not.
    Reduce(Algorithm, bool),
    /// Reduce by push, in phases.
    ToRoot,
    Scatter(Algorithm),
    /// With a count for each member.
    ScatterUneven(Algorithm),
    /// All-reduce, and a norm of the rows.
    Norm(Algorithm),
}

impl Form {
    /// Those of a protocol.
    pub(super) const fn all(protocol: Protocol) -> &'static [Self] {
        match protocol {
            Protocol::CclMove => MOVE,
            Protocol::CclPackets => PACKETS,
            Protocol::CclBulk => BULK,
            Protocol::CclHops => HOPS,
            Protocol::CclNorm => NORM,
            Protocol::CclEngine => ENGINE,
            _ => ALL,
        }
    }

    const fn algorithm(self) -> Algorithm {
        match self {
            Self::Barrier => Algorithm::Packets,
            Self::ToRoot => Algorithm::Push,
            Self::Move(algorithm)
            | Self::Uneven(algorithm)
            | Self::Reduce(algorithm, _)
            | Self::Scatter(algorithm)
            | Self::Norm(algorithm)
            | Self::ScatterUneven(algorithm) => algorithm,
        }
    }

    const fn collectives(self) -> &'static [Collective] {
        match self {
            Self::Barrier => &[Collective::Barrier],
            Self::Move(Algorithm::TwoHop) => &[Collective::Broadcast],
            Self::Move(_) => &[
                Collective::AllGather,
                Collective::AllToAll,
                Collective::Broadcast,
                Collective::Gather,
                Collective::Scatter,
            ],
            Self::Uneven(Algorithm::Packets | Algorithm::CopyEngine) => &[Collective::AllGather],
            Self::Uneven(_) => &[Collective::AllToAll, Collective::AllGather],
            Self::Reduce(Algorithm::CopyEngine, _) | Self::Norm(_) => &[Collective::AllReduce],
            Self::ToRoot => &[Collective::Reduce],
            Self::Reduce(..) => &[Collective::AllReduce, Collective::Reduce],
            Self::Scatter(_) | Self::ScatterUneven(_) => &[Collective::ReduceScatter],
        }
    }

    const fn locations(self) -> &'static [LocationKind] {
        use LocationKind::{Local, Registered, Symmetric};
        match self {
            Self::Reduce(Algorithm::Push, false) => &[Local],
            Self::Reduce(Algorithm::Push | Algorithm::Pull | Algorithm::CopyEngine, _)
            | Self::Scatter(Algorithm::Pull)
            | Self::Move(Algorithm::Direct | Algorithm::CopyEngine)
            | Self::Uneven(Algorithm::Direct | Algorithm::CopyEngine) => &[Symmetric, Registered],
            _ => &[Symmetric, Registered, Local],
        }
    }
}

const MOVE: &[Form] = &[
    Form::Barrier,
    Form::Move(Algorithm::Packets),
    Form::Move(Algorithm::Staged),
    Form::Move(Algorithm::Direct),
    Form::Uneven(Algorithm::Packets),
    Form::Uneven(Algorithm::Staged),
    Form::Uneven(Algorithm::Direct),
];
const PACKETS: &[Form] = &[
    Form::Reduce(Algorithm::Packets, true),
    Form::Reduce(Algorithm::TwoShotPackets, true),
    Form::Scatter(Algorithm::Packets),
    Form::ScatterUneven(Algorithm::Packets),
];
const BULK: &[Form] = &[
    Form::Reduce(Algorithm::Pull, true),
    Form::Reduce(Algorithm::Push, true),
    Form::Reduce(Algorithm::Push, false),
    Form::Scatter(Algorithm::Pull),
    Form::Scatter(Algorithm::Push),
    Form::ScatterUneven(Algorithm::Push),
];
const NORM: &[Form] = &[
    Form::Norm(Algorithm::Packets),
    Form::Norm(Algorithm::TwoShotPackets),
    Form::Norm(Algorithm::Packets),
    Form::Norm(Algorithm::TwoShotPackets),
    Form::Norm(Algorithm::Push),
];
const HOPS: &[Form] =
    &[Form::Move(Algorithm::TwoHop), Form::ToRoot, Form::Move(Algorithm::TwoHop), Form::ToRoot];
/// What goes by copies, and others that use the same staging.
const ENGINE: &[Form] = &[
    Form::Move(Algorithm::CopyEngine),
    Form::Uneven(Algorithm::CopyEngine),
    Form::Reduce(Algorithm::CopyEngine, true),
    Form::Scatter(Algorithm::CopyEngine),
    Form::ScatterUneven(Algorithm::CopyEngine),
    Form::Move(Algorithm::Staged),
    Form::Reduce(Algorithm::Push, false),
];
const ALL: &[Form] = &[
    MOVE[0], MOVE[1], MOVE[2], MOVE[3], MOVE[4], MOVE[5], MOVE[6], PACKETS[0], PACKETS[1], PACKETS[2],
    PACKETS[3], BULK[0], BULK[1], BULK[2], BULK[3], BULK[4], BULK[5], HOPS[0], HOPS[1],
];

/// One call of all members.
#[derive(Clone, Debug)]
pub(super) struct Round {
    pub(super) algorithm: Algorithm,
    pub(super) call: Call,
    pub(super) blocks: u32,
    pub(super) threads: u32,
    /// Of `push`: one peer at a time.
    pub(super) phased: bool,
    pub(super) rows: Option<Rows>,
}

/// The plan of a call by an algorithm with this grid.
pub(super) fn plan_of(
    shape: &Shape,
    algorithm: Algorithm,
    (blocks, threads): (u32, u32),
    phased: bool,
) -> Result<Plan, Failure> {
    let limits = Limits {
        channels: blocks,
        block_threads: threads,
        barrier_threads: threads,
        row_channels: blocks,
        row_threads: threads,
        row_bytes: 1 << 10,
    };
    let (algorithm, blocks, phased) = (Some(algorithm), Some(blocks), Some(phased));
    Plan::chosen(shape, &limits, None, Choice { algorithm, blocks, phased, block_bytes: None })
        .map_err(|error| Failure::new(error.to_string()))
}

impl Round {
    /// The call without its addresses.
    pub(super) fn shape(&self, members: u32) -> Shape {
        let call = &self.call;
        let collective = call.collective;
        let has_root = matches!(
            collective,
            Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter
        );
        Shape {
            collective,
            data_type: call.data_type,
            op: collective.reduces().then_some(call.op),
            members,
            count: call.count,
            uneven: call.uneven,
            root: has_root.then_some(call.root),
            input: call.location,
            output: call.location,
            norm_row: self.rows.map(|rows| rows.row),
        }
    }
}

/// Numbers from a seed.
#[derive(Debug)]
pub(super) struct Draw(u64);

impl Draw {
    pub(super) fn new(seed: u64) -> Self {
        Self(mixed(seed ^ 0x0063_6f6c_6c65_6374))
    }

    /// Below `bound`, which is small.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(self.0) % bound.max(1)
    }

    fn one_of<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// The most bytes of a message, or of a part of one: `tokens` steps of each channel, or half as many epochs.
pub(super) fn most_bytes(case: &Case, algorithm: Algorithm) -> u64 {
    let of_a_channel = if algorithm.is_packets() {
        u64::from(PACKET_UNITS) * PAYLOAD * u64::from(case.tokens.div_ceil(2))
    } else {
        PIECE * u64::from(case.tokens)
    };
    of_a_channel * u64::from(case.blocks)
}

/// The calls of a run. Every form comes before one comes again.
pub(super) fn rounds(case: &Case, draw: &mut Draw) -> Vec<Round> {
    let mut bag: Vec<Form> = Vec::new();
    let mut all = Vec::new();
    for round in 0..case.rounds {
        if bag.is_empty() {
            bag.extend(Form::all(case.protocol));
        }
        let form = bag.swap_remove(draw.below(bag.len() as u64) as usize);
        all.push(drawn(form, case, draw, u64::from(round)));
    }
    all
}

fn drawn(form: Form, case: &Case, draw: &mut Draw, round: u64) -> Round {
    let collective = draw.one_of(form.collectives());
    let types: &[DataType] = match form {
        // What bytes are is nothing to those who move them; how they are aligned is.
        Form::Move(_) | Form::Uneven(_) => &[DataType::U8, DataType::F16, DataType::F32, DataType::F64],
        Form::Barrier => &[DataType::U8],
        Form::Reduce(..) | Form::ToRoot | Form::Scatter(_) | Form::ScatterUneven(_) | Form::Norm(_) => {
            &[DataType::F32]
        }
    };
    let data_type = draw.one_of(types);
    let size = u64::from(data_type.bytes());
    // Parts of what is cut into parts are as long as what is not.
    let parts = match form {
        Form::Reduce(
            Algorithm::TwoShotPackets | Algorithm::Pull | Algorithm::Push | Algorithm::CopyEngine,
            _,
        )
        | Form::ToRoot
        | Form::Move(Algorithm::TwoHop) => u64::from(case.ranks),
        _ => 1,
    };
    let most = most_bytes(case, form.algorithm()) * parts / size;
    // Nothing, little that leaves members and channels without any, as much as there can be, and anything between.
    let count = match draw.below(8) {
        0 => 0,
        1 => draw.below(4),
        2 | 3 => most,
        _ => draw.below(most + 1),
    };
    let mut call = Call {
        op: draw.one_of(&[ReduceOp::Sum, ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Max]),
        root: GroupRank::new(draw.below(u64::from(case.ranks)) as u32),
        location: draw.one_of(form.locations()),
        in_place: draw.below(2) == 0,
        offset: if draw.below(2) == 0 { 0 } else { draw.below(4) },
        uneven: matches!(form, Form::Uneven(_) | Form::ScatterUneven(_)),
        data: Data::Normal,
        seed: draw.below(1 << 32) << 8 | round,
        ..Call::new(collective, data_type, if collective == Collective::Barrier { 0 } else { count })
    };
    if !call.is_defined() {
        call.in_place = false;
    }
    let rows = matches!(form, Form::Norm(_)).then(|| Rows::drawn(draw, most_bytes(case, Algorithm::Packets)));
    if let Some(Rows { row, count, .. }) = rows {
        // The sum replaces the input.
        (call.in_place, call.offset, call.count, call.op) = (true, 0, count * row, ReduceOp::Sum);
    }
    let fewer = |draw: &mut Draw, most: u32| {
        if draw.below(4) == 0 { 1 + draw.below(u64::from(most)) as u32 } else { most }
    };
    let meets = matches!(
        form,
        Form::Barrier | Form::Move(Algorithm::CopyEngine) | Form::Uneven(Algorithm::CopyEngine)
    );
    let blocks = if meets { 1 } else { fewer(draw, case.blocks) };
    let (algorithm, threads) = (form.algorithm(), fewer(draw, case.waves) * WAVE);
    let drawn = algorithm == Algorithm::Push && draw.below(2) == 0;
    let phased = form == Form::ToRoot || drawn && collective != Collective::Reduce;
    Round { algorithm, call, blocks, threads, phased, rows }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_that_is_drawn_is_one_that_a_communicator_makes() {
        let mut seen = Vec::new();
        for protocol in Protocol::COLLECTIVES.into_iter().chain([Protocol::Ccl]) {
            let case = Case::new(protocol, 3);
            assert_eq!(case.rounds as usize, Form::all(protocol).len(), "every kernel in every run");
            for seed in 0..500 {
                for round in rounds(&case, &mut Draw::new(seed)) {
                    let shape = round.shape(3);
                    assert_eq!(round.algorithm.allows(&shape), Ok(()), "{round:?}");
                    assert!(round.call.is_defined(), "{round:?}");
                    let known = (round.algorithm, shape.collective, shape.input, round.call.in_place);
                    if !seen.contains(&known) {
                        seen.push(known);
                    }
                }
            }
        }
        assert!(seen.len() > 80, "{}", seen.len());
    }
}
