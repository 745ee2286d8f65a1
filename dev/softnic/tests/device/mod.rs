//! Kernels of the host runtime put requests into their queues, and NICs in software do them: two ranks, each with its own kernel.
#![allow(unreachable_pub, unnameable_types, reason = "helpers of tests")]

#[path = "../../../../crates/transport-rdma/tests/device/asked.rs"]
mod asked;
mod mistakes;
mod pair;
mod registers;
mod requests;
