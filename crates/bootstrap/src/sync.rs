//! Locks, which loom can take the place of.
//!
//! Built with `--cfg loom`, the tests whose names have `loom` in them run their threads in every order that C11 allows
//! within one process, and time never passes. That says nothing about sockets, other processes, GPUs or PCIe.

#[cfg(loom)]
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
