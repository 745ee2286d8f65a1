//! What a destination receives.

use super::error::RowField;
use super::{Mismatch, Oracle};
use crate::ep::ElementValues as _;
use anabranch_ranks::GroupRank;

/// What one destination receives from a dispatch.
///
/// Of each source, in token order, the tokens that have an expert here and for which the window has a row.
#[derive(Debug)]
pub struct Delivery<'o> {
    oracle: &'o Oracle<'o>,
    destination: GroupRank,
    /// For each source the tokens it sends here, ascending, with their rows.
    tokens: Vec<Vec<(u32, usize)>>,
    counts: Vec<u32>,
    offsets: Vec<u32>,
}

/// A row that must be there.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpectedRow<'o> {
    /// Its row in the window.
    pub index: usize,
    /// The sender.
    pub source: GroupRank,
    /// The token's number on its source.
    pub token: u32,
    /// The token, byte for byte.
    pub payload: &'o [u8],
    /// Its K expert ids, invalid ones as -1.
    pub ids: Vec<i32>,
    /// Its K weights as given, where weights are carried.
    pub weights: Option<&'o [f32]>,
    /// Its scales.
    pub scales: &'o [u8],
}

/// A row as a dispatch delivered it.
#[derive(Clone, Copy, Debug)]
pub struct Row<'r> {
    /// The token's number on its source, as the row says.
    pub token: u32,
    /// The payload's bytes.
    pub payload: &'r [u8],
    /// The K expert ids.
    pub ids: &'r [i32],
    /// The K weights; not looked at when none are carried.
    pub weights: &'r [f32],
    /// The scales; not looked at when none are carried.
    pub scales: &'r [u8],
}

/// The results of a dispatch at one destination, in whatever form they lie.
pub trait Rows {
    /// Rows from each source, in group-rank order.
    fn counts(&self) -> &[u32];

    /// R + 1 offsets: for each source the rows from sources before it, then the total; `None` if the form has
    /// none.
    fn offsets(&self) -> Option<&[u32]>;

    /// A row of the window; `None` if the result does not reach that far.
    fn row(&self, index: usize) -> Option<Row<'_>>;
}

/// Results that lie as dense tables over all rows of the window, N.
#[derive(Clone, Copy, Debug)]
pub struct SlottedRows<'r> {
    /// `[R]` rows from each source.
    pub counts: &'r [u32],
    /// `[R + 1]` offsets, the total last.
    pub offsets: Option<&'r [u32]>,
    /// `[N]` source tokens.
    pub tokens: &'r [u32],
    /// `[N, row_bytes]` payload.
    pub payload: &'r [u8],
    /// Bytes of a row of the payload.
    pub row_bytes: usize,
    /// `[N, K]` expert ids.
    pub ids: &'r [i32],
    /// K.
    pub top_k: usize,
    /// `[N, K]` weights; empty when none are carried.
    pub weights: &'r [f32],
    /// `[N, S]` scales; empty when there are none.
    pub scales: &'r [u8],
    /// S.
    pub scale_bytes: usize,
}

impl Rows for SlottedRows<'_> {
    fn counts(&self) -> &[u32] {
        self.counts
    }

    fn offsets(&self) -> Option<&[u32]> {
        self.offsets
    }

    fn row(&self, index: usize) -> Option<Row<'_>> {
        let part = |width: usize| index * width..(index + 1) * width;
        Some(Row {
            token: *self.tokens.get(index)?,
            payload: self.payload.get(part(self.row_bytes))?,
            ids: self.ids.get(part(self.top_k))?,
            weights: self.weights.get(part(self.top_k)).unwrap_or_default(),
            scales: self.scales.get(part(self.scale_bytes)).unwrap_or_default(),
        })
    }
}

impl<'o> Delivery<'o> {
    pub(super) fn new(oracle: &'o Oracle<'o>, destination: GroupRank) -> Self {
        let sent_here = |route: &super::Route| {
            (0..route.tokens())
                .filter_map(|token| {
                    let copy = route.of(token).iter().find(|copy| copy.destination == destination)?;
                    Some((token as u32, copy.row?))
                })
                .collect::<Vec<_>>()
        };
        let tokens: Vec<_> = oracle.routes.iter().map(sent_here).collect();
        let counts: Vec<_> = tokens.iter().map(|tokens| tokens.len() as u32).collect();
        let mut offsets = vec![0];
        let mut total = 0;
        for count in &counts {
            total += count;
            offsets.push(total);
        }
        Self { oracle, destination, tokens, counts, offsets }
    }

    /// Rows from each source, in group-rank order.
    pub fn counts(&self) -> &[u32] {
        &self.counts
    }

    /// R + 1 offsets: for each source the rows from sources before it, then the total.
    pub fn offsets(&self) -> &[u32] {
        &self.offsets
    }

    /// Rows from all sources.
    pub fn total(&self) -> u32 {
        self.counts.iter().sum()
    }

