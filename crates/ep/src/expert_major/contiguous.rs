//! Rows of all experts one after the other, in memory of the caller, and the sums back.

use anabranch_hip::Stream;
use anabranch_hip_jit::{DevicePointer, LoadedKernel};

use super::plan::{TILE_ROWS, check_local, check_scale_layout, expand_local_bytes, slot_map_bytes};
use super::reader::ReceivedReader;
use crate::args::{ExpertContractArgs, ExpertExpandArgs};
use crate::error::{Error, Result};
use crate::kernels;
use crate::options::ScaleLayout;
use crate::route::load;
use crate::run::{Dispatched, ExpertKernel, ExpertParallel};
use crate::slot::SlotAddresses;
use crate::tensor::{DeviceSlice, ExpertOutput, Tokens};

/// Columns of scales are this many words apart, or a multiple: 16 bytes, as TMA loads need.
const COLUMN_WORDS: u32 = 4;
/// The largest alignment, in rows.
const MOST_ALIGNMENT: u32 = 1 << 16;
/// Most places of a layout: the last two numbers of 32 bits mean that a pair has no place, and columns have a number of words that fits.
const MOST_PLACES: u32 = u32::MAX - COLUMN_WORDS;

/// Where the rows of the experts are, and what is between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContiguousLayout {
    /// Each expert's rows begin at a multiple of this many rows, 1 to 65536.
    pub alignment: u32,
    /// Memory layout of the scales; columns are those of all places together. Without effect in plans without scales.
    pub scale_layout: ScaleLayout,
    /// Whether the rows and scales of the padding between experts are zeros; otherwise they are left as they are.
    pub zero_padding: bool,
}

impl Default for ContiguousLayout {
    /// No padding, scales by row.
    fn default() -> Self {
        Self { alignment: 1, scale_layout: ScaleLayout::Rows, zero_padding: false }
    }
}

/// What [`ContiguousExperts::expand`] writes. The places of expert e are `starts[e]` up to, not including, `starts[e] + counts[e]`.
#[derive(Clone, Copy, Debug)]
pub struct ContiguousRows {
    /// The layout.
    pub layout: ContiguousLayout,
    /// Places of the layout, at most 2^32 - 5. Enough are [`ContiguousExperts::most_places`]; pairs without a place are dropped. Without
    /// places the pairs are only counted.
    pub places: u32,
    /// `[places][hidden]` of the dispatch type, 16-byte aligned. Places after those of the experts are not written.
    pub rows: DeviceSlice,
    /// The scales of the rows, 4-byte aligned, by [`ContiguousLayout::scale_layout`]: `[places][scale_bytes]`, or columns of 4-byte
    /// words, each of `places` rounded up to a multiple of 4. Needed in plans with scales, and in no others.
    pub scales: Option<DeviceSlice>,
    /// `[places]` f32, 4-byte aligned: the dispatched weights; 0 in places without a row.
    pub weights: Option<DeviceSlice>,
    /// `[`[`Plan::rows`](crate::Plan::rows)`][top_k]` u32, 4-byte aligned: the place of each pair by index into the dispatch's windows,
    /// [`SLOT_NONE`](super::SLOT_NONE) where the expert is not on this rank, [`SLOT_DROPPED`](super::SLOT_DROPPED). Entries of rows that were
    /// not received are not written.
    pub slot_map: DeviceSlice,
    /// `[local experts]` u32, 4-byte aligned: rows of each expert that have a place.
    pub counts: DeviceSlice,
    /// `[local experts + 1]` u32, 4-byte aligned: the first place of each expert, a multiple of the alignment; the last entry is the places
    /// that all experts need, more than `places` where pairs were dropped.
    pub starts: DeviceSlice,
}

/// What [`ContiguousExperts::contract`] sums.
#[derive(Clone, Copy, Debug)]
pub struct ContiguousOutput {
    /// Places of the layout, as in the expand.
    pub places: u32,
    /// `[places][hidden]` of the combine type, 16-byte aligned. Only places of pairs are read.
    pub rows: DeviceSlice,
    /// What a row is multiplied by.
    pub weights: ContiguousWeights,
    /// The map that an expand of this dispatch wrote, or of another dispatch with the same routing.
    pub slot_map: DeviceSlice,
}

