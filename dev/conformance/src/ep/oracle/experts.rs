//! What the experts did with the rows, as the combine finds it.

use super::{Oracle, OracleError, Shape};
use crate::ep::ElementValues as _;
use anabranch_ep::DataType;
use anabranch_ranks::GroupRank;

/// A token's copy at one of its destinations.
#[derive(Clone, Copy, Debug)]
pub struct SentCopy<'o> {
    /// The rank that brought the token.
    pub source: GroupRank,
    /// The token's number on its source.
    pub token: usize,
    /// The rank that received this copy.
    pub destination: GroupRank,
    /// Its row there.
    pub row: usize,
    /// The token's bytes, in the dispatch type.
    pub payload: &'o [u8],
    /// The token's K expert ids as given.
    pub ids: &'o [i32],
    /// The token's K weights, where weights are carried.
    pub weights: Option<&'o [f32]>,
}

/// The rows that the experts of a group wrote for the combine to sum.
pub trait ExpertRows {
    /// Writes the H elements of the expert output for this copy; each is a value of the combine type.
    fn row(&self, copy: &SentCopy<'_>, values: &mut [f32]);
}

/// Outputs that are given as bytes. Made by [`GivenRows::new`].
#[derive(Debug)]
pub struct GivenRows<'r> {
    rows: &'r [&'r [u8]],
    row_bytes: usize,
    combine: DataType,
}

impl<'r> GivenRows<'r> {
    /// For each destination `[N, H]` elements of the combine type, N rows being its window; rows that were not sent are not read.
    ///
    /// # Errors
    /// [`OracleError::Inputs`] or [`OracleError::Length`] when the tables do not have that shape.
    pub fn new(shape: &Shape, rows: &'r [&'r [u8]]) -> Result<Self, OracleError> {
        if rows.len() != shape.ranks as usize {
            return Err(OracleError::Inputs { given: rows.len(), ranks: shape.ranks });
        }
        let row_bytes = shape.combine_row_bytes();
        let expected = shape.rows() * row_bytes;
        if let Some((rank, table)) = rows.iter().enumerate().find(|(_, table)| table.len() != expected) {
            let rank = GroupRank::new(rank as u32);
            return Err(OracleError::Length { rank, tensor: "expert output", expected, given: table.len() });
        }
        Ok(Self { rows, row_bytes, combine: shape.combine })
    }
}

impl ExpertRows for GivenRows<'_> {
    fn row(&self, copy: &SentCopy<'_>, values: &mut [f32]) {
        let start = copy.row * self.row_bytes;
        let bytes = &self.rows[copy.destination.index()][start..start + self.row_bytes];
        self.combine.decode(bytes, values);
    }
}

/// The reference expert: a row times the sum of the weights that its token gave to experts of this rank.
///
/// The sum is taken in k order in f32 from 0, the product in f32, then rounded once to the combine type.
#[derive(Debug)]
pub struct ReferenceExperts<'o> {
    oracle: &'o Oracle<'o>,
}

impl<'o> Oracle<'o> {
    /// The reference expert of every rank.
    ///
    /// # Errors
    /// [`OracleError::NoWeights`] when the inputs carry no weights.
    pub fn reference_experts(&'o self) -> Result<ReferenceExperts<'o>, OracleError> {
        if self.inputs.iter().all(|input| input.weights.is_none()) {
            return Err(OracleError::NoWeights);
        }
        Ok(ReferenceExperts { oracle: self })
    }
}

impl ReferenceExperts<'_> {
    /// The f32 sum, in k order, of the weights whose ids are owned by this copy's destination.
    pub fn local_weight(&self, copy: &SentCopy<'_>) -> f32 {
        let mut sum = 0.0f32;
        for (id, weight) in copy.ids.iter().zip(copy.weights.unwrap_or_default()) {
            if self.oracle.destination(*id, copy.source, copy.token) == Some(copy.destination) {
                sum += weight;
            }
        }
        sum
    }
}

impl ExpertRows for ReferenceExperts<'_> {
    fn row(&self, copy: &SentCopy<'_>, values: &mut [f32]) {
        let shape = self.oracle.shape();
        shape.dispatch.decode(copy.payload, values);
        let weight = self.local_weight(copy);
        for value in values.iter_mut() {
            *value = shape.combine.value(shape.combine.round(*value * weight));
        }
    }
}
