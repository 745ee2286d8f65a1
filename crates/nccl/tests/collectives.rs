//! Every collective, element type and operator, against sums that are computed here.

use std::ffi::{c_int, c_void};

use anabranch_testkit::test_path;

use crate::common::{
    AVG, BFLOAT16, Buffer, Comm, FLOAT, INT32, IdValue, Nccl, Rank, Stream, TYPES, all_given, alone, encode,
    given, is_float, nccl, on_processes, on_threads,
};

const RANKS: u32 = 4;
/// Odd counts; the last is more than the packets of one channel hold.
const COUNTS: [usize; 3] = [1, 37, 5003];

fn reduced(op: c_int, index: usize, size: u32) -> f64 {
    let values = (0..size).map(|rank| given(rank, index));
    match op {
        0 => values.sum(),
        1 => values.product(),
        2 => values.fold(f64::MIN, f64::max),
        3 => values.fold(f64::MAX, f64::min),
        _ => values.sum::<f64>() / f64::from(size),
    }
}

#[track_caller]
fn expect(what: &str, rank: &Rank<'_>, buffer: &Buffer, wanted: impl Fn(usize) -> f64) {
    let values = buffer.values();
    let wrong = values.iter().enumerate().find(|(index, value)| **value != wanted(*index));
    assert!(
        wrong.is_none(),
        "{what} on rank {} of {}, type {}: element and value {wrong:?}, wanted {:?}",
        rank.number,
        rank.size,
        buffer.data_type,
        wrong.map(|(index, _)| wanted(index))
    );
}

/// All reductions with one operator, out of place and in place, to every root.
fn reductions(rank: &Rank<'_>, data_type: c_int, op: c_int, wanted: &dyn Fn(usize) -> f64) {
    let (nccl, size) = (rank.nccl, rank.size as usize);
    for count in COUNTS {
        let send = Buffer::of(data_type, &all_given(rank.number, count));
        let mut receive = Buffer::zeros(data_type, count);
        nccl.ok(nccl.all_reduce(rank, &send, &mut receive, op));
        nccl.synchronize(rank.stream);
        expect("all_reduce", rank, &receive, wanted);
        let mut both = send.clone();
        let same = both.clone();
        let address = both.address();
        nccl.ok(nccl!(nccl, ncclAllReduce(address => *const c_void, address => *mut c_void, count => usize, data_type => c_int, op => c_int, rank.comm => Comm, rank.stream => Stream)));
        nccl.synchronize(rank.stream);
        expect("all_reduce in place", rank, &both, wanted);
        both = same;
        for root in 0..rank.size {
            let is_root = root == rank.number;
            let result = Buffer::zeros(data_type, count);
            // Off the root NCCL takes a null pointer.
            let target = if is_root { result.address() } else { std::ptr::null_mut() };
            nccl.ok(nccl!(nccl, ncclReduce(both.address() => *const c_void, target => *mut c_void, count => usize, data_type => c_int, op => c_int, root as c_int => c_int, rank.comm => Comm, rank.stream => Stream)));
            nccl.synchronize(rank.stream);
            if is_root {
                expect("reduce", rank, &result, wanted);
            }
            expect("the input of reduce", rank, &both, |index| given(rank.number, index));
        }
        let send = Buffer::of(data_type, &all_given(rank.number, count * size));
        let part = Buffer::zeros(data_type, count);
        nccl.ok(nccl!(nccl, ncclReduceScatter(send.address() => *const c_void, part.address() => *mut c_void, count => usize, data_type => c_int, op => c_int, rank.comm => Comm, rank.stream => Stream)));
        nccl.synchronize(rank.stream);
        expect("reduce_scatter", rank, &part, |index| wanted(rank.number as usize * count + index));
        // In place: the part of this rank in the input.
        let own = rank.number as usize * count;
        nccl.ok(nccl!(nccl, ncclReduceScatter(send.address() => *const c_void, send.at(own) => *mut c_void, count => usize, data_type => c_int, op => c_int, rank.comm => Comm, rank.stream => Stream)));
        nccl.synchronize(rank.stream);
        let values = send.values();
        assert!(
            (0..count).all(|index| values[own + index] == wanted(own + index)),
            "reduce_scatter in place"
        );
    }
}

