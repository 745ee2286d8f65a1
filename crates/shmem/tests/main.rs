//! The tests of this crate, as one binary: a crate is linked once, and its tests run side by side.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints why it skips"
)]

mod agreement;
mod counted;
mod counted_processes;
mod current_device;
mod cut;
mod device_api;
mod engines;
mod flat;
mod host_api;
mod inflight;
mod leaks;
mod lifetimes;
mod lockstep;
mod many_ranks;
mod nic_code;
mod nics;
mod nics_failures;
mod nics_leaks;
mod nics_processes;
mod peer_copies;
mod processes;
mod same_process;
mod stream_barriers;
mod support;
mod teams;
mod threads;
mod untracked;
