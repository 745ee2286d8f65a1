//! Received rows by expert, and back: what others call standard MoE.
//!
//! After a dispatch, [`ExpertMajor::expand`] copies the received rows to `[local experts][capacity][hidden]`, on which
//! grouped matrix products run; [`ExpertMajor::contract`] sums the experts' outputs, weighted, back into the combine
//! window, where [`ExpertParallel::combine`] finds them, and [`ExpertMajor::contract_into`] into a buffer from which it pushes
//! them, through any codec. All of it is local to a rank.
//!
//! A *pair* is a received row with a place k in which its token names an expert of this rank. Each pair is one row of the
//! layout: a token that names two experts of a rank, or one expert twice, is there twice. The rows of an expert are in the
//! order of source rank, then token, then k, and the same in every run and for every launch shape.

use anabranch_hip::{DeviceAddress, DeviceBuffer, LaunchShape, Stream};
use anabranch_hip_jit::{DevicePointer, LoadedKernel};

mod counter;
mod plan;
mod read;

pub use crate::args::ExpertRowSource;
pub use counter::LocalExpertCounter;
pub use plan::{
    ExpertMajorConfig, ExpertMajorGeometry, ExpertMajorLayout, ExpertMajorPlan, MAX_ALIGNMENT, TILE_ROWS,
};
pub use read::{ExpertMajorRows, ExpertTable};

use crate::args::{ExpertContractArgs, ExpertExpandArgs};
use crate::error::{Error, Result};
use crate::kernels;
use crate::run::{Dispatched, ExpertParallel};
use crate::slot::Taken;
use crate::tensor::{DeviceSlice, ExpertOutput};
use plan::check_local;

/// An entry of the slot map: the pair's expert is not on this rank.
pub const SLOT_NONE: u32 = u32::MAX;
/// An entry of the slot map: the expert's rows were used up, and the pair was dropped.
pub const SLOT_DROPPED: u32 = u32::MAX - 1;

/// The expert-major form of the dispatches of one plan, on one rank: buffers in this rank's own device memory, and the kernels
/// that fill them and sum them up again.
///
/// Made by one rank for itself, not collectively. Its buffers hold one dispatch at a time: from its expand until the next one.
/// Launches of one value follow each other: each waits, on its stream, for the last one, unless it is captured; replays of
/// captured ones are ordered by the caller. Everything may be captured into a graph.
///
/// Capacity is counted in pairs. Those beyond an expert's capacity, in the order of the rows, are dropped: `pairs` counts them,
/// `counts` does not, the slot map marks them ([`SLOT_DROPPED`]), contract leaves them out.
#[derive(Debug)]
pub struct ExpertMajor {
    plan: ExpertMajorPlan,
    expand: LoadedKernel<ExpertExpandArgs>,
    contract: LoadedKernel<ExpertContractArgs>,
    buffers: DeviceBuffer,
    /// The dispatch that the buffers hold.
    holds: Option<Taken>,
    counter: LocalExpertCounter,
}

impl ExpertMajor {
    /// Checks the configuration, compiles and loads the kernels, and allocates
    /// [`ExpertMajorPlan::bytes`] and [`ExpertMajorPlan::run_count_bytes`]. Not collective.
    ///
    /// # Errors
    /// [`Error::Config`] for numbers that cannot be used, or when the rank's experts are too many for a block's tables; those of
    /// the compiler and the runtime.
    pub fn new(ep: &ExpertParallel, config: ExpertMajorConfig) -> Result<Self> {
        let plan = ExpertMajorPlan::new(ep.plan(), ep.rank(), config)?;
        let (world, element) = (ep.world(), ep.plan().config().combine_type);
        let device = world.device();
        let expand = world.jit().load(device, &kernels::expert_expand())?.get(kernels::EXPERT_EXPAND)?;
        let contract = world.jit().load(device, &kernels::expert_contract(element))?;
        let contract = contract.get(kernels::EXPERT_CONTRACT)?;
        let counter = LocalExpertCounter::new(ep)?;
        check_local(plan.expand_local_bytes(), plan.local_experts(), counter.limits())?;
        let buffers = device.allocate((plan.bytes() as usize).max(16))?;
        Ok(Self { plan, expand, contract, buffers, holds: None, counter })
    }

    /// The sizes.
    pub fn plan(&self) -> &ExpertMajorPlan {
        &self.plan
    }

    /// The shape of the launches.
    pub fn geometry(&self) -> ExpertMajorGeometry {
        self.counter.geometry()
    }

