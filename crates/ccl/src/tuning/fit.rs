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

/// The steps of a collective from what was measured, sizes ascending ([`anabranch_tuning::fit`]). Between two sizes with different
/// candidates the border is their geometric mean. Empty where nothing was measured.
pub fn fit(candidates: &[Candidate], measured: &[Measured]) -> Vec<Step> {
    let times: Vec<_> = measured.iter().map(|measured| measured.times.clone()).collect();
    let step = |run: anabranch_tuning::Run| {
        let up_to = measured.get(run.until).zip(measured.get(run.until - 1)).map(|(next, last)| {
            let border = (last.bytes as f64 * next.bytes as f64).sqrt() as u64;
            border.clamp(last.bytes, next.bytes.saturating_sub(1))
        });
        let Candidate { algorithm, block_bytes, phased } = *candidates.get(run.candidate)?;
        Some(Step { up_to, algorithm, block_bytes, phased })
    };
    anabranch_tuning::fit(&times).into_iter().filter_map(step).collect()
}
