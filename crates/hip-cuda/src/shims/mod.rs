//! The functions of the HIP table, by theme. Each converts arguments, makes one driver call (few make more),
//! and converts the result.

#![allow(non_snake_case, reason = "functions carry the C names of the table")]

pub(crate) mod device;
pub(crate) mod graph;
pub(crate) mod ipc;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod stream;
pub(crate) mod virtual_memory;