    /// Fills the buffers with the rows that a dispatch delivered. Not collective. It puts two kernels on the stream, which must
    /// be the dispatch's or ordered after it, and returns; in stream order the buffers are valid until the next expand.
    ///
    /// # Errors
    /// Before anything is launched: [`Error::ForeignHandle`], or a fault that the world has had.
    pub fn expand(&mut self, stream: &Stream, dispatched: &Dispatched) -> Result<()> {
        let _launching = self.counter.world().launching(stream)?;
        self.counter.check(dispatched)?;
        let config = self.plan.dispatch_plan().config();
        let args = ExpertExpandArgs {
            received: self.counter.view(dispatched),
            run_counts: DevicePointer::new(self.counter.run_counts()),
            rows: DevicePointer::new(self.rows()),
            scales: DevicePointer::new(self.scales()),
            counts: DevicePointer::new(self.counts()),
            pairs: DevicePointer::new(self.pairs()),
            source_offsets: DevicePointer::new(self.source_offsets()),
            sources: DevicePointer::new(self.sources()),
            slot_map: DevicePointer::new(self.slot_map()),
            row_bytes: self.plan.dispatch_plan().row_bytes(),
            scale_bytes: config.scale_bytes,
            capacity: self.plan.capacity(),
            alignment: self.plan.alignment(),
            tile_rows: TILE_ROWS,
            reserved: 0,
        };
        // Fits 32 bits: it was compared with the device's local memory.
        let shape = self.shape(self.plan.expand_local_bytes() as u32);
        // What the buffers hold is unknown from the first launch on, should the second fail.
        self.holds = None;
        self.counter.last().launch(stream, || {
            self.counter.count(stream, dispatched)?;
            // SAFETY: the windows belong to the slot that the handle holds; the buffers hold what
            // the plan sizes and belong to `self`, whose drop waits for the last launch; the grid is as large as the one that counted.
            unsafe { self.expand.launch(shape, stream, &args)? };
            Ok(())
        })?;
        self.holds = Some(dispatched.slot.taken());
        Ok(())
    }

    /// Sums the experts' outputs of each received row into the combine window of the dispatch: over its pairs, in the order of
    /// k, weight times output, product and sum each rounded in f32, from 0, and one rounding to the combine type. Weights are
    /// those that travelled with the dispatch, zeros where it had none. Rows all of whose pairs were dropped give zeros. After
    /// it comes [`ExpertParallel::combine`] with [`ExpertOutput::InWindow`], which this returns.
    ///
    /// `experts` is `[local experts][capacity][hidden]` of the combine type, 16-byte aligned; rows beyond an expert's count are not
    /// read. It may be the layout's own rows, where dispatch and combine type are one. Not collective. It puts one kernel
    /// on the stream, which must be ordered after expand and experts, and before the combine.
    ///
    /// # Errors
    /// Before anything is launched: [`Error::ForeignHandle`], [`Error::CallOrder`] when the buffers hold another dispatch,
    /// [`Error::Argument`] when the plan has no combine window, [`Error::Shape`], [`Error::Address`], or a fault that the world
    /// has had.
    pub fn contract(
        &self,
        stream: &Stream,
        dispatched: &Dispatched,
        experts: DeviceSlice,
    ) -> Result<ExpertOutput> {
        let config = self.plan.dispatch_plan().config();
        if !config.combine_source.pulls() {
            return Err(Error::source("in the combine window", config.combine_source));
        }
        self.launch_contract(stream, dispatched, experts, dispatched.combine_rows())?;
        Ok(ExpertOutput::InWindow)
    }

    /// The same sums into a buffer, from which [`ExpertParallel::combine`] pushes them in the form of the plan's codec. After it
    /// comes that combine with [`ExpertOutput::Staged`] of the buffer, which this returns. What travels is the codec's form of the sum,
    /// which was rounded to the combine type before.
    ///
    /// `output` is `[`[`Plan::rows`](crate::Plan::rows)`][hidden]` of the combine type
    /// ([`ExpertMajorPlan::contracted_bytes`]), 16-byte aligned; each row lies at the place of the received row it is for, and rows
    /// that were not received are not written. It has no byte in common with `experts` or with this value's slot map, which are
    /// read meanwhile; the layout's rows may serve as one of the two, and as `output` they must not be expanded into before the
    /// combine is over, in stream order. Otherwise as [`Self::contract`].
    ///
    /// # Errors
    /// As [`Self::contract`], with [`Error::Argument`] when the plan pushes no buffer; [`Error::Address`] when `output` overlaps what is read or the windows.
    pub fn contract_into(
        &self,
        stream: &Stream,
        dispatched: &Dispatched,
        experts: DeviceSlice,
        output: DeviceSlice,
    ) -> Result<ExpertOutput> {
        let (plan, what) = (self.plan.dispatch_plan(), "the buffer of contracted rows");
        let config = plan.config();
        if !config.combine_source.pushes() {
            return Err(Error::source("in a buffer", config.combine_source));
        }
        let needed = self.plan.contracted_bytes();
        output.check(what, needed as usize, 16, || {
            format!("[{} rows][{} hidden] {}", plan.rows(), config.hidden, config.combine_type)
        })?;
        let map_bytes = plan.rows() * u64::from(config.top_k) * 4;
        for (with, from, bytes) in [
            ("the experts' output", experts.address(), self.plan.output_bytes()),
            ("the slot map", self.slot_map(), map_bytes),
        ] {
            if output.address().0 < from.0 + bytes && from.0 < output.address().0 + needed {
                let problem = format!("overlaps {with}, which is read while it is written");
                return Err(Error::Address { what, address: output.address().0, problem });
            }
        }
        if dispatched.slot.get().overlaps(output.address(), needed) {
            return Err(Error::in_windows(what, output.address().0));
        }
        self.launch_contract(stream, dispatched, experts, output.address())?;
        Ok(ExpertOutput::Staged(output))
    }

