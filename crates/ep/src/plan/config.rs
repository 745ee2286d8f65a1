//! A plan's configuration and its checks.

use std::sync::Arc;

use anabranch_ranks::{Across, LinkSettings, Nodes};

use super::capacity::Capacity;
use super::launch::{LaunchTable, MAX_WAVES};
use super::route::RouteRows;
use super::{MAX_SLOT_BYTES, MAX_TOKENS, MAX_TOP_K, PlacementTable, Route, meta_bytes, row_bytes};
use crate::error::{Error, Result};
use crate::options::{CombineCodec, CombineSource, DispatchCast, Mode, OnTimeout, Payload};
use crate::tensor::{COMBINED_TYPES, ROW_TYPES};
use anabranch_elements::data_type::{DataType, names};

/// A plan's configuration. All ranks of the group give equal values, which [`ExpertParallel::new`](crate::ExpertParallel::new) compares;
/// only `max_blocks`, `waves_per_block` and `id_type` may differ, and of `table` only the entry for this plan is compared.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct EpConfig {
    /// Elements of a token row, 1 or more. A row of each type has a multiple of 16 bytes, less than 4 GiB; casts and codecs need a
    /// multiple of their block.
    pub hidden: u32,
    /// Experts of the group, E: 1 or more, and E times the number of ranks R is below 2^32. Rank r owns experts floor(r E / R) up to, not
    /// including, floor((r + 1) E / R), unless `placement` has a table.
    pub experts: u32,
    /// The ranks of each expert; `None` places the experts evenly, each on one rank.
    pub placement: Option<PlacementTable>,
    /// Experts per token, 1 to 32.
    pub top_k: u32,
    /// Most tokens that a rank dispatches in one call, 1 to 2^26.
    pub max_tokens: u32,
    /// Type of the rows that dispatch sends, one of [`ROW_TYPES`].
    pub dispatch_type: DataType,
    /// Type of the rows that combine sums and returns, one of [`COMBINED_TYPES`].
    pub combine_type: DataType,
    /// Where the experts' output may be: in the combine window, in another buffer, or in either.
    pub combine_source: CombineSource,
    /// Encoding of the rows that combine pushes.
    pub combine_codec: CombineCodec,
    /// Bytes of scales per token that dispatch sends with the row; 0 for none. A multiple of 4, at most 1 MiB.
    pub scale_bytes: u32,
    /// Most rows that a rank receives from all ranks together in one dispatch; at least the number of ranks. 0: the worst case, all tokens of
    /// all ranks. Copies beyond it are dropped; [`Plan::row_stride`](super::Plan::row_stride) defines which.
    pub max_recv: u32,
    /// Layout of the received rows. [`Mode::Auto`] counts as not set: `anabranch::World` replaces it by `ep.mode`.
    pub mode: Mode,
    /// Dispatches that may be in flight without their combine, 1 to 64. Each has its own windows. 1 counts as not set:
    /// `anabranch::World` replaces it by `ep.slots`.
    pub slots: u32,
    /// Most blocks of a launch. 0 counts as not set: `anabranch::World` replaces it by `ep.blocks`; if that is not set either, the plan
    /// chooses.
    pub max_blocks: u32,
    /// Waves per block, at most 16. 0 counts as not set: `anabranch::World` replaces it by `ep.waves_per_block`; if that is not set
    /// either, the plan chooses.
    pub waves_per_block: u32,
    /// Whether combine also sums weights: for each token and each of its `top_k` entries, over the ranks that received the token.
    pub combine_weights: bool,
    /// Whether weights may be sent after the dispatch.
    pub late_weights: bool,
    /// Measured launch shapes (`ep.table`), from which the plan chooses; `None`: this crate's table for the device, if it has one.
    pub table: Option<Arc<LaunchTable>>,
    /// Cast of the rows before dispatch sends them. With a cast, `dispatch_type` is the cast's type and `scale_bytes` stays 0.
    pub dispatch_cast: DispatchCast,
    /// Type of the caller's rows where dispatch casts them, one of [`COMBINED_TYPES`]; ignored without a cast.
    pub cast_from: DataType,
    /// Whether the number of tokens may be in device memory ([`Tokens::device_count`](crate::Tokens::device_count)).
    pub device_token_count: bool,
    /// Type of the expert ids that this rank dispatches, i32 or i64; ranks may differ.
    pub id_type: DataType,
    /// What an operation does when a wait for a peer expires.
    pub on_timeout: OnTimeout,
    /// What moves rows between ranks: kernels or copy engines.
    pub payload: Payload,
    /// The node of each rank. `None`: all ranks are on one node; on a world where loads and stores do not reach some rank, or where
    /// `across` is not [`Across::Auto`], the nodes are the ranks' hosts.
    pub nodes: Option<Nodes>,
    /// The way of a dispatch's rows between nodes. The results of all ways are the same bits. [`Across::Direct`] sends a row to each rank
    /// of another node. [`Across::Node`] sends each token once to each node, to [its relay](Nodes::relay), which forwards it.
    /// [`Across::Auto`] takes the way with the shorter expected time of the busiest rank
    /// ([`Plan::expected_dispatch`](super::Plan::expected_dispatch)): by node where the ranks of a token share nodes and its rows are large
    /// enough for another step; direct for very few tokens, on many nodes, and where no node has two ranks. Combine always returns rows
    /// directly: a sum per node would add them in another order.
    pub across: Across,
    /// Link speeds (`[links]`), by which [`Across::Auto`] chooses. A speed that is not set is the default of the device, or of an unknown
    /// device in a plan without a world.
    pub links: LinkSettings,
}

