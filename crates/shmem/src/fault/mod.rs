//! How a world fails: what raises it, which failure is the root cause, and how other ranks learn it. Nothing here knows the world itself.

pub(crate) mod activity;
pub(crate) mod answers;
pub(crate) mod control;
pub(crate) mod names;
pub(crate) mod notes;
pub(crate) mod queue_watch;
pub(crate) mod report;
pub(crate) mod root_cause;
pub(crate) mod state;
pub(crate) mod tolerance;

pub use activity::{LaunchNote, NoteText};
pub use names::{ExplainFault, OperationCode, OperationName};
pub use notes::TracedWait;
