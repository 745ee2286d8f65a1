//! Many lanes, a NIC beside them, and small rings: what every lane finds is what it must; and what a NIC or a caller does wrong ends in a
//! fault record.

use std::time::Duration;

use anabranch_hip_jit::KernelSpec;
use anabranch_testkit::mutant;
use anabranch_transport_rdma::{Atomics, Provider, ReadOrder, device};

use crate::device::bench::{
    AskedRequest, Bench, COMPARE_SWAP, FETCH, FETCH_ADD, FETCH_AND, FETCH_OR, FETCH_XOR, MEMORY, PEER, POST,
    POST_AND_QUIET, POST_AND_WAIT, READ, SWAP, Setup, WRITE, WRITE_IMMEDIATE, WRITE_VALUE, read,
};
use crate::device::consumer::{Manner, start};

/// Places at the peer, 64 bytes for each lane but for the counter and the bits.
const MOVED: u64 = 0;
const WORDS: u64 = 16 << 10;
const SWAPPED: u64 = 32 << 10;
const COUNTER: u64 = 60 << 10;
const BITS: u64 = (60 << 10) + 8;
/// Here: what is sent, and where it comes back.
const BACK: u64 = 16 << 10;

const EACH: u64 = 10;
const MOVED_BYTES: u64 = 61;

fn is_masked(bench: &Bench) -> bool {
    bench.setup.provider == Provider::Mlx5 && bench.setup.atomics == Atomics::Masked
}

fn requests(bench: &Bench, lanes: u64) -> Vec<AskedRequest> {
    let one = |lane: u64| {
        let own = lane * 64;
        let bits = if is_masked(bench) {
            bench.word(FETCH_OR, BITS, 4, 1 << (lane % 32), 0)
        } else {
            bench.word(FETCH_ADD, BITS, 8, 1 << 32, 0)
        };
        let requests: [AskedRequest; EACH as usize] = [
            bench.ask(WRITE, own, MOVED + own, MOVED_BYTES),
            AskedRequest { value: lane + 1, ..bench.ask(WRITE_VALUE, 0, WORDS + own, 8) },
            bench.word(FETCH_ADD, COUNTER, 8, 1, 0),
            AskedRequest { how: FETCH, ..bench.ask(READ, 0, WORDS + own, 8) },
            AskedRequest {
                how: POST_AND_WAIT,
                fenced: 1,
                ..bench.ask(READ, BACK + own, MOVED + own, MOVED_BYTES)
            },
            AskedRequest { value: lane + 9, ..bench.ask(WRITE_VALUE, 0, WORDS + own + 8, 4) },
            bench.word(COMPARE_SWAP, SWAPPED + own, 8, lane + 7, 0),
            AskedRequest { how: POST, ..bench.word(FETCH_ADD, COUNTER, 8, 1 << 32, 0) },
            bits,
            AskedRequest {
                immediate: lane as u32,
                how: POST_AND_QUIET,
                ..bench.ask(WRITE_IMMEDIATE, 0, 0, 0)
            },
        ];
        requests
            .map(|request| AskedRequest { queue: (lane % u64::from(bench.setup.queues)) as u32, ..request })
    };
    (0..lanes).flat_map(one).collect()
}

