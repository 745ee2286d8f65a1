//! What dispatch and combine must deliver, worked out on the CPU from the inputs of all ranks.
//!
//! This is the judge of the kernels, so it shares nothing with them: owners come from the definition of the
//! expert ranges, slots from counting tokens one by one, sums from a plain loop. An [`Oracle`] holds only the
//! routing of all ranks; rows and sums are worked out when asked for, so that a rank which rebuilds its peers'
//! inputs can verify its own results without the cost of everybody else's.
//!
//! - [`Oracle::dispatch`] gives a [`Delivery`]: what one destination receives, to list or to
//!   [`Delivery::compare_rows`].
//! - [`Oracle::combine`] gives a [`Combination`]: what one source gets back, to list or to
//!   [`Combination::compare_output`].
//! - [`Oracle::without`] is the reference for ranks that work without some.
//! - [`Oracle::dropped`] tells which copies of a source have no room at their destinations.
//! - [`Oracle::expert_major`] gives the expert-major layout of a destination, [`Oracle::contracted`] the rows that a contract makes
//!   of it.
//! - [`Oracle::invalid_ids`] tells which expert ids a source must report.

mod cast;
mod codec;
mod combine;
mod error;
mod expert_major;
mod experts;
mod rows;
#[cfg(test)]
mod tests;
mod window;

pub use cast::CastRows;
pub use codec::pass;
pub use combine::Combination;
pub use error::{Mismatch, OracleError, RowField};
pub use expert_major::{
    Contracted, ExpertMajorDelivery, ExpertMajorMismatch, ExpertOutputs, FactorExperts, Pair,
};
pub use experts::{ExpertRows, GivenRows, ReferenceExperts, SentCopy};
pub use rows::{Delivery, ExpectedRow, Row, Rows, SlottedRows};
pub use window::Window;

use anabranch_ep::CombineCodec;
use anabranch_ep::DataType;
use anabranch_ep::EpConfig;
use anabranch_ep::PlacementTable;
use anabranch_ranks::GroupRank;

/// The sizes that all ranks of the group agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Ranks of the group, R.
    pub ranks: u32,
    /// Experts of the whole group, E; rank `r` owns `floor(r * E / R)..floor((r + 1) * E / R)`.
    pub experts: u32,
    /// Experts per token, K.
    pub top_k: usize,
    /// Elements per token, H.
    pub hidden: usize,
    /// Opaque bytes per token that travel beside it, S; 0 for none.
    pub scale_bytes: usize,
    /// The most tokens that a rank may bring, M.
    pub max_tokens: usize,
    /// The ranks of each expert, where a table places them.
    pub placement: Option<PlacementTable>,
    /// How a destination's window is shared.
    pub window: Window,
    /// Type of the tokens.
    pub dispatch: DataType,
    /// Type of the experts' outputs.
    pub combine: DataType,
    /// Type of the combined tokens.
    pub output: DataType,
    /// What the experts' outputs are turned into on their way back.
    pub codec: CombineCodec,
}

impl Shape {
    /// The shape of a dispatch and combine over `ranks` ranks with this configuration; the combined tokens have
    /// the combine type.
    pub fn new(config: &EpConfig, ranks: u32) -> Self {
        Self {
            ranks,
            experts: config.experts,
            top_k: config.top_k as usize,
            hidden: config.hidden as usize,
            scale_bytes: config.sent_scale_bytes() as usize,
            max_tokens: config.max_tokens as usize,
            placement: config.placement.clone(),
            window: Window::new(config, ranks),
            dispatch: config.dispatch_type,
            combine: config.combine_type,
            output: config.combine_type,
            codec: config.combine_codec,
        }
    }

    /// Rows of a destination's window.
    pub fn rows(&self) -> usize {
        self.window.rows(self.ranks as usize)
    }

    /// Bytes of a token.
    pub fn row_bytes(&self) -> usize {
        self.dispatch.bytes_of(self.hidden as u64) as usize
    }

