//! The device arithmetic of every element type gives the oracle's bits: on the host runtime, for all operators, group sizes,
//! data classes and widths; and it compiles for GPUs.

mod convert;
mod device;
mod gpu_code;
mod reduce;
