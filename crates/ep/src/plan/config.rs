//! What a plan is made for, and what is right about it.

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

/// What a plan is made for. Equal on all ranks of the group, but for `max_blocks` and `waves_per_block`; of `table` only the entry for
/// the plan.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct EpConfig {
    /// Elements of a token row.
    pub hidden: u32,
    /// Experts of the group; rank r owns floor(r E / R) up to floor((r + 1) E / R), unless a table places them.
    pub experts: u32,
    /// Which ranks work on which expert, where they are not placed evenly or are on several ranks.
    pub placement: Option<PlacementTable>,
    /// Experts a token names, 1 to 32.
    pub top_k: u32,
    /// Most tokens a rank dispatches in one call.
    pub max_tokens: u32,
    /// Type of the rows that dispatch sends.
    pub dispatch_type: DataType,
    /// Type of the rows that combine sums and returns.
    pub combine_type: DataType,
    /// Where experts' output may lie.
    pub combine_source: CombineSource,
    /// What rows are turned into on their way back.
    pub combine_codec: CombineCodec,
    /// Bytes of scales that travel with a token; 0 for none. A multiple of 4.
    pub scale_bytes: u32,
    /// Rows that a rank takes in from all ranks together (`max_total_recv_tokens` elsewhere); 0 for the worst case, all tokens
    /// of all ranks. At least the number of ranks. Copies beyond the capacity are dropped; [`Plan::row_stride`](super::Plan::row_stride) defines which.
    pub max_recv: u32,
    /// How received rows lie.
    pub mode: Mode,
    /// Operations that may be in flight: dispatches without their combine.
    pub slots: u32,
    /// Most blocks of a launch; 0 lets the plan choose.
    pub max_blocks: u32,
    /// Waves of a block; 0 lets the plan choose.
    pub waves_per_block: u32,
    /// Whether combine sums weights, too: for each token and each of its k, over the ranks that took it in.
    pub combine_weights: bool,
    /// Launch shapes that were measured (`ep.table`), by which the plan chooses; `None` for this crate's table of the device, if there
    /// is one.
    pub table: Option<Arc<LaunchTable>>,
    /// What dispatch turns rows into before it sends them. `dispatch_type` is then the cast's, `scale_bytes` stays 0.
    pub dispatch_cast: DispatchCast,
    /// Type of the rows that a cast takes; not looked at without one.
    pub cast_from: DataType,
    /// Whether the number of tokens may be in device memory ([`Tokens::device_count`](crate::Tokens::device_count)).
    pub device_token_count: bool,
    /// What becomes of an operation when a peer does not come.
    pub on_timeout: OnTimeout,
    /// What moves rows between ranks.
    pub payload: Payload,
    /// Which node each rank is on. `None`: all are on one, unless the plan is made on a world in which some cannot be reached by loads
    /// and stores, or `across` is not [`Across::Auto`]: then as the ranks' hosts say.
    pub nodes: Option<Nodes>,
    /// By which way a dispatch's rows go to other nodes. Results are the same, bit by bit; those of combine come back straight from the
    /// ranks that computed them, because a sum of a node's rows, rounded or not, would be added in another order. [`Across::Node`]: every
    /// token once to each node, to [its relay](Nodes::relay). [`Across::Auto`]: the way that is expected to be faster, by the bytes, requests, hops
    /// and launches of the rank that has most to do ([`Plan::expected_dispatch`](super::Plan::expected_dispatch)): by node where a token's
    /// ranks share nodes and its rows are worth another step; direct for very few tokens, on many nodes, and where no node has two ranks.
    pub across: Across,
    /// Speeds of links (`[links]`), by which [`Across::Auto`] chooses. Where nothing is set, those of the device; of an unknown one for a plan
    /// that is made without a world.
    pub links: LinkSettings,
}

/// The sizes that every plan needs. Given by name, because all four are numbers.
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
            table: None,
            dispatch_cast: DispatchCast::None,
            cast_from: DataType::Bf16,
            device_token_count: false,
            on_timeout: OnTimeout::Fault,
            payload: Payload::Kernels,
            nodes: None,
            across: Across::Auto,
            links: LinkSettings::default(),
        }
    }

    /// Places experts by a table.
    #[must_use]
    pub fn placement(mut self, table: PlacementTable) -> Self {
        self.placement = Some(table);
        self
    }

    /// Sets the type of dispatched rows.
    #[must_use]
    pub fn dispatch_type(mut self, value: DataType) -> Self {
        self.dispatch_type = value;
        self
    }

    /// Sets the type of combined rows.
    #[must_use]
    pub fn combine_type(mut self, value: DataType) -> Self {
        self.combine_type = value;
        self
    }

    /// Sets the bytes of scales a token.
    #[must_use]
    pub fn scale_bytes(mut self, value: u32) -> Self {
        self.scale_bytes = value;
        self
    }

    /// Sets the rows that a rank takes in (0: the worst case).
    #[must_use]
    pub fn max_recv(mut self, value: u32) -> Self {
        self.max_recv = value;
        self
    }

    /// Sets how received rows lie.
    #[must_use]
    pub fn mode(mut self, value: Mode) -> Self {
        self.mode = value;
        self
    }

    /// Sets the number of operations that may be in flight.
    #[must_use]
    pub fn slots(mut self, value: u32) -> Self {
        self.slots = value;
        self
    }

    /// Sets the most blocks of a launch (0: chosen) and the waves of a block (0: chosen).
    #[must_use]
    pub fn launch(mut self, max_blocks: u32, waves_per_block: u32) -> Self {
        self.max_blocks = max_blocks;
        self.waves_per_block = waves_per_block;
        self
    }

    /// Sets what becomes of an operation when a peer does not come.
    #[must_use]
    pub fn on_timeout(mut self, value: OnTimeout) -> Self {
        self.on_timeout = value;
        self
    }

    /// Sets whether combine sums weights, too. Beside each row of the combine window then lie `top_k` f32 weights, those that were
    /// dispatched unless the expert side writes others ([`Dispatched::combine_weights`](crate::Dispatched::combine_weights)), and
    /// combine takes a [`CombineOutput`](crate::CombineOutput) with room for the sums.
    #[must_use]
    pub fn combine_weights(mut self, value: bool) -> Self {
        self.combine_weights = value;
        self
    }

    /// Sets the table by which the plan chooses launch shapes.
    #[must_use]
    pub fn table(mut self, table: Arc<LaunchTable>) -> Self {
        self.table = Some(table);
        self
    }

    /// Sets what moves rows between ranks.
    #[must_use]
    pub fn payload(mut self, value: Payload) -> Self {
        self.payload = value;
        self
    }

    /// Sets whether the number of tokens may be in device memory.
    #[must_use]
    pub fn device_token_count(mut self, value: bool) -> Self {
        self.device_token_count = value;
        self
    }

    /// Sets the speeds of links.
    #[must_use]
    pub fn links(mut self, value: LinkSettings) -> Self {
        self.links = value;
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

    /// Checks every field; how rows then reach other ranks, and what the windows hold.
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
        // The kernels' division relies on it.
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
        let slot = beside * (row + u128::from(meta_bytes(self)))
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
