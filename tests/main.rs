//! The tests of this crate, as one binary: a crate is linked once, and its tests run side by side.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints why it skips"
)]

mod architecture;
mod artefacts;
mod collectives;
mod common;
mod config;
mod connectx;
mod dependencies;
mod device_globals;
mod expert_exchange;
mod globals;
mod operations;
mod packages;
mod plans;
mod public;
mod registry;
mod seeds;
mod synchronisations;
mod tidy;
mod world;
