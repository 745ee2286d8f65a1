//! The plan: configuration, layout of a slot, shapes of launches. Host arithmetic only.

use anabranch_ranks::{Across, GroupRank};

use anabranch_hip::LaunchShape;

use crate::args::SavedRouting;
use crate::error::{Error, Result};
use crate::options::Mode;
use anabranch_elements::data_type::DataType;
use capacity::Capacity;
use launch::{Launch, LaunchChoice, LaunchOperation};
use numbers::{numbers_pairs, pair_totals_stride};
use route::RouteRows;
use share::Share;

mod capacity;
mod cast;
mod config;
mod expected;
pub mod launch;
mod memory;
mod nodes;
mod numbers;
mod on_timeout;
mod own;
mod owner;
mod placement;
mod push;
mod route;
mod routing;
mod share;
mod traffic;

pub use config::{EpConfig, EpShape};
pub use memory::{MemoryItem, MemoryPlace, MemoryPlan};
pub use nodes::Hop;
pub(crate) use own::OwnLayout;
pub use owner::ExpertPlacement;
pub use placement::PlacementTable;
pub use route::{NearOptions, NodesOptions, Route};
pub(crate) use routing::RoutingLayout;
pub use traffic::NicTraffic;

/// Tokens that one block of dispatch routes at a time; a multiple of every wave width.
pub const TILE: u32 = 64;
/// Bytes between two flag words, so that no two ranks write one cache line.
pub const FLAG_STRIDE: u32 = 128;
/// Most experts per token.
pub const MAX_TOP_K: u32 = 32;
/// Blocks of a launch on a large GPU, unless the configuration sets them.
pub(crate) const DEFAULT_BLOCKS: u32 = 64;
/// The bit of a send map entry, `{rank + 1 : 32, row : 32}`, that marks a dropped copy.
pub(crate) const DROPPED: u64 = 1 << 31;
/// Most bytes of a slot's windows: far above any GPU's memory, and far below what 64 bits hold.
const MAX_SLOT_BYTES: u128 = 1 << 48;
/// Most tokens a rank may hold: the record of an invalid id has 26 bits for the token.
pub(crate) const MAX_TOKENS: u32 = 1 << 26;

/// The parts of one slot's symmetric allocation. All offsets are bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotLayout {
    /// Flag words of dispatch, one per rank, [`FLAG_STRIDE`] bytes apart; after each, the word with the identity of the saved routing.
    pub dispatch_flags: u64,
    /// Flag words of combine.
    pub combine_flags: u64,
    /// Count matrix of a compact dispatch, a row of 8-byte words per source; empty in the slotted mode.
    pub count_matrix: u64,
    /// Bytes between two of its rows.
    pub count_stride: u64,
    /// Received rows, `[rows][row_bytes]`.
    pub rows: u64,
    /// Received meta records, `[rows][meta_bytes]`.
    pub meta: u64,
    /// Pairs of each source with each expert here, `[ranks][pair_totals_stride]` bytes, in a plan whose dispatch can number pairs; else empty.
    pub pair_totals: u64,
    /// Rows that peers pull, `[rows][combine_row_bytes]`, where the plan pulls.
    pub combine_rows: u64,
    /// Rows that peers push, `[fan_out][max_tokens][combine_wire_bytes]`, where the plan pushes. A combine either pulls or pushes,
    /// so both windows begin at the same offset. Where ranks may be masked, `[ranks][max_tokens][combine_wire_bytes]` after the
    /// combine rows: a late rank may still push while others pull.
    pub push_rows: u64,
    /// The weight window, `[rows][top_k]` f32, where the plan combines weights; else empty.
    pub combine_weights: u64,
    /// Weights that peers push, `[fan_out][max_tokens][top_k]` f32, where the plan combines weights and pushes; else empty. Where ranks
    /// may be masked, `[ranks]` in place of `[fan_out]`.
    pub pushed_weights: u64,
    /// The late window, `[rows][top_k]` f32, where the plan has late weights; else empty.
    pub late_weights: u64,
    /// Its flag words, each an epoch, one per rank, [`FLAG_STRIDE`] bytes apart; empty with it.
    pub late_flags: u64,
    /// The return window: experts' rows that copy engines or ranks of other nodes write here, `[rows][combine_row_bytes]`. Empty, like
    /// the staging areas, where kernels store all rows.
    pub returned_rows: u64,
    /// Staged rows that this rank sends by copy engines or to other nodes, `[ranks][row_stride][row_bytes]`; where tokens go once to each
    /// node, `[nodes][max_tokens][row_bytes]`.
    pub staged_rows: u64,
    /// Their meta records, `[ranks][row_stride][meta_bytes]`.
    pub staged_meta: u64,
    /// Flag words of the relay window, one per rank, [`FLAG_STRIDE`] bytes apart, where tokens go once to each node; else empty, like the
    /// relay rows and records.
    pub relay_flags: u64,
    /// Rows that this rank forwards, `[sources][max_tokens][row_bytes]`, one part per rank of another node whose relay it is.
    pub relay_rows: u64,
    /// Their meta records, `[sources][max_tokens][meta_bytes]`.
    pub relay_meta: u64,
    /// Bytes of the slot.
    pub bytes: u64,
}

