//! The expert-major layout: received rows grouped by expert, and the sums back.
//!
//! [`ExpertMajor::dispatch`] delivers the received rows to `[local experts][capacity][hidden]`, the input of grouped matrix products, and
//! [`ExpertMajor::combine`] sums the weighted outputs of the experts for the tokens' origins.
//!
//! The same in steps: after a dispatch, [`ExpertMajor::expand`] copies the rows. [`ExpertMajor::contract`] sums the outputs into the combine
//! window, for [`ExpertParallel::combine`]; [`ExpertMajor::contract_into`] sums them into a buffer, which combine pushes with any codec.
//! Expand and contract are local to a rank. All members dispatch alike, in one step or in two; they may differ in how they combine.
//!
//! [`ContiguousExperts`] has the rows of all experts one after the other instead, `[places][hidden]`, in memory of the caller.
//!
//! A *pair* is a received row and an index k at which its token names an expert of this rank. Each pair is one row of the
//! layout: a token that names two experts of a rank, or one expert twice, has two rows. The rows of an expert are in the
//! order of source rank, then token, then k: the same in every run and for every launch shape.

use anabranch_hip::{DeviceAddress, DeviceBuffer, Stream};
use anabranch_hip_jit::{DevicePointer, LoadedKernel};

mod contiguous;
mod counter;
mod operations;
mod plan;
mod read;
mod reader;
mod unpack;

pub use crate::args::ExpertRowSource;
pub use contiguous::{
    ContiguousExperts, ContiguousLayout, ContiguousOutput, ContiguousRows, ContiguousWeights,
};
pub use counter::LocalExpertCounter;
pub use plan::{
    ExpertMajorConfig, ExpertMajorGeometry, ExpertMajorLayout, ExpertMajorPlan, MAX_ALIGNMENT, TILE_ROWS,
};
pub use read::{ExpertMajorRows, ExpertTable};
pub use unpack::{RowUnpacker, Unpacked};

use crate::args::{ExpertContractArgs, ExpertExpandArgs};
use crate::error::{Error, Result};
use crate::kernels;
use crate::route::load;
use crate::run::{Dispatched, ExpertKernel, ExpertParallel};
use crate::slot::{SlotAddresses, Taken};
use crate::tensor::{DeviceSlice, ExpertOutput, LayoutOutput};
use plan::{check_local, slot_map_bytes};

/// Slot map entry of a pair whose expert is not on this rank.
pub const SLOT_NONE: u32 = u32::MAX;
/// Slot map entry of a dropped pair: the expert's capacity was full.
pub const SLOT_DROPPED: u32 = u32::MAX - 1;

/// The expert-major layout for the dispatches of one plan, on one rank: buffers in this rank's own device memory, and the kernels
/// that expand into them and contract from them.
///
/// Not collective. The buffers hold one dispatch at a time, from its expand until the next one.
/// Each launch of one value waits, on its stream, for the launch before, unless it is captured; the caller orders replays of
/// captured launches. All calls may be captured into a graph.
///
/// The capacity of an expert is in pairs. Pairs beyond it, in the order of the rows, are dropped: `pairs` includes them,
/// `counts` does not, the slot map marks them ([`SLOT_DROPPED`]), and contract leaves them out.
#[derive(Debug)]
pub struct ExpertMajor {
    // First: the drop of its reader waits for launches.
    counter: LocalExpertCounter,
    plan: ExpertMajorPlan,
    expand: LoadedKernel<ExpertExpandArgs>,
    contract: LoadedKernel<ExpertContractArgs>,
    /// Of dispatches that expand.
    kernel: Option<ExpertKernel>,
    buffers: DeviceBuffer,
    /// The dispatch that the buffers hold.
    holds: Option<Taken>,
}