/// Runs the program on `lanes` lanes. Says what is not as it must be.
fn together(
    setup: Setup,
    lanes: u64,
    seed: u64,
    spec: impl Fn(KernelSpec) -> KernelSpec,
) -> Result<(), String> {
    let mut bench = Bench::new(setup);
    if spec(bench.spec()) != bench.spec() {
        bench.set_budget(Duration::from_millis(700));
    }
    let payload: Vec<u8> = (0..BACK).map(|at| (at * 7 + at / 64 * 3 + seed) as u8).collect();
    bench.local.copy_from_host(0, &payload).unwrap();
    let seen = start(&bench, Manner { seed, fails: None });
    let asked = requests(&bench, lanes);
    let outcomes = bench.run(&spec(bench.spec()), &asked, EACH, setup.wave.max(8));
    let stopped: Vec<_> = seen.iter().filter_map(|seen| seen.lock().unwrap().stopped.clone()).collect();
    let fault = bench.fault().map(|fault| (fault.phase, fault.expected, fault.seen));
    let check = |is_right: bool, what: &str| if is_right { Ok(()) } else { Err(what.to_owned()) };
    check(stopped.is_empty(), &format!("the NIC stopped: {stopped:?}"))?;
    check(fault.is_none(), &format!("a fault: {fault:x?}"))?;
    let old = |step: usize| {
        (0..lanes as usize).map(|lane| outcomes[lane * EACH as usize + step].old).collect::<Vec<_>>()
    };
    let mut counted: Vec<u64> = old(2).iter().map(|old| old & 0xffff_ffff).collect();
    counted.sort_unstable();
    check(counted == (0..lanes).collect::<Vec<_>>(), &format!("fetched counts {counted:?}"))?;
    check(old(3) == (1..=lanes).collect::<Vec<_>>(), &format!("values read {:?}", old(3)))?;
    check(old(6).iter().all(|old| *old == 0), "compare-and-swap found what was not there")?;
    let (local, remote): (Vec<u8>, Vec<u8>) = (read(&bench.local), read(&bench.remote));
    let word = |at: u64| u64::from_le_bytes(remote[at as usize..][..8].try_into().unwrap());
    check(word(COUNTER) == lanes << 32 | lanes, &format!("counter {:#x}", word(COUNTER)))?;
    let bits = if is_masked(&bench) { (1u64 << lanes.min(32)) - 1 } else { lanes << 32 };
    check(word(BITS) == bits, &format!("bits {:#x}", word(BITS)))?;
    for lane in 0..lanes {
        let own = (lane * 64) as usize;
        let sent = &payload[own..][..MOVED_BYTES as usize];
        check(
            remote[own..][..61] == *sent && remote[own + 61..][..3] == [0; 3],
            &format!("sent by lane {lane}"),
        )?;
        check(local[BACK as usize + own..][..61] == *sent, &format!("brought back by lane {lane}"))?;
        let words = [word(WORDS + lane * 64), word(WORDS + lane * 64 + 8), word(SWAPPED + lane * 64)];
        check(words == [lane + 1, lane + 9, lane + 7], &format!("words of lane {lane}: {words:?}"))?;
    }
    let mut immediates: Vec<u32> =
        seen.iter().flat_map(|seen| seen.lock().unwrap().immediates.clone()).collect();
    immediates.sort_unstable();
    check(immediates == (0..lanes as u32).collect::<Vec<_>>(), "immediates")
}

#[test]
#[ignore = "extended"]
fn many_lanes_share_small_rings_of_every_provider() {
    for provider in Provider::ALL {
        for (wave, lanes, queues, entries) in
            [(1, 24, 1, 16), (4, 24, 2, 16), (32, 64, 3, 32), (64, 128, 1, 16)]
        {
            // Behind the middle of what 16 and 24 bits count.
            let first = 0xff_ffe0;
            let setup = Setup { queues, entries, first, wave, ..Setup::new(provider) };
            for seed in 0..3 {
                let found = together(setup, lanes, seed, |spec| spec);
                assert_eq!(found, Ok(()), "{provider}, waves of {wave}, seed {seed}");
            }
        }
    }
}

#[test]
fn every_masked_operation_of_both_sizes() {
    let bench = Bench::new(Setup { entries: 16, ..Setup::new(Provider::Mlx5) });
    let seen = start(&bench, Manner::default());
    let (a, b) = (0xf0f0_1234_8765_a5a5u64, 0x0ff0_ffff_8000_1111);
    let mut asked = Vec::new();
    let mut expected = Vec::new();
    for (index, opcode) in
        [FETCH_ADD, COMPARE_SWAP, SWAP, FETCH_AND, FETCH_OR, FETCH_XOR].into_iter().enumerate()
    {
        for (bytes, mask) in [(8u32, u64::MAX), (4, 0xffff_ffff)] {
            // Of four bytes, the upper half of the word: the lower one stays.
            let at = index as u64 * 64 + if bytes == 4 { 36 } else { 0 };
            for (value, compare) in [(a, 0), (b, a), (a ^ b, 0)] {
                asked.push(bench.word(opcode, at, bytes, value, compare & mask));
            }
            let step = |old: u64, value: u64, compare: u64| {
                mask & match opcode {
                    FETCH_ADD => old.wrapping_add(value),
                    COMPARE_SWAP if old == compare & mask => value,
                    COMPARE_SWAP => old,
                    SWAP => value,
                    FETCH_AND => old & value,
                    FETCH_OR => old | value,
                    _ => old ^ value,
                }
            };
            let first = step(0, a, 0);
            expected.extend([0, first, step(first, b, a)]);
        }
    }
    let outcomes = bench.run(&bench.spec(), &asked, asked.len() as u64, 1);
    let old: Vec<u64> = outcomes.iter().map(|outcome| outcome.old).collect();
    assert_eq!(seen[0].lock().unwrap().stopped, None);
    assert_eq!((old, bench.fault().map(|fault| fault.phase)), (expected, None));
}

