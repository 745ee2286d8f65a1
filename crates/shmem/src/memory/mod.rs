//! Memory of a world that users hold: allocations of the symmetric heap, and buffers that lie elsewhere.

mod local_registration;
mod registration;
mod symmetric;

pub use local_registration::LocalRegistration;
pub use registration::Registration;
pub use symmetric::{HeapLocation, HeapUsage, SymmetricMemory};