/// The weights of a [`ContiguousExperts::contract`].
#[derive(Clone, Copy, Debug)]
pub enum ContiguousWeights {
    /// The late weights ([`ExpertParallel::send_weights`]), or else the dispatched ones; zeros where the dispatch had none.
    Dispatched,
    /// `[places]` f32, 4-byte aligned.
    Given(DeviceSlice),
    /// 1 for every row: the experts have applied the weights.
    Ones,
}

/// Copies the rows of a plan's dispatches into one tensor for all experts, the input of grouped matrix products with contiguous groups, and
/// sums the experts' outputs for the combine. Layouts and maps are memory of the caller, so any number of dispatches may be expanded at once.
///
/// The order of rows is that of [`ExpertMajor`](super::ExpertMajor). Only [`Self::dispatch`] is collective. Each launch of one value waits, on its stream, for the
/// launch before, unless it is captured; the caller orders replays of captured launches. All calls may be captured into a graph.
#[derive(Debug)]
pub struct ContiguousExperts {
    // First: its drop waits for launches.
    reader: ReceivedReader,
    expand: LoadedKernel<ExpertExpandArgs>,
    contract: LoadedKernel<ExpertContractArgs>,
    /// Of dispatches that expand.
    kernel: Option<ExpertKernel>,
    local_bytes: u32,
}

impl ContiguousExperts {
    /// Compiles and loads the kernels. Not collective.
    ///
    /// # Errors
    /// [`Error::Config`] when the rank has too many experts for a block's local memory; errors of the compiler and the runtime.
    pub fn new(ep: &ExpertParallel) -> Result<Self> {
        let (world, element) = (ep.world(), ep.plan().config().combine_type);
        let expand = load(world, ep.plan(), kernels::contiguous(kernels::expert_expand()))?;
        let expand = expand.get(kernels::EXPERT_EXPAND)?;
        let contract = load(world, ep.plan(), kernels::contiguous(kernels::expert_contract(element)))?;
        let contract = contract.get(kernels::EXPERT_CONTRACT)?;
        let reader = ReceivedReader::new(ep, expand.raw().max_block_threads()?)?;
        let local_experts = reader.local_experts();
        let local_bytes =
            check_local(expand_local_bytes(ep.plan(), local_experts, true), local_experts, reader.limits())?;
        let kernel = ep.expert_kernel(local_experts, true)?;
        Ok(Self { reader, expand, contract, kernel, local_bytes })
    }

    /// Places that are enough for every routing: all pairs that this rank can receive, and each expert's padding.
    pub fn most_places(&self, alignment: u32) -> u64 {
        let (plan, local) = (self.reader.plan(), u64::from(self.local_experts()));
        // A token may name one expert at every k.
        let pairs = plan.rows() * u64::from(plan.config().top_k);
        pairs + local * u64::from(alignment.saturating_sub(1))
    }

    /// Bytes of the scales of so many places.
    pub fn scale_bytes(&self, layout: ScaleLayout, places: u32) -> u64 {
        let rows = match layout {
            ScaleLayout::Rows => u64::from(places),
            _ => u64::from(places).next_multiple_of(COLUMN_WORDS.into()),
        };
        rows * u64::from(layout.row_bytes(self.reader.plan().config().scale_bytes))
    }

    /// Copies the received rows of a dispatch to the experts' places. Not collective. It launches one kernel on the stream, which must be the
    /// dispatch's or ordered after it, and does not block the host.
    ///
    /// # Errors
    /// Before anything is launched: [`Error::ForeignHandle`], [`Error::Config`] for an alignment, a layout of scales or a number of places
    /// that is not allowed, [`Error::Shape`], [`Error::Address`], [`Error::Argument`] for scales without any in the plan or the reverse,
    /// or an earlier fault of the world.
    pub fn expand(&self, stream: &Stream, dispatched: &Dispatched, output: &ContiguousRows) -> Result<()> {
        self.reader.check(dispatched)?;
        self.check(output)?;
        let args = self.expand_args(dispatched.slot.get(), output);
        self.reader.launch(stream, || {
            // SAFETY: the windows belong to the slot that the handle holds; the outputs were checked against their shapes.
            unsafe { self.expand.launch(self.reader.shape(self.local_bytes), stream, &args)? };
            Ok(())
        })
    }

