//! What a source gets back.

use super::codec::pass;
use super::{ExpertRows, Mismatch, Oracle, SentCopy};
use crate::ep::ElementValues as _;
use anabranch_ranks::GroupRank;

/// What one source gets back from a combine: for each of its tokens the sum of the expert outputs of its
/// distinct destinations, as the codec leaves them, in ascending group-rank order, in f32 from 0, rounded once to the output
/// type.
/// Dropped copies are left out; tokens without a copy give zeros.
#[derive(Debug)]
pub struct Combination<'o> {
    oracle: &'o Oracle<'o>,
    source: GroupRank,
}

impl<'o> Combination<'o> {
    pub(super) fn new(oracle: &'o Oracle<'o>, source: GroupRank) -> Self {
        Self { oracle, source }
    }

    /// This token's copies that were not dropped, in the order in which they are summed; none for a token that is not there.
    pub fn copies(&self, token: usize) -> impl Iterator<Item = SentCopy<'o>> {
        let (oracle, source) = (self.oracle, self.source);
        let route = &oracle.routes[source.index()];
        let copies = if token < route.tokens() { route.of(token) } else { &[] };
        copies.iter().filter_map(move |copy| {
            Some(SentCopy {
                source,
                token,
                destination: copy.destination,
                row: copy.row?,
                payload: oracle.payload(source, token),
                ids: oracle.ids(source, token),
                weights: oracle.weights(source, token),
            })
        })
    }

    /// The `[T, H]` combined tokens, as bytes of the output type.
    pub fn output(&self, experts: &impl ExpertRows) -> Vec<u8> {
        let row_bytes = self.row_bytes();
        let mut output = vec![0; self.oracle.tokens(self.source) * row_bytes];
        let mut sums = Sums::new(self.oracle.shape().hidden);
        for (token, bytes) in output.chunks_exact_mut(row_bytes).enumerate() {
            self.oracle.shape().output.encode(sums.of(self, token, experts), bytes);
        }
        output
    }

    /// Compares the `[T, H]` combined tokens, given as bytes of the output type, bit by bit. Only where a NaN
    /// is expected, any quiet NaN will do: which one comes out of a sum is the hardware's choice.
    ///
    /// # Errors
    /// The first [`Mismatch`].
    pub fn compare_output(&self, output: &[u8], experts: &impl ExpertRows) -> Result<(), Mismatch> {
        let element = self.oracle.shape().output;
        let row_bytes = self.row_bytes();
        let expected = self.oracle.tokens(self.source) * row_bytes;
        if output.len() != expected {
            let what = "combined tokens";
            return Err(Mismatch::Length { rank: self.source, what, expected, seen: output.len() });
        }
        let mut sums = Sums::new(self.oracle.shape().hidden);
        let mut row = vec![0; row_bytes];
        for (token, bytes) in output.chunks_exact(row_bytes).enumerate() {
            element.encode(sums.of(self, token, experts), &mut row);
            if row == bytes {
                continue;
            }
            for column in 0..self.oracle.shape().hidden {
                let (expected, seen) = (element.bits_at(&row, column), element.bits_at(bytes, column));
                let both_nan = element.is_quiet_nan(expected) && element.is_quiet_nan(seen);
                if expected != seen && !both_nan {
                    return Err(Mismatch::Output { rank: self.source, token, column, expected, seen });
                }
            }
        }
        Ok(())
    }

    /// The `[T, K]` combined weights: for each token and k the sum, in f32 from 0, of what each of its destinations has `left` for
    /// the copy and k, in ascending group-rank order.
    pub fn weights(&self, left: impl Fn(&SentCopy<'_>, usize) -> f32) -> Vec<f32> {
        let top_k = self.oracle.shape().top_k;
        let mut sums = Vec::new();
        for token in 0..self.oracle.tokens(self.source) {
            let mut sum = vec![0.0; top_k];
            for copy in self.copies(token) {
                for (k, sum) in sum.iter_mut().enumerate() {
                    *sum += left(&copy, k);
                }
            }
            sums.append(&mut sum);
        }
        sums
    }

    /// Compares the `[T, K]` combined weights bit by bit.
    ///
    /// # Errors
    /// The first [`Mismatch`].
    pub fn compare_weights(
        &self,
        weights: &[f32],
        left: impl Fn(&SentCopy<'_>, usize) -> f32,
    ) -> Result<(), Mismatch> {
        let expected = self.weights(left);
        if expected.len() != weights.len() {
            let (what, expected, seen) = ("combined weights", expected.len(), weights.len());
            return Err(Mismatch::Length { rank: self.source, what, expected, seen });
        }
        let top_k = self.oracle.shape().top_k;
        for (place, (expected, seen)) in expected.iter().zip(weights).enumerate() {
            let (expected, seen) = (expected.to_bits(), seen.to_bits());
            if expected != seen {
                let (rank, token, k) = (self.source, place / top_k, place % top_k);
                return Err(Mismatch::CombinedWeight { rank, token, k, expected, seen });
            }
        }
        Ok(())
    }

    fn row_bytes(&self) -> usize {
        self.oracle.shape().output_row_bytes()
    }
}

/// Room for one token's sum.
struct Sums {
    sum: Vec<f32>,
    addend: Vec<f32>,
}

impl Sums {
    fn new(hidden: usize) -> Self {
        Self { sum: vec![0.0; hidden], addend: vec![0.0; hidden] }
    }

    fn of(&mut self, combination: &Combination<'_>, token: usize, experts: &impl ExpertRows) -> &[f32] {
        self.sum.fill(0.0);
        for copy in combination.copies(token) {
            experts.row(&copy, &mut self.addend);
            pass(combination.oracle.shape().codec, &mut self.addend);
            for (sum, addend) in self.sum.iter_mut().zip(&self.addend) {
                *sum += addend;
            }
        }
        &self.sum
    }
}
