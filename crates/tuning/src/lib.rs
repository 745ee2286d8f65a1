//! What choices have in common, whatever they choose: of measured ones how times become steps, and what tells tables apart; of those that
//! nobody measured the speeds of links that they are computed from.

mod digest;
mod fit;
mod links;

pub use digest::digest;
pub use fit::{KEEP, Run, fit};
pub use links::{LinkSpeeds, Moved, TimeParts};