    /// Bytes of an expert's output for a token.
    pub fn combine_row_bytes(&self) -> usize {
        self.combine.bytes_of(self.hidden as u64) as usize
    }

    /// Bytes of a combined token.
    pub fn output_row_bytes(&self) -> usize {
        self.output.bytes_of(self.hidden as u64) as usize
    }
}

/// What one rank brings. Its number of tokens T is `ids.len() / top_k`.
#[derive(Clone, Copy, Debug)]
pub struct RankInput<'a> {
    /// `[T, H]` elements of the dispatch type, little endian, rows contiguous; where dispatch casts, what it makes of the
    /// tokens ([`CastRows`]).
    pub tokens: &'a [u8],
    /// `[T, K]` expert ids. Negative is masked; below -1, or no expert, is invalid and counts as masked.
    pub ids: &'a [i32],
    /// `[T, K]` weights, where weights are carried; all ranks carry them or none does.
    pub weights: Option<&'a [f32]>,
    /// `[T, S]` bytes; empty without scales.
    pub scales: &'a [u8],
}

/// An expert id that is neither masked (-1) nor the number of an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidId {
    /// The rank that brought it.
    pub rank: GroupRank,
    /// Its token on that rank.
    pub token: u32,
    /// The id as given.
    pub id: i32,
}

/// The invalid ids of one rank's input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InvalidIds {
    /// How many entries `[token, k]` are invalid.
    pub count: u64,
    /// The one with the lowest token and, there, the lowest k.
    pub first: Option<InvalidId>,
}

/// A copy of a token.
#[derive(Clone, Copy, Debug)]
struct Placed {
    destination: GroupRank,
    /// Its row there; none when there is no room for it.
    row: Option<usize>,
}

/// Where the tokens of one source go.
#[derive(Debug)]
struct Route {
    /// `T + 1` places in `copies`.
    starts: Vec<usize>,
    /// For each token its distinct destinations, ascending.
    copies: Vec<Placed>,
    invalid: InvalidIds,
}

impl Route {
    fn tokens(&self) -> usize {
        self.starts.len() - 1
    }

    fn of(&self, token: usize) -> &[Placed] {
        &self.copies[self.starts[token]..self.starts[token + 1]]
    }
}

/// The reference for one dispatch and its combine over a whole group.
#[derive(Debug)]
pub struct Oracle<'a> {
    shape: Shape,
    inputs: Vec<RankInput<'a>>,
    /// The ranks of each expert.
    owners: Vec<Vec<GroupRank>>,
    routes: Vec<Route>,
}

impl<'a> Oracle<'a> {
    /// Works out the routing of all ranks; `inputs` are in group-rank order, one for each rank.
    ///
    /// # Errors
    /// [`OracleError`] when the shape has a zero, or when an input does not have the shape; it names the rank
    /// and the tensor.
    pub fn new(shape: Shape, inputs: Vec<RankInput<'a>>) -> Result<Self, OracleError> {
        Self::without(shape, inputs, &[])
    }

    /// The same for ranks that all mask `masked`: tokens go to none of these, as if no token named their experts, and none of
    /// theirs come. A rank that is masked has no part in what this oracle says.
    ///
    /// # Errors
    /// As [`Self::new`]; [`OracleError::NoSuchRank`].
    pub fn without(
        shape: Shape,
        inputs: Vec<RankInput<'a>>,
        masked: &[GroupRank],
    ) -> Result<Self, OracleError> {
        check(&shape, &inputs)?;
        if let Some(rank) = masked.iter().find(|rank| rank.get() >= shape.ranks) {
            return Err(OracleError::NoSuchRank { rank: *rank, ranks: shape.ranks });
        }
        let owners = owners(&shape);
        // Copies for each destination, of the ranks so far.
        let mut before = vec![0; shape.ranks as usize];
        let routes = inputs
            .iter()
            .enumerate()
            .map(|(rank, input)| route(&shape, &owners, rank, input, masked, &mut before))
            .collect();
        Ok(Self { shape, inputs, owners, routes })
    }

