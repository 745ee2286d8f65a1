//! Element types: their names and sizes, and those floating-point types that neither Rust nor the crate `half` has, with their codes,
//! values and rounding. Kernels have the same types in `anabranch/float8.h` of `anabranch-hip-jit`.
#![warn(missing_docs)]

pub mod data_type;
pub mod float4;
pub mod float8;
pub mod scale;
