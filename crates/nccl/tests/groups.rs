//! Groups: several devices of one thread, sends and receives in all orders, several communicators.

use std::ffi::{c_int, c_void};

use crate::common::{
    Buffer, Comm, FLOAT, INT32, IdValue, Nccl, Rank, SUM, Stream, UINT8, all_given, alone, given, nccl,
    on_threads,
};

use crate::lifecycle::{init_nonblocking, settled};

const RANKS: u32 = 3;

pub(crate) fn send(rank: &Rank<'_>, buffer: &Buffer, peer: u32, stream: Stream) {
    let nccl = rank.nccl;
    nccl.ok(nccl!(nccl, ncclSend(buffer.address() => *const c_void, buffer.count => usize, buffer.data_type => c_int, peer as c_int => c_int, rank.comm => Comm, stream => Stream)));
}

pub(crate) fn receive(rank: &Rank<'_>, buffer: &Buffer, peer: u32, stream: Stream) {
    let nccl = rank.nccl;
    nccl.ok(nccl!(nccl, ncclRecv(buffer.address() => *mut c_void, buffer.count => usize, buffer.data_type => c_int, peer as c_int => c_int, rank.comm => Comm, stream => Stream)));
}

/// All orders of `0..number`.
fn orders(number: usize) -> Vec<Vec<usize>> {
    if number == 0 {
        return vec![Vec::new()];
    }
    let insert = |order: Vec<usize>| {
        (0..number).map(move |place| {
            let mut longer = order.clone();
            longer.insert(place, number - 1);
            longer
        })
    };
    orders(number - 1).into_iter().flat_map(insert).collect()
}

/// A send to every rank and a receive from every rank, this one included, in an order; `count` elements, more to later ranks.
fn exchange(rank: &Rank<'_>, order: &[usize], count: usize, streams: [Stream; 2]) {
    let (nccl, size, me) = (rank.nccl, rank.size as usize, rank.number as usize);
    let of = |from: usize, to: usize| count + 3 * to + from;
    let sent: Vec<_> = (0..size).map(|to| Buffer::of(FLOAT, &all_given(rank.number, of(me, to)))).collect();
    let received: Vec<_> = (0..size).map(|from| Buffer::zeros(FLOAT, of(from, me))).collect();
    nccl.group(|| {
        for place in order {
            let stream = streams[place % 2];
            if *place < size {
                send(rank, &sent[*place], *place as u32, stream);
            } else {
                receive(rank, &received[place - size], (place - size) as u32, stream);
            }
        }
    });
    for stream in streams {
        nccl.synchronize(stream);
    }
    for (from, buffer) in received.iter().enumerate() {
        assert_eq!(
            buffer.values(),
            all_given(from as u32, of(from, me)),
            "rank {me} from {from}, order {order:?}"
        );
    }
}

#[test]
fn sends_and_receives_of_a_group_go_in_any_order() {
    alone!("sends_and_receives_of_a_group_go_in_any_order");
    let nccl = Nccl::open(&[]);
    on_threads(&nccl, RANKS, |rank| {
        let orders = orders(2 * RANKS as usize);
        assert_eq!(orders.len(), 720);
        // Each rank goes through all orders, in steps of its own, which have no factor in common with 720; streams alternate.
        let (streams, step) = ([rank.stream, nccl.stream()], [1, 7, 11][rank.number as usize]);
        for number in 0..720 {
            exchange(rank, &orders[number * step % 720], 5, streams);
        }
        // Longer than a pipe holds: everybody sends first.
        exchange(rank, &[0, 1, 2, 3, 4, 5], 1 << 19, [rank.stream; 2]);
    });
}