/// The shape of one launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Blocks of the grid.
    pub blocks: u32,
    /// Threads of a block.
    pub block_threads: u32,
    /// Blocks that share a run of tokens, each with its part of every row (dispatch).
    pub parts: u32,
    /// Segments of a row, or of a block's part of it, one per wave.
    pub segments: u32,
    /// Local memory per block in bytes, without the prelude's own.
    pub local_bytes: u32,
}

impl Geometry {
    pub(crate) const fn shape(&self) -> LaunchShape {
        let Self { blocks: grid_blocks, block_threads, local_bytes, .. } = *self;
        LaunchShape { grid_blocks, block_threads, local_bytes }
    }
}

/// The limits of a device for the launches of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Lanes of a wave.
    pub wave_size: u32,
    /// Most blocks of a launch that are resident together.
    pub resident_blocks: u32,
    /// Multiprocessors or compute units.
    pub multiprocessors: u32,
    /// Preferred waves per block, which is also the maximum.
    pub preferred_waves: u32,
    /// Most local memory per block in bytes.
    pub local_bytes: u32,
}

/// A checked configuration with all sizes computed.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    config: EpConfig,
    placement: ExpertPlacement,
    route: Route,
    capacity: Capacity,
    ranks: u32,
    layout: SlotLayout,
    choice: LaunchChoice,
    forced: Option<Launch>,
}

impl Plan {
    /// Checks the configuration for a group of `ranks`.
    ///
    /// # Errors
    /// [`Error::Config`]: the field, what was given, what is allowed; [`Error::Unsupported`] for settings that do not go together.
    pub fn new(mut config: EpConfig, ranks: u32) -> Result<Self> {
        let (route, capacity) = config.check(ranks)?;
        if let Route::Nodes(NodesOptions { by_node, .. }) = &route {
            config.across = if *by_node { Across::Node } else { Across::Direct };
        }
        config.scale_bytes = config.sent_scale_bytes();
        let placement = ExpertPlacement::new(config.experts, ranks).ok_or_else(|| {
            Error::config("experts", config.experts, format!("it must place over {ranks} ranks"))
        })?;
        let layout = slot_layout(&config, &route, ranks, &capacity);
        let choice = LaunchChoice::default();
        Ok(Self { config, placement, route, capacity, ranks, layout, choice, forced: None })
    }

    /// The configuration. With a cast, `scale_bytes` is the cast's; on several nodes, `across` is the chosen way.
    pub fn config(&self) -> &EpConfig {
        &self.config
    }

    /// How rows reach other ranks.
    pub fn route(&self) -> &Route {
        &self.route
    }

