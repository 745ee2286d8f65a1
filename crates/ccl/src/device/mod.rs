//! What kernels and host share: the kernels, their argument structs, and where a communicator's memory is.

pub(crate) mod args;
pub(crate) mod channel;
pub(crate) mod headers;
pub mod kernels;
pub(crate) mod pipes;