/// Mistakes in the order of things, and in what is written, for the providers that have such a thing.
#[test]
#[ignore = "extended"]
fn mutants_are_caught() {
    let setup = |provider| Setup { entries: 16, wave: 4, first: 0xff_ffe0, ..Setup::new(provider) };
    // An error of the NIC, or a value; an expired wait could be a slow machine.
    let noticed = |provider, name: &str, waits: bool| {
        let edits = mutant(name);
        (0..20).any(|seed| {
            let found = together(setup(provider), 24, seed, |spec| spec.edited(&edits));
            found.is_err_and(|why| waits || !why.starts_with("a fault"))
        })
    };
    for name in ["RDMA_RING_OVERRUN", "RDMA_OUT_OF_TURN", "RDMA_DONE_UNWAITED", "RDMA_SLOT_SHARED"] {
        for provider in Provider::ALL {
            assert!(noticed(provider, name, false), "{provider}, {name}");
        }
    }
    let (mlx5, bnxt, ionic) = (Provider::Mlx5, Provider::Bnxt, Provider::Ionic);
    for (name, providers) in [
        ("CODEC_SLOT_FOR_INDEX", &[mlx5][..]),
        ("CODEC_UNTOLD", &[mlx5, bnxt, ionic]),
        ("CODEC_NO_RECORD", &[mlx5]),
        ("CODEC_LITTLE_ENDIAN_RECORD", &[mlx5]),
        ("CODEC_ONE_SEGMENT_MORE", &[mlx5, bnxt]),
        ("CODEC_NOT_INLINE", &[mlx5, bnxt, ionic]),
        ("CODEC_IMMEDIATE_ORDER", &[mlx5, bnxt, ionic]),
        ("CODEC_OPERAND_ORDER", &[mlx5, bnxt, ionic]),
        ("CODEC_STALE_COLOUR", &[bnxt, ionic]),
        ("CODEC_STALE_SEQUENCE", &[bnxt]),
        ("CODEC_RECORD_OF_BLOCKS_MORE", &[mlx5]),
    ] {
        for provider in providers {
            // Without a record, no NIC sees anything.
            assert!(noticed(*provider, name, name == "CODEC_NO_RECORD"), "{provider}, {name}");
        }
    }
}

#[test]
fn a_failed_queue_pair_is_a_fault_with_its_entry_and_syndrome() {
    for provider in Provider::ALL {
        let setup = Setup { entries: 16, wave: 4, first: 0x1_0000, ..Setup::new(provider) };
        let bench = Bench::new(setup);
        let seen = start(&bench, Manner { seed: 1, fails: Some((5, 13)) });
        let asked = requests(&bench, 24);
        let outcomes = bench.run(&bench.spec(), &asked, EACH, 8);
        let fault = bench.fault().unwrap();
        let vendor = if provider == Provider::Mlx5 { 0x8100 } else { 0 };
        assert_eq!((fault.phase, fault.peer), (device::PHASE_NIC_ERROR, 3), "{provider}");
        assert_eq!(fault.seen, vendor + 13, "{provider}");
        // The entry, or, where the NIC does not name it, one that has been told of before.
        match provider {
            Provider::Mlx5 | Provider::Posted => assert_eq!(fault.expected, 0x1_0005, "{provider}"),
            Provider::Bnxt | Provider::Ionic => {
                assert!((0x1_0000..=0x1_0005).contains(&fault.expected), "{provider}");
            }
        }
        assert!(outcomes.iter().any(|outcome| outcome.status == 1), "{provider}: no error was reported");
        assert!(seen[0].lock().unwrap().stopped.as_ref().unwrap().contains("as told"), "{provider}");
        // What comes later does not begin.
        let later = bench.run(&bench.spec(), &[bench.ask(WRITE, 0, 0, 8)], 1, 8);
        assert_eq!((later[0].status, later[0].end), (1, 0));
    }
}

