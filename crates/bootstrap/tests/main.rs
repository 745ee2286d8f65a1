//! The tests of this crate, as one binary: a crate is linked once, and its tests run side by side.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints why it skips"
)]

mod common;
mod conformance;
mod faulty;
mod hostile;
mod hosts;
mod launcher;
mod leaks;
mod process;
mod tcp;
