//! The tests of this crate, as one binary: a crate is linked once, and its tests run side by side.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints why it skips"
)]

mod cache_races;
mod common;
mod compiler_faults;
mod disk_faults;
mod explore;
mod failing_disk;
mod lab;
mod launch;
mod litmus;
mod lockstep;
mod pipeline;
mod processes;
mod seeded;
mod toolchains;