#[test]
fn what_cannot_be_done_is_a_fault_and_nothing_moves() {
    use device::{PHASE_NIC_OUT_OF_RANGE, PHASE_NIC_UNREGISTERED, PHASE_NIC_UNSUPPORTED};
    type Ask = fn(&Bench) -> AskedRequest;
    let cases: [(Provider, Ask, u32, u64); 16] = [
        (Provider::Mlx5, |bench| bench.ask(WRITE, 0, MEMORY as u64, 1), PHASE_NIC_OUT_OF_RANGE, 1),
        (Provider::Mlx5, |bench| bench.ask(READ, 0, MEMORY as u64 - 7, 8), PHASE_NIC_OUT_OF_RANGE, 8),
        (Provider::Mlx5, |bench| bench.ask(READ, 0, u64::MAX, 8), PHASE_NIC_OUT_OF_RANGE, 8),
        (Provider::Mlx5, |bench| bench.ask(WRITE, 0, 0, u64::MAX), PHASE_NIC_OUT_OF_RANGE, u64::MAX),
        (Provider::Mlx5, |bench| bench.word(SWAP, 4, 8, 1, 0), PHASE_NIC_OUT_OF_RANGE, 8),
        (Provider::Mlx5, |bench| bench.word(SWAP, 2, 4, 1, 0), PHASE_NIC_OUT_OF_RANGE, 4),
        (Provider::Ionic, |bench| bench.ask(WRITE_VALUE, 0, 4, 8), PHASE_NIC_OUT_OF_RANGE, 8),
        (Provider::Bnxt, |bench| bench.ask(WRITE_VALUE, 0, 1, 2), PHASE_NIC_OUT_OF_RANGE, 2),
        (
            Provider::Mlx5,
            |bench| AskedRequest { how: FETCH, ..bench.ask(READ, 0, 2, 4) },
            PHASE_NIC_OUT_OF_RANGE,
            4,
        ),
        (Provider::Mlx5, |bench| bench.ask(WRITE, MEMORY as u64 - 1, 0, 2), PHASE_NIC_UNREGISTERED, 2),
        (Provider::Posted, |bench| bench.ask(READ, u64::MAX, 0, 2), PHASE_NIC_UNREGISTERED, 2),
        (Provider::Mlx5, |bench| bench.word(SWAP, 0, 2, 1, 0), PHASE_NIC_UNSUPPORTED, 2),
        (Provider::Posted, |bench| bench.word(SWAP, 0, 8, 1, 0), PHASE_NIC_UNSUPPORTED, 8),
        (Provider::Bnxt, |bench| bench.word(FETCH_ADD, 0, 4, 1, 0), PHASE_NIC_UNSUPPORTED, 4),
        (Provider::Ionic, |bench| bench.ask(WRITE_VALUE, 0, 0, 3), PHASE_NIC_UNSUPPORTED, 3),
        (
            Provider::Ionic,
            |bench| AskedRequest { how: FETCH, ..bench.ask(WRITE, 0, 0, 8) },
            PHASE_NIC_UNSUPPORTED,
            8,
        ),
    ];
    for (index, (provider, ask, phase, bytes)) in cases.into_iter().enumerate() {
        let bench = Bench::new(Setup::new(provider));
        let before: Vec<Vec<u8>> = state(&bench);
        let outcomes = bench.run(&bench.spec(), &[ask(&bench)], 1, 1);
        let fault = bench.fault().unwrap();
        assert_eq!(
            (outcomes[0].status, fault.phase, fault.peer, fault.seen),
            (1, phase, 3, bytes),
            "case {index}"
        );
        assert_eq!(state(&bench), before, "case {index}");
    }
    // A peer that takes no immediate values, with bytes before one and without.
    for bytes in [0, 8] {
        let bench = Bench::new(Setup { immediates: false, ..Setup::new(Provider::Mlx5) });
        let before = state(&bench);
        let outcomes = bench.run(&bench.spec(), &[bench.ask(WRITE_IMMEDIATE, 0, 0, bytes)], 1, 1);
        let fault = bench.fault().map(|fault| (fault.phase, fault.expected, fault.seen));
        assert_eq!((outcomes[0].status, fault), (1, Some((PHASE_NIC_UNSUPPORTED, 1, bytes))));
        assert_eq!(state(&bench), before);
    }
    // Without atomic operations there are none.
    let bench = Bench::new(Setup { atomics: Atomics::None, ..Setup::new(Provider::Mlx5) });
    bench.run(&bench.spec(), &[bench.word(FETCH_ADD, 0, 8, 1, 0)], 1, 1);
    assert_eq!(bench.fault().map(|fault| (fault.phase, fault.expected)), Some((PHASE_NIC_UNSUPPORTED, 4)));
}

