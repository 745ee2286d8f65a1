//! From times to steps.

use super::{Launch, LaunchStep};

/// The times of one number of tokens, in the order of the launches that were tried; `None` for those that were left out.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Tokens a rank.
    pub tokens: u32,
    /// Times of a call, in one unit.
    pub times: Vec<Option<f64>>,
}

/// The steps of an operation from what was measured, tokens ascending ([`anabranch_tuning::fit`]). A call between two numbers of tokens
/// that were measured is done as the larger one, a call with more than the largest as that. Empty where nothing was measured.
pub fn fit(launches: &[Launch], measured: &[Measured]) -> Vec<LaunchStep> {
    let times: Vec<_> = measured.iter().map(|measured| measured.times.clone()).collect();
    let step = |run: anabranch_tuning::Run| {
        let ends = run.until == measured.len();
        let up_to = measured.get(run.until - 1).filter(|_| !ends).map(|last| last.tokens);
        let Launch { max_blocks, waves_per_block, segments } = *launches.get(run.candidate)?;
        Some(LaunchStep { up_to, max_blocks, waves_per_block, segments })
    };
    let mut steps: Vec<_> = anabranch_tuning::fit(&times).into_iter().filter_map(step).collect();
    // Where the largest sizes were left out.
    if let Some(last) = steps.last_mut() {
        last.up_to = None;
    }
    steps
}