fn movements(rank: &Rank<'_>, data_type: c_int) {
    let (nccl, size, me) = (rank.nccl, rank.size as usize, rank.number as usize);
    let (comm, stream) = (rank.comm, rank.stream);
    for count in COUNTS {
        let of = |index: usize| (index / count, index % count);
        let send = Buffer::of(data_type, &all_given(rank.number, count));
        let all = Buffer::zeros(data_type, count * size);
        nccl.ok(nccl!(nccl, ncclAllGather(send.address() => *const c_void, all.address() => *mut c_void, count => usize, data_type => c_int, comm => Comm, stream => Stream)));
        nccl.synchronize(stream);
        expect("all_gather", rank, &all, |index| given(of(index).0 as u32, of(index).1));
        let parts: Vec<f64> = (0..count * size)
            .map(|index| if of(index).0 == me { given(rank.number, of(index).1) } else { 0.0 })
            .collect();
        let all = Buffer::of(data_type, &parts);
        nccl.ok(nccl!(nccl, ncclAllGather(all.at(me * count) => *const c_void, all.address() => *mut c_void, count => usize, data_type => c_int, comm => Comm, stream => Stream)));
        nccl.synchronize(stream);
        expect("all_gather in place", rank, &all, |index| given(of(index).0 as u32, of(index).1));

        let send = Buffer::of(data_type, &all_given(rank.number, count * size));
        let all = Buffer::zeros(data_type, count * size);
        nccl.ok(nccl!(nccl, ncclAlltoAll(send.address() => *const c_void, all.address() => *mut c_void, count => usize, data_type => c_int, comm => Comm, stream => Stream)));
        nccl.synchronize(stream);
        expect("alltoall", rank, &all, |index| given(of(index).0 as u32, me * count + of(index).1));

        for root in 0..rank.size {
            let is_root = root == rank.number;
            let code = root as c_int;
            let (send, receive) =
                (Buffer::of(data_type, &all_given(rank.number, count)), Buffer::zeros(data_type, count));
            // Off the root the send buffer is not used.
            let source = if is_root { send.address() } else { std::ptr::null_mut() };
            nccl.ok(nccl!(nccl, ncclBroadcast(source => *const c_void, receive.address() => *mut c_void, count => usize, data_type => c_int, code => c_int, comm => Comm, stream => Stream)));
            nccl.synchronize(stream);
            expect("broadcast", rank, &receive, |index| given(root, index));
            nccl.ok(nccl!(nccl, ncclBcast(send.address() => *mut c_void, count => usize, data_type => c_int, code => c_int, comm => Comm, stream => Stream)));
            nccl.synchronize(stream);
            expect("bcast", rank, &send, |index| given(root, index));

            let send = Buffer::of(data_type, &all_given(rank.number, count));
            let all = Buffer::zeros(data_type, count * size);
            let target = if is_root { all.address() } else { std::ptr::null_mut() };
            nccl.ok(nccl!(nccl, ncclGather(send.address() => *const c_void, target => *mut c_void, count => usize, data_type => c_int, code => c_int, comm => Comm, stream => Stream)));
            nccl.synchronize(stream);
            if is_root {
                expect("gather", rank, &all, |index| given(of(index).0 as u32, of(index).1));
            }
            let all = Buffer::of(data_type, &all_given(rank.number, count * size));
            let part = Buffer::zeros(data_type, count);
            let source = if is_root { all.address() } else { std::ptr::null_mut() };
            nccl.ok(nccl!(nccl, ncclScatter(source => *const c_void, part.address() => *mut c_void, count => usize, data_type => c_int, code => c_int, comm => Comm, stream => Stream)));
            nccl.synchronize(stream);
            expect("scatter", rank, &part, |index| given(root, me * count + index));
        }
    }
}

/// One type of each kind.
const FEW: [c_int; 2] = [INT32, BFLOAT16];

fn every_reduction(types: &[c_int]) {
    let nccl = Nccl::open(&[]);
    on_threads(&nccl, RANKS, |rank| {
        for &data_type in types {
            for op in 0..=4 {
                reductions(rank, data_type, op, &|index| match reduced(op, index, RANKS) {
                    average if op == AVG && !is_float(data_type) => average.trunc(),
                    value => value,
                });
            }
        }
    });
}

#[test]
fn every_reduction_has_the_oracles_values() {
    alone!("every_reduction_has_the_oracles_values");
    every_reduction(&FEW);
}

#[test]
#[ignore = "extended"]
fn every_reduction_of_every_type_has_the_oracles_values() {
    alone!("every_reduction_of_every_type_has_the_oracles_values");
    every_reduction(&TYPES);
}