#[test]
fn inputs_that_outputs_overlap_are_copied_first() {
    alone!("inputs_that_outputs_overlap_are_copied_first");
    let nccl = Nccl::open(&[]);
    on_threads(&nccl, RANKS, |rank| {
        let (size, other) = (rank.size, nccl.stream());
        let (next, previous) = ((rank.number + 1) % size, (rank.number + size - 1) % size);
        for (round, count) in [5, 1 << 19, 7].into_iter().enumerate() {
            // The memory of the copies is one for both streams.
            let streams = [rank.stream, other];
            let stream = streams[round % 2];
            // Round the ring, in one buffer of each rank; and the same with an odd number of bytes beside it.
            let ring = Buffer::of(FLOAT, &all_given(rank.number, count));
            let bytes = Buffer::of(UINT8, &all_given(rank.number, count));
            nccl.group(|| {
                for buffer in [&bytes, &ring] {
                    send(rank, buffer, next, stream);
                    receive(rank, buffer, previous, stream);
                }
            });
            let all = count * size as usize;
            let exchanged = Buffer::of(INT32, &all_given(rank.number, all));
            let address = exchanged.address();
            nccl.ok(nccl!(nccl, ncclAlltoAll(address => *const c_void, address => *mut c_void, count => usize, INT32 => c_int, rank.comm => Comm, streams[1 - round % 2] => Stream)));
            for stream in streams {
                nccl.synchronize(stream);
            }
            assert_eq!(ring.values(), all_given(previous, count));
            assert_eq!(bytes.values(), all_given(previous, count));
            let part = |from: u32| (0..count).map(move |i| given(from, rank.number as usize * count + i));
            assert_eq!(exchanged.values(), (0..size).flat_map(part).collect::<Vec<_>>());
        }
    });
}

#[test]
fn one_thread_drives_several_devices() {
    alone!("one_thread_drives_several_devices");
    let nccl = Nccl::open(&[]);
    let comms = nccl.init_all(RANKS);
    let ranks: Vec<_> = (0..RANKS)
        .zip(comms)
        .map(|(rank, comm)| {
            nccl.set_device(rank);
            Rank { nccl: &nccl, comm, stream: nccl.stream(), number: rank, size: RANKS }
        })
        .collect();
    for (number, rank) in ranks.iter().enumerate() {
        let (mut size, mut user_rank, mut device) = (0, 0, 0);
        nccl.ok(nccl!(nccl, ncclCommCount(rank.comm => Comm, &raw mut size => *mut c_int)));
        nccl.ok(nccl!(nccl, ncclCommUserRank(rank.comm => Comm, &raw mut user_rank => *mut c_int)));
        nccl.ok(nccl!(nccl, ncclCommCuDevice(rank.comm => Comm, &raw mut device => *mut c_int)));
        assert_eq!((size, user_rank, device), (RANKS as c_int, number as c_int, number as c_int));
    }
    for count in [1, 300, 70_000] {
        let sent: Vec<_> = (0..RANKS).map(|rank| Buffer::of(FLOAT, &all_given(rank, count))).collect();
        let mut received = vec![Buffer::zeros(FLOAT, count); RANKS as usize];
        // A nested group ends with the outer one.
        nccl.group(|| {
            for ((rank, sent), received) in ranks.iter().zip(&sent).zip(&mut received) {
                nccl.group(|| nccl.ok(nccl.all_reduce(rank, sent, received, SUM)));
            }
        });
        for (rank, received) in ranks.iter().zip(&received) {
            nccl.synchronize(rank.stream);
            let sums = |index| (0..RANKS).map(|rank| given(rank, index)).sum::<f64>();
            assert_eq!(received.values(), (0..count).map(sums).collect::<Vec<_>>());
        }
    }
    // Without a group the first rank would wait for the second for good; in a ring everybody sends and receives.
    let tokens: Vec<_> = (0..RANKS).map(|rank| Buffer::of(INT32, &[f64::from(rank)])).collect();
    let got = vec![Buffer::zeros(INT32, 1); RANKS as usize];
    nccl.group(|| {
        for rank in &ranks {
            let me = rank.number;
            send(rank, &tokens[me as usize], (me + 1) % RANKS, rank.stream);
            receive(rank, &got[me as usize], (me + RANKS - 1) % RANKS, rank.stream);
        }
    });
    for rank in &ranks {
        nccl.synchronize(rank.stream);
        assert_eq!(got[rank.number as usize].values(), [f64::from((rank.number + RANKS - 1) % RANKS)]);
    }
    for rank in &ranks {
        nccl.destroy(rank.comm);
    }
}