    /// Dispatches and expands: [`ExpertParallel::dispatch`], then [`Self::expand`], with the same results. One kernel does both where kernels
    /// move the rows of the plan and no rank may be masked ([`Self::is_one_kernel`]), after the counts of a compact dispatch; else each has
    /// its own. Collective: all members call it, or [`ExpertMajor::dispatch`](super::ExpertMajor::dispatch); `ep` is the plan that
    /// this value was made for. After a fault the counts and starts are zero, or some rows are missing.
    ///
    /// # Errors
    /// Before anything is launched: [`Error::ForeignHandle`] for another plan, and as [`ExpertParallel::dispatch`] and [`Self::expand`].
    pub fn dispatch(
        &self,
        ep: &ExpertParallel,
        stream: &Stream,
        tokens: &Tokens,
        output: &ContiguousRows,
    ) -> Result<Dispatched> {
        if !self.reader.belongs_to(ep) {
            return Err(Error::ForeignHandle);
        }
        self.check(output)?;
        let Some(kernel) = &self.kernel else {
            let dispatched = ep.dispatch(stream, tokens)?;
            self.expand(stream, &dispatched, output)?;
            return Ok(dispatched);
        };
        let dispatch =
            || ep.dispatch_to_experts(stream, tokens, kernel, |slot| self.expand_args(slot, output));
        let dispatched = self.reader.in_order(stream, dispatch)?;
        if !kernel.is_whole() {
            self.expand(stream, &dispatched, output)?;
        }
        Ok(dispatched)
    }

    /// Whether [`Self::dispatch`] is one kernel: where kernels move the rows, no rank may be masked, and a block's local memory and the plan's
    /// share of the device hold it. Members may differ.
    pub fn is_one_kernel(&self) -> bool {
        self.kernel.as_ref().is_some_and(ExpertKernel::is_whole)
    }

    /// Checks the outputs of an expand.
    fn check(&self, output: &ContiguousRows) -> Result<()> {
        let (plan, local) = (self.reader.plan(), self.reader.local_experts());
        let (config, places) = (plan.config(), output.places);
        let ContiguousLayout { alignment, scale_layout, .. } = output.layout;
        check_places(places)?;
        if !(1..=MOST_ALIGNMENT).contains(&alignment) {
            return Err(Error::config("alignment", alignment, format!("allowed are 1 to {MOST_ALIGNMENT}")));
        }
        if self.most_places(alignment) > u64::from(MOST_PLACES) {
            let allowed = format!(
                "the pairs of max_tokens and top_k and the padding need {} places; at most {MOST_PLACES} are allowed",
                self.most_places(alignment)
            );
            return Err(Error::config("alignment", alignment, allowed));
        }
        check_scale_layout(plan, scale_layout)?;
        let (hidden, of) = (config.hidden, config.dispatch_type);
        output.rows.check("the tensor of rows", places as usize * plan.row_bytes() as usize, 16, || {
            format!("[{places} places][{hidden} hidden] {of}")
        })?;
        if output.scales.is_some() != (config.scale_bytes > 0) {
            let given = if output.scales.is_some() { "given" } else { "missing" };
            return Err(Error::argument(
                "the tensor of scales",
                given,
                format!("{} bytes for each row", config.scale_bytes),
            ));
        }
        let scale_bytes = self.scale_bytes(scale_layout, places) as usize;
        let words = |count: u64| format!("[{count}] of 4 bytes");
        for (what, slice, bytes) in [
            ("the tensor of scales", output.scales, scale_bytes),
            ("the tensor of weights", output.weights, places as usize * 4),
            ("the tensor of the slot map", Some(output.slot_map), self.slot_map_bytes() as usize),
            ("the tensor of counts", Some(output.counts), local as usize * 4),
            ("the tensor of starts", Some(output.starts), local as usize * 4 + 4),
        ] {
            if let Some(slice) = slice {
                slice.check(what, bytes, 4, || words(bytes as u64 / 4))?;
            }
        }
        Ok(())
    }

