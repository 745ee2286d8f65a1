//! The C interface, from C: programs are built with the system's compilers, and run as ranks on the `host` runtime.
#![allow(
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a failed expectation is how these tests fail; one that skips prints why"
)]

mod common;
mod header;
mod install;
mod programs;
