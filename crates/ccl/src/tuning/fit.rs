//! From times to steps.

use super::Step;
use crate::plan::Algorithm;

/// A way of doing a call that is measured beside others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Candidate {
    /// How.
    pub algorithm: Algorithm,
    /// [`Step::block_bytes`].
    pub block_bytes: u64,
    /// [`Step::phased`].
    pub phased: bool,
}

/// The times of one size, in the order of the candidates; `None` for those that were left out.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Bytes of the message.
    pub bytes: u64,
    /// Times of a call, in one unit.
    pub times: Vec<Option<f64>>,
}

/// A candidate is kept over a faster one that is less than this much faster: of times that are close, noise would choose.
const KEEP: f64 = 1.03;

/// The steps of a collective from what was measured, sizes ascending: at each measured size a candidate that takes at most 3 % longer
/// than the fastest, and as few changes as that allows from each size on. Between two sizes with different ones the border is their
/// geometric mean. Empty where nothing was measured.
pub fn fit(candidates: &[Candidate], measured: &[Measured]) -> Vec<Step> {
    let good = |at: usize| -> Vec<usize> {
        let times = measured.get(at).map_or(&[][..], |measured| &measured.times);
        let best = times.iter().flatten().copied().fold(f64::INFINITY, f64::min);
        let is_good =
            |index: &usize| times.get(*index).copied().flatten().is_some_and(|time| time <= best * KEEP);
        (0..candidates.len()).filter(is_good).collect()
    };
    let mut steps = Vec::new();
    let mut at = 0;
    while at < measured.len() {
        // Of those that are good here, one that stays good for longest; of these the one that is fastest in sum over that time.
        let lasts =
            |candidate: usize| (at..measured.len()).take_while(|at| good(*at).contains(&candidate)).count();
        let share = |candidate: usize, until: usize| -> f64 {
            let of = |measured: &Measured| {
                let best = measured.times.iter().flatten().copied().fold(f64::INFINITY, f64::min);
                measured.times.get(candidate).copied().flatten().map_or(f64::INFINITY, |time| time / best)
            };
            measured.iter().take(until).skip(at).map(of).sum()
        };
        let Some(longest) = good(at).into_iter().map(lasts).max() else {
            at += 1;
            continue;
        };
        let until = at + longest;
        let lasting = good(at).into_iter().filter(|candidate| lasts(*candidate) == longest);
        let Some(chosen) = lasting.min_by(|one, other| share(*one, until).total_cmp(&share(*other, until)))
        else {
            break;
        };
        let up_to = measured.get(until).zip(measured.get(until - 1)).map(|(next, last)| {
            let border = (last.bytes as f64 * next.bytes as f64).sqrt() as u64;
            border.clamp(last.bytes, next.bytes.saturating_sub(1))
        });
        let Candidate { algorithm, block_bytes, phased } = candidates[chosen];
        steps.push(Step { up_to, algorithm, block_bytes, phased });
        at = until;
    }
    steps
}
