//! One table of HIP functions and safe handles over it.
//!
//! HIP's C runtime API is the only GPU interface that the workspace knows. [`HipApi`] is that API as a table of
//! functions; a [`Runtime`] is one filled table: AMD's library ([`load_amd`]), the CUDA driver under HIP's names,
//! or a machine made of CPU threads. The handles ([`Device`], [`Stream`], [`DeviceBuffer`], ...) own what they
//! name, never depend on the device that happens to be current, and restore it on every path.
//!
//! Who checks what: ranges of owned buffers and devices of handles are checked here; the contents of kernel
//! arguments and the lifetime of addresses inside them are the launching crate's promise (`unsafe`).
#![warn(missing_docs)]

pub mod table;
pub mod types;

mod actor;
mod causes;
mod clocks;
mod device;
mod error;
mod graph;
mod ipc;
mod loader;
mod memory;
mod module;
mod relaxed_capture;
mod runtime;
mod stream;
mod trace;
mod transfer;
mod virtual_memory;

pub use actor::{Actor, EngineMemory, NoMemory, Step};
pub use causes::{with_causes, with_distinct_causes};
pub use device::{Device, DeviceGuard};
pub use error::{Error, LoadError, Result};
pub use graph::{Graph, GraphExec};
pub use ipc::{IpcHandle, IpcMapping};
pub use loader::load_amd;
pub use memory::{DeviceAddress, DeviceBuffer, HostBuffer};
pub use module::{Kernel, LaunchShape, Module};
pub use relaxed_capture::RelaxedCapture;
pub use runtime::{Binding, DeviceOrdinal, Runtime, RuntimeKind, SoftwareEngines, StartActor};
pub use stream::{Event, Stream};
pub use table::HipApi;
pub use trace::{CallSpan, HostCall, StreamWork, Trace, TraceRecord, Untraced};
pub use types::HipError;
pub use virtual_memory::{PhysicalHandle, PhysicalMemory, ReservedRange, VirtualMapping};
