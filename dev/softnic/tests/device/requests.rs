//! Every request of the device API, one by one and from many lanes at once.

use anabranch_softnic::{Adversary, Placement, SoftNicConfig};
use anabranch_transport_rdma::{Provider, ReadOrder};

use crate::common::pattern;
use crate::device::pair::{
    AskedRequest, COMPARE_SWAP, FETCH, FETCH_ADD, FETCH_AND, FETCH_OR, FETCH_XOR, HEAP, POST, POST_AND_QUIET,
    Pair, READ, SWAP, Setup, WRITE, WRITE_IMMEDIATE, WRITE_VALUE,
};

/// As it comes, as on a GPU, and adversaries.
pub(super) fn configs(seeds: u64) -> Vec<SoftNicConfig> {
    let plain = SoftNicConfig { frame_bytes: 1024, window: 3, ..SoftNicConfig::default() };
    let adversary = |seed| SoftNicConfig { adversary: Some(Adversary::new(seed)), ..plain.clone() };
    let copies = SoftNicConfig { placement: Placement::OwnThread, ..plain.clone() };
    let dumped = |seed: u64| {
        let (read_order, adversary) = (ReadOrder::Dumped, (seed > 0).then(|| Adversary::new(seed)));
        SoftNicConfig { read_order, adversary, ..plain.clone() }
    };
    [plain.clone(), copies].into_iter().chain((0..seeds).map(adversary)).chain([0, 7].map(dumped)).collect()
}

#[test]
fn every_request_has_its_effect() {
    for config in configs(6) {
        every_request(config);
    }
}

/// What all providers have.
#[test]
fn requests_of_other_providers_do_what_they_say() {
    for provider in [Provider::Bnxt, Provider::Ionic] {
        for config in configs(6) {
            every_request(SoftNicConfig { provider, read_order: ReadOrder::Ordered, ..config });
        }
    }
}

/// One lane of each rank asks for everything once.
pub(super) fn every_request(config: SoftNicConfig) {
    let masked = config.provider == Provider::Mlx5;
    let mut pair = Pair::new(Setup::new(config));
    let payload = pattern(11, 9000);
    for side in &mut pair.sides {
        side.store(0, &payload);
        side.store(100_000, &0x1111_2222_3333_4444u64.to_ne_bytes());
        side.store(100_008, &0xffff_fff0u64.to_ne_bytes());
    }
    let requests = [0, 1].map(|rank| {
        let word = |opcode, bytes, value, compare| pair.word(rank, opcode, 100_000, bytes, value, compare);
        let short = |opcode, value, compare| pair.word(rank, opcode, 100_008, 4, value, compare);
        let waits = |request: AskedRequest| AskedRequest { how: POST_AND_QUIET, ..request };
        let mut all = vec![
            pair.ask(rank, WRITE, 0, 20_001, 9000),
            AskedRequest { immediate: 0x0102_0304, ..pair.ask(rank, WRITE_IMMEDIATE, 1, 40_000, 4999) },
            AskedRequest { immediate: 5, ..pair.ask(rank, WRITE_IMMEDIATE, 0, 0, 0) },
            AskedRequest { value: 0xabcd, ..pair.ask(rank, WRITE_VALUE, 0, 50_000, 2) },
            waits(AskedRequest { value: u64::MAX, ..pair.ask(rank, WRITE_VALUE, 0, 50_008, 8) }),
            // What the peer's heap has at its beginning.
            waits(pair.ask(rank, READ, 60_000, 0, 9000)),
            AskedRequest { how: FETCH, ..pair.ask(rank, READ, 0, 50_000, 4) },
            word(FETCH_ADD, 8, 1, 0),
            word(COMPARE_SWAP, 8, 77, 0x1111_2222_3333_4445),
            word(COMPARE_SWAP, 8, 78, 0),
        ];
        let of_mlx5 = [
            word(SWAP, 8, 0xf0f0, 0),
            word(FETCH_OR, 8, 0x0f, 0),
            word(FETCH_AND, 8, 0xff, 0),
            word(FETCH_XOR, 8, 0, 0),
            short(FETCH_ADD, 0x20, 0),
            short(COMPARE_SWAP, 5, 0x10),
            short(SWAP, 6, 0),
            short(FETCH_OR, 8, 0),
            short(FETCH_AND, 12, 0),
            short(FETCH_XOR, 0, 0),
        ];
        all.extend(of_mlx5.into_iter().filter(|_| masked));
        all
    });
    let outcomes = pair.run_well([&requests[0], &requests[1]], 20, 1);
    for (rank, outcomes) in outcomes.iter().enumerate() {
        let olds: Vec<_> = outcomes.iter().map(|outcome| outcome.old).skip(6).collect();
        let expected = [
            0xabcd,
            0x1111_2222_3333_4444,
            0x1111_2222_3333_4445,
            77,
            77,
            0xf0f0,
            0xf0ff,
            0xff & 0xf0ff,
            0xffff_fff0,
            0x10,
            5,
            6,
            14,
            12,
        ];
        assert_eq!(olds, expected[..olds.len()], "{:?}", pair.setup.config);
        let (here, there) = (&pair.sides[rank], &pair.sides[1 - rank]);
        assert_eq!(there.load(20_001, 9000), payload);
        assert_eq!(there.load(40_000, 4999), payload[1..5000]);
        assert_eq!(there.load(50_000, 4), [0xcd, 0xab, 0, 0]);
        assert_eq!(there.load_64(50_008), u64::MAX);
        assert_eq!(here.load(60_000, 9000), payload);
        let short = if masked { 12 } else { 0xffff_fff0 };
        assert_eq!(there.load_64(100_008), short, "nothing is carried out of 32 bits");
        let values: Vec<_> = there.nic.take_immediates().iter().map(|came| came.value).collect();
        assert_eq!(values, [0x0102_0304, 5]);
    }
}

