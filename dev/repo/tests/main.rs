//! Checks of the repository itself, as one binary.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints why it skips"
)]

mod architecture;
mod artefacts;
mod common;
mod cycles;
mod dependencies;
mod device_globals;
mod globals;
mod operations;
mod packages;
mod plans;
mod public;
mod registry;
mod rendezvous_mutants;
mod seeds;
mod synchronisations;
mod tidy;