#[test]
fn a_group_mixes_collectives_with_messages_on_two_communicators() {
    alone!("a_group_mixes_collectives_with_messages_on_two_communicators");
    let nccl = Nccl::open(&[]);
    let second = nccl.unique_id();
    on_threads(&nccl, RANKS, |rank| {
        let other = Rank { comm: nccl.init(RANKS, second, rank.number), stream: nccl.stream(), ..*rank };
        let next = (rank.number + 1) % RANKS;
        let before = (rank.number + RANKS - 1) % RANKS;
        for _ in 0..5 {
            let token = Buffer::of(INT32, &[f64::from(rank.number)]);
            let got = [Buffer::zeros(INT32, 1), Buffer::zeros(INT32, 1)];
            let mut sums = [Buffer::zeros(INT32, 1), Buffer::zeros(INT32, 1)];
            nccl.group(|| {
                send(rank, &token, next, rank.stream);
                nccl.ok(nccl.all_reduce(rank, &token, &mut sums[0], SUM));
                receive(&other, &got[1], before, other.stream);
                nccl.ok(nccl.all_reduce(&other, &token, &mut sums[1], SUM));
                send(&other, &token, next, other.stream);
                receive(rank, &got[0], before, rank.stream);
            });
            for stream in [rank.stream, other.stream] {
                nccl.synchronize(stream);
            }
            for (got, sum) in got.iter().zip(&sums) {
                assert_eq!((got.values()[0], sum.values()[0]), (f64::from(before), 3.0));
            }
        }
        nccl.destroy(other.comm);
    });
}

#[test]
fn a_group_with_a_wrong_call_launches_nothing() {
    alone!("a_group_with_a_wrong_call_launches_nothing");
    let nccl = Nccl::open(&[]);
    on_threads(&nccl, 2, |rank| {
        let (input, mut output) = (Buffer::of(INT32, &[1.0]), Buffer::zeros(INT32, 1));
        nccl.ok(nccl!(nccl, ncclGroupStart()));
        nccl.ok(nccl.all_reduce(rank, &input, &mut output, SUM));
        let wrong = nccl!(nccl, ncclSend(input.address() => *const c_void, 1 => usize, INT32 => c_int, 7 => c_int, rank.comm => Comm, rank.stream => Stream));
        assert_eq!(wrong, 4);
        assert_eq!(nccl!(nccl, ncclGroupEnd()), 4);
        let text = nccl.last_error(std::ptr::null_mut());
        assert!(text.contains("peer is 7") && text.contains("of 2"), "{text}");
        nccl.synchronize(rank.stream);
        assert_eq!(output.values(), [0.0]);
        rank.nccl.count_ranks(rank);
        assert_eq!(nccl!(nccl, ncclGroupEnd()), 5, "a group that was not started");
    });
}