impl ExpertMajor {
    /// Checks the configuration, compiles and loads the kernels, and allocates
    /// [`ExpertMajorPlan::bytes`] and [`ExpertMajorPlan::run_count_bytes`]. Not collective.
    ///
    /// # Errors
    /// [`Error::Config`] for numbers that are not allowed, or when the rank has too many experts for a block's local memory; errors of
    /// the compiler and the runtime.
    pub fn new(ep: &ExpertParallel, config: ExpertMajorConfig) -> Result<Self> {
        let plan = ExpertMajorPlan::new(ep.plan(), ep.rank(), config)?;
        let (world, element) = (ep.world(), ep.plan().config().combine_type);
        let device = world.device();
        let expand = load(world, ep.plan(), kernels::expert_expand())?.get(kernels::EXPERT_EXPAND)?;
        let contract = load(world, ep.plan(), kernels::expert_contract(element))?;
        let contract = contract.get(kernels::EXPERT_CONTRACT)?;
        let counter = LocalExpertCounter::new(ep)?;
        check_local(plan.expand_local_bytes(), plan.local_experts(), counter.reader().limits())?;
        let mut buffers = device.allocate((plan.bytes() as usize).max(16))?;
        // After a fault some slots and sources of a dispatch may be missing (`dispatch_experts.hip`): what is there instead must be valid.
        buffers.fill(0)?;
        let kernel = ep.expert_kernel(plan.local_experts(), false)?;
        Ok(Self { plan, expand, contract, kernel, buffers, holds: None, counter })
    }

    /// The sizes.
    pub fn plan(&self) -> &ExpertMajorPlan {
        &self.plan
    }

    /// The shape of all launches.
    pub fn geometry(&self) -> ExpertMajorGeometry {
        self.counter.geometry()
    }

    /// Copies the received rows of a dispatch into the buffers. Not collective. It launches one kernel on the stream, which must
    /// be the dispatch's or ordered after it, and does not block the host; in stream order the buffers are valid until the next expand.
    /// [`Self::dispatch`] does both in one kernel.
    ///
    /// # Errors
    /// Before anything is launched: [`Error::ForeignHandle`], or an earlier fault of the world.
    pub fn expand(&mut self, stream: &Stream, dispatched: &Dispatched) -> Result<()> {
        self.counter.reader().check(dispatched)?;
        let args = self.expand_args(dispatched.slot.get());
        // Fits 32 bits: it was compared with the device's local memory.
        let shape = self.counter.reader().shape(self.plan.expand_local_bytes() as u32);
        // If the launch fails, the contents of the buffers are unknown.
        self.holds = None;
        self.counter.reader().launch(stream, || {
            // SAFETY: the windows belong to the slot that the handle holds; the buffers hold what
            // the plan sizes and belong to `self`, whose drop waits for the last launch.
            unsafe { self.expand.launch(shape, stream, &args)? };
            Ok(())
        })?;
        self.holds = Some(dispatched.slot.taken());
        Ok(())
    }

    fn expand_args(&self, slot: &SlotAddresses) -> ExpertExpandArgs {
        ExpertExpandArgs {
            received: self.counter.reader().view(slot),
            rows: DevicePointer::new(self.rows()),
            scales: DevicePointer::new(self.scales()),
            counts: DevicePointer::new(self.counts()),
            pairs: DevicePointer::new(self.pairs()),
            source_offsets: DevicePointer::new(self.source_offsets()),
            sources: DevicePointer::new(self.sources()),
            starts: DevicePointer::NULL,
            weights: DevicePointer::NULL,
            slot_map: DevicePointer::new(self.slot_map()),
            row_bytes: self.plan.dispatch_plan().row_bytes(),
            scale_bytes: self.plan.dispatch_plan().config().scale_bytes,
            capacity: self.plan.capacity(),
            alignment: self.plan.alignment(),
            tile_rows: TILE_ROWS,
            scale_layout: self.plan.scale_layout() as u32,
            scale_column: self.plan.capacity(),
            has_zeros: 1,
        }
    }

