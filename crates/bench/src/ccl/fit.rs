//! From times to steps.

use anabranch_ccl::Algorithm;
use anabranch_ccl::tuning::Step;

use crate::fit;

/// A candidate for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Candidate {
    /// How.
    pub(crate) algorithm: Algorithm,
    /// [`Step::block_bytes`].
    pub(crate) block_bytes: u64,
    /// [`Step::phased`].
    pub(crate) phased: bool,
}

/// The times of one size, in the order of the candidates; `None` for candidates that were skipped.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Measured {
    /// Bytes of the message.
    pub(crate) bytes: u64,
    /// Times of a call, in one unit.
    pub(crate) times: Vec<Option<f64>>,
}

/// The steps of a collective from what was measured, sizes ascending ([`fit::runs`]). Between two sizes with different
/// candidates the border is their geometric mean. Empty where nothing was measured.
pub(crate) fn steps(candidates: &[Candidate], measured: &[Measured]) -> Vec<Step> {
    let times: Vec<_> = measured.iter().map(|measured| measured.times.clone()).collect();
    let step = |run: fit::Run| {
        let up_to = measured.get(run.until).zip(measured.get(run.until - 1)).map(|(next, last)| {
            let border = (last.bytes as f64 * next.bytes as f64).sqrt() as u64;
            border.clamp(last.bytes, next.bytes.saturating_sub(1))
        });
        let Candidate { algorithm, block_bytes, phased } = *candidates.get(run.candidate)?;
        Some(Step { up_to, algorithm, block_bytes, phased })
    };
    fit::runs(&times).into_iter().filter_map(step).collect()
}

#[cfg(test)]
mod tests {
    use anabranch_ccl::tuning::{Choices, Table};
    use anabranch_ccl::{Collective, LocationKind, Shape};
    use proptest::prelude::*;

    use super::*;

    const CANDIDATES: [Candidate; 3] = [
        Candidate { algorithm: Algorithm::Packets, block_bytes: 512, phased: false },
        Candidate { algorithm: Algorithm::Pull, block_bytes: 4096, phased: false },
        Candidate { algorithm: Algorithm::Push, block_bytes: 4096, phased: true },
    ];

    fn measured(times: &[[f64; 3]]) -> Vec<Measured> {
        let sizes = (0..).map(|at| 1024_u64 << at);
        let times = times.iter().map(|times| times.iter().copied().map(Some).collect());
        sizes.zip(times).map(|(bytes, times)| Measured { bytes, times }).collect()
    }

    #[test]
    fn borders_lie_between_sizes_and_noise_changes_nothing() {
        let found = steps(
            &CANDIDATES,
            &measured(&[
                [1.0, 5.0, 9.0],
                [1.02, 1.0, 9.0],
                [1.0, 1.01, 9.0],
                [4.0, 2.0, 9.0],
                [9.0, 9.0, 3.0],
            ]),
        );
        let chosen: Vec<_> = found.iter().map(|step| (step.algorithm, step.up_to)).collect();
        assert_eq!(
            chosen,
            [(Algorithm::Packets, Some(5792)), (Algorithm::Pull, Some(11585)), (Algorithm::Push, None),]
        );
        assert!(found[2].phased && steps(&CANDIDATES, &[]).is_empty());
    }

    proptest! {
        #[test]
        fn every_measured_size_gets_what_is_at_most_3_percent_slower(
            times in proptest::collection::vec([1.0..20.0_f64, 1.0..20.0, 1.0..20.0], 1..20),
        ) {
            let all = measured(&times);
            let steps = steps(&CANDIDATES, &all);
            let shape = |bytes| Shape {
                input: LocationKind::Symmetric,
                output: LocationKind::Symmetric,
                ..Shape::of_bytes(Collective::AllReduce, 4, bytes)
            };
            let choices = Choices { collective: Collective::AllReduce, members: 4, reached: true, steps };
            let table = Table { device: String::new(), choices: vec![choices] };
            prop_assert_eq!(Table::parse(&table.to_string()), Ok(table.clone()));
            for Measured { bytes, times } in &all {
                let step = table.step(&shape(*bytes)).unwrap();
                let index = CANDIDATES.iter().position(|candidate| candidate.algorithm == step.algorithm).unwrap();
                let best = times.iter().flatten().copied().fold(f64::INFINITY, f64::min);
                prop_assert!(times[index].unwrap() <= best * 1.03);
            }
        }
    }
}
