//! Random programs of one lane beside a NIC, against the same program on two arrays.

use std::sync::Mutex;

use anabranch_transport_rdma::Provider;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::device::bench::{
    AskedRequest, Bench, COMPARE_SWAP, FETCH, FETCH_ADD, FETCH_AND, FETCH_OR, FETCH_XOR, MEMORY, POST,
    POST_AND_QUIET, POST_AND_WAIT, READ, SWAP, Setup, WRITE, WRITE_IMMEDIATE, WRITE_VALUE, read,
};
use crate::device::consumer::{Manner, start};

/// What is sent comes from the lower half of the local memory, what is read goes to the upper one: there is no order between a read and
/// a later write of what it brings.
const HALF: u64 = MEMORY as u64 / 2;

#[derive(Clone, Debug)]
struct Drawn {
    opcode: u32,
    how: u32,
    local: u64,
    remote: u64,
    bytes: u64,
    value: u64,
    compare: u64,
    immediate: u32,
    fenced: u32,
}

fn drawn(provider: Provider) -> impl Strategy<Value = Drawn> {
    let most = if provider == Provider::Mlx5 { FETCH_XOR } else { COMPARE_SWAP };
    let how =
        prop_oneof![3 => Just(POST), 1 => Just(POST_AND_WAIT), 1 => Just(POST_AND_QUIET), 2 => Just(FETCH)];
    // Few places, so that they are met again, and few values, so that some are found again.
    let place = prop_oneof![0..64u64, 0..HALF - 5000];
    let length = prop_oneof![3 => 0..80u64, 1 => 0..5000u64];
    let value = prop_oneof![Just(0u64), Just(u64::MAX), any::<u64>(), 0..3u64];
    let sides = (place.clone(), place, length);
    (0..=most, how, sides, value.clone(), value, any::<u32>(), 0..2u32).prop_map(
        move |(opcode, how, (local, remote, length), value, compare, immediate, fenced)| {
            let word = if provider == Provider::Mlx5 && length % 2 == 0 { 4 } else { 8 };
            let is_word = opcode >= FETCH_ADD;
            let how = if how == FETCH && !is_word && opcode != READ { POST } else { how };
            let bytes = match opcode {
                _ if is_word => word,
                WRITE_VALUE => 1 << (2 + length % 2),
                READ if how == FETCH => 1 << (length % 4),
                _ => length,
            };
            let is_whole = is_word || opcode == WRITE_VALUE || how == FETCH;
            let aligned = if is_whole { remote / bytes * bytes } else { remote };
            let local = if opcode == READ { HALF + local } else { local };
            Drawn { opcode, how, local, remote: aligned, bytes, value, compare, immediate, fenced }
        },
    )
}

/// What the program leaves, and what each request fetches.
fn model(program: &[Drawn], local: &mut [u8], remote: &mut [u8]) -> (Vec<u64>, Vec<u32>) {
    let mut immediates = Vec::new();
    let fetch = |request: &Drawn| {
        let (from, to, bytes) = (request.local as usize, request.remote as usize, request.bytes as usize);
        let mut word = [0; 8];
        let fetched = request.how == FETCH;
        match request.opcode {
            WRITE | WRITE_IMMEDIATE => {
                remote[to..to + bytes].copy_from_slice(&local[from..from + bytes]);
                if request.opcode == WRITE_IMMEDIATE {
                    immediates.push(request.immediate);
                }
                0
            }
            READ if fetched => {
                word[..bytes].copy_from_slice(&remote[to..to + bytes]);
                u64::from_le_bytes(word)
            }
            READ => {
                local[from..from + bytes].copy_from_slice(&remote[to..to + bytes]);
                0
            }
            WRITE_VALUE => {
                remote[to..to + bytes].copy_from_slice(&request.value.to_le_bytes()[..bytes]);
                0
            }
            opcode => {
                word[..bytes].copy_from_slice(&remote[to..to + bytes]);
                let old = u64::from_le_bytes(word);
                let mask = if bytes == 4 { 0xffff_ffff } else { u64::MAX };
                let new = match opcode {
                    FETCH_ADD => old.wrapping_add(request.value),
                    COMPARE_SWAP if old == request.compare & mask => request.value,
                    COMPARE_SWAP => old,
                    SWAP => request.value,
                    FETCH_AND => old & request.value,
                    FETCH_OR => old | request.value,
                    _ => old ^ request.value,
                };
                remote[to..to + bytes].copy_from_slice(&new.to_le_bytes()[..bytes]);
                if fetched { old } else { 0 }
            }
        }
    };
    let old = program.iter().map(fetch).collect();
    (old, immediates)
}

fn runs_like_its_model(provider: Provider) {
    // A message is at most 1500 bytes here, so that longer ones are cut; a place in the ring is met often.
    let count = Mutex::new(0u64);
    let mut runner = TestRunner::new(Config { cases: 40, failure_persistence: None, ..Config::default() });
    let programs = prop::collection::vec(drawn(provider), 1..60);
    let outcome = runner.run(&programs, |program| {
        let seed = {
            let mut count = count.lock().unwrap();
            *count += 1;
            *count
        };
        let mut bench = Bench::new(Setup { entries: 16, most_message_bytes: 1500, ..Setup::new(provider) });
        let mut local: Vec<u8> = (0..MEMORY as u64).map(|at| (at * 13 + at / 256 + seed) as u8).collect();
        let mut remote = vec![0; MEMORY];
        bench.local.copy_from_host(0, &local).unwrap();
        let seen = start(&bench, Manner { seed, fails: None });
        let asked: Vec<AskedRequest> = program
            .iter()
            .map(|drawn| AskedRequest {
                value: drawn.value,
                compare: drawn.compare,
                word_bytes: drawn.bytes as u32,
                immediate: drawn.immediate,
                fenced: drawn.fenced,
                how: drawn.how,
                ..bench.ask(drawn.opcode, drawn.local, drawn.remote, drawn.bytes)
            })
            // Everything is done when the kernel ends.
            .chain([AskedRequest { how: POST_AND_QUIET, ..bench.ask(WRITE, 0, 0, 0) }])
            .collect();
        let outcomes = bench.run(&bench.spec(), &asked, asked.len() as u64, 1);
        let (mut expected, immediates) = model(&program, &mut local, &mut remote);
        expected.push(0);
        prop_assert_eq!(&seen[0].lock().unwrap().stopped, &None);
        prop_assert_eq!(bench.fault().map(|fault| (fault.phase, fault.expected, fault.seen)), None);
        let old: Vec<u64> = outcomes.iter().map(|outcome| outcome.old).collect();
        prop_assert_eq!(old, expected);
        prop_assert_eq!(&seen[0].lock().unwrap().immediates, &immediates);
        prop_assert!(read::<u8>(&bench.remote) == remote, "the peer's memory");
        prop_assert!(read::<u8>(&bench.local) == local, "the local memory");
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{provider}: {failure}"));
}

#[test]
fn mlx5_runs_random_programs_like_their_model() {
    runs_like_its_model(Provider::Mlx5);
}

#[test]
fn bnxt_runs_random_programs_like_their_model() {
    runs_like_its_model(Provider::Bnxt);
}

#[test]
fn ionic_runs_random_programs_like_their_model() {
    runs_like_its_model(Provider::Ionic);
}

#[test]
fn posted_requests_run_random_programs_like_their_model() {
    runs_like_its_model(Provider::Posted);
}
