//! Collective calls on the host: their order, and where their failures are reported.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use anabranch_testkit::{Ranks, role, test_path};

use crate::collectives::alone;
use crate::common::{Comm, LIMIT, Nccl, Rank, nccl, on_threads};
use crate::lifecycle::{Config, settled};

/// Begins a nonblocking split with one color.
fn split(rank: &Rank<'_>, key: c_int, part: *mut Comm) {
    let config = Config::new(0);
    let code = nccl!(rank.nccl, ncclCommSplit(rank.comm => Comm, 0 => c_int, key => c_int, part => *mut Comm, &raw const config => *const Config));
    assert_eq!(code, 7, "{}", rank.nccl.last_error(std::ptr::null_mut()));
}

/// Lets a rank be late.
fn late(rank: &Rank<'_>, number: u32) {
    if rank.number == number {
        #[expect(clippy::disallowed_methods, reason = "a rank is late in the machine's time")]
        std::thread::sleep(Duration::from_millis(500));
    }
}

#[track_caller]
fn check(rank: &Rank<'_>, part: Comm, number: u32) {
    assert_eq!(settled(rank.nccl, part), 0, "{}", rank.nccl.last_error(part));
    let mut place = -1;
    rank.nccl.ok(nccl!(rank.nccl, ncclCommUserRank(part => Comm, &raw mut place => *mut c_int)));
    assert_eq!(place, number as c_int);
    rank.nccl.count_ranks(&Rank { comm: part, number, ..*rank });
    rank.nccl.destroy(part);
}

#[test]
fn collective_calls_of_a_communicator_run_in_the_order_of_the_program() {
    alone!("collective_calls_of_a_communicator_run_in_the_order_of_the_program");
    let nccl = Nccl::open(&[]);
    on_threads(&nccl, 2, |rank| {
        let (key, mut parts, memory) = (rank.number as c_int, [std::ptr::null_mut(); 3], [0u64; 512]);
        let mut window = std::ptr::null_mut::<c_void>();
        // The other rank has made the next calls before this one makes them.
        split(rank, key, &raw mut parts[0]);
        late(rank, 1);
        split(rank, -key, &raw mut parts[1]);
        late(rank, 0);
        nccl.ok(nccl!(nccl, ncclCommWindowRegister(rank.comm => Comm, memory.as_ptr().cast_mut().cast() => *mut c_void, 4096 => usize, &raw mut window => *mut *mut c_void, 0 => c_int)));
        late(rank, 1);
        split(rank, -key, &raw mut parts[2]);
        late(rank, 0);
        nccl.ok(nccl!(nccl, ncclCommFinalize(rank.comm => Comm)));
        assert_eq!(settled(&nccl, rank.comm), 0, "{}", nccl.last_error(rank.comm));
        for (part, number) in parts.into_iter().zip([rank.number, 1 - rank.number, 1 - rank.number]) {
            check(rank, part, number);
        }
    });
}
