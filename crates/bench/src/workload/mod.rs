//! The input of the ranks of a benchmark: a recorded trace split over the ranks, or synthetic tokens.
//!
//! A [`Workload`] is a value from which every rank can make the input of any other rank, so that each one
//! verifies its own results with no communication.

mod error;
mod split;
mod synthetic;
mod trace;

pub(crate) use error::Error;
pub(crate) use split::split;
pub(crate) use synthetic::{Routing, Synthetic};
pub(crate) use trace::Trace;

use anabranch_conformance::ep::ElementValues as _;
use std::ops::Range;

use anabranch_ep::DataType;

/// The input of one rank.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RankTokens {
    /// Tokens T.
    pub(crate) count: usize,
    /// `[T, H]` elements of the workload's type, little endian.
    pub(crate) tokens: Vec<u8>,
    /// `[T, K]` expert ids; -1 is masked.
    pub(crate) ids: Vec<i32>,
    /// `[T, K]` weights.
    pub(crate) weights: Vec<f32>,
}

/// The inputs of all ranks, made when asked for.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    source: Source,
    element: DataType,
}

#[derive(Clone, Debug)]
enum Source {
    Trace { trace: Trace, parts: Vec<Vec<Range<usize>>> },
    Synthetic(Synthetic),
}

impl Workload {
    /// The trace's tokens, whole sequences to each of `ranks` ranks; see [`split()`].
    ///
    /// # Errors
    /// [`Error::Zero`] for no ranks.
    pub(crate) fn from_trace(trace: Trace, ranks: u32, element: DataType) -> Result<Self, Error> {
        let parts = split(trace.sequence_ids(), ranks)?;
        Ok(Self { source: Source::Trace { trace, parts }, element })
    }

    /// Synthetic tokens.
    ///
    /// # Errors
    /// The errors of [`Synthetic::check`].
    pub(crate) fn from_synthetic(synthetic: Synthetic, element: DataType) -> Result<Self, Error> {
        synthetic.check()?;
        Ok(Self { source: Source::Synthetic(synthetic), element })
    }

    /// Ranks R.
    pub(crate) fn ranks(&self) -> u32 {
        match &self.source {
            Source::Trace { parts, .. } => parts.len() as u32,
            Source::Synthetic(synthetic) => synthetic.tokens.len() as u32,
        }
    }

    /// Elements of a token, H.
    pub(crate) fn hidden(&self) -> usize {
        match &self.source {
            Source::Trace { trace, .. } => trace.hidden(),
            Source::Synthetic(synthetic) => synthetic.hidden,
        }
    }

    /// Experts of the whole group, E.
    pub(crate) fn experts(&self) -> u32 {
        match &self.source {
            Source::Trace { trace, .. } => trace.experts(),
            Source::Synthetic(synthetic) => synthetic.experts,
        }
    }

    /// Experts per token, K.
    pub(crate) fn top_k(&self) -> usize {
        match &self.source {
            Source::Trace { trace, .. } => trace.top_k(),
            Source::Synthetic(synthetic) => synthetic.top_k,
        }
    }

    /// Type of the tokens.
    pub(crate) fn element(&self) -> DataType {
        self.element
    }

    /// Tokens of this rank.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`].
    pub(crate) fn tokens_of(&self, rank: u32) -> Result<usize, Error> {
        let ranks = self.ranks();
        let count = match &self.source {
            Source::Trace { parts, .. } => {
                parts.get(rank as usize).map(|runs| runs.iter().map(Range::len).sum())
            }
            Source::Synthetic(synthetic) => synthetic.tokens.get(rank as usize).map(|count| *count as usize),
        };
        count.ok_or(Error::NoSuchRank { rank, ranks })
    }

    /// The most tokens of any rank: what a plan's maximum must be at least.
    pub(crate) fn max_tokens(&self) -> usize {
        (0..self.ranks()).filter_map(|rank| self.tokens_of(rank).ok()).max().unwrap_or(0)
    }

    /// The input of a rank, the same bytes on every rank that computes it.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`].
    pub(crate) fn rank(&self, rank: u32) -> Result<RankTokens, Error> {
        let count = self.tokens_of(rank)?;
        let (hidden, top_k) = (self.hidden(), self.top_k());
        let mut made = RankTokens {
            count,
            tokens: vec![0; self.element.bytes_of((count * hidden) as u64) as usize],
            ids: Vec::with_capacity(count * top_k),
            weights: Vec::with_capacity(count * top_k),
        };
        match &self.source {
            Source::Trace { trace, parts } => {
                let runs = &parts[rank as usize];
                let values = runs.iter().flat_map(|run| trace.hidden_bits(run.clone()));
                encode(self.element, values.copied(), &mut made.tokens);
                for run in runs {
                    made.ids.extend_from_slice(trace.ids(run.clone()));
                    made.weights.extend_from_slice(trace.weights(run.clone()));
                }
            }
            Source::Synthetic(synthetic) => {
                synthetic.fill_tokens(rank, self.element, &mut made.tokens);
                synthetic.fill_routing(rank, count, &mut made.ids, &mut made.weights);
            }
        }
        Ok(made)
    }
}