    fn shape(&self, local_bytes: u32) -> LaunchShape {
        let ExpertMajorGeometry { blocks: grid_blocks, block_threads } = self.geometry();
        LaunchShape { grid_blocks, block_threads, local_bytes }
    }

    /// Checks what both forms of the contract need, and launches it. `output` has a row for every row of the window.
    fn launch_contract(
        &self,
        stream: &Stream,
        dispatched: &Dispatched,
        experts: DeviceSlice,
        output: DeviceAddress,
    ) -> Result<()> {
        let _launching = self.counter.world().launching(stream)?;
        self.counter.check(dispatched)?;
        if self.holds != Some(dispatched.slot.taken()) {
            let problem = "the buffers do not hold this dispatch; expand it first, and contract it before the next expand";
            return Err(Error::CallOrder { call: "contract", problem: problem.to_owned() });
        }
        let config = self.plan.dispatch_plan().config();
        let (local, capacity) = (self.plan.local_experts(), self.plan.capacity());
        experts.check("the experts' output", self.plan.output_bytes() as usize, 16, || {
            format!(
                "[{local} local experts][{capacity} rows][{} hidden] {}",
                config.hidden, config.combine_type
            )
        })?;
        let args = ExpertContractArgs {
            received: self.counter.view(dispatched),
            slot_map: DevicePointer::new(self.slot_map()),
            experts: DevicePointer::new(experts.address()),
            output: DevicePointer::new(output),
            row_bytes: self.plan.dispatch_plan().combine_row_bytes(),
            reserved: 0,
        };
        self.counter.last().launch(stream, || {
            // SAFETY: the windows belong to the slot that the handle holds, the map to `self`, which
            // waits for its last launch before it is dropped; the experts' output was checked against its shape, and so was
            // `output` where it is no window.
            unsafe { self.contract.launch(self.shape(0), stream, &args)? };
            Ok(())
        })
    }

    /// As [`LocalExpertCounter::local_expert_counts`].
    ///
    /// # Errors
    /// As there.
    pub fn local_expert_counts(
        &self,
        stream: &Stream,
        dispatched: &Dispatched,
        output: DeviceSlice,
    ) -> Result<()> {
        self.counter.local_expert_counts(stream, dispatched, output)
    }

    /// Rows, `[local experts][capacity][hidden]` of the dispatch type. Expert e has the first `counts[e]`; from there to the
    /// next multiple of the alignment are zeros; the rest is undefined.
    pub fn rows(&self) -> DeviceAddress {
        self.buffers.address().offset(self.plan.layout().rows)
    }

    /// Scales of the rows, `[local experts][capacity][scale_bytes]`, zeros in the padding.
    pub fn scales(&self) -> DeviceAddress {
        self.buffers.address().offset(self.plan.layout().scales)
    }

    /// Rows of each expert, `[local experts]` u32.
    pub fn counts(&self) -> DeviceAddress {
        self.buffers.address().offset(self.plan.layout().counts)
    }

    /// Pairs of each expert, those that were dropped among them, `[local experts]` u32.
    pub fn pairs(&self) -> DeviceAddress {
        self.buffers.address().offset(self.plan.layout().pairs)
    }

    /// Rows of each expert before those of each source rank, `[local experts][ranks + 1]` u32, the last being the expert's
    /// count: the rows of expert e from rank s are `source_offsets[e][s]` up to `source_offsets[e][s + 1]`. What DeepEP's
    /// low-latency dispatch calls the layout range holds the same as pairs of count and first row.
    pub fn source_offsets(&self) -> DeviceAddress {
        self.buffers.address().offset(self.plan.layout().source_offsets)
    }

    /// Where each row comes from, `[local experts][capacity]` of [`ExpertRowSource`]; valid where the rows are.
    pub fn sources(&self) -> DeviceAddress {
        self.buffers.address().offset(self.plan.layout().sources)
    }

    /// Where each pair of the received rows went, `[Plan::rows][top_k]` u32 by index into the dispatch's windows: `e * capacity +
    /// row`, [`SLOT_NONE`] or [`SLOT_DROPPED`]. Entries of rows that were not received are undefined.
    pub fn slot_map(&self) -> DeviceAddress {
        self.buffers.address().offset(self.plan.layout().slot_map)
    }
}

impl Drop for ExpertMajor {
    fn drop(&mut self) {
        // Launches in flight need the buffers, which are freed before the counter, whose drop waits too.
        self.counter.wait_for_last();
    }
}
