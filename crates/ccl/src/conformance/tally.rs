//! What came of many trials.

use super::{Failure, ListCase, ListForm, Subset, Trial};

/// What came of a check on one rank.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Groups that this rank is a member of.
    pub groups: u64,
    /// Trials that it took part in.
    pub calls: u64,
    /// Those of them that were of lists, in the order of [`ListForm::ALL`].
    pub lists: [u64; ListForm::ALL.len()],
    /// Wrong results, each with its group.
    pub failures: Vec<(Subset, Failure)>,
}

impl Tally {
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