/// Writes bf16 values as elements, rounded where the type has fewer bits.
fn encode(element: DataType, values: impl Iterator<Item = u16>, bytes: &mut [u8]) {
    let values: Vec<f32> = values.map(|bits| f32::from_bits(u32::from(bits) << 16)).collect();
    element.encode(&values, bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace() -> Trace {
        Trace::read(std::path::Path::new(trace::tests::REAL)).unwrap()
    }

    #[test]
    fn every_token_of_the_trace_goes_to_one_rank_with_its_routing() {
        let trace = trace();
        for ranks in [1, 3, 4, 41] {
            let workload = Workload::from_trace(trace.clone(), ranks, DataType::Bf16).unwrap();
            assert_eq!((workload.ranks(), workload.hidden(), workload.experts()), (ranks, 384, 64));
            assert_eq!((workload.top_k(), workload.element()), (8, DataType::Bf16));
            let mut rows = Vec::new();
            for rank in 0..ranks {
                let part = workload.rank(rank).unwrap();
                assert_eq!(part.count, workload.tokens_of(rank).unwrap());
                assert!(part.count <= workload.max_tokens());
                for token in 0..part.count {
                    rows.push((
                        part.tokens[token * 768..][..768].to_vec(),
                        part.ids[token * 8..][..8].to_vec(),
                        part.weights[token * 8..][..8].iter().map(|w| w.to_bits()).collect::<Vec<_>>(),
                    ));
                }
            }
            let all = Workload::from_trace(trace.clone(), 1, DataType::Bf16).unwrap().rank(0).unwrap();
            assert_eq!(all.count, 8192);
            let mut expected: Vec<_> = (0..8192)
                .map(|token| {
                    (
                        all.tokens[token * 768..][..768].to_vec(),
                        all.ids[token * 8..][..8].to_vec(),
                        all.weights[token * 8..][..8].iter().map(|w| w.to_bits()).collect::<Vec<_>>(),
                    )
                })
                .collect();
            rows.sort();
            expected.sort();
            assert!(rows == expected, "{ranks} ranks");
        }
    }

    #[test]
    fn f32_tokens_are_exactly_the_bf16_tokens() {
        let synthetic = Synthetic { tokens: vec![5, 0, 3], hidden: 7, ..Synthetic::example() };
        let sources = [
            (0, Source::Synthetic(synthetic)),
            (1, Source::Trace { trace: trace(), parts: vec![vec![], vec![3..9, 100..101]] }),
        ];
        for (rank, source) in sources {
            let narrow = Workload { source: source.clone(), element: DataType::Bf16 }.rank(rank).unwrap();
            let wide = Workload { source, element: DataType::F32 }.rank(rank).unwrap();
            assert_eq!((&narrow.ids, &narrow.weights), (&wide.ids, &wide.weights));
            assert_eq!(narrow.tokens.len() * 2, wide.tokens.len());
            assert!(narrow.tokens.iter().any(|byte| *byte != 0));
            for (two, four) in narrow.tokens.chunks_exact(2).zip(wide.tokens.chunks_exact(4)) {
                assert_eq!(four, [0, 0, two[0], two[1]]);
            }
        }
    }

    #[test]
    fn the_split_trace_is_balanced_over_four_ranks() {
        let workload = Workload::from_trace(trace(), 4, DataType::Bf16).unwrap();
        assert!(workload.max_tokens() <= 8192 / 4 + 64, "{} tokens on one of 4 ranks", workload.max_tokens());
    }

    #[test]
    fn unknown_rank_is_an_error() {
        let workload = Workload::from_synthetic(Synthetic::example(), DataType::F32).unwrap();
        let ranks = workload.ranks();
        assert!(matches!(workload.rank(ranks), Err(Error::NoSuchRank { rank, .. }) if rank == ranks));
        assert!(matches!(
            Workload::from_trace(trace(), 0, DataType::F32),
            Err(Error::Zero { field: "ranks" })
        ));
        let bad = Synthetic { hidden: 0, ..Synthetic::example() };
        assert!(Workload::from_synthetic(bad, DataType::F32).is_err());
    }
}
