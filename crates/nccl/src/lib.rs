//! A drop-in for `libnccl.so.2` and `librccl.so.1`: NCCL's functions over [`anabranch`]'s collectives.
//!
//! `docs/nccl.md` says how programs get it, and lists the names. The declarations follow `nccl.h` of NCCL 2.32.3.
//!
//! Order of reading: `abi` has NCCL's types; `process` the settings, the runtime and the current device; `comm` joins a world (`joined`) for
//! each communicator, `steps` orders its collective calls on the host, `leave` leaves it when its kernels are over (`in_use`); `operation` turns
//! operations into calls; `group` collects both between `ncclGroupStart` and `ncclGroupEnd`; `lifecycle`, `collectives` and `refused` are the
//! functions.
//!
//! The registries are global to the process: NCCL's callers have a number (`ncclComm_t`, `ncclWindow_t`, an address), and nothing else.
#![warn(missing_docs)]

mod abi;
mod blocks;
mod collectives;
mod comm;
mod error;
mod export;
mod fallback;
mod group;
mod host;
mod in_use;
mod joined;
mod leave;
mod lifecycle;
mod operation;
mod process;
mod refused;
mod scratch;
mod split;
mod steps;
mod window;
