//! The machine's memory: mappings, the ranges that kernels and copies may name, virtual memory, handles for other processes.

pub(crate) mod ipc;
pub(crate) mod mapping;
pub(crate) mod regions;
pub(crate) mod virtual_memory;
