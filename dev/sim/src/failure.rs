//! How a run went wrong.

use anabranch_weakmem::Event;

/// A run that was not right.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Failure {
    /// What is wrong, in a sentence that names rank, round and place.
    pub problem: String,
    /// Everything that happened, in order, if it was asked for.
    pub events: Vec<Event>,
}

impl Failure {
    /// A failure without events.
    pub fn new(problem: impl Into<String>) -> Self {
        Self { problem: problem.into(), events: Vec::new() }
    }
}
