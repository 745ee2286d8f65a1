//! Trees, choices and queues, with trees written by hand and a thunk in memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod chooser;
mod fake;
mod queue;
mod topology;
mod tree;
