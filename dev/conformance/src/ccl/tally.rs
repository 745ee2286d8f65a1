//! What came of many trials.

use std::collections::BTreeMap;

use super::{Failure, ListCase, ListForm, Subset, Trial};
use anabranch_ccl::Error;

/// What came of a check on one rank.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Groups that this rank is a member of.
    pub groups: u64,
    /// Trials that it took part in.
    pub calls: u64,
    /// Those of them that were of lists, in the order of [`ListForm::ALL`].
    pub lists: [u64; ListForm::ALL.len()],
    /// Trials, as often as they ran, in groups whose members are on several nodes.
    pub internode: u64,
    /// What does not exist in the communicators of some groups, and why: how many trials.
    pub left_out: BTreeMap<LeftOut, u64>,
    /// Wrong results, each with its group.
    pub failures: Vec<(Subset, Failure)>,
}

/// Something that a check left out where it does not exist.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeftOut {
    /// An algorithm, or a kind of call.
    pub what: String,
    /// Why there is none.
    pub why: String,
}

impl Tally {
    /// Counts a trial that does not exist in this way.
    pub(crate) fn leave_out(&mut self, what: &str, error: &Error) {
        let why = match error {
            Error::Algorithm { reason, .. } => (*reason).to_owned(),
            // How many nodes depends on the group.
            Error::Unmapped { instead, .. } => {
                format!(
                    "it goes through memory that all members map, and members are on several nodes: {instead}"
                )
            }
            other => other.to_string(),
        };
        *self.left_out.entry(LeftOut { what: what.to_owned(), why }).or_default() += 1;
    }

    /// Counts trials and what came of them; `when` says which they were.
    pub(crate) fn judged<'a>(
        &mut self,
        subset: &Subset,
        trials: impl IntoIterator<Item = &'a Trial>,
        verdict: Result<(), Failure>,
        when: &str,
    ) {
        for trial in trials {
            self.calls += 1;
            for (count, of) in self.lists.iter_mut().zip(ListForm::ALL) {
                *count += u64::from(matches!(trial, Trial::List(ListCase { form, .. }) if *form == of));
            }
        }
        if let Err(Failure(problem)) = verdict {
            let when = if when.is_empty() { String::new() } else { format!("{when}: ") };
            self.failures.push((subset.clone(), Failure(format!("{when}{problem}"))));
        }
    }
}
