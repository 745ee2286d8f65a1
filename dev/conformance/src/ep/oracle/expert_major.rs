//! What an expand must write, and what a contract must make of the experts' outputs.

use super::{ExpertRows, Oracle, OracleError, SentCopy};
use crate::ep::ElementValues as _;
use anabranch_ep::expert_major::{ExpertMajorRows, SLOT_DROPPED, SLOT_NONE};
use anabranch_ranks::GroupRank;

/// One pair: a received row with the k-th expert of its token, which is an expert of the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Index of the row in the dispatch's windows.
    pub row: usize,
    /// The sender.
    pub source: GroupRank,
    /// The token's number on its source.
    pub token: u32,
    /// The place of the expert among the token's.
    pub k: usize,
}

/// The expert-major layout that one rank must have.
#[derive(Debug)]
pub struct ExpertMajorDelivery<'o> {
    oracle: &'o Oracle<'o>,
    destination: GroupRank,
    capacity: usize,
    alignment: usize,
    /// The rank's experts, ascending.
    experts: Vec<u32>,
    /// The pairs of each, in order.
    pairs: Vec<Vec<Pair>>,
}

/// The first place where a layout or what was made of it differs. Bits are those of the element's type, in the low bits.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{what} of {rank}, {place}: {seen:#x}, expected {expected:#x}")]
pub struct ExpertMajorMismatch {
    pub rank: GroupRank,
    pub what: &'static str,
    pub place: String,
    pub expected: u64,
    pub seen: u64,
}

impl Oracle<'_> {
    /// The layout that `destination` must have: `capacity` rows an expert, padded to a multiple of `alignment`.
    ///
    /// # Errors
    /// [`OracleError::NoSuchRank`]; [`OracleError::Zero`] for an alignment of 0.
    pub fn expert_major(
        &self,
        destination: GroupRank,
        capacity: usize,
        alignment: usize,
    ) -> Result<ExpertMajorDelivery<'_>, OracleError> {
        self.check_rank(destination)?;
        if alignment == 0 {
            return Err(OracleError::Zero { field: "alignment" });
        }
        let owned = self.owners.iter().enumerate().filter(|(_, ranks)| ranks.contains(&destination));
        let experts: Vec<u32> = owned.map(|(expert, _)| expert as u32).collect();
        let mut pairs = vec![Vec::new(); experts.len()];
        for (source, route) in self.routes.iter().enumerate() {
            let source = GroupRank::new(source as u32);
            for token in 0..route.tokens() {
                let Some(row) = self.row_at(source, token, destination) else { continue };
                for (k, id) in self.ids(source, token).iter().enumerate() {
                    if self.destination(*id, source, token) != Some(destination) {
                        continue;
                    }
                    let Some(local) = experts.iter().position(|expert| i64::from(*expert) == i64::from(*id))
                    else {
                        continue;
                    };
                    pairs[local].push(Pair { row, source, token: token as u32, k });
                }
            }
        }
        Ok(ExpertMajorDelivery { oracle: self, destination, capacity, alignment, experts, pairs })
    }
}

