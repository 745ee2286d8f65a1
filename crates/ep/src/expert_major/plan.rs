//! Sizes, layout and launch shapes of the expert-major layout. Host arithmetic only.

use anabranch_ranks::GroupRank;

use crate::args::ExpertRowSource;
use crate::error::{Error, Result};
use crate::options::{DispatchCast, ScaleLayout};
use crate::plan::{DeviceLimits, Plan};

/// Rows that a block of expand places at a time.
pub const TILE_ROWS: u32 = 64;
/// The largest alignment, in rows.
pub const MAX_ALIGNMENT: u32 = 1024;
/// Blocks of a launch for each multiprocessor, unless the plan's configuration limits them: these kernels only copy.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 2;
/// Most bytes of the buffers: far above any GPU's memory, and far below what 64 bits hold.
const MAX_BYTES: u128 = 1 << 48;

/// The configuration of an expert-major layout. Ranks may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExpertMajorConfig {
    /// Rows per expert, a multiple of the alignment. 0: [`Plan::rows`], rounded up to the alignment, which is enough
    /// for every routing in which no token names one expert twice.
    pub capacity: u32,
    /// Alignment in rows: zeros pad each expert's rows to a multiple of it. A power of two, 1 to 1024.
    pub alignment: u32,
    /// Memory layout of the scales. Without effect in plans without scales.
    pub scale_layout: ScaleLayout,
}

impl Default for ExpertMajorConfig {
    fn default() -> Self {
        Self { capacity: 0, alignment: 1, scale_layout: ScaleLayout::Rows }
    }
}

impl ExpertMajorConfig {
    /// The worst case as capacity, without padding.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the rows per expert (0: the worst case).
    #[must_use]
    pub fn capacity(mut self, rows: u32) -> Self {
        self.capacity = rows;
        self
    }

    /// Sets the alignment in rows.
    #[must_use]
    pub fn alignment(mut self, rows: u32) -> Self {
        self.alignment = rows;
        self
    }

    /// Sets the memory layout of the scales.
    #[must_use]
    pub fn scale_layout(mut self, layout: ScaleLayout) -> Self {
        self.scale_layout = layout;
        self
    }
}

/// The parts of the buffers, as offsets in bytes; each is a multiple of 256. E is the number of local experts, C the capacity, K the
/// experts per token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertMajorLayout {
    /// Rows of each expert: `[E]` u32.
    pub counts: u64,
    /// Pairs of each expert: `[E]` u32.
    pub pairs: u64,
    /// First row of each source within each expert: `[E][ranks + 1]` u32.
    pub source_offsets: u64,
    /// Source of each row: `[E][C]` of [`ExpertRowSource`].
    pub sources: u64,
    /// Slot map: `[Plan::rows][K]` u32.
    pub slot_map: u64,
    /// Scales: `[E][C][scale_bytes]`, or as [`ScaleLayout`] says.
    pub scales: u64,
    /// Rows: `[E][C][row_bytes]`.
    pub rows: u64,
    /// Bytes of all parts.
    pub bytes: u64,
}

/// The shape of the launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertMajorGeometry {
    /// Blocks of every grid.
    pub blocks: u32,
    /// Threads of a block.
    pub block_threads: u32,
}

/// A checked configuration with all sizes computed, for one rank of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertMajorPlan {
    plan: Plan,
    rank: GroupRank,
    experts: Vec<u32>,
    local_experts: u32,
    capacity: u32,
    alignment: u32,
    scale_layout: ScaleLayout,
    layout: ExpertMajorLayout,
}

