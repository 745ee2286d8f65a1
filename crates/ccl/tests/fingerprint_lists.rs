//! Different lists of tensors on members: all ranks report both lists and the first difference.
#![expect(clippy::disallowed_methods, reason = "tests of real threads run on the machine's time")]

use std::time::Instant;

use crate::common::mismatch::{AT_ONCE, Memory, ODD, Place, RANKS, Seen, checked, failures, judge};
use crate::common::{all_well, jit, on_ranks, world_config};
use anabranch_ccl::{Algorithm, Call, Communicator, DataType, Error, ListMismatch};

/// An entry of a list: type, elements and offset of the output.
type Listed = (DataType, u64, Place);

/// Gathers a list on each rank, a different one on one rank, by `algorithm`; returns the error text and the list mismatch.
fn lists(algorithm: Algorithm, usual: &[Listed], odd: &[Listed]) -> (String, Option<ListMismatch>) {
    let config = checked().algorithm(Some(algorithm));
    let seen = failures(&world_config(), RANKS, |world| {
        let mut communicator = Communicator::new(world, world.group(), config.clone())?;
        let stream = world.device().create_stream()?;
        let memory = Memory::new(world)?;
        let entry = |(data_type, count, place): Listed| {
            let input = memory.tensor(Place::Local, data_type, count, false);
            (memory.tensor(place, data_type, count * u64::from(RANKS), true), input)
        };
        let [usual, made]: [Vec<_>; 2] = [usual, if world.rank().get() == ODD { odd } else { usual }]
            .map(|list| list.iter().copied().map(entry).collect());
        let prepared = communicator.prepare(&Call::AllGatherMany(&usual))?;
        let made = communicator.prepare(&Call::AllGatherMany(&made))?;
        world.barrier(world.group(), "all is loaded")?;
        communicator.launch(&prepared, &stream)?.join(AT_ONCE)?;
        let start = Instant::now();
        let error = communicator.launch(&made, &stream)?.join(AT_ONCE).unwrap_err();
        let took = start.elapsed();
        let next = communicator.launch(&prepared, &stream).unwrap_err().to_string();
        memory.keep();
        Ok(Seen { error, cause: world.check().unwrap_err().to_string(), next, took })
    });
    let text = judge(&seen, &["the list of tensors"]);
    let Error::Mismatch(found) = &seen[0].error else { panic!("{text}") };
    (text, found.list.clone())
}

/// Consecutive outputs from `first` on.
fn places(first: u64, entries: &[(DataType, u64)]) -> Vec<Listed> {
    let mut end = first;
    entries
        .iter()
        .map(|(data_type, count)| {
            let at = end;
            end += (count * u64::from(RANKS * data_type.bytes())).next_multiple_of(64);
            (*data_type, *count, Place::Symmetric(at))
        })
        .collect()
}

/// Lists with equal total bytes, which the kernels cannot detect.
#[test]
fn list_mismatch_is_reported_on_all_ranks() {
    const F32: DataType = DataType::F32;
    const BF16: DataType = DataType::Bf16;
    let usual = places(0, &[(F32, 48), (BF16, 16), (F32, 8)]);
    for (odd, index, shown) in [
        // Another order, another type, a count with the same padded size, one tensor split in two.
        (places(0, &[(F32, 48), (F32, 8), (BF16, 16)]), 1, "number 1 (8 f32 and 16 bf16)"),
        (places(0, &[(F32, 48), (DataType::F16, 16), (F32, 8)]), 1, "number 1 (16 f16 and 16 bf16)"),
        (places(0, &[(F32, 48), (BF16, 16), (F32, 7)]), 2, "number 2 (7 f32 and 8 f32)"),
        (places(0, &[(F32, 48), (BF16, 16), (F32, 4), (F32, 4)]), 2, "number 2 (4 f32 and 8 f32)"),
    ] {
        for algorithm in [Algorithm::Packets, Algorithm::Staged] {
            let (text, found) = lists(algorithm, &usual, &odd);
            assert!(matches!(found, Some(ListMismatch::Tensor { index: at, .. }) if at == index), "{text}");
            assert!(text.ends_with(shown), "{text}");
            let (call, other) = (
                format!("rank 1 made call 2: all_gather of {} tensors [48 f32, ", odd.len()),
                ", but rank 0 made call 2: all_gather of 3 tensors [48 f32, 16 bf16, 8 f32] from",
            );
            assert!(text.contains(&call) && text.contains(other), "{text}");
        }
    }
}

/// Outputs that peers write have equal offsets on all members; others need not.
#[test]
fn outputs_written_by_peers_need_equal_offsets() {
    let two = [(DataType::F32, 48), (DataType::U8, 5)];
    let usual = places(0, &two);
    let moved = vec![usual[0], (DataType::U8, 5, Place::Symmetric(8192))];
    let (text, found) = lists(Algorithm::Direct, &usual, &moved);
    let Some(ListMismatch::Tensor { index: 1, value, other_value }) = found else { panic!("{text}") };
    assert!(value.starts_with("5 u8 at byte ") && other_value.starts_with("5 u8 at byte "), "{text}");
    assert_ne!(value, other_value);
    let registered = |which| vec![usual[0], (DataType::U8, 5, Place::Registered(which))];
    let (text, found) = lists(Algorithm::Direct, &registered(0), &registered(1));
    let Some(ListMismatch::Tensor { index: 1, value, .. }) = found else { panic!("{text}") };
    assert!(value.contains(" of registration "), "{text}");
    // Through the staging peers do not write outputs: another offset is no difference.
    all_well(on_ranks(RANKS, 4, &world_config(), &jit(), |world| {
        let config = checked().algorithm(Some(Algorithm::Staged));
        let mut communicator = Communicator::new(world, world.group(), config)?;
        let stream = world.device().create_stream()?;
        let memory = Memory::new(world)?;
        let list = if world.rank().get() == ODD { &moved } else { &usual };
        let entries: Vec<_> = list
            .iter()
            .map(|(data_type, count, place)| {
                let input = memory.tensor(Place::Local, *data_type, *count, false);
                (memory.tensor(*place, *data_type, count * u64::from(RANKS), true), input)
            })
            .collect();
        communicator.run(&Call::AllGatherMany(&entries), &stream)?.join(AT_ONCE)?;
        let Memory { registered, buffers, .. } = memory;
        for registration in registered {
            registration.release()?;
        }
        drop(buffers);
        Ok(())
    }));
}

/// A difference after the tensors in the row is detected by the digest.
#[test]
fn long_list_is_compared_to_its_end() {
    let long = |last: u64| {
        let mut entries = vec![(DataType::U8, 4); 40];
        entries[39].1 = last;
        places(0, &entries)
    };
    let (text, found) = lists(Algorithm::Packets, &long(4), &long(5));
    assert_eq!(found, Some(ListMismatch::Later { alike: 32 }), "{text}");
    assert!(text.contains("of 40 tensors [4 u8, ") && text.contains(", ..] from"), "{text}");
}
