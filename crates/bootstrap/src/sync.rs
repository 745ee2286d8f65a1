//! Locks, which loom can take the place of.
//!
//! Built with `--cfg loom`, the tests whose names have `loom` in them run their threads in every order that C11 allows
//! within one process, and time never passes. That says nothing about sockets, other processes, GPUs or PCIe.

pub(crate) use anabranch_clock::sync::{Mutex, MutexGuard};