    /// Sums the experts' outputs of each received row into the combine window of the dispatch: the sum over its pairs, in the order of
    /// k, of weight times output. It starts at 0, rounds each product and each sum to f32, and rounds once to the combine type. The
    /// weights are those of `experts`, or else the late ones ([`ExpertParallel::send_weights`]), or else the dispatched ones, zeros where the
    /// dispatch had none. Rows whose pairs were all dropped give zeros. Returns [`ExpertOutput::InWindow`], for [`ExpertParallel::combine`].
    ///
    /// `experts` may be the layout's own rows if the dispatch type is the combine type. Not collective. It launches one kernel
    /// on the stream, which must be ordered after the expand and the experts, and before the combine.
    ///
    /// # Errors
    /// Before anything is launched: [`Error::ForeignHandle`], [`Error::CallOrder`] when the buffers hold another dispatch,
    /// [`Error::Argument`] when the plan has no combine window, [`Error::Shape`], [`Error::Address`], or an earlier fault of the world.
    pub fn contract(
        &self,
        stream: &Stream,
        dispatched: &Dispatched,
        experts: impl Into<LayoutOutput>,
    ) -> Result<ExpertOutput> {
        let experts = experts.into();
        let source = self.plan.dispatch_plan().config().combine_source;
        if !source.pulls() {
            return Err(Error::source("in the combine window", source));
        }
        self.check_contract("contract", dispatched, experts)?;
        self.launch_contract(stream, dispatched, experts, dispatched.combine_rows())?;
        Ok(ExpertOutput::InWindow)
    }

    /// The same sums into a buffer, which [`ExpertParallel::combine`] pushes with the plan's codec. Returns [`ExpertOutput::Staged`] of the
    /// buffer, for that combine. The codec encodes the sums after their rounding to the combine type.
    ///
    /// `output` is `[`[`Plan::rows`](crate::Plan::rows)`][hidden]` of the combine type
    /// ([`ExpertMajorPlan::contracted_bytes`]), 16-byte aligned. Each sum is at the index of its received row; rows that were not received
    /// are not written. `output` must not overlap `experts` or this value's slot map, which the kernel reads. The layout's own rows may be
    /// `output` or `experts`; as `output` they must not be expanded into before the combine has ended, in stream order. Otherwise as
    /// [`Self::contract`].
    ///
    /// # Errors
    /// As [`Self::contract`]; [`Error::Argument`] when the plan cannot push; [`Error::Address`] when `output` overlaps the windows or what
    /// the kernel reads.
    pub fn contract_into(
        &self,
        stream: &Stream,
        dispatched: &Dispatched,
        experts: impl Into<LayoutOutput>,
        output: DeviceSlice,
    ) -> Result<ExpertOutput> {
        let experts = experts.into();
        let (plan, what) = (self.plan.dispatch_plan(), "the buffer of contracted rows");
        let config = plan.config();
        if !config.combine_source.pushes() {
            return Err(Error::source("in a buffer", config.combine_source));
        }
        let needed = self.plan.contracted_bytes();
        output.check(what, needed as usize, 16, || {
            format!("[{} rows][{} hidden] {}", plan.rows(), config.hidden, config.combine_type)
        })?;
        let map_bytes = slot_map_bytes(plan);
        let read = [
            Some(("the experts' output", experts.rows.address(), self.plan.output_bytes())),
            Some(("the slot map", self.slot_map(), map_bytes)),
            experts.weights.map(|weights| ("the weights", weights.address(), self.plan.weight_bytes())),
        ];
        for (with, from, bytes) in read.into_iter().flatten() {
            if output.address().0 < from.0 + bytes && from.0 < output.address().0 + needed {
                let problem = format!("overlaps {with}, which is read while it is written");
                return Err(Error::Address { what, address: output.address().0, problem });
            }
        }
        if dispatched.slot.get().overlaps(output.address(), needed) {
            return Err(Error::in_windows(what, output.address().0));
        }
        self.check_contract("contract", dispatched, experts)?;
        self.launch_contract(stream, dispatched, experts, output.address())?;
        Ok(ExpertOutput::Staged(output))
    }

