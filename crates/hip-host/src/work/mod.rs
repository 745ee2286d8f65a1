//! What devices are given to do: launches, streams and their operations, and the seam to what decides when it is done.

pub(crate) mod capture;
pub(crate) mod core;
pub(crate) mod device;
pub(crate) mod event;
pub(crate) mod graph;
pub(crate) mod launch;
mod notice;
pub(crate) mod operation;
mod queue;
pub(crate) mod scheduler;
pub(crate) mod stream;
