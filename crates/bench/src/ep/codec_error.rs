//! The error of a codec: how far combined tokens are from those of unencoded rows.

use anabranch_conformance::ep::ElementValues as _;
use anabranch_conformance::ep::oracle::{Combination, ExpertRows, Oracle, RankInput, Shape};
use anabranch_ep::{CombineCodec, DataType, EpConfig};

use super::EpBench;
use crate::link;
use crate::row::Row;

/// Squares of one rank's differences and values, and the largest difference: added up over ranks, they are the group's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct CodecError {
    squares: f64,
    of_values: f64,
    count: f64,
    largest: f64,
}

impl CodecError {
    /// The difference between combined tokens and those without a codec, `exact`, of one rank.
    pub(super) fn between(
        seen: &[u8],
        exact: &Combination<'_>,
        experts: &impl ExpertRows,
        of: DataType,
    ) -> Self {
        let exact = exact.output(experts);
        let values = |bytes: &[u8]| {
            let mut values = vec![0.0f32; bytes.len() * 8 / of.bits() as usize];
            of.decode(bytes, &mut values);
            values
        };
        let mut error = Self::default();
        for (seen, exact) in values(seen).into_iter().zip(values(&exact)) {
            let (difference, exact) = (f64::from(seen) - f64::from(exact), f64::from(exact));
            error.squares += difference * difference;
            error.of_values += exact * exact;
            error.count += 1.0;
            error.largest = error.largest.max(difference.abs());
        }
        error
    }

    /// As numbers that ranks exchange.
    pub(super) fn numbers(self) -> [f64; 4] {
        [self.squares, self.of_values, self.count, self.largest]
    }

    /// The error of all ranks together.
    pub(super) fn of_ranks(ranks: &[Vec<f64>]) -> Self {
        ranks.iter().fold(Self::default(), |all, rank| {
            let of = |place: usize| rank.get(place).copied().unwrap_or_default();
            Self {
                squares: all.squares + of(0),
                of_values: all.of_values + of(1),
                count: all.count + of(2),
                largest: all.largest.max(of(3)),
            }
        })
    }

    /// The root of the mean square of the differences, divided by that of the values: 0 where nothing differs.
    pub(super) fn relative(self) -> f64 {
        if self.squares == 0.0 { 0.0 } else { (self.squares / self.of_values).sqrt() }
    }

    /// The largest difference, divided by the root of the mean square of the values.
    pub(super) fn largest(self) -> f64 {
        if self.largest == 0.0 { 0.0 } else { self.largest / (self.of_values / self.count).sqrt() }
    }
}

impl EpBench<'_> {
    /// The error of the group's results caused by the codec; `None` without one. Collective over the world.
    pub(super) fn codec_error(&self, inputs: &[RankInput<'_>]) -> anyhow::Result<Option<CodecError>> {
        let config = self.ep.plan().config();
        if config.combine_codec == CombineCodec::None {
            return Ok(None);
        }
        let shape = Shape { codec: CombineCodec::None, ..Shape::new(config, self.world().size()) };
        let oracle = Oracle::new(shape, inputs.to_vec())?;
        let exact = oracle.combine(self.ep.rank())?;
        let (output, element) = (self.output()?, config.combine_type);
        let mine = match &self.expert_major {
            Some(bench) => CodecError::between(&output, &exact, &bench.contracted(&oracle)?, element),
            None => CodecError::between(&output, &exact, &oracle.reference_experts()?, element),
        };
        let all = link::gather(self.world(), self.world().group(), "ep codec error", &mine.numbers())?;
        Ok(Some(CodecError::of_ranks(&all)))
    }
}

/// Adds the place of the experts' output, the codec, and its error to a report row of combine.
pub(super) fn describe(row: Row, config: &EpConfig, error: Option<CodecError>) -> Row {
    let row = row.with("source", config.combine_source.name()).with("codec", config.combine_codec.name());
    let Some(error) = error else { return row };
    let rounded = |value: f64| (value * 1e5).round() / 1e5;
    row.with("error", rounded(error.relative())).with("largest_error", rounded(error.largest()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_ranks_add_up() {
        let ranks = [vec![3.0, 100.0, 10.0, 1.0], vec![1.0, 300.0, 10.0, 0.5]];
        let error = CodecError::of_ranks(&ranks);
        assert!((error.relative() - 0.1).abs() < 1e-12, "{error:?}");
        // The root of the mean square is the root of 20.
        assert!((error.largest() - 1.0 / 20f64.sqrt()).abs() < 1e-12, "{error:?}");
        assert_eq!(CodecError::of_ranks(&[vec![0.0; 4]]).relative().to_bits(), 0);
    }
}
