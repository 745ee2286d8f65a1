//! Kernels, their argument structs, and the layout of the memory of a communicator.

pub(crate) mod args;
pub(crate) mod channel;
pub(crate) mod headers;
pub mod kernels;
pub(crate) mod norm;
pub(crate) mod pipes;
pub(crate) mod uneven;