impl ExpertMajorDelivery<'_> {
    /// The rank's experts, ascending, by their numbers in the group.
    pub fn experts(&self) -> &[u32] {
        &self.experts
    }

    /// All pairs of the rank's n-th expert in order, those without room among them.
    pub fn pairs(&self, local: usize) -> &[Pair] {
        &self.pairs[local]
    }

    /// The pairs of the rank's n-th expert that have rows.
    pub fn kept(&self, local: usize) -> &[Pair] {
        let pairs = &self.pairs[local];
        &pairs[..pairs.len().min(self.capacity)]
    }

    /// The pairs that have no room, expert by expert.
    pub fn dropped(&self) -> impl Iterator<Item = &Pair> {
        self.pairs.iter().flat_map(|pairs| pairs.iter().skip(self.capacity))
    }

    /// Compares what an expand wrote, bit by bit: every table, every row, the padding.
    ///
    /// # Errors
    /// The first difference.
    pub fn compare(&self, seen: &ExpertMajorRows) -> Result<(), ExpertMajorMismatch> {
        let kept: Vec<u32> = (0..self.experts.len()).map(|local| self.kept(local).len() as u32).collect();
        let all: Vec<u32> = self.pairs.iter().map(|pairs| pairs.len() as u32).collect();
        self.table("counts", &kept, &seen.counts)?;
        self.table("pairs", &all, &seen.pairs)?;
        self.table("source offsets", &self.source_offsets(), &seen.source_offsets)?;
        self.compare_slot_map(&seen.slot_map)?;
        self.table("experts", &[self.experts.len() as u32], &[seen.experts.len() as u32])?;
        for (local, table) in seen.experts.iter().enumerate() {
            let expert = self.experts[local];
            let kept = self.kept(local);
            let padded = kept.len().next_multiple_of(self.alignment).min(self.capacity);
            let lengths = [
                ("sources", padded, table.sources.len()),
                ("rows", padded * self.oracle.shape().row_bytes(), table.rows.len()),
                ("scales", padded * self.oracle.shape().scale_bytes, table.scales.len()),
            ];
            for (what, expected, seen) in lengths {
                self.same(what, || format!("length at expert {expert}"), expected as u64, seen as u64)?;
            }
            for place in 0..padded {
                let at = |field: &str| format!("{field} of row {place} of expert {expert}");
                let source = table.sources[place];
                let pair = kept.get(place);
                let word = |value: Option<usize>| value.map_or(u32::MAX, |value| value as u32);
                let weights = pair.and_then(|pair| self.oracle.weights(pair.source, pair.token as usize));
                let weight = pair.zip(weights).map_or(0.0, |(pair, weights)| weights[pair.k]);
                let fields = [
                    ("row", word(pair.map(|pair| pair.row)), source.row),
                    ("source rank", word(pair.map(|pair| pair.source.index())), source.source_rank),
                    ("source token", word(pair.map(|pair| pair.token as usize)), source.source_token),
                    ("k", word(pair.map(|pair| pair.k)), source.k),
                    ("weight", weight.to_bits(), source.weight.to_bits()),
                ];
                for (field, expected, seen) in fields {
                    self.same("sources", || at(field), expected.into(), seen.into())?;
                }
                let payload = pair.map(|pair| self.oracle.payload(pair.source, pair.token as usize));
                let scales = pair.map(|pair| self.oracle.scales(pair.source, pair.token as usize));
                self.bytes("rows", &at, payload, &table.rows, place, self.oracle.shape().row_bytes())?;
                self.bytes("scales", &at, scales, &table.scales, place, self.oracle.shape().scale_bytes)?;
            }
        }
        Ok(())
    }

    /// Rows of each expert before those of each source.
    fn source_offsets(&self) -> Vec<u32> {
        let ranks = self.oracle.shape().ranks;
        (0..self.experts.len())
            .flat_map(|local| (0..=ranks).map(move |rank| (local, rank)))
            .map(|(local, rank)| {
                self.kept(local).iter().filter(|pair| pair.source.get() < rank).count() as u32
            })
            .collect()
    }

    /// The map of the rows received; the others are undefined.
    fn compare_slot_map(&self, seen: &[u32]) -> Result<(), ExpertMajorMismatch> {
        let top_k = self.oracle.shape().top_k;
        let mut expected = std::collections::BTreeMap::new();
        for (source, route) in self.oracle.routes.iter().enumerate() {
            let source = GroupRank::new(source as u32);
            let rows =
                (0..route.tokens()).filter_map(|token| self.oracle.row_at(source, token, self.destination));
            for row in rows {
                expected.extend((0..top_k).map(|k| (row * top_k + k, SLOT_NONE)));
            }
        }
        for (local, pairs) in self.pairs.iter().enumerate() {
            for (place, pair) in pairs.iter().enumerate() {
                let slot = local * self.capacity + place;
                let entry = if place < self.capacity { slot as u32 } else { SLOT_DROPPED };
                expected.insert(pair.row * top_k + pair.k, entry);
            }
        }
        for (index, entry) in expected {
            let place = || format!("entry {index}");
            let Some(seen) = seen.get(index) else {
                return self.same("slot map", place, u64::from(entry), u64::MAX);
            };
            self.same("slot map", place, entry.into(), (*seen).into())?;
        }
        Ok(())
    }

    /// Compares a combine window after the contract: the rows received, bit by bit; where a NaN is expected, any quiet NaN will do.
    ///
    /// # Errors
    /// The first difference.
    pub fn compare_window(
        &self,
        window: &[u8],
        experts: &Contracted<'_, impl ExpertOutputs>,
    ) -> Result<(), ExpertMajorMismatch> {
        let shape = self.oracle.shape();
        let (element, row_bytes) = (shape.combine, shape.combine_row_bytes());
        let (mut values, mut row) = (vec![0.0; shape.hidden], vec![0; row_bytes]);
        for source in (0..shape.ranks).map(GroupRank::new) {
            let route = &self.oracle.routes[source.index()];
            for token in 0..route.tokens() {
                let Some(index) = self.oracle.row_at(source, token, self.destination) else { continue };
                experts.sum(self.destination, source, token, &mut values);
                element.encode(&values, &mut row);
                let at = index * row_bytes..(index + 1) * row_bytes;
                self.same(
                    "window",
                    || format!("length up to row {index}"),
                    1,
                    (at.end <= window.len()).into(),
                )?;
                for column in 0..shape.hidden {
                    let (expected, seen) =
                        (element.bits_at(&row, column), element.bits_at(&window[at.clone()], column));
                    if element.is_quiet_nan(expected) && element.is_quiet_nan(seen) {
                        continue;
                    }
                    let place = || format!("column {column} of row {index} (token {token} of {source})");
                    self.same("window", place, expected.into(), seen.into())?;
                }
            }
        }
        Ok(())
    }

    fn table(&self, what: &'static str, expected: &[u32], seen: &[u32]) -> Result<(), ExpertMajorMismatch> {
        self.same(what, || "length".to_owned(), expected.len() as u64, seen.len() as u64)?;
        for (place, (expected, seen)) in expected.iter().zip(seen).enumerate() {
            self.same(what, || format!("entry {place}"), (*expected).into(), (*seen).into())?;
        }
        Ok(())
    }

    /// The bytes of one row; zeros in a row of padding.
    fn bytes(
        &self,
        what: &'static str,
        at: &impl Fn(&str) -> String,
        expected: Option<&[u8]>,
        table: &[u8],
        place: usize,
        width: usize,
    ) -> Result<(), ExpertMajorMismatch> {
        for (column, seen) in table[place * width..(place + 1) * width].iter().enumerate() {
            let expected = expected.map_or(0, |bytes| bytes[column]);
            self.same(what, || at(&format!("byte {column}")), expected.into(), (*seen).into())?;
        }
        Ok(())
    }

    fn same(
        &self,
        what: &'static str,
        place: impl FnOnce() -> String,
        expected: u64,
        seen: u64,
    ) -> Result<(), ExpertMajorMismatch> {
        if expected == seen {
            return Ok(());
        }
        Err(ExpertMajorMismatch { rank: self.destination, what, place: place(), expected, seen })
    }
}

