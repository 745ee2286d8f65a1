//! Worlds with NICs, joined, used and left many times, leak nothing. Alone in its process, so that no other test's
//! threads, sockets and rings are counted.

use crate::support::all;
use crate::support::engines::exchange;
use crate::support::nics::{Machines, soft};
use anabranch_shmem::{World, spawn_threads};
use anabranch_softnic::SoftNics;
use anabranch_testkit::{Resources, is_alone, test_path};

fn once() {
    let machines = Machines::new(&[1, 1], 1, SoftNics::in_process(soft(None)));
    all(spawn_threads(2, |rank| machines.setup(rank), |world: &World| exchange(world, 1)));
}

#[test]
fn worlds_with_nics_leak_nothing() {
    if !is_alone(test_path!("worlds_with_nics_leak_nothing")) {
        return;
    }
    // The first rounds start the machine's threads and load the kernel.
    for _ in 0..5 {
        once();
    }
    let before = Resources::at_rest().unwrap();
    for _ in 0..50 {
        once();
    }
    let after = Resources::at_rest().unwrap();
    assert!(after.files <= before.files, "{before:?} {after:?}");
    assert!(after.threads <= before.threads, "{before:?} {after:?}");
    // Stacks of ended threads are kept for the next ones, so a few mappings come and go; 50 leaks would show.
    assert!(after.mappings < before.mappings + 30, "{before:?} {after:?}");
}
