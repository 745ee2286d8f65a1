//! From times to runs of sizes that are done alike.

/// A candidate is kept unless another is faster by more than this: between close times, noise would choose.
const KEEP: f64 = 1.03;

/// Sizes that follow each other, for which one candidate is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// The candidate's number.
    pub(crate) candidate: usize,
    /// The first size that is no longer its own.
    pub(crate) until: usize,
}

/// The runs of what was measured: `times[size][candidate]`, sizes ascending, `None` for what was left out. At each measured size a
/// candidate that takes at most 3 % longer than the fastest, and as few changes as that allows from each size on. Sizes at which
/// nothing was measured end a run and have none. Empty where nothing was measured at all.
pub(crate) fn runs(times: &[Vec<Option<f64>>]) -> Vec<Run> {
    let best = |at: usize| times[at].iter().flatten().copied().fold(f64::INFINITY, f64::min);
    let time = |at: usize, candidate: usize| times[at].get(candidate).copied().flatten();
    let is_good = |at: usize, candidate: usize| {
        let best = best(at);
        time(at, candidate).is_some_and(|time| time <= best * KEEP)
    };
    let mut runs = Vec::new();
    let mut at = 0;
    while at < times.len() {
        // Of the candidates within the tolerance here, one that stays so for most sizes; of these the fastest in sum over those sizes.
        let good: Vec<_> = (0..times[at].len()).filter(|candidate| is_good(at, *candidate)).collect();
        let lasts = |candidate: usize| (at..times.len()).take_while(|at| is_good(*at, candidate)).count();
        let share = |candidate: usize, until: usize| -> f64 {
            (at..until).map(|at| time(at, candidate).map_or(f64::INFINITY, |time| time / best(at))).sum()
        };
        let Some(longest) = good.iter().map(|candidate| lasts(*candidate)).max() else {
            at += 1;
            continue;
        };
        let until = at + longest;
        let lasting = good.into_iter().filter(|candidate| lasts(*candidate) == longest);
        let Some(candidate) =
            lasting.min_by(|one, other| share(*one, until).total_cmp(&share(*other, until)))
        else {
            break;
        };
        runs.push(Run { candidate, until });
        at = until;
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(times: &[[f64; 3]]) -> Vec<Vec<Option<f64>>> {
        times.iter().map(|times| times.iter().copied().map(Some).collect()).collect()
    }

    #[test]
    fn noise_changes_nothing_and_gaps_end_a_run() {
        let pairs = |times: &[[f64; 3]]| -> Vec<_> {
            runs(&all(times)).into_iter().map(|run| (run.candidate, run.until)).collect()
        };
        assert_eq!(pairs(&[]), []);
        assert_eq!(
            pairs(&[[1.0, 5.0, 9.0], [1.02, 1.0, 9.0], [1.0, 1.01, 9.0], [4.0, 2.0, 9.0], [9.0, 9.0, 3.0]]),
            [(0, 3), (1, 4), (2, 5)]
        );
        let gap = [vec![Some(1.0), None], vec![None, None], vec![Some(2.0), Some(1.0)]];
        assert_eq!(runs(&gap), [Run { candidate: 0, until: 1 }, Run { candidate: 1, until: 3 }]);
    }

    proptest! {
        #[test]
        fn every_size_gets_what_is_at_most_3_percent_slower(
            times in proptest::collection::vec([1.0..20.0_f64, 1.0..20.0, 1.0..20.0], 1..20),
        ) {
            let mut at = 0;
            for Run { candidate, until } in runs(&all(&times)) {
                prop_assert!(until > at);
                for times in &times[at..until] {
                    let best = times.iter().copied().fold(f64::INFINITY, f64::min);
                    prop_assert!(times[candidate] <= best * KEEP);
                }
                at = until;
            }
            prop_assert_eq!(at, times.len());
        }
    }
}
