//! Whole machines under seeds: rank threads, streams, copies, graphs, host memory, faults.
#![allow(unreachable_pub, reason = "helpers of tests fail by panicking")]

mod exchange;
mod faults;
mod host;
mod lab;
mod memory;
mod time;
