//! Random sequences of requests, each behind the one before, against memory that is a plain array.

use anabranch_softnic::decode::{AtomicOperation, Width};
use anabranch_softnic::{Adversary, SoftNicConfig};
use proptest::prelude::*;

use crate::common::encode::{self, Control, halves};
use crate::common::{Way, World, pattern};

/// Bytes of each side that the requests use; old values come behind them.
const BYTES: u64 = 2048;
const OLD: u64 = 4096;

#[derive(Clone, Debug)]
enum Asked {
    Write { from: Vec<(u64, u64)>, to: u64 },
    Value { bytes: Vec<u8>, to: u64 },
    Read { from: u64, to: Vec<(u64, u64)> },
    Atomic { kind: usize, to: u64, operands: [u64; 4] },
}

fn any_range() -> impl Strategy<Value = (u64, u64)> {
    (0..BYTES - 1, 1..400u64).prop_map(|(at, bytes)| (at, bytes.min(BYTES - at)))
}

fn are_apart(ranges: &[(u64, u64)]) -> bool {
    let apart =
        |left: (u64, u64), right: (u64, u64)| left.0 + left.1 <= right.0 || right.0 + right.1 <= left.0;
    ranges.len() < 2 || apart(ranges[0], ranges[1])
}

fn any_asked() -> impl Strategy<Value = Asked> {
    let ranges = || prop::collection::vec(any_range(), 1..3);
    // Small operands, so that comparisons succeed now and then.
    let operands = || [0..4u64, 0..4, 0..4, 0..4];
    prop_oneof![
        (ranges(), 0..1200u64).prop_map(|(from, to)| Asked::Write { from, to }),
        (prop::collection::vec(any::<u8>(), 1..=28), 0..BYTES - 28)
            .prop_map(|(bytes, to)| Asked::Value { bytes, to }),
        // What arrives in a place twice arrives in any order.
        (0..1200u64, ranges().prop_filter("ranges overlap", |to| are_apart(to)))
            .prop_map(|(from, to)| Asked::Read { from, to }),
        (0..6usize, 0..BYTES / 8, operands()).prop_map(|(kind, word, operands)| Asked::Atomic {
            kind,
            to: word * 8,
            operands
        }),
    ]
}

/// The operation of a kind, and how an entry asks for it.
fn atomic(kind: usize, [first, second, third, fourth]: [u64; 4]) -> (AtomicOperation, (u32, u32), Vec<u64>) {
    let pair = |left: u64, right: u64| halves(left as u32, right as u32);
    match kind {
        0 => (AtomicOperation::FetchAdd { value: first }, encode::FETCH_ADD, vec![first, 0]),
        1 => (
            AtomicOperation::CompareSwap { swap: first, compare: second },
            encode::COMPARE_SWAP,
            vec![first, second],
        ),
        2 | 3 => {
            let width = if kind == 2 { Width::Four } else { Width::Eight };
            let operation = AtomicOperation::MaskedFetchAdd { width, value: first, boundary: second };
            if kind == 2 {
                (operation, encode::MASKED_FETCH_ADD_4, vec![pair(first, second), 0])
            } else {
                (operation, encode::MASKED_FETCH_ADD_8, vec![first, second])
            }
        }
        _ => {
            let width = if kind == 4 { Width::Four } else { Width::Eight };
            let operation = AtomicOperation::MaskedCompareSwap {
                width,
                swap: first,
                compare: second,
                swap_mask: third,
                compare_mask: fourth,
            };
            if kind == 4 {
                let operands = vec![pair(first, second), pair(third, fourth)];
                (operation, encode::MASKED_COMPARE_SWAP_4, operands)
            } else {
                (operation, encode::MASKED_COMPARE_SWAP_8, vec![first, second, third, fourth])
            }
        }
    }
}