/// The outputs that experts made of expert-major rows.
pub trait ExpertOutputs {
    /// Writes the H elements of the output of expert `expert` for a token of `source`; each is a value of the combine type.
    fn row(&self, oracle: &Oracle<'_>, expert: u32, source: GroupRank, token: usize, values: &mut [f32]);
}

/// The reference experts: a row times 1 + (e mod 8) / 8 for expert e, in f32, rounded once to the combine type.
#[derive(Clone, Copy, Debug)]
pub struct FactorExperts;

impl ExpertOutputs for FactorExperts {
    fn row(&self, oracle: &Oracle<'_>, expert: u32, source: GroupRank, token: usize, values: &mut [f32]) {
        let shape = oracle.shape();
        shape.dispatch.decode(oracle.payload(source, token), values);
        let factor = 1.0 + (expert % 8) as f32 / 8.0;
        for value in values.iter_mut() {
            *value = shape.combine.value(shape.combine.round(*value * factor));
        }
    }
}

/// Experts' outputs, contracted on every rank: what [`Oracle::combine`] then sums. A row is the sum over its pairs that had room, in
/// the order of k, of weight times output: products and sums each rounded in f32, from 0, one rounding to the combine type.
#[derive(Debug)]
pub struct Contracted<'o, O> {
    oracle: &'o Oracle<'o>,
    outputs: O,
    /// Whether each `[source][token][k]` has a row at its expert.
    kept: Vec<Vec<bool>>,
}

impl<'o> Oracle<'o> {
    /// What contracts make of these outputs, where every rank has `capacity` rows an expert.
    ///
    /// # Errors
    /// The errors of [`Self::expert_major`].
    pub fn contracted<O: ExpertOutputs>(
        &'o self,
        capacity: usize,
        outputs: O,
    ) -> Result<Contracted<'o, O>, OracleError> {
        let top_k = self.shape.top_k;
        let mut kept: Vec<_> = self.routes.iter().map(|route| vec![false; route.tokens() * top_k]).collect();
        for destination in (0..self.shape.ranks).map(GroupRank::new) {
            let delivery = self.expert_major(destination, capacity, 1)?;
            for pair in (0..delivery.experts.len()).flat_map(|local| delivery.kept(local)) {
                kept[pair.source.index()][pair.token as usize * top_k + pair.k] = true;
            }
        }
        Ok(Contracted { oracle: self, outputs, kept })
    }
}

impl<O: ExpertOutputs> Contracted<'_, O> {
    /// The sum of one token's pairs at one rank, not yet rounded to the combine type.
    fn sum(&self, destination: GroupRank, source: GroupRank, token: usize, values: &mut [f32]) {
        let shape = self.oracle.shape();
        let weights = self.oracle.weights(source, token);
        let mut output = vec![0.0f32; shape.hidden];
        values.fill(0.0);
        for (k, id) in self.oracle.ids(source, token).iter().enumerate() {
            let here = self.oracle.destination(*id, source, token) == Some(destination);
            if !here || !self.kept[source.index()][token * shape.top_k + k] {
                continue;
            }
            self.outputs.row(self.oracle, *id as u32, source, token, &mut output);
            let weight = weights.map_or(0.0, |weights| weights[k]);
            for (sum, value) in values.iter_mut().zip(&output) {
                let product = weight * value;
                *sum += product;
            }
        }
    }
}

impl<O: ExpertOutputs> ExpertRows for Contracted<'_, O> {
    fn row(&self, copy: &SentCopy<'_>, values: &mut [f32]) {
        let combine = self.oracle.shape().combine;
        self.sum(copy.destination, copy.source, copy.token, values);
        for value in values.iter_mut() {
            *value = combine.value(combine.round(*value));
        }
    }
}
