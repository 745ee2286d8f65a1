//! Joining and leaving leaves nothing behind. In a process of its own, since it counts the process's threads and descriptors.

use crate::common::{Form, run, soon};
use anabranch_ranks::Group;
use anabranch_testkit::{Resources, is_alone, test_path};

/// The resident set, in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_hundred_worlds_leave_no_thread_descriptor_or_memory() {
    if !is_alone(test_path!("a_hundred_worlds_leave_no_thread_descriptor_or_memory")) {
        return;
    }
    let cycle = |form, orderly: bool| {
        run(form, 3, move |rendezvous| {
            let world = Group::world(3).unwrap();
            rendezvous.all_gather(&world, "rows", &[1; 10_000], soon()).unwrap();
            if orderly {
                rendezvous.leave().unwrap();
            }
        });
    };
    // Warm-up: the allocator's arenas, one for each thread that there ever is at once.
    for i in 0..20 {
        cycle(Form::Tcp, i % 4 != 0);
        cycle(Form::Threads, i % 4 != 0);
    }
    let (before, kib) = (Resources::at_rest().unwrap(), resident());
    for i in 0..100 {
        cycle(Form::Tcp, i % 4 != 0);
        cycle(Form::Threads, i % 4 != 0);
    }
    let after = Resources::at_rest().unwrap();
    assert!(after.files <= before.files && after.threads <= before.threads, "{before:?} {after:?}");
    // A hundred worlds that kept their messages alone would be 6 MB.
    assert!(resident() < kib + 3_000, "{kib} KiB before, {} KiB after", resident());
}
