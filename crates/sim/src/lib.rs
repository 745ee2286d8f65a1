//! Protocols under seeds: small worlds that run the real kernels in an order drawn from a seed, and a search for the seed
//! that breaks one.
//!
//! A [`Scenario`] is a protocol with its judge: it runs one [`Case`] under one seed and says what went wrong, if anything.
//! What is searched, shrunk and replayed is plain data, so that a failure is a command line.

mod case;
mod failure;
mod scenario;

pub use case::{Case, CaseError, Protocol};
pub use failure::Failure;
pub use scenario::{Outcome, RunOptions, Scenario, ScenarioError};