/// What a request does, one after the other, to plain arrays: this rank's and its peer's.
fn model(asked: &Asked, number: usize, mine: &mut [u8], theirs: &mut [u8]) {
    match asked {
        Asked::Write { from, to } => {
            let source: Vec<u8> = from
                .iter()
                .flat_map(|(at, bytes)| mine[*at as usize..][..*bytes as usize].to_vec())
                .collect();
            theirs[*to as usize..][..source.len()].copy_from_slice(&source);
        }
        Asked::Value { bytes, to } => theirs[*to as usize..][..bytes.len()].copy_from_slice(bytes),
        Asked::Read { from, to } => {
            let mut at = *from as usize;
            for (place, bytes) in to {
                let bytes = *bytes as usize;
                mine[*place as usize..][..bytes].copy_from_slice(&theirs[at..at + bytes]);
                at += bytes;
            }
        }
        Asked::Atomic { kind, to, operands } => {
            let (operation, _, _) = atomic(*kind, *operands);
            let (at, bytes) = (*to as usize, operation.width().bytes() as usize);
            let mut word = [0; 8];
            word[..bytes].copy_from_slice(&theirs[at..at + bytes]);
            let old = u64::from_le_bytes(word);
            theirs[at..at + bytes].copy_from_slice(&operation.apply(old).to_le_bytes()[..bytes]);
            let slot = &mut mine[OLD as usize + number * 8..][..bytes];
            slot.copy_from_slice(&old.to_le_bytes()[..bytes]);
            // Those of 32 bits come as the wire has them.
            if bytes == 4 {
                slot.reverse();
            }
        }
    }
}

fn post(world: &mut World, asked: &Asked, number: usize) {
    let remote = |world: &World, at: u64| world.ranks[1].remote(at);
    let local = |world: &World, ranges: &[(u64, u64)]| -> Vec<_> {
        ranges.iter().map(|(at, bytes)| world.ranks[0].local(*at, *bytes as u32)).collect()
    };
    // Everything waits for what was read before.
    let rings = |control: &Control| Control { fence: 4, ..Control::new(control.index, control.number) };
    match asked {
        Asked::Write { from, to } => {
            let (to, from) = (remote(world, *to), local(world, from));
            world.poster(0, 1).post(|control| encode::write(&rings(control), to, &from));
        }
        Asked::Value { bytes, to } => {
            let to = remote(world, *to);
            world.poster(0, 1).post(|control| encode::write_inline(&rings(control), to, bytes));
        }
        Asked::Read { from, to } => {
            let (from, to) = (remote(world, *from), local(world, to));
            world.poster(0, 1).post(|control| encode::read(&rings(control), from, &to));
        }
        Asked::Atomic { kind, to, operands } => {
            let (operation, code, operands) = atomic(*kind, *operands);
            let (to, old) =
                (remote(world, *to), (OLD + number as u64 * 8, u64::from(operation.width().bytes())));
            let old = local(world, &[old])[0];
            world.poster(0, 1).post(|control| encode::atomic(&rings(control), code, to, &operands, old));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn sequences_do_what_they_say(
        sequence in prop::collection::vec(any_asked(), 1..60),
        seed in any::<Option<u64>>(),
        frame_bytes in 64..600u32,
    ) {
        let adversary = seed.map(Adversary::new);
        let config = SoftNicConfig { adversary, frame_bytes, window: 3, ..SoftNicConfig::default() };
        let mut world = World::new(2, &Way::in_process(), 32, &config);
        let whole = (OLD + 60 * 8) as usize;
        let (mut mine, mut theirs) = (pattern(1, whole), pattern(2, whole));
        world.ranks[0].store(0, &mine);
        world.ranks[1].store(0, &theirs);
        for (number, asked) in sequence.iter().enumerate() {
            model(asked, number, &mut mine, &mut theirs);
            post(&mut world, asked, number);
        }
        world.poster(0, 1).post(encode::nop);
        prop_assert_eq!(world.poster(0, 1).quiet(), Ok(()), "{:?}", world.poster(0, 1).queue.stopped());
        prop_assert!(world.ranks[0].load(0, whole) == mine, "this rank's memory differs");
        prop_assert!(world.ranks[1].load(0, whole) == theirs, "the peer's memory differs");
    }
}
