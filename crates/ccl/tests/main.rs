//! The tests of this crate, as one binary: a crate is linked once, and its tests run side by side.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints why it skips"
)]

mod bits;
mod collectives;
mod common;
mod copy_engine;
mod errors;
mod fingerprint;
mod fingerprint_lists;
mod framework;
mod gather_many;
mod graph;
mod killed;
mod listed_code;
mod messages;
mod network;
mod network_failures;
mod network_nic;
mod network_processes;
mod network_traffic;
mod norm;
mod numbers;
mod scalars;
mod sizes;
mod streams;
mod sweep;
mod typed;
mod wrap;
