//! The tests of this crate, as one binary: a crate is linked once, and its tests run side by side.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints why it skips"
)]

mod common;
mod engines;
mod graph_events;
mod graphs;
mod handles;
mod kernels;
mod lifetime;
mod memory;
mod processes;
mod streams;
