//! References that judge the kernels, for tests, benchmarks and the simulation. No library that users link depends on this crate.

pub mod ccl;
pub mod ep;
pub mod shmem;