/// The sizes that every plan needs. A struct, so that callers name all four numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpShape {
    /// [`EpConfig::hidden`].
    pub hidden: u32,
    /// [`EpConfig::experts`].
    pub experts: u32,
    /// [`EpConfig::top_k`].
    pub top_k: u32,
    /// [`EpConfig::max_tokens`].
    pub max_tokens: u32,
}

/// Declares the setters of single fields.
macro_rules! setters {
    ($($(#[$doc:meta])* $field:ident: $type:ty;)+) => {
        impl EpConfig {
            $(
                $(#[$doc])*
                #[must_use]
                pub fn $field(mut self, value: $type) -> Self {
                    self.$field = value.into();
                    self
                }
            )+
        }
    };
}

setters! {
    /// Sets the ranks of each expert.
    placement: PlacementTable;
    /// Sets the type of dispatched rows.
    dispatch_type: DataType;
    /// Sets the type of combined rows.
    combine_type: DataType;
    /// Sets the bytes of scales per token.
    scale_bytes: u32;
    /// Sets the most rows that a rank receives (0: the worst case).
    max_recv: u32;
    /// Sets the layout of the received rows; [`Mode::Auto`] counts as not set.
    mode: Mode;
    /// Sets the number of dispatches that may be in flight; 1 counts as not set.
    slots: u32;
    /// Sets what an operation does when a wait for a peer expires.
    on_timeout: OnTimeout;
    /// Sets whether combine also sums weights. Each received row then has `top_k` f32 weights in the weight window
    /// ([`Dispatched::combine_weights`](crate::Dispatched::combine_weights)): the dispatched ones unless the experts overwrite them. Combine
    /// then needs a [`CombineOutput`](crate::CombineOutput) with a buffer for the sums.
    combine_weights: bool;
    /// Sets whether weights may be sent after the dispatch ([`ExpertParallel::send_weights`](crate::ExpertParallel::send_weights)), for callers
    /// that have them only at the combine. Takes `4 top_k` bytes of the heap for each row of the windows.
    late_weights: bool;
    /// Sets the table from which the plan chooses launch shapes.
    table: Arc<LaunchTable>;
    /// Sets what moves rows between ranks.
    payload: Payload;
    /// Sets whether the number of tokens may be in device memory.
    device_token_count: bool;
    /// Sets the type of the expert ids.
    id_type: DataType;
    /// Sets the link speeds.
    links: LinkSettings;
    /// Sets the cast of the rows before dispatch sends them.
    dispatch_cast: DispatchCast;
    /// Sets the type of the caller's rows where dispatch casts them: bf16, f16 or f32.
    cast_from: DataType;
    /// Sets where the experts' output may be.
    combine_source: CombineSource;
    /// Sets the encoding of the rows that combine pushes.
    combine_codec: CombineCodec;
    /// Sets the node of each rank of the group.
    nodes: Nodes;
    /// Sets the way of a dispatch's rows between nodes.
    across: Across;
}

impl EpConfig {
    /// A configuration with bf16 rows, no scales, one slot, and launch shapes chosen by the plan.
    pub fn new(shape: EpShape) -> Self {
        let EpShape { hidden, experts, top_k, max_tokens } = shape;
        Self {
            hidden,
            experts,
            placement: None,
            top_k,
            max_tokens,
            dispatch_type: DataType::Bf16,
            combine_type: DataType::Bf16,
            combine_source: CombineSource::Any,
            combine_codec: CombineCodec::None,
            scale_bytes: 0,
            max_recv: 0,
            mode: Mode::Auto,
            slots: 1,
            max_blocks: 0,
            waves_per_block: 0,
            combine_weights: false,
            late_weights: false,
            table: None,
            dispatch_cast: DispatchCast::None,
            cast_from: DataType::Bf16,
            device_token_count: false,
            id_type: DataType::I32,
            on_timeout: OnTimeout::Fault,
            payload: Payload::Kernels,
            nodes: None,
            across: Across::Auto,
            links: LinkSettings::default(),
        }
    }

    /// Sets the most blocks of a launch and the waves per block; 0 for either counts as not set: the `[ep]` table or the plan chooses.
    #[must_use]
    pub fn launch(mut self, max_blocks: u32, waves_per_block: u32) -> Self {
        self.max_blocks = max_blocks;
        self.waves_per_block = waves_per_block;
        self
    }

    /// Field names and values, in the order in which ranks compare them.
    pub fn fields(&self) -> Vec<(String, String)> {
        [
            ("hidden", self.hidden.to_string()),
            ("experts", self.experts.to_string()),
            ("placement", self.placement.as_ref().map_or_else(|| "even".to_owned(), ToString::to_string)),
            ("top_k", self.top_k.to_string()),
            ("max_tokens", self.max_tokens.to_string()),
            ("dispatch_type", self.dispatch_type.to_string()),
            ("combine_type", self.combine_type.to_string()),
            ("combine_source", self.combine_source.to_string()),
            ("combine_codec", self.combine_codec.to_string()),
            ("scale_bytes", self.scale_bytes.to_string()),
            ("max_recv", self.max_recv.to_string()),
            ("mode", self.mode.to_string()),
            ("slots", self.slots.to_string()),
            ("combine_weights", self.combine_weights.to_string()),
            ("late_weights", self.late_weights.to_string()),
            ("dispatch_cast", self.dispatch_cast.to_string()),
            ("cast_from", self.cast_from.to_string()),
            ("device_token_count", self.device_token_count.to_string()),
            ("on_timeout", self.on_timeout.to_string()),
            ("payload", self.payload.to_string()),
            ("nodes", self.nodes.as_ref().map_or_else(|| "one".to_owned(), ToString::to_string)),
            ("across", self.across.to_string()),
            ("links", self.links.to_string()),
        ]
        .map(|(field, value)| (field.to_owned(), value))
        .to_vec()
    }

    /// Checks every field; returns the route and the capacity of the windows.
    pub(super) fn check(&self, ranks: u32) -> Result<(Route, Capacity)> {
        let wrong = |field, given: u32, allowed: String| Err(Error::config(field, given, allowed));
        self.links.check().map_err(|error| Error::config(error.name, error.given, error.allowed))?;
        if !ROW_TYPES.contains(&self.dispatch_type) {
            let allowed = format!("allowed are {}", names(&ROW_TYPES));
            return Err(Error::config("dispatch_type", self.dispatch_type, allowed));
        }
        if !COMBINED_TYPES.contains(&self.combine_type) {
            let allowed = format!("allowed are {}", names(&COMBINED_TYPES));
            return Err(Error::config("combine_type", self.combine_type, allowed));
        }
        if ![DataType::I32, DataType::I64].contains(&self.id_type) {
            return Err(Error::config("id_type", self.id_type, "allowed are i32 and i64".to_owned()));
        }
        let row_rule = |element: DataType| {
            let elements = element.per_unit();
            format!("a row must be a positive multiple of 16 bytes: {elements} elements of {element}")
        };
        for element in [self.dispatch_type, self.combine_type, self.token_type()] {
            if self.hidden == 0 || !self.hidden.is_multiple_of(element.per_unit()) {
                return wrong("hidden", self.hidden, row_rule(element));
            }
            if element.bytes_of(self.hidden.into()) > u64::from(u32::MAX) {
                return wrong("hidden", self.hidden, "a row must have less than 4 GiB".to_owned());
            }
        }
        self.check_codec()?;
        self.check_cast()?;
        if ranks == 0 {
            return wrong("ranks", ranks, "a group has at least one rank".to_owned());
        }
        if self.experts == 0 || self.experts > i32::MAX as u32 {
            return wrong("experts", self.experts, "allowed are 1 to 2147483647".to_owned());
        }
        if let Some(table) = &self.placement {
            table.check(self.experts, ranks)?;
        }
        // The kernels' 32-bit division relies on it.
        if u64::from(self.experts) * u64::from(ranks) > u64::from(u32::MAX) {
            return wrong("experts", self.experts, format!("{ranks} ranks times them must fit 32 bits"));
        }
        if self.top_k == 0 || self.top_k > MAX_TOP_K {
            return wrong("top_k", self.top_k, format!("allowed are 1 to {MAX_TOP_K}"));
        }
        if self.max_tokens == 0 || self.max_tokens > MAX_TOKENS {
            return wrong("max_tokens", self.max_tokens, format!("allowed are 1 to {MAX_TOKENS}"));
        }
        if !self.scale_bytes.is_multiple_of(4) || self.scale_bytes > 1 << 20 {
            return wrong(
                "scale_bytes",
                self.scale_bytes,
                "allowed are multiples of 4 up to 1 MiB".to_owned(),
            );
        }
        // What follows is computed in 64 bits, and in 32 bits for a block's tables.
        if ranks > 1 << 20 {
            return wrong("ranks", ranks, "allowed are 1 to 1048576".to_owned());
        }
        let row = u128::from(row_bytes(self, self.dispatch_type) + row_bytes(self, self.combine_type));
        let capacity = Capacity::new(self.planned_mode(), ranks, self.max_tokens, self.max_recv)?;
        self.on_timeout.check(capacity.mode())?;
        let route = self.route(ranks, capacity.mode())?;
        let rows = capacity.rows();
        let RouteRows { pushed, staged, relayed, returned } = RouteRows::of(self, &route, ranks, rows);
        let beside = u128::from(rows) + [staged, relayed, returned].into_iter().map(u128::from).sum::<u128>();
        let slot = beside * (row + u128::from(meta_bytes(self, &route)))
            + u128::from(pushed) * u128::from(self.wire_bytes())
            + u128::from(rows + pushed) * u128::from(self.weight_bytes());
        if slot > MAX_SLOT_BYTES {
            let allowed =
                format!("the windows of {ranks} ranks would have {slot} bytes, more than {MAX_SLOT_BYTES}");
            return wrong("max_tokens", self.max_tokens, allowed);
        }
        if self.slots == 0 || self.slots > 64 {
            return wrong("slots", self.slots, "allowed are 1 to 64".to_owned());
        }
        if self.waves_per_block > MAX_WAVES {
            let allowed = format!("allowed are 0 (chosen) to {MAX_WAVES}");
            return wrong("waves_per_block", self.waves_per_block, allowed);
        }
        Ok((route, capacity))
    }
}
