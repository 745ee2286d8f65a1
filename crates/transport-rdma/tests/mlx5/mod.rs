//! The driver of ConnectX over a NIC that takes commands and moves nothing: what it is told, who opens it, and what failures read like.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail their test"
)]

mod commands;
mod failures;
mod fake;
mod machine;