#[test]
fn a_group_with_a_nonblocking_initialisation_runs_its_operations() {
    alone!("a_group_with_a_nonblocking_initialisation_runs_its_operations");
    let nccl = Nccl::open(&[]);
    let id: IdValue = nccl.unique_id().into();
    on_threads(&nccl, 2, |rank| {
        let (input, mut output) = (Buffer::of(INT32, &[2.0; 50]), Buffer::zeros(INT32, 50));
        nccl.ok(nccl!(nccl, ncclGroupStart()));
        let fresh = init_nonblocking(&nccl, 2, id, rank.number);
        nccl.ok(nccl.all_reduce(rank, &input, &mut output, SUM));
        assert_eq!(nccl!(nccl, ncclGroupEnd()), 7);
        nccl.synchronize(rank.stream);
        assert_eq!(output.values(), [4.0; 50], "another communicator's operation");
        assert_eq!(settled(&nccl, fresh.comm), 0);
        nccl.count_ranks(&fresh);
        nccl.destroy(fresh.comm);
    });
    // An operation of a communicator that is not there yet fails by name, and the group with it.
    let id: IdValue = nccl.unique_id().into();
    nccl.ok(nccl!(nccl, ncclGroupStart()));
    let fresh = init_nonblocking(&nccl, 2, id, 1);
    let (input, mut output) = (Buffer::zeros(INT32, 1), Buffer::zeros(INT32, 1));
    assert_eq!(nccl.all_reduce(&fresh, &input, &mut output, SUM), 5);
    let last = || nccl.last_error(std::ptr::null_mut());
    assert!(last().contains("rank 1 of 2: ") && last().contains("ncclCommGetAsyncError"), "{}", last());
    assert_eq!(nccl!(nccl, ncclGroupEnd()), 5);
    assert_eq!(settled(&nccl, fresh.comm), 5, "the initialisation did not run");
    nccl.destroy(fresh.comm);
}

#[test]
fn any_call_that_fails_in_a_group_fails_the_group() {
    alone!("any_call_that_fails_in_a_group_fails_the_group");
    let nccl = Nccl::open(&[]);
    let last = || nccl.last_error(std::ptr::null_mut());
    let comm = nccl.init(1, nccl.unique_id(), 0);
    let mut place = std::ptr::null_mut();
    let wrong: [(&dyn Fn(*mut Comm) -> c_int, &str); 4] = [
        (
            &|place| nccl!(nccl, ncclCommInitRank(place => *mut Comm, 2 => c_int, [0; 128].into() => IdValue, 3 => c_int)),
            "rank is 3",
        ),
        (
            &|place| nccl!(nccl, ncclCommSplit(comm => Comm, -7 => c_int, 0 => c_int, place => *mut Comm, std::ptr::null() => *const c_void)),
            "color is -7",
        ),
        (
            &|place| nccl!(nccl, ncclCommWindowRegister(comm => Comm, std::ptr::null_mut() => *mut c_void, 8 => usize, place => *mut Comm, 0 => c_int)),
            "buff is 0x0",
        ),
        (
            &|_| nccl!(nccl, ncclBcast(std::ptr::null_mut() => *mut c_void, 1 => usize, INT32 => c_int, 9 => c_int, comm => Comm, std::ptr::null_mut() => Stream)),
            "peer is 9",
        ),
    ];
    for (call, what) in wrong {
        nccl.ok(nccl!(nccl, ncclGroupStart()));
        assert_eq!(call(&raw mut place), 4, "{what}");
        assert_eq!(nccl!(nccl, ncclGroupEnd()), 4, "{what}");
        assert!(last().contains(what), "{what}: {}", last());
    }
    nccl.destroy(comm);
}

#[test]
fn initialisations_that_do_not_run_leave_nothing() {
    alone!("initialisations_that_do_not_run_leave_nothing");
    let nccl = Nccl::open(&[]);
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let begin = |id: IdValue, size: c_int| {
        let mut comms = [std::ptr::null_mut(); 2];
        nccl.ok(nccl!(nccl, ncclGroupStart()));
        nccl.ok(nccl!(nccl, ncclCommInitRank(&raw mut comms[0] => *mut Comm, size => c_int, id => IdValue, 0 => c_int)));
        assert_eq!(
            nccl!(nccl, ncclCommInitRank(&raw mut comms[1] => *mut Comm, 2 => c_int, id => IdValue, 5 => c_int)),
            4
        );
        assert_eq!(nccl!(nccl, ncclGroupEnd()), 4);
        assert!(comms.iter().all(|comm| comm.is_null()), "{comms:?}");
    };
    begin(nccl.unique_id().into(), 1);
    let before = open();
    (0..20).for_each(|_| begin(nccl.unique_id().into(), 1));
    assert_eq!(open(), before);
}