    /// The experts on a rank, ascending: the order of its local experts everywhere.
    pub fn experts_on(&self, rank: GroupRank) -> Vec<u32> {
        match &self.config.placement {
            Some(table) => table.experts_on(rank),
            None => self.placement.range(rank).collect(),
        }
    }

    /// The even placement of experts, which applies without a table.
    pub fn placement(&self) -> &ExpertPlacement {
        &self.placement
    }

    /// Ranks of the group.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Rows of each window (rows, meta, combine rows).
    pub fn rows(&self) -> u64 {
        self.capacity.rows()
    }

    /// The layout of received rows: slotted or compact.
    pub fn mode(&self) -> Mode {
        self.capacity.mode()
    }

    /// In the slotted mode, the rows of each window that a source owns: the copies of source s begin at row `s * row_stride`, in the
    /// order of its tokens, and those after the first `row_stride` are dropped. In the compact mode 0: the copies of source s begin at
    /// row `offsets[s]`, and of all copies, by source and then token, those after the first [`Self::rows`] are dropped.
    pub fn row_stride(&self) -> u32 {
        self.capacity.row_stride()
    }

    /// Whether `max_recv` is above the worst case; the windows then have the worst case.
    pub fn is_max_recv_clamped(&self) -> bool {
        self.capacity.is_clamped()
    }

    /// The layout of a slot.
    pub fn layout(&self) -> &SlotLayout {
        &self.layout
    }

    /// Bytes of a row of the caller's tokens, before a cast.
    pub fn token_bytes(&self) -> u32 {
        row_bytes(&self.config, self.config.token_type()) as u32
    }

    /// Bytes of a dispatched row.
    pub fn row_bytes(&self) -> u32 {
        row_bytes(&self.config, self.config.dispatch_type) as u32
    }

    /// Bytes of a combined row.
    pub fn combine_row_bytes(&self) -> u32 {
        row_bytes(&self.config, self.config.combine_type) as u32
    }

    /// Bytes between two meta records: `{token u32, place u32, ids i32[K], weights f32[K], scales}`, where the dispatch can number pairs also
    /// `numbers u32[K]`, rounded up to 16.
    pub fn meta_bytes(&self) -> u32 {
        meta_bytes(&self.config, &self.route)
    }

    /// Most ranks a token can go to.
    pub fn fan_out(&self) -> u32 {
        self.config.top_k.min(self.ranks)
    }

    /// Bytes of the symmetric heap that all slots need.
    pub fn heap_bytes(&self) -> u64 {
        self.layout.bytes * u64::from(self.config.slots)
    }

    /// Local memory of a dispatch block: peer bases, next and first rows, capacities, the fault word, and the tile's destinations; across nodes,
    /// next relay rows.
    pub(crate) fn dispatch_local_bytes(&self) -> u32 {
        self.ranks * 8 + TILE * self.fan_out() * 8 + self.ranks * 12 + TILE * 4 + 4 + self.relay_local_bytes()
    }

    /// Local memory of a combine block: the fault word, and, where ranks may be masked, a word a rank.
    pub fn combine_local_bytes(&self) -> u32 {
        16 + if self.route.masks() { self.ranks * 4 } else { 0 }
    }

    /// Local memory of a block of the count: two words a rank.
    pub(crate) fn count_local_bytes(&self) -> u32 {
        self.ranks * 8
    }

    /// The launch of the count before a compact dispatch of `tokens`: a thread a token, as far as the blocks go.
    pub fn count_geometry(&self, tokens: u32, limits: &DeviceLimits) -> Geometry {
        let Share { waves, blocks, .. } = self.share(LaunchOperation::Dispatch, tokens, limits);
        let block_threads = waves * limits.wave_size;
        let blocks = tokens.div_ceil(block_threads).clamp(1, blocks);
        Geometry { blocks, block_threads, parts: 1, segments: 1, local_bytes: self.count_local_bytes() }
    }