    /// The sizes it was made with.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Tokens that this rank brought; 0 for a rank outside the group.
    pub fn tokens(&self, rank: GroupRank) -> usize {
        self.routes.get(rank.index()).map_or(0, Route::tokens)
    }

    /// The invalid ids that this rank must report.
    ///
    /// # Errors
    /// [`OracleError::NoSuchRank`].
    pub fn invalid_ids(&self, source: GroupRank) -> Result<InvalidIds, OracleError> {
        self.check_rank(source)?;
        Ok(self.routes[source.index()].invalid)
    }

    /// The copies of this rank's tokens that are dropped: token and destination, by token and then destination.
    ///
    /// # Errors
    /// [`OracleError::NoSuchRank`].
    pub fn dropped(&self, source: GroupRank) -> Result<Vec<(u32, GroupRank)>, OracleError> {
        self.check_rank(source)?;
        let route = &self.routes[source.index()];
        let tokens = 0..route.tokens();
        let dropped = tokens.flat_map(|token| {
            let copies = route.of(token).iter().filter(|copy| copy.row.is_none());
            copies.map(move |copy| (token as u32, copy.destination))
        });
        Ok(dropped.collect())
    }

    /// What `destination` receives.
    ///
    /// # Errors
    /// [`OracleError::NoSuchRank`].
    pub fn dispatch(&self, destination: GroupRank) -> Result<Delivery<'_>, OracleError> {
        self.check_rank(destination)?;
        Ok(Delivery::new(self, destination))
    }

    /// What `source` gets back.
    ///
    /// # Errors
    /// [`OracleError::NoSuchRank`].
    pub fn combine(&self, source: GroupRank) -> Result<Combination<'_>, OracleError> {
        self.check_rank(source)?;
        Ok(Combination::new(self, source))
    }

    fn check_rank(&self, rank: GroupRank) -> Result<(), OracleError> {
        if rank.get() < self.shape.ranks {
            return Ok(());
        }
        Err(OracleError::NoSuchRank { rank, ranks: self.shape.ranks })
    }

    /// The id as the receiver sees it: invalid ones as -1.
    fn carried_id(&self, id: i32) -> i32 {
        if self.destination(id, GroupRank::new(0), 0).is_some() { id } else { -1 }
    }

    /// The rank to which a token goes for an id.
    fn destination(&self, id: i32, source: GroupRank, token: usize) -> Option<GroupRank> {
        replica(&self.owners, id, source.index(), token)
    }

    /// The row of a token's copy at a destination; `None` where it has none, or is dropped.
    fn row_at(&self, source: GroupRank, token: usize, destination: GroupRank) -> Option<usize> {
        let copies = self.routes[source.index()].of(token);
        copies.iter().find(|copy| copy.destination == destination).and_then(|copy| copy.row)
    }

    fn payload(&self, source: GroupRank, token: usize) -> &'a [u8] {
        let bytes = self.shape.row_bytes();
        &self.inputs[source.index()].tokens[token * bytes..(token + 1) * bytes]
    }

    fn ids(&self, source: GroupRank, token: usize) -> &'a [i32] {
        &self.inputs[source.index()].ids[token * self.shape.top_k..(token + 1) * self.shape.top_k]
    }

    fn weights(&self, source: GroupRank, token: usize) -> Option<&'a [f32]> {
        let weights = self.inputs[source.index()].weights?;
        Some(&weights[token * self.shape.top_k..(token + 1) * self.shape.top_k])
    }

    fn scales(&self, source: GroupRank, token: usize) -> &'a [u8] {
        let bytes = self.shape.scale_bytes;
        &self.inputs[source.index()].scales[token * bytes..(token + 1) * bytes]
    }
}

