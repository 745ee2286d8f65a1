//! Medians and percentiles.

/// Times of the repetitions of one measurement, microseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Samples {
    sorted: Vec<f64>,
}

impl Samples {
    /// Sorts them. Values that are no numbers are a programmer's error and sort last.
    pub(crate) fn new(mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        Self { sorted: samples }
    }

    /// The value below which `share` (0 to 1) of the samples lie, interpolated between neighbours; 0 without samples.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let Some(last) = self.sorted.len().checked_sub(1) else { return 0.0 };
        let position = share.clamp(0.0, 1.0) * last as f64;
        let below = self.sorted[position.floor() as usize];
        let above = self.sorted[position.ceil() as usize];
        below + (above - below) * position.fract()
    }

    /// The middle.
    pub(crate) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The 99th percentile.
    pub(crate) fn p99(&self) -> f64 {
        self.quantile(0.99)
    }
}

/// The slowest rank of each repetition: an operation of all ranks takes as long as its last. `ranks` holds each
/// rank's times in the order of the repetitions; repetitions that some rank lacks are left out.
pub(crate) fn slowest_of_ranks(ranks: &[Vec<f64>]) -> Vec<f64> {
    let repetitions = ranks.iter().map(Vec::len).min().unwrap_or(0);
    (0..repetitions).map(|index| ranks.iter().map(|times| times[index]).fold(0.0, f64::max)).collect()
}

/// Gigabytes (10^9) a second.
pub(crate) fn gigabytes_per_second(bytes: u64, microseconds: f64) -> f64 {
    if microseconds > 0.0 { bytes as f64 / microseconds / 1e3 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_known_samples() {
        let samples = Samples::new(vec![4.0, 1.0, 3.0, 2.0]);
        assert!((samples.median() - 2.5).abs() < 1e-12);
        assert!((samples.quantile(1.0) - 4.0).abs() < 1e-12);
        let hundred = Samples::new((0..=100).map(f64::from).collect());
        assert!((hundred.p99() - 99.0).abs() < 1e-9);
        assert!(Samples::default().median().abs() < 1e-12);
    }

    #[test]
    fn the_slowest_rank_counts() {
        let ranks = [vec![1.0, 5.0, 9.0], vec![2.0, 4.0]];
        assert_eq!(slowest_of_ranks(&ranks), [2.0, 5.0]);
        assert!((gigabytes_per_second(1_000_000, 1000.0) - 1.0).abs() < 1e-12);
    }
}