    /// The arguments of an expand to outputs that were checked.
    fn expand_args(&self, slot: &SlotAddresses, output: &ContiguousRows) -> ExpertExpandArgs {
        let (plan, places) = (self.reader.plan(), output.places);
        let ContiguousLayout { alignment, scale_layout, zero_padding } = output.layout;
        ExpertExpandArgs {
            received: self.reader.view(slot),
            rows: DevicePointer::new(output.rows.address()),
            scales: DevicePointer::new(DeviceSlice::address_of(output.scales)),
            counts: DevicePointer::new(output.counts.address()),
            pairs: DevicePointer::NULL,
            source_offsets: DevicePointer::NULL,
            sources: DevicePointer::NULL,
            starts: DevicePointer::new(output.starts.address()),
            weights: DevicePointer::new(DeviceSlice::address_of(output.weights)),
            slot_map: DevicePointer::new(output.slot_map.address()),
            row_bytes: plan.row_bytes(),
            scale_bytes: plan.config().scale_bytes,
            capacity: places,
            alignment,
            tile_rows: TILE_ROWS,
            scale_layout: scale_layout as u32,
            scale_column: places.next_multiple_of(COLUMN_WORDS),
            has_zeros: zero_padding.into(),
        }
    }

    /// Sums the experts' outputs of each received row into the combine window of the dispatch, over its pairs in the order of k, as
    /// [`ExpertMajor::contract`](super::ExpertMajor::contract) does. Dropped pairs are left out. Returns [`ExpertOutput::InWindow`], for
    /// [`ExpertParallel::combine`]. Not collective. It launches one kernel on the stream, which must be ordered after the expand and the
    /// experts, and before the combine.
    ///
    /// # Errors
    /// Before anything is launched: [`Error::ForeignHandle`], [`Error::Argument`] when the plan has no combine window, [`Error::Shape`],
    /// [`Error::Address`], or an earlier fault of the world.
    pub fn contract(
        &self,
        stream: &Stream,
        dispatched: &Dispatched,
        experts: &ContiguousOutput,
    ) -> Result<ExpertOutput> {
        self.reader.check(dispatched)?;
        let (plan, places) = (self.reader.plan(), experts.places);
        let config = plan.config();
        if !config.combine_source.pulls() {
            return Err(Error::source("in the combine window", config.combine_source));
        }
        check_places(places)?;
        let row_bytes = plan.combine_row_bytes();
        experts.rows.check("the experts' output", places as usize * row_bytes as usize, 16, || {
            format!("[{places} places][{} hidden] {}", config.hidden, config.combine_type)
        })?;
        let weights = match experts.weights {
            ContiguousWeights::Given(weights) => {
                weights.check("the tensor of weights", places as usize * 4, 4, || {
                    format!("[{places} places] f32")
                })?;
                DevicePointer::new(weights.address())
            }
            ContiguousWeights::Dispatched | ContiguousWeights::Ones => DevicePointer::NULL,
        };
        let map_bytes = self.slot_map_bytes();
        experts.slot_map.check("the tensor of the slot map", map_bytes as usize, 4, || {
            format!("[{} rows][{} top_k] u32", plan.rows(), config.top_k)
        })?;
        let args = ExpertContractArgs {
            received: self.reader.view(dispatched.slot.get()),
            slot_map: DevicePointer::new(experts.slot_map.address()),
            experts: DevicePointer::new(experts.rows.address()),
            weights,
            late: DevicePointer::new(dispatched.late_weights()),
            output: DevicePointer::new(dispatched.combine_rows()),
            row_bytes,
            places,
            is_unweighted: matches!(experts.weights, ContiguousWeights::Ones).into(),
            reserved: 0,
        };
        self.reader.launch(stream, || {
            // SAFETY: the windows belong to the slot that the handle holds; what is read was checked against its shape, and the kernel
            // takes no place of the map that is not below `places`.
            unsafe { self.contract.launch(self.reader.shape(0), stream, &args)? };
            Ok(())
        })?;
        Ok(ExpertOutput::InWindow)
    }

    /// Bytes of a slot map.
    pub fn slot_map_bytes(&self) -> u64 {
        slot_map_bytes(self.reader.plan())
    }

    /// Experts of this rank, possibly none.
    pub fn local_experts(&self) -> u32 {
        self.reader.local_experts()
    }
}

fn check_places(places: u32) -> Result<()> {
    if places <= MOST_PLACES {
        return Ok(());
    }
    Err(Error::config("places", places, format!("at most {MOST_PLACES} are allowed")))
}
