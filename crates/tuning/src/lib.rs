//! What tables of measured choices have in common, whatever they choose: how times become steps, and what tells tables apart.

mod digest;
mod fit;

pub use digest::digest;
pub use fit::{KEEP, Run, fit};
