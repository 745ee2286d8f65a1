//! Protocols under seeds: small worlds that run the real kernels in an order drawn from a seed, and a search for the seed
//! that breaks one.
//!
//! A [`Scenario`] is a protocol with its judge: it runs one [`Case`] under one seed and says what went wrong, if anything.
//! What is searched, shrunk and replayed is plain data, so that a failure is a command line.

mod case;
mod failure;
pub mod kernels;
mod scenario;
mod scenarios;
pub mod twins;

pub use case::{Case, CaseError, Protocol};
pub use failure::Failure;
pub use scenario::{Outcome, RunOptions, Scenario, ScenarioError};
pub use scenarios::scenario;

#[cfg(test)]
mod scratch {
    use std::path::PathBuf;

    use anabranch_hip_jit::{Jit, JitConfig, ToolSearch};

    /// The kernels of this crate's tests, which share a cache.
    pub(crate) fn jit() -> Jit {
        let path = ["/usr/local/bin", "/usr/bin", "/bin"].map(PathBuf::from).to_vec();
        let folder = std::env::temp_dir().join("anabranch-sim-tests");
        Jit::new(JitConfig::new(folder), ToolSearch { path, ..ToolSearch::default() })
    }
}