impl ExpertMajorPlan {
    /// Checks the configuration for one rank of a plan.
    ///
    /// # Errors
    /// [`Error::Config`]: the field, what was given, what is allowed.
    pub fn new(plan: &Plan, rank: GroupRank, config: ExpertMajorConfig) -> Result<Self> {
        let wrong = |field, given: u64, allowed: String| Err(Error::config(field, given, allowed));
        let ExpertMajorConfig { capacity, alignment, scale_layout } = config;
        if rank.get() >= plan.ranks() {
            return wrong("rank", rank.get().into(), format!("the group has {} ranks", plan.ranks()));
        }
        if !alignment.is_power_of_two() || alignment > MAX_ALIGNMENT {
            let allowed = format!("allowed are powers of two from 1 to {MAX_ALIGNMENT}");
            return wrong("alignment", alignment.into(), allowed);
        }
        if !capacity.is_multiple_of(alignment) {
            let allowed = format!("it must be a multiple of the alignment, {alignment} rows");
            return wrong("capacity", capacity.into(), allowed);
        }
        check_scale_layout(plan, scale_layout)?;
        let top_k = plan.config().top_k;
        let pairs = plan.rows() * u64::from(top_k);
        // The last two numbers of 32 bits mean that a pair has no row.
        let most = u64::from(u32::MAX) - 1;
        if pairs > most {
            let allowed = format!(
                "the window's {} rows times {top_k} experts a token must be at most {most}",
                plan.rows()
            );
            return wrong("max_tokens", plan.config().max_tokens.into(), allowed);
        }
        let worst = pairs.next_multiple_of(alignment.into());
        let given = u64::from(capacity);
        if given > worst {
            let allowed =
                format!("allowed are 0 (the window's rows) to {worst}, all pairs that a rank can receive");
            return wrong("capacity", given, allowed);
        }
        let rows = if capacity == 0 { plan.rows().next_multiple_of(alignment.into()) } else { given };
        let experts = plan.experts_on(rank);
        let local_experts = experts.len() as u32;
        if rows * u64::from(local_experts) > most {
            let allowed = format!("{local_experts} local experts times {rows} rows must be at most {most}");
            return wrong("capacity", given, allowed);
        }
        let layout = layout(plan, local_experts, rows, scale_layout)?;
        let capacity = rows as u32; // at most the worst case or a rounded number of rows; both were compared above
        Ok(Self {
            plan: plan.clone(),
            rank,
            experts,
            local_experts,
            capacity,
            alignment,
            scale_layout,
            layout,
        })
    }

    /// The plan of the dispatch.
    pub fn dispatch_plan(&self) -> &Plan {
        &self.plan
    }

    /// The rank in the group.
    pub fn rank(&self) -> GroupRank {
        self.rank
    }

    /// The rank's experts by their numbers in the group, ascending: the n-th is the n-th local expert.
    pub fn experts(&self) -> &[u32] {
        &self.experts
    }

    /// Experts of the rank, possibly none.
    pub fn local_experts(&self) -> u32 {
        self.local_experts
    }

    /// Rows per expert.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The alignment in rows.
    pub fn alignment(&self) -> u32 {
        self.alignment
    }

    /// Memory layout of the scales.
    pub fn scale_layout(&self) -> ScaleLayout {
        self.scale_layout
    }

    /// The layout of the buffers.
    pub fn layout(&self) -> &ExpertMajorLayout {
        &self.layout
    }

    /// Device memory of the layout in bytes, without the counts of runs ([`Self::run_count_bytes`]).
    pub fn bytes(&self) -> u64 {
        self.layout.bytes
    }

    /// Device memory of the counts of runs of rows in bytes: `[blocks][local experts]` u32.
    pub fn run_count_bytes(&self, geometry: ExpertMajorGeometry) -> u64 {
        run_count_bytes(self.local_experts, geometry)
    }

    /// Bytes of the experts' output: `[local experts][capacity][hidden]` of the combine type.
    pub fn output_bytes(&self) -> u64 {
        u64::from(self.local_experts) * u64::from(self.capacity) * u64::from(self.plan.combine_row_bytes())
    }

    /// Bytes of weights that are given for a contract: `[local experts][capacity]` f32.
    pub fn weight_bytes(&self) -> u64 {
        u64::from(self.local_experts) * u64::from(self.capacity) * 4
    }

    /// Bytes of the sums of a contract: `[`[`Plan::rows`]`][hidden]` of the combine type.
    pub fn contracted_bytes(&self) -> u64 {
        self.plan.rows() * u64::from(self.plan.combine_row_bytes())
    }

