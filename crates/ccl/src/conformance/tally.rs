//! What came of many cases.

use super::{Failure, Subset};

/// What came of a check on one rank.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Groups that this rank is a member of.
    pub groups: u64,
    /// Calls that it took part in.
    pub calls: u64,
    /// Wrong results, each with its group.
    pub failures: Vec<(Subset, Failure)>,
}

impl Tally {
    /// Counts calls and what came of them; `when` says which they were.
    pub(crate) fn judged(&mut self, subset: &Subset, calls: u64, verdict: Result<(), Failure>, when: &str) {
        self.calls += calls;
        if let Err(Failure(problem)) = verdict {
            let when = if when.is_empty() { String::new() } else { format!("{when}: ") };
            self.failures.push((subset.clone(), Failure(format!("{when}{problem}"))));
        }
    }
}