    /// The launch of a dispatch of `tokens`.
    ///
    /// # Errors
    /// [`Error::Config`] when a block's tables do not fit the device's local memory.
    pub fn dispatch_geometry(&self, tokens: u32, limits: &DeviceLimits) -> Result<Geometry> {
        let local_bytes = self.dispatch_local_bytes();
        if local_bytes > limits.local_bytes {
            let allowed = format!(
                "a dispatch block would need {local_bytes} bytes of local memory and has {}",
                limits.local_bytes
            );
            return Err(Error::config("ranks", self.ranks, allowed));
        }
        let Share { waves, blocks: most, segments: finest } =
            self.share(LaunchOperation::Dispatch, tokens, limits);
        let wanted_waves = u64::from(tokens.max(1)) * u64::from(finest);
        let blocks = wanted_waves.div_ceil(u64::from(waves)).min(u64::from(most)) as u32;
        Ok(Geometry { local_bytes, ..Self::dispatch_shape(tokens, blocks, waves, finest, limits) })
    }

    /// `blocks` blocks for `tokens`: several share a token where tokens are fewer.
    fn dispatch_shape(tokens: u32, blocks: u32, waves: u32, finest: u32, limits: &DeviceLimits) -> Geometry {
        let (runs, parts) =
            if tokens > 0 && tokens <= blocks { (tokens, blocks / tokens) } else { (blocks, 1) };
        let tokens_a_run = tokens.div_ceil(runs).max(1);
        let segments = (waves / tokens_a_run).clamp(1, finest.div_ceil(parts));
        let block_threads = waves * limits.wave_size;
        Geometry { blocks: runs * parts, block_threads, parts, segments, local_bytes: 0 }
    }

    /// The launch of a dispatch of `tokens` that also expands, with so much local memory.
    pub(crate) fn dispatch_experts_geometry(
        &self,
        tokens: u32,
        local_bytes: u32,
        limits: &DeviceLimits,
    ) -> Geometry {
        let finest = self.default_segments(LaunchOperation::Dispatch, limits);
        let (blocks, waves) = (self.expert_blocks(tokens, limits), self.waves(limits, None));
        Geometry { local_bytes, ..Self::dispatch_shape(tokens, blocks, waves, finest, limits) }
    }

    /// The launch of a combine of `tokens`.
    pub fn combine_geometry(&self, tokens: u32, limits: &DeviceLimits) -> Geometry {
        let Share { waves, blocks: most, segments: finest } =
            self.share(LaunchOperation::CombinePull, tokens, limits);
        let all_waves = waves * most;
        let segments = (all_waves / tokens.max(1)).clamp(1, finest);
        let blocks = (u64::from(tokens) * u64::from(segments))
            .div_ceil(u64::from(waves))
            .clamp(1, u64::from(most)) as u32;
        let local_bytes = self.combine_local_bytes();
        Geometry { blocks, block_threads: waves * limits.wave_size, parts: 1, segments, local_bytes }
    }

    /// Bytes of a [saved routing](crate::Routing), in this rank's own device memory.
    pub fn routing_bytes(&self) -> u64 {
        SavedRouting::bytes(self)
    }

    /// The launch of a kernel of which no block waits for a peer, or the last one to arrive alone, with one wave per item: a token or a row.
    pub(crate) fn local_geometry(&self, items: u64, limits: &DeviceLimits) -> Geometry {
        let waves = self.waves(limits, None);
        let blocks =
            items.div_ceil(u64::from(waves)).clamp(1, u64::from(limits.multiprocessors.max(1))) as u32;
        Geometry { blocks, block_threads: waves * limits.wave_size, parts: 1, segments: 1, local_bytes: 0 }
    }

    /// The launch that only waits for a dispatch's flags: one block.
    pub fn receive_geometry(&self, limits: &DeviceLimits) -> Geometry {
        let block_threads = self.waves(limits, None) * limits.wave_size;
        Geometry { blocks: 1, block_threads, parts: 1, segments: 1, local_bytes: self.dispatch_local_bytes() }
    }