    /// Local memory of an expand block.
    pub(crate) fn expand_local_bytes(&self) -> u64 {
        expand_local_bytes(&self.plan, self.local_experts, false)
    }
}

/// An error for packed scales that are no powers of two.
pub(super) fn check_scale_layout(plan: &Plan, layout: ScaleLayout) -> Result<()> {
    let cast = plan.config().dispatch_cast;
    if layout != ScaleLayout::PackedColumns || cast == DispatchCast::None {
        return Ok(());
    }
    let allowed = format!(
        "the scales of dispatch_cast {cast} are not always powers of two; allowed are rows and columns"
    );
    Err(Error::config("scale_layout", layout.name(), allowed))
}

/// The shape of all launches of the layout; `most_threads` is what the kernels allow.
pub(super) fn geometry(plan: &Plan, limits: &DeviceLimits) -> ExpertMajorGeometry {
    let config = plan.config();
    let waves = if config.waves_per_block == 0 { limits.preferred_waves } else { config.waves_per_block };
    let waves = waves.clamp(1, (1024 / limits.wave_size).min(limits.preferred_waves.max(1)));
    let all = limits.multiprocessors.max(1) * BLOCKS_PER_MULTIPROCESSOR;
    let blocks = if config.max_blocks == 0 { all } else { all.min(config.max_blocks) };
    ExpertMajorGeometry { blocks, block_threads: waves * limits.wave_size }
}

/// Local memory of an expand block: a running sum of rows, two words an expert, for shared places a word for each expert and one after the
/// last, two words for each pair of a tile.
pub(super) fn expand_local_bytes(plan: &Plan, local_experts: u32, is_contiguous: bool) -> u64 {
    let starts = if is_contiguous { (u64::from(local_experts) + 1) * 4 } else { 0 };
    (u64::from(plan.ranks()) + 1) * 4
        + u64::from(local_experts) * 8
        + starts
        + u64::from(TILE_ROWS) * u64::from(plan.config().top_k) * 8
}

/// Bytes of a slot map, `[`[`Plan::rows`]`][top_k]` u32.
pub(super) fn slot_map_bytes(plan: &Plan) -> u64 {
    plan.rows() * u64::from(plan.config().top_k) * 4
}

pub(super) fn run_count_bytes(local_experts: u32, geometry: ExpertMajorGeometry) -> u64 {
    u64::from(geometry.blocks) * u64::from(local_experts) * 4
}

/// An error when a block's tables do not fit the device's local memory.
pub(super) fn check_local(needed: u64, local_experts: u32, limits: &DeviceLimits) -> Result<u32> {
    if needed > u64::from(limits.local_bytes) {
        let allowed = format!(
            "with {local_experts} experts on a rank a block would need {needed} bytes of local memory and has {}",
            limits.local_bytes
        );
        return Err(Error::config("experts", local_experts, allowed));
    }
    Ok(needed as u32)
}

fn layout(plan: &Plan, local_experts: u32, capacity: u64, scales: ScaleLayout) -> Result<ExpertMajorLayout> {
    const ALIGNMENT: u128 = 256;
    let experts = u128::from(local_experts);
    let slots = experts * u128::from(capacity);
    let mut end = 0u128;
    let mut place = |bytes: u128| {
        let start = end;
        end = (start + bytes).next_multiple_of(ALIGNMENT);
        start as u64
    };
    let layout = ExpertMajorLayout {
        counts: place(experts * 4),
        pairs: place(experts * 4),
        source_offsets: place(experts * (u128::from(plan.ranks()) + 1) * 4),
        sources: place(slots * size_of::<ExpertRowSource>() as u128),
        slot_map: place(slot_map_bytes(plan).into()),
        scales: place(slots * u128::from(scales.row_bytes(plan.config().scale_bytes))),
        rows: place(slots * u128::from(plan.row_bytes())),
        bytes: 0,
    };
    if end > MAX_BYTES {
        let allowed = format!(
            "{local_experts} local experts with {capacity} rows each need {end} bytes, more than {MAX_BYTES}"
        );
        return Err(Error::config("capacity", capacity, allowed));
    }
    Ok(ExpertMajorLayout { bytes: end as u64, ..layout })
}
