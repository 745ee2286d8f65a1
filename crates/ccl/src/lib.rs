//! Collectives over a group, with torch.distributed's semantics.

mod error;

pub use error::{Error, Result};
