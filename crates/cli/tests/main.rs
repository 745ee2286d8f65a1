//! The tests of this crate, as one binary: a crate is linked once, and its tests run side by side.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints why it skips"
)]

mod bench;
mod bench_payload;
mod bench_shmem;
mod common;
mod config;
mod exits;
mod linkage;
mod model;
mod nodes;
mod overlap;
mod reports;
mod run;
mod sim;
mod trace;
