//! The commands, one a file.

pub(crate) mod bench;
pub(crate) mod config;
pub(crate) mod doctor;
pub(crate) mod jit;
pub(crate) mod run;
pub(crate) mod sim;
pub(crate) mod topo;
pub(crate) mod trace;
pub(crate) mod tune;