/// The ranks of each expert: those of the table, or rank by rank from the definition of the ranges.
fn owners(shape: &Shape) -> Vec<Vec<GroupRank>> {
    if let Some(table) = &shape.placement {
        return (0..shape.experts).map(|expert| table.ranks_of(expert).to_vec()).collect();
    }
    let first = |rank: u32| u64::from(rank) * u64::from(shape.experts) / u64::from(shape.ranks);
    (0..shape.ranks)
        .flat_map(|rank| (first(rank)..first(rank + 1)).map(move |_| vec![GroupRank::new(rank)]))
        .collect()
}

/// Of the ranks of an expert the one that comes up when they are counted through in turn, once for the source's number and once
/// for the token's.
fn replica(owners: &[Vec<GroupRank>], id: i32, source: usize, token: usize) -> Option<GroupRank> {
    let ranks = owners.get(usize::try_from(id).ok()?)?;
    ranks.iter().cycle().nth((source + token) % ranks.len().max(1)).copied()
}

fn route(
    shape: &Shape,
    owners: &[Vec<GroupRank>],
    rank: usize,
    input: &RankInput<'_>,
    masked: &[GroupRank],
    before: &mut [usize],
) -> Route {
    let mut route = Route { starts: vec![0], copies: Vec::new(), invalid: InvalidIds::default() };
    let mut sent = vec![0; shape.ranks as usize];
    let mut destinations = Vec::with_capacity(shape.top_k);
    for (token, ids) in input.ids.chunks_exact(shape.top_k).enumerate() {
        destinations.clear();
        for &id in ids {
            if let Some(owner) = replica(owners, id, rank, token) {
                destinations.push(owner);
            } else if id != -1 {
                route.invalid.count += 1;
                let here = InvalidId { rank: GroupRank::new(rank as u32), token: token as u32, id };
                route.invalid.first.get_or_insert(here);
            }
        }
        // Nothing goes to a masked rank, and nothing of a masked rank is taken in anywhere.
        destinations.retain(|destination| !masked.contains(destination));
        if masked.contains(&GroupRank::new(rank as u32)) {
            destinations.clear();
        }
        destinations.sort_unstable();
        destinations.dedup();
        for &destination in &destinations {
            let index = &mut sent[destination.index()];
            route.copies.push(Placed {
                destination,
                row: shape.window.row(rank, before[destination.index()], *index),
            });
            *index += 1;
        }
        route.starts.push(route.copies.len());
    }
    for (before, sent) in before.iter_mut().zip(sent) {
        *before += sent;
    }
    route
}

fn check(shape: &Shape, inputs: &[RankInput<'_>]) -> Result<(), OracleError> {
    let fields = [
        ("ranks", shape.ranks as usize),
        ("experts", shape.experts as usize),
        ("top_k", shape.top_k),
        ("hidden", shape.hidden),
    ];
    if let Some((field, _)) = fields.into_iter().find(|(_, value)| *value == 0) {
        return Err(OracleError::Zero { field });
    }
    if inputs.len() != shape.ranks as usize {
        return Err(OracleError::Inputs { given: inputs.len(), ranks: shape.ranks });
    }
    let carried = inputs.first().is_some_and(|input| input.weights.is_some());
    for (number, input) in inputs.iter().enumerate() {
        let rank = GroupRank::new(number as u32);
        let tokens = input.ids.len() / shape.top_k;
        if tokens > shape.max_tokens {
            return Err(OracleError::TooManyTokens { rank, tokens, max_tokens: shape.max_tokens });
        }
        if input.weights.is_some() != carried {
            return Err(OracleError::SomeWeights { rank });
        }
        let lengths = [
            ("ids", input.ids.len(), tokens * shape.top_k),
            ("weights", input.weights.map_or(tokens * shape.top_k, <[f32]>::len), tokens * shape.top_k),
            ("tokens", input.tokens.len(), tokens * shape.row_bytes()),
            ("scales", input.scales.len(), tokens * shape.scale_bytes),
        ];
        if let Some((tensor, given, expected)) =
            lengths.into_iter().find(|(_, given, expected)| given != expected)
        {
            return Err(OracleError::Length { rank, tensor, expected, given });
        }
    }
    Ok(())
}