#[test]
fn many_lanes_count_on_small_rings() {
    for (config, wave) in configs(2).into_iter().zip([1, 1, 4, 32]) {
        for provider in [Provider::Mlx5, Provider::Bnxt, Provider::Ionic] {
            count(SoftNicConfig { provider, ..config.clone() }, wave);
        }
    }
}

/// Lanes of both ranks add to words of the other.
pub(super) fn count(config: SoftNicConfig, wave: u32) {
    let pair = Pair::new(Setup { wave, ..Setup::new(config) });
    let (lanes, each) = (64, 6u64);
    let make = |rank| {
        let one = |index: u64| AskedRequest {
            queue: (index % 2) as u32,
            ..pair.word(rank, FETCH_ADD, 64 + index % 2 * 8, 8, 1, 0)
        };
        (0..lanes * each).map(one).collect::<Vec<_>>()
    };
    let requests = [make(0), make(1)];
    let outcomes = pair.run_well([&requests[0], &requests[1]], each, 32);
    for (rank, outcomes) in outcomes.iter().enumerate() {
        let half = lanes * each / 2;
        assert_eq!(pair.sides[1 - rank].load_64(64), half);
        assert_eq!(pair.sides[1 - rank].load_64(72), half);
        for parity in 0..2 {
            let mut olds: Vec<_> =
                outcomes.iter().skip(parity).step_by(2).map(|outcome| outcome.old).collect();
            olds.sort_unstable();
            assert_eq!(olds, (0..half).collect::<Vec<_>>(), "each count is seen once");
        }
    }
}

