//! From times to steps.

use anabranch_ep::launch::{Launch, LaunchStep};

use crate::fit;

/// The times of one number of tokens, in the order of the launches; `None` for launches that were skipped.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Measured {
    /// Tokens a rank.
    pub(crate) tokens: u32,
    /// Times of a call, in one unit.
    pub(crate) times: Vec<Option<f64>>,
}

/// The steps of an operation from what was measured, tokens ascending ([`fit::runs`]). A call between two numbers of tokens
/// that were measured is done as the larger one, a call with more than the largest as that. Empty where nothing was measured.
pub(crate) fn steps(launches: &[Launch], measured: &[Measured]) -> Vec<LaunchStep> {
    let times: Vec<_> = measured.iter().map(|measured| measured.times.clone()).collect();
    let step = |run: fit::Run| {
        let ends = run.until == measured.len();
        let up_to = measured.get(run.until - 1).filter(|_| !ends).map(|last| last.tokens);
        let Launch { max_blocks, waves_per_block, segments } = *launches.get(run.candidate)?;
        Some(LaunchStep { up_to, max_blocks, waves_per_block, segments })
    };
    let mut steps: Vec<_> = fit::runs(&times).into_iter().filter_map(step).collect();
    // Where the largest sizes were left out.
    if let Some(last) = steps.last_mut() {
        last.up_to = None;
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(up_to: Option<u32>, max_blocks: u32, waves_per_block: u32, segments: u32) -> LaunchStep {
        LaunchStep { up_to, max_blocks, waves_per_block, segments }
    }

    #[test]
    fn steps_end_at_what_was_measured() {
        let launches = [8, 64].map(|max_blocks| Launch { max_blocks, waves_per_block: 4, segments: 2 });
        let measured = |tokens, times: [f64; 2]| Measured { tokens, times: times.map(Some).to_vec() };
        let all =
            steps(&launches, &[measured(1, [1.0, 2.0]), measured(8, [1.0, 1.5]), measured(32, [3.0, 2.0])]);
        assert_eq!(all, [step(Some(8), 8, 4, 2), step(None, 64, 4, 2)]);
        assert_eq!(steps(&launches, &[]), []);
        let unmeasured = Measured { tokens: 64, times: vec![None, None] };
        assert_eq!(steps(&launches, &[measured(1, [1.0, 2.0]), unmeasured]), [step(None, 8, 4, 2)]);
    }
}