/// Where nothing orders what the NIC brings before its completion, a kernel asks for nothing of it. What brings nothing goes on.
#[test]
fn what_brings_values_is_a_fault_where_nothing_orders_them() {
    type Ask = fn(&Bench) -> AskedRequest;
    // What is asked, and the opcode and bytes that the fault says; `None` where there is none.
    let cases: [(Ask, Option<(u64, u64)>); 8] = [
        (|bench| AskedRequest { how: POST, ..bench.ask(READ, 8, 16, 512) }, Some((READ.into(), 512))),
        (|bench| AskedRequest { how: POST_AND_WAIT, ..bench.ask(READ, 8, 16, 1) }, Some((READ.into(), 1))),
        (|bench| AskedRequest { how: FETCH, ..bench.ask(READ, 0, 16, 4) }, Some((READ.into(), 4))),
        (|bench| bench.word(FETCH_ADD, 8, 8, 1, 0), Some((FETCH_ADD.into(), 8))),
        (|bench| bench.word(COMPARE_SWAP, 8, 8, 1, 0), Some((COMPARE_SWAP.into(), 8))),
        (|bench| AskedRequest { how: POST, ..bench.word(FETCH_ADD, 8, 8, 1, 0) }, None),
        (|bench| AskedRequest { how: POST, ..bench.ask(WRITE, 8, 16, 512) }, None),
        (|bench| AskedRequest { how: POST, value: 7, ..bench.ask(WRITE_VALUE, 0, 16, 8) }, None),
    ];
    for provider in Provider::ALL {
        for (index, (ask, refused)) in cases.iter().enumerate() {
            let bench = Bench::new(Setup { read_order: ReadOrder::Unordered, ..Setup::new(provider) });
            let before = state(&bench);
            let outcomes = bench.run(&bench.spec(), &[ask(&bench)], 1, 1);
            let fault = bench.fault().map(|fault| (fault.phase, fault.peer, fault.expected, fault.seen));
            let expected =
                refused.map(|(opcode, bytes)| (device::PHASE_NIC_UNSUPPORTED, PEER, opcode, bytes));
            let status = u64::from(refused.is_some());
            assert_eq!((outcomes[0].status, fault), (status, expected), "{provider}, case {index}");
            assert_eq!(state(&bench) == before, refused.is_some(), "{provider}, case {index}");
        }
    }
}

fn state(bench: &Bench) -> Vec<Vec<u8>> {
    let queue = &bench.queues[0];
    [&queue.ring, &queue.words, &queue.positions, &queue.results].map(read).into()
}

#[test]
fn a_nic_that_does_nothing_ends_in_faults_that_say_what_was_waited_for() {
    for provider in Provider::ALL {
        let mut bench = Bench::new(Setup { entries: 16, first: 32, ..Setup::new(provider) });
        bench.set_budget(Duration::from_millis(50));
        let spare = u64::from(matches!(provider, Provider::Bnxt | Provider::Ionic));
        let write = AskedRequest { how: POST, ..bench.ask(WRITE, 0, 0, 8) };
        let outcomes = bench.run(&bench.spec(), &[write; 17], 17, 1);
        let posted = outcomes.iter().filter(|outcome| outcome.status == 0).count() as u64;
        assert_eq!(posted, 16 - spare, "{provider}");
        let fault = bench.fault().unwrap();
        let found = (fault.phase, fault.peer, fault.expected, fault.seen);
        assert_eq!(found, (device::PHASE_NIC_POST, 3, 32 + posted + 1, 32), "{provider}");

        for (how, phase) in [
            (POST_AND_WAIT, device::PHASE_NIC_DONE),
            (POST_AND_QUIET, device::PHASE_NIC_DONE),
            (FETCH, device::PHASE_NIC_POST),
        ] {
            let mut bench = Bench::new(Setup { entries: 16, first: 32, ..Setup::new(provider) });
            bench.set_budget(Duration::from_millis(50));
            let asked = if how == FETCH {
                bench.word(FETCH_ADD, 0, 8, 1, 0)
            } else {
                AskedRequest { how, ..write_of(&bench) }
            };
            bench.run(&bench.spec(), &[asked], 1, 1);
            let fault = bench.fault().unwrap();
            assert_eq!((fault.phase, fault.expected, fault.seen), (phase, 33, 32), "{provider}, {how}");
        }
    }
}

fn write_of(bench: &Bench) -> AskedRequest {
    AskedRequest { immediate: 0, ..bench.ask(WRITE, 0, 0, 8) }
}

/// A request of 0 bytes has no entry, and a wait for it returns.
#[test]
fn nothing_is_done_at_once() {
    let bench = Bench::new(Setup::new(Provider::Posted));
    let nothing = AskedRequest { how: POST_AND_WAIT, ..AskedRequest { bytes: 0, ..write_of(&bench) } };
    let quiet = AskedRequest { how: POST_AND_QUIET, ..nothing };
    let outcomes = bench.run(&bench.spec(), &[nothing, quiet], 2, 1);
    assert!(outcomes.iter().all(|outcome| outcome.status == 0));
    assert_eq!(read::<u64>(&bench.queues[0].positions), [0; 3]);
}