#[test]
fn many_lanes_write_what_differs() {
    for (config, wave) in configs(3).into_iter().zip([1, 1, 64, 4, 1]) {
        let mut pair = Pair::new(Setup { wave, ..Setup::new(config) });
        let bytes = 512u64;
        let lanes = 96u64;
        let sources = [pattern(1, HEAP / 2), pattern(2, HEAP / 2)];
        for (side, source) in pair.sides.iter_mut().zip(&sources) {
            side.store(0, source);
        }
        let make = |rank: usize| {
            let one = |lane: u64| {
                let place = lane * bytes + lane % 7;
                let waits = pair.ask(rank, WRITE, place, (HEAP / 2) as u64 + place, bytes - 8);
                AskedRequest { queue: (lane % 2) as u32, how: POST_AND_QUIET, ..waits }
            };
            (0..lanes).map(one).collect::<Vec<_>>()
        };
        let requests = [make(0), make(1)];
        pair.run_well([&requests[0], &requests[1]], 2, 64);
        for (rank, requests) in requests.iter().enumerate() {
            for request in requests {
                let from = (request.local - pair.sides[rank].heap.address().0) as usize;
                let to = (request.remote - pair.sides[1 - rank].heap.address().0) as usize;
                let size = request.bytes as usize;
                assert_eq!(pair.sides[1 - rank].load(to, size), sources[rank][from..from + size]);
            }
        }
    }
}

#[test]
fn more_entries_than_a_position_has_bits() {
    for provider in [Provider::Mlx5, Provider::Bnxt, Provider::Ionic] {
        go_round(SoftNicConfig { provider, ..SoftNicConfig::default() });
    }
}

/// One lane adds more often than positions have 16 bits.
fn go_round(config: SoftNicConfig) {
    let pair = Pair::new(Setup { queues: 1, ..Setup::new(config) });
    let count = 70_000u64;
    let requests: Vec<_> = (0..count)
        .map(|index| AskedRequest { how: POST, ..pair.word(0, FETCH_ADD, 8, 8, index, 0) })
        .chain([AskedRequest { how: POST_AND_QUIET, ..pair.word(0, FETCH_ADD, 8, 8, 1, 0) }])
        .collect();
    pair.run_well([&requests, &[]], count + 1, 1);
    assert_eq!(pair.sides[1].load_64(8), count * (count - 1) / 2 + 1);
}

/// Two ranks under a seed, strict or with an adversary of the same seed: what the machine did, as one number.
fn seeded(seed: u64, adversary: bool) -> u64 {
    let adversary = adversary.then(|| Adversary::new(seed));
    let config = SoftNicConfig { adversary, ..SoftNicConfig::default() };
    let mut pair = Pair::new(Setup { seed: Some(seed), ..Setup::new(config) });
    let payload = pattern(seed, 2048);
    for side in &mut pair.sides {
        side.store(0, &payload);
    }
    let requests = [0, 1].map(|rank| {
        let queued = |queue, request| AskedRequest { queue, ..request };
        (0..24u64)
            .map(|index| {
                let queue = (index % 2) as u32;
                match index % 3 {
                    0 => queued(queue, pair.word(rank, FETCH_ADD, 4096, 8, index, 0)),
                    1 => queued(queue, pair.word(rank, FETCH_XOR, 4104, 4, 1 << index, 0)),
                    _ => {
                        let place = 8192 + index * 64;
                        let ask = pair.ask(rank, WRITE, index * 64, place, 64);
                        AskedRequest { how: POST_AND_QUIET, ..queued(queue, ask) }
                    }
                }
            })
            .collect::<Vec<_>>()
    });
    pair.run_well([&requests[0], &requests[1]], 4, 3);
    for side in &pair.sides {
        assert_eq!(side.load_64(4096), (0..24).step_by(3).sum::<u64>());
        assert_eq!(side.load_64(4104), (1..24).step_by(3).map(|bit| 1 << bit).sum::<u64>());
        for index in (2..24).step_by(3) {
            assert_eq!(side.load(8192 + index * 64, 64), payload[index * 64..][..64]);
        }
    }
    let failure = pair.seeded.as_ref().unwrap().failure();
    assert!(failure.is_none(), "{failure:?}");
    let machine = pair.seeded.clone().unwrap();
    drop(pair);
    machine.run().digest
}

#[test]
fn under_a_seed_nics_take_turns_too() {
    for adversary in [false, true] {
        let digests: Vec<_> = (0..6).map(|seed| seeded(seed, adversary)).collect();
        let again: Vec<_> = (0..6).map(|seed| seeded(seed, adversary)).collect();
        assert_eq!(digests, again, "a seed decides everything");
        assert!(digests.windows(2).any(|pair| pair[0] != pair[1]));
    }
}