    /// Launches a contract that was checked. `output` has a row for every row of the window.
    fn launch_contract(
        &self,
        stream: &Stream,
        dispatched: &Dispatched,
        experts: LayoutOutput,
        output: DeviceAddress,
    ) -> Result<()> {
        let args = ExpertContractArgs {
            received: self.counter.reader().view(dispatched.slot.get()),
            slot_map: DevicePointer::new(self.slot_map()),
            experts: DevicePointer::new(experts.rows.address()),
            weights: DevicePointer::new(DeviceSlice::address_of(experts.weights)),
            late: DevicePointer::new(dispatched.late_weights()),
            output: DevicePointer::new(output),
            row_bytes: self.plan.dispatch_plan().combine_row_bytes(),
            places: 0,
            is_unweighted: 0,
            reserved: 0,
        };
        self.counter.reader().launch(stream, || {
            // SAFETY: the windows belong to the slot that the handle holds, the map to `self`, whose drop waits for its last
            // launch. The sizes of the experts' output and of an `output` outside the windows were checked.
            unsafe { self.contract.launch(self.counter.reader().shape(0), stream, &args)? };
            Ok(())
        })
    }

    /// Checks what a contract reads.
    fn check_contract(
        &self,
        call: &'static str,
        dispatched: &Dispatched,
        experts: LayoutOutput,
    ) -> Result<()> {
        self.counter.reader().check(dispatched)?;
        if self.holds != Some(dispatched.slot.taken()) {
            let problem = "the buffers do not hold this dispatch; expand it first, and contract it before the next expand";
            return Err(Error::CallOrder { call, problem: problem.to_owned() });
        }
        let config = self.plan.dispatch_plan().config();
        let (local, capacity) = (self.plan.local_experts(), self.plan.capacity());
        experts.rows.check("the experts' output", self.plan.output_bytes() as usize, 16, || {
            format!(
                "[{local} local experts][{capacity} rows][{} hidden] {}",
                config.hidden, config.combine_type
            )
        })?;
        experts.weights.map_or(Ok(()), |weights| {
            weights.check("the weights", self.plan.weight_bytes() as usize, 4, || {
                format!("[{local} local experts][{capacity} rows] f32")
            })
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

    /// Rows, `[local experts][capacity][hidden]` of the dispatch type. The first `counts[e]` rows of expert e are its pairs; the rows up to
    /// the next multiple of the alignment are zeros; the others are undefined.
    pub fn rows(&self) -> DeviceAddress {
        self.buffers.address().offset(self.plan.layout().rows)
    }

    /// Scales of the rows in the form of [`ExpertMajorConfig::scale_layout`], `[local experts][capacity][scale_bytes]` unless it was set; zeros
    /// in the padding.
    pub fn scales(&self) -> DeviceAddress {
        self.buffers.address().offset(self.plan.layout().scales)
    }

    /// Rows of each expert, `[local experts]` u32.
    pub fn counts(&self) -> DeviceAddress {
        self.buffers.address().offset(self.plan.layout().counts)
    }

    /// Pairs of each expert, including dropped ones, `[local experts]` u32.
    pub fn pairs(&self) -> DeviceAddress {
        self.buffers.address().offset(self.plan.layout().pairs)
    }

    /// First row of each source rank within each expert, `[local experts][ranks + 1]` u32; the last entry is the expert's
    /// count. The rows of expert e from rank s are `source_offsets[e][s]` up to, not including, `source_offsets[e][s + 1]`. The layout range
    /// of DeepEP's low-latency dispatch has the same content as pairs of count and first row.
    pub fn source_offsets(&self) -> DeviceAddress {
        self.buffers.address().offset(self.plan.layout().source_offsets)
    }

    /// The source of each row, `[local experts][capacity]` of [`ExpertRowSource`]; valid for rows and padding.
    pub fn sources(&self) -> DeviceAddress {
        self.buffers.address().offset(self.plan.layout().sources)
    }

    /// The slot map: the layout row of each pair, `[Plan::rows][top_k]` u32 by index into the dispatch's windows. An entry is `e * capacity +
    /// row`, [`SLOT_NONE`] or [`SLOT_DROPPED`]. Entries of rows that were not received are undefined.
    pub fn slot_map(&self) -> DeviceAddress {
        self.buffers.address().offset(self.plan.layout().slot_map)
    }
}
