//! Whose handlers of signals a process has once libfabric is open. A binary of its own: the first to open libfabric is what counts.

use crate::common;

use core::ffi::c_int;

use anabranch_transport_ofi::OfiNics;

/// Those that Debian's `libpsm2` takes, and that `shm` does.
const SIGNALS: [c_int; 8] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGABRT,
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGUSR1,
];

/// What the C library adds to the flags of what it is given: where a handler returns to.
const RESTORER: c_int = 0x0400_0000;

/// The handler of each, and its flags.
fn handlers() -> Vec<(c_int, usize, c_int)> {
    let of = |signal| {
        // SAFETY: all bits zero are a value of this plain struct.
        let mut found: libc::sigaction = unsafe { core::mem::zeroed() };
        // SAFETY: the call changes nothing, and writes one struct.
        assert_eq!(unsafe { libc::sigaction(signal, core::ptr::null(), &raw mut found) }, 0);
        (signal, found.sa_sigaction, found.sa_flags & !RESTORER)
    };
    SIGNALS.into_iter().map(of).collect()
}

/// As the first thing that a process does with libfabric.
#[test]
#[ignore = "the process that the test below starts"]
fn opened_first() {
    if !common::is_own_process() {
        return;
    }
    let before = handlers();
    // Rust's own is there: a stack that overflows is told of.
    assert_ne!(before[0].1, libc::SIG_DFL);
    let surveyed = OfiNics::new(Some("tcp".to_owned())).survey(&["=lo".to_owned()]).unwrap();
    assert!(surveyed.contains("tcp"), "{surveyed}");
    assert_eq!(handlers(), before, "after tcp");
    let surveyed = OfiNics::new(Some("shm".to_owned())).survey(&[]).unwrap();
    assert!(surveyed.contains("shm"), "{surveyed}");
    assert_eq!(handlers(), before, "after shm");
    let rank = common::Rank::new("shm", 4096);
    let _poster = rank.poster(1, 0, 16);
    assert_eq!(handlers(), before, "after an endpoint");
}

#[test]
fn handlers_of_signals_stay_those_of_the_program() {
    if !common::is_installed() {
        return;
    }
    common::run_again("signals::opened_first", Some("1"));
}
