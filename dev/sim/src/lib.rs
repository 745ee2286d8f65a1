//! Protocols under seeds: small worlds that run the real kernels in an order drawn from a seed, and a search for the seed
//! that breaks one.
//!
//! A [`Scenario`] is a protocol with its judge: it runs one [`Case`] under one seed and says what went wrong, if anything.
//! What is searched, shrunk and replayed is plain data, so that a failure is a command line.
//!
//! [`search()`] finds the lowest seed that fails, [`Found::again`] its events, [`shrink()`] a smaller failure of the same
//! [`Kind`], [`timeline()`] and [`write_trace`] show it. `docs/simulation.md` is the user's page.

mod case;
mod explore;
mod failure;
#[cfg(test)]
mod fake;
mod fault;
mod found;
pub mod kernels;
mod kind;
pub mod mutants;
mod protocol;
mod protocols;
mod scenario;
mod scenarios;
mod search;
mod shrink;
mod smaller;
mod sweep;
mod timeline;
mod trace;

pub use anabranch_weakmem::Bounds;
pub use case::{Case, CaseError};
pub use explore::{Exploration, explore};
pub use failure::Failure;
pub use fault::{Fault, FaultWords};
pub use found::{Found, FoundError};
pub use kind::Kind;
pub use mutants::{Mutant, mutant, mutants};
pub use protocol::{Protocol, UnknownProtocol};
pub use protocols::about;
pub use scenario::{Outcome, RunOptions, Scenario, ScenarioError};
pub use scenarios::{check_mutant, scenario};
pub use search::{End, Progress, Report, SearchOptions, search};
pub use shrink::{Make, ShrinkOptions, ShrinkProgress, Shrunk, shrink};
pub use sweep::{Sweep, SweepOptions, SweepReport, sweep};
pub use timeline::{TimelineOptions, timeline};
pub use trace::write_trace;

#[cfg(test)]
mod scratch {
    use std::path::PathBuf;

    use anabranch_hip_jit::{Jit, JitConfig, ToolSearch};

    /// The kernels of this crate's tests, which share a cache.
    pub(crate) fn jit() -> Jit {
        let path = ["/usr/local/bin", "/usr/bin", "/bin"].map(PathBuf::from).to_vec();
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/tmp/sim-unit-tests");
        Jit::new(JitConfig::new(folder), ToolSearch { path, ..ToolSearch::default() })
    }
}
