//! The C interface of anabranch. `include/anabranch.h` is generated from these sources; a test compares the two.
//!
//! Every exported function is for C: its pointers satisfy what the head of the header (`cbindgen.toml`) states. That is the contract that
//! `SAFETY` comments of this crate call the caller's.
#![expect(non_camel_case_types, reason = "types have the names that C gives them")]
#![allow(
    clippy::missing_safety_doc,
    reason = "the contract is at the head of the header, once for all functions"
)]
#![warn(missing_docs)]

pub mod collectives;
pub mod communicator;
pub mod config;
pub mod ep;
pub mod ep_config;
pub mod ep_halves;
pub mod expert_major;
pub mod group;
mod handle;
pub mod join;
mod logs;
pub mod memory;
pub mod messages;
mod state;
pub mod status;
pub mod stream;
pub mod types;
mod versioned;
pub mod world;