    /// Preferred waves per block: blocks of 512 threads keep the links of a large GPU busy with few
    /// blocks; a small device needs at most four waves.
    pub fn preferred_waves(wave_size: u32, multiprocessors: u32) -> u32 {
        if multiprocessors >= 32 { (512 / wave_size).max(1) } else { 4 }
    }
}

fn row_bytes(config: &EpConfig, element: DataType) -> u64 {
    element.bytes_of(config.hidden.into())
}

fn meta_bytes(config: &EpConfig, route: &Route) -> u32 {
    let numbers = if numbers_pairs(config, route) { 4 * config.top_k } else { 0 };
    (numbers_at(config) + numbers).next_multiple_of(16)
}

/// Bytes of a meta record before the numbers of pairs.
fn numbers_at(config: &EpConfig) -> u32 {
    8 + 8 * config.top_k + config.sent_scale_bytes()
}

fn slot_layout(config: &EpConfig, route: &Route, ranks: u32, capacity: &Capacity) -> SlotLayout {
    const ALIGNMENT: u64 = 256;
    let rows = capacity.rows();
    let mut end = 0u64;
    let mut place = |bytes: u64| {
        let start = end;
        end = (start + bytes).next_multiple_of(ALIGNMENT);
        start
    };
    let flags = u64::from(ranks) * u64::from(FLAG_STRIDE);
    let dispatch_flags = place(flags);
    let combine_flags = place(flags);
    // No two sources write one cache line.
    let count_stride = (u64::from(ranks) * 8).next_multiple_of(u64::from(FLAG_STRIDE));
    let count_matrix =
        place(if capacity.mode() == Mode::Compact { u64::from(ranks) * count_stride } else { 0 });
    let row_window = place(rows * row_bytes(config, config.dispatch_type));
    let meta = place(rows * u64::from(meta_bytes(config, route)));
    let totals = if numbers_pairs(config, route) { pair_totals_stride(config) } else { 0 };
    let pair_totals = place(u64::from(ranks) * totals);
    let RouteRows { pushed: pushed_rows, staged, relayed, returned } =
        RouteRows::of(config, route, ranks, rows);
    // Rows for other nodes are put from the window, wherever the experts' output is.
    let has_window = config.combine_source.pulls() || matches!(route, Route::Nodes(_));
    let pulled = if has_window { rows * row_bytes(config, config.combine_type) } else { 0 };
    let pushed = pushed_rows * config.wire_bytes();
    let masks = route.masks();
    let combine_rows = place(if masks { pulled } else { pulled.max(pushed) });
    let push_rows = if masks { place(pushed) } else { combine_rows };
    let combine_weights = place(rows * config.weight_bytes());
    let pushed_weights = place(pushed_rows * config.weight_bytes());
    let late_weights = place(if config.late_weights { rows * u64::from(config.top_k) * 4 } else { 0 });
    let late_flags = place(if config.late_weights { flags } else { 0 });
    let returned_rows = place(returned * row_bytes(config, config.combine_type));
    let staged_rows = place(staged * row_bytes(config, config.dispatch_type));
    let staged_meta = place(staged * u64::from(meta_bytes(config, route)));
    let relay_flags = place(if relayed > 0 { flags } else { 0 });
    let relay_rows = place(relayed * row_bytes(config, config.dispatch_type));
    let relay_meta = place(relayed * u64::from(meta_bytes(config, route)));
    SlotLayout {
        dispatch_flags,
        combine_flags,
        count_matrix,
        count_stride,
        rows: row_window,
        meta,
        pair_totals,
        combine_rows,
        push_rows,
        combine_weights,
        pushed_weights,
        late_weights,
        late_flags,
        returned_rows,
        staged_rows,
        staged_meta,
        relay_flags,
        relay_rows,
        relay_meta,
        bytes: end,
    }
}
