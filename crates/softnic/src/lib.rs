//! A NIC in software: it consumes the queue entries that kernels write for real ones, and moves the bytes. For tests, simulation,
//! and machines without a NIC.
#![deny(unsafe_code)]