fn multiplied_sums(types: &[c_int]) {
    let nccl = Nccl::open(&[]);
    on_threads(&nccl, RANKS, |rank| {
        for &data_type in types {
            for residence in [0, 1] {
                let scalar_of = |rank: u32| f64::from(1 + rank % 2);
                let scalar = Buffer::of(data_type, &[scalar_of(rank.number)]);
                let mut op = 0;
                let code = nccl!(nccl, ncclRedOpCreatePreMulSum(&raw mut op => *mut c_int, scalar.address() => *mut c_void, data_type => c_int, residence => c_int, rank.comm => Comm));
                nccl.ok(code);
                let sum = |index| (0..RANKS).map(|rank| scalar_of(rank) * given(rank, index)).sum();
                reductions(rank, data_type, op, &sum);
                nccl.ok(nccl!(nccl, ncclRedOpDestroy(op => c_int, rank.comm => Comm)));
                let (send, mut receive) = (Buffer::zeros(data_type, 4), Buffer::zeros(data_type, 4));
                assert_eq!(nccl.all_reduce(rank, &send, &mut receive, op), 4, "a destroyed operator");
            }
        }
    });
}

#[test]
fn multiplied_sums_take_scalars_of_the_host_or_of_the_device() {
    alone!("multiplied_sums_take_scalars_of_the_host_or_of_the_device");
    multiplied_sums(&FEW);
}

#[test]
#[ignore = "extended"]
fn multiplied_sums_of_every_type_take_scalars_of_the_host_or_of_the_device() {
    alone!("multiplied_sums_of_every_type_take_scalars_of_the_host_or_of_the_device");
    multiplied_sums(&TYPES);
}

#[test]
#[ignore = "extended"]
fn every_movement_of_every_type_has_the_oracles_values() {
    alone!("every_movement_of_every_type_has_the_oracles_values");
    let nccl = Nccl::open(&[]);
    on_threads(&nccl, RANKS, |rank| TYPES.into_iter().for_each(|data_type| movements(rank, data_type)));
}

#[test]
fn parts_of_different_lengths_come_from_every_rank() {
    alone!("parts_of_different_lengths_come_from_every_rank");
    let nccl = Nccl::open(&[]);
    on_threads(&nccl, RANKS, |rank| {
        let (nccl, size, me) = (rank.nccl, rank.size as usize, rank.number as usize);
        // From rank a to rank b go 3 * (a + 2 * b) % 7 elements, also none, with gaps between the parts.
        let count = |from: usize, to: usize| 3 * (from + 2 * to) % 7;
        let (mut send_counts, mut receive_counts) = (vec![0; size], vec![0; size]);
        let places: Vec<usize> = (0..size).map(|other| 10 * (size - 1 - other)).collect();
        for other in 0..size {
            (send_counts[other], receive_counts[other]) = (count(me, other), count(other, me));
        }
        let send = Buffer::of(FLOAT, &all_given(rank.number, 10 * size));
        let receive = Buffer::zeros(FLOAT, 10 * size);
        let call = |counts: *const usize| nccl!(nccl, ncclAllToAllv(send.address() => *const c_void, counts => *const usize, places.as_ptr() => *const usize, receive.address() => *mut c_void, receive_counts.as_ptr() => *const usize, places.as_ptr() => *const usize, FLOAT => c_int, rank.comm => Comm, rank.stream => Stream));
        nccl.ok(call(send_counts.as_ptr()));
        nccl.synchronize(rank.stream);
        expect("alltoallv", rank, &receive, |index| {
            let (other, element) = (size - 1 - index / 10, index % 10);
            if element < count(other, me) { given(other as u32, places[me] + element) } else { 0.0 }
        });
        assert_eq!(call(std::ptr::null()), 4);
        assert!(nccl.last_error(std::ptr::null_mut()).contains("counts or displacements are null"));
        nccl.count_ranks(rank);
    });
}

#[test]
fn ranks_that_are_processes_have_the_same_values() {
    let Some(rank) = on_processes(test_path!("ranks_that_are_processes_have_the_same_values"), 3) else {
        return;
    };
    for op in 0..=3 {
        reductions(&rank, FLOAT, op, &|index| reduced(op, index, rank.size));
    }
    movements(&rank, FLOAT);
    rank.nccl.destroy(rank.comm);
}

#[test]
fn the_oracle_sees_a_wrong_value() {
    assert_eq!(reduced(0, 1, 4), (0..4).map(|rank| f64::from((rank * 7 + 3) % 3)).sum::<f64>());
    let element = Buffer::of(10, &[6.0, 1.0]);
    assert_eq!(element.values(), [6.0, 1.0]);
    assert_ne!(encode(10, 6.0), encode(11, 6.0));
    let id: IdValue = [0; 128].into();
    let _ = id;
}
