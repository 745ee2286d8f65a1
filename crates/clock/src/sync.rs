//! The mutex that a [`Signal`](crate::Signal) works with: the standard one, or loom's in builds with `--cfg loom`, where tests
//! run their threads in every order that C11 allows within one process.

#[cfg(loom)]
pub(crate) use loom::sync::Condvar;
#[cfg(loom)]
pub use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::Condvar;
#[cfg(not(loom))]
pub use std::sync::{Mutex, MutexGuard};
