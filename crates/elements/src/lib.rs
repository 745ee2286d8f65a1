//! Floating-point types that neither Rust nor the crate `half` has: their codes, values and rounding. What kernels have of them is in
//! `anabranch/float8.h` of `anabranch-hip-jit`.

pub mod float4;
pub mod float8;
pub mod scale;