    /// The rows, by source and then token.
    pub fn rows(&self) -> impl Iterator<Item = ExpectedRow<'_>> {
        let oracle = self.oracle;
        self.tokens.iter().enumerate().flat_map(move |(source, tokens)| {
            let source = GroupRank::new(source as u32);
            tokens.iter().map(move |&(token, index)| ExpectedRow {
                index,
                source,
                token,
                payload: oracle.payload(source, token as usize),
                ids: oracle.ids(source, token as usize).iter().map(|id| oracle.carried_id(*id)).collect(),
                weights: oracle.weights(source, token as usize),
                scales: oracle.scales(source, token as usize),
            })
        })
    }

    /// Compares what was received, bit by bit: counts, offsets, then the rows by source and token. What lies
    /// beyond the counts is not looked at.
    ///
    /// # Errors
    /// The first [`Mismatch`].
    pub fn compare_rows(&self, seen: &impl Rows) -> Result<(), Mismatch> {
        self.compare_counts(seen)?;
        for expected in self.rows() {
            let row = seen.row(expected.index).ok_or(Mismatch::MissingRow {
                destination: self.destination,
                source_rank: expected.source,
                row: expected.index,
                token: expected.token,
            })?;
            self.compare_row(&expected, &row)?;
        }
        Ok(())
    }

    fn compare_counts(&self, seen: &impl Rows) -> Result<(), Mismatch> {
        let destination = self.destination;
        let length = |what, expected, seen| Mismatch::Length { rank: destination, what, expected, seen };
        if seen.counts().len() != self.counts.len() {
            return Err(length("counts", self.counts.len(), seen.counts().len()));
        }
        for (source, (&expected, &seen)) in self.counts.iter().zip(seen.counts()).enumerate() {
            if expected != seen {
                let source_rank = GroupRank::new(source as u32);
                return Err(Mismatch::Count { destination, source_rank, expected, seen });
            }
        }
        let Some(offsets) = seen.offsets() else { return Ok(()) };
        if offsets.len() != self.offsets.len() {
            return Err(length("offsets", self.offsets.len(), offsets.len()));
        }
        for (place, (&expected, &seen)) in self.offsets.iter().zip(offsets).enumerate() {
            if expected != seen {
                return Err(Mismatch::Offset { destination, place, expected, seen });
            }
        }
        Ok(())
    }

    fn compare_row(&self, expected: &ExpectedRow<'_>, seen: &Row<'_>) -> Result<(), Mismatch> {
        let wrong = |(field, column, want, got)| Mismatch::Row {
            destination: self.destination,
            source_rank: expected.source,
            token: expected.token,
            field,
            row: expected.index,
            column,
            expected: want,
            seen: got,
        };
        if expected.token != seen.token {
            return Err(Mismatch::SourceToken {
                destination: self.destination,
                source_rank: expected.source,
                row: expected.index,
                expected: expected.token,
                seen: seen.token,
            });
        }
        let length = |what, expected: usize, seen: usize| {
            if expected == seen {
                return Ok(());
            }
            Err(Mismatch::Length { rank: self.destination, what, expected, seen })
        };
        length("ids of a row", expected.ids.len(), seen.ids.len())?;
        first_difference(RowField::Id, expected.ids.iter(), seen.ids.iter(), |id| *id as u32)
            .map_or(Ok(()), |found| Err(wrong(found)))?;
        if let Some(weights) = expected.weights {
            length("weights of a row", weights.len(), seen.weights.len())?;
            first_difference(RowField::Weight, weights.iter(), seen.weights.iter(), |w| w.to_bits())
                .map_or(Ok(()), |found| Err(wrong(found)))?;
        }
        if !expected.scales.is_empty() {
            length("scales of a row", expected.scales.len(), seen.scales.len())?;
            first_difference(RowField::Scale, expected.scales.iter(), seen.scales.iter(), |b| u32::from(*b))
                .map_or(Ok(()), |found| Err(wrong(found)))?;
        }
        length("payload of a row", expected.payload.len(), seen.payload.len())?;
        if expected.payload == seen.payload {
            return Ok(());
        }
        let element = self.oracle.shape().dispatch;
        let columns = 0..self.oracle.shape().hidden;
        let want = |column| element.bits_at(expected.payload, column);
        let got = |column| element.bits_at(seen.payload, column);
        let column = columns.into_iter().find(|&column| want(column) != got(column)).unwrap_or_default();
        Err(wrong((RowField::Payload, column, want(column), got(column))))
    }
}

fn first_difference<'v, T: 'v>(
    field: RowField,
    expected: impl Iterator<Item = &'v T>,
    seen: impl Iterator<Item = &'v T>,
    bits: impl Fn(&T) -> u32,
) -> Option<(RowField, usize, u32, u32)> {
    expected
        .zip(seen)
        .enumerate()
        .map(|(column, (expected, seen))| (field, column, bits(expected), bits(seen)))
        .find(|(_, _, expected, seen)| expected != seen)
}

impl Rows for anabranch_ep::ReceivedRows {
    fn counts(&self) -> &[u32] {
        self.counts()
    }

    fn offsets(&self) -> Option<&[u32]> {
        Some(self.offsets())
    }

    fn row(&self, index: usize) -> Option<Row<'_>> {
        let anabranch_ep::ReceivedRow { token, payload, ids, weights, scales, .. } = self.row(index)?;
        Some(Row { token, payload, ids, weights, scales })
    }
}
