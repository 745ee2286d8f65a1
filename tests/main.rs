//! The tests of this crate, as one binary: a crate is linked once, and its tests run side by side.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints why it skips"
)]

mod collectives;
mod config;
#[cfg(feature = "rdma")]
mod connectx;
mod expert_exchange;
mod trace;
mod world;
