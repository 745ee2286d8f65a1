//! The route of ranks whose memory is mapped: kernels store to it and load from it.

use anabranch_hip::{DeviceAddress, Kernel as RawKernel, Stream};
use anabranch_hip_jit::LoadedKernel;
use anabranch_shmem::World;

use super::context::{Call, enqueue, load};
use super::{Context, MaskTable, Rest, Split};
use crate::args::{
    CombineArgs, CombinePushArgs, CountArgs, DispatchArgs, DispatchReplayArgs, FillWeightsArgs, MaskView,
    SaveRoutingArgs, SavedRouting,
};
use crate::error::Result;
use crate::kernels;
use crate::options::Mode;
use crate::plan::{Geometry, NearOptions, Plan};
use crate::route::Push;
use crate::slot::{Slot, SlotTicket};
use crate::tensor::{CombineOutput, Tokens};

/// The route of mapped memory.
#[derive(Debug)]
pub(crate) struct Near {
    /// In the compact mode.
    count: Option<LoadedKernel<CountArgs>>,
    dispatch: Split<DispatchArgs>,
    pull: Split<CombineArgs>,
    /// Where the plan pushes.
    push: Option<Split<CombinePushArgs>>,
    save: LoadedKernel<SaveRoutingArgs>,
    replay: LoadedKernel<DispatchReplayArgs>,
    /// Where weights are combined.
    fill: Option<LoadedKernel<FillWeightsArgs>>,
    /// Where ranks may be masked.
    pub(crate) mask: Option<MaskTable>,
}

impl Near {
    pub(super) fn load(world: &World, plan: &Plan, options: &NearOptions) -> Result<Self> {
        let config = plan.config();
        let load = |spec| load(world, plan, spec);
        let masked = |spec| if options.patience.is_some() { kernels::masking(spec) } else { spec };
        let weighted =
            |spec| masked(if options.combine_weights { kernels::with_weights(spec) } else { spec });
        let count = match plan.mode() {
            Mode::Compact => Some(load(kernels::count())?.get(kernels::COUNT)?),
            _ => None,
        };
        let dispatch = load(masked(kernels::dispatch_cast(config.cast_from, config.dispatch_cast)))?;
        let pull = load(weighted(kernels::combine(config.combine_type)))?;
        let push = if config.combine_source.pushes() {
            let unit = load(weighted(kernels::combine_push(config.combine_type, options.codec)))?;
            let all = [kernels::COMBINE_PUSH, kernels::COMBINE_PUSH_SEND, kernels::COMBINE_PUSH_RECV];
            Some(Split::of(&unit, all)?)
        } else {
            None
        };
        let (jit, device) = (world.jit(), world.device());
        let fill = if options.combine_weights {
            Some(jit.load(device, &kernels::fill_weights())?.get(kernels::FILL_WEIGHTS)?)
        } else {
            None
        };
        let mask = options.patience.map(|patience| MaskTable::new(device, plan.ranks(), patience));
        Ok(Self {
            count,
            dispatch: Split::of(
                &dispatch,
                [kernels::DISPATCH, kernels::DISPATCH_SEND, kernels::DISPATCH_RECV],
            )?,
            pull: Split::of(&pull, [kernels::COMBINE, kernels::COMBINE_SEND, kernels::COMBINE_RECV])?,
            push,
            save: jit.load(device, &kernels::save_routing())?.get(kernels::SAVE_ROUTING)?,
            replay: jit.load(device, &kernels::dispatch_replay())?.get(kernels::DISPATCH_REPLAY)?,
            fill,
            mask: mask.transpose()?,
        })
    }

    pub(super) fn waiting_kernels(&self) -> Vec<&RawKernel> {
        let all = self.dispatch.raw().into_iter().chain(self.pull.raw()).chain([self.replay.raw()]);
        all.chain(self.push.iter().flat_map(Split::raw))
            .chain(self.count.as_ref().map(LoadedKernel::raw))
            .collect()
    }

    fn mask_view(&self, slot: &Slot) -> MaskView {
        self.mask.as_ref().map_or(MaskView::NONE, |mask| mask.view(slot))
    }

    pub(super) fn send(
        &self,
        context: &Context,
        stream: &Stream,
        slot: &mut SlotTicket,
        tokens: &Tokens,
        geometry: &Geometry,
        whole: bool,
    ) -> Result<bool> {
        let _launching = context.world.launching(stream)?;
        let count = tokens.count as u32;
        if let Some(kernel) = &self.count {
            let geometry = context.plan.count_geometry(count, &context.limits);
            enqueue(stream, kernel, &geometry, &context.arguments().count(slot.get(), tokens))?;
        }
        let mask = self.mask_view(slot.get());
        let args = context.arguments().dispatch(slot.get(), Some(tokens), count, geometry, mask);
        let kernel = if whole { &self.dispatch.whole } else { &self.dispatch.send };
        let launched = enqueue(stream, kernel, geometry, &args);
        // Once the counts are sent, peers wait for this operation, even if its second kernel was not launched.
        if launched.is_ok() || self.count.is_some() {
            context.used(slot, stream, Call::DISPATCH)?;
        }
        launched?;
        if whole && self.fill.is_some() {
            self.deliver(context, stream, slot)?;
        }
        Ok(whole)
    }

    pub(super) fn recv(
        &self,
        context: &Context,
        stream: &Stream,
        slot: &mut SlotTicket,
        tokens: u32,
    ) -> Result<()> {
        let _launching = context.world.launching(stream)?;
        slot.order_after(stream)?;
        let geometry = context.plan.receive_geometry(&context.limits);
        let args =
            context.arguments().dispatch(slot.get(), None, tokens, &geometry, self.mask_view(slot.get()));
        enqueue(stream, &self.dispatch.recv, &geometry, &args)?;
        self.deliver(context, stream, slot)
    }

    /// The end of a dispatch: fills the weight window, where there is one, and notes the launch.
    fn deliver(&self, context: &Context, stream: &Stream, slot: &mut SlotTicket) -> Result<()> {
        let filled = self.fill.as_ref().map_or(Ok(()), |kernel| {
            let args = context.arguments().fill(slot.get());
            let geometry = context.plan.local_geometry(context.plan.rows(), &context.limits);
            enqueue(stream, kernel, &geometry, &args)
        });
        context.used(slot, stream, Call::DISPATCH_RECV)?;
        filled
    }

    pub(super) fn offer(
        &self,
        context: &Context,
        stream: &Stream,
        slot: &mut SlotTicket,
        rows: Option<DeviceAddress>,
        tokens: u32,
        output: Option<&CombineOutput>,
    ) -> Result<Rest> {
        match (rows, output) {
            (Some(rows), _) => self.push(context, stream, slot, Push { rows, tokens, output })?,
            (None, Some(_)) => {
                let geometry = context.plan.combine_geometry(tokens, &context.limits);
                let args = self.pull_args(context, slot.get(), tokens, output, geometry.segments);
                context.launch(stream, slot, &self.pull.whole, &geometry, &args, Call::COMBINE)?;
            }
            (None, None) => {
                let geometry = context.offering_geometry(tokens);
                let args = self.pull_args(context, slot.get(), tokens, None, geometry.segments);
                context.launch(stream, slot, &self.pull.send, &geometry, &args, Call::COMBINE_SEND)?;
            }
        }
        Ok(match (output, rows) {
            (Some(_), _) => Rest::Nothing,
            (None, None) => Rest::Sum,
            (None, Some(_)) => Rest::SumPushed,
        })
    }

    pub(super) fn sum(
        &self,
        context: &Context,
        stream: &Stream,
        slot: &mut SlotTicket,
        tokens: u32,
        output: &CombineOutput,
        rest: Rest,
    ) -> Result<()> {
        if rest == Rest::SumPushed {
            let push = Push { rows: DeviceAddress::NULL, tokens, output: Some(output) };
            return self.push(context, stream, slot, push);
        }
        let geometry = context.plan.combine_geometry(tokens, &context.limits);
        let args = self.pull_args(context, slot.get(), tokens, Some(output), geometry.segments);
        context.launch(stream, slot, &self.pull.recv, &geometry, &args, Call::COMBINE_RECV)
    }

    pub(super) fn release(&self, context: &Context, stream: &Stream, slot: &mut SlotTicket) -> Result<()> {
        let geometry = context.plan.combine_geometry(0, &context.limits);
        let args = self.pull_args(context, slot.get(), 0, None, geometry.segments);
        context.launch(stream, slot, &self.pull.whole, &geometry, &args, Call::COMBINE)
    }

    /// Launches a combine that pushes: the send with rows alone, the receive with an output alone, the whole with both.
    fn push(&self, context: &Context, stream: &Stream, slot: &mut SlotTicket, push: Push<'_>) -> Result<()> {
        #[expect(clippy::expect_used, reason = "expert_rows refuses buffers of a plan that does not push")]
        let kernels = self.push.as_ref().expect("the kernels that push");
        let kernel = match (push.rows.is_null(), push.output) {
            (false, Some(_)) => &kernels.whole,
            (false, None) => &kernels.send,
            (true, _) => &kernels.recv,
        };
        let geometry = context.plan.combine_push_geometry(push.tokens, &context.limits);
        let args = context.arguments().push(slot.get(), push, &geometry, self.mask_view(slot.get()));
        context.launch(stream, slot, kernel, &geometry, &args, Call::COMBINE)
    }

    /// Saves the routing of a dispatch. The caller has ordered the stream.
    pub(crate) fn save(
        &self,
        context: &Context,
        stream: &Stream,
        slot: &mut SlotTicket,
        tokens: u32,
        saved: SavedRouting,
    ) -> Result<()> {
        let args = context.arguments().save(slot.get(), tokens, saved);
        let geometry = context.plan.local_geometry(tokens.into(), &context.limits);
        enqueue(stream, &self.save, &geometry, &args)
    }

    /// A whole dispatch with a saved routing. `read` records that the stream reads the routing.
    pub(crate) fn replay(
        &self,
        context: &Context,
        stream: &Stream,
        slot: &mut SlotTicket,
        tokens: &Tokens,
        saved: SavedRouting,
        read: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let count = tokens.count as u32;
        let geometry = context.plan.dispatch_geometry(count, &context.limits)?;
        let mask = self.mask_view(slot.get());
        let args = context.arguments().replay(slot.get(), tokens, &geometry, mask, saved);
        enqueue(stream, &self.replay, &geometry, &args)?;
        let read = read();
        self.deliver(context, stream, slot)?;
        read
    }

    /// Arguments of a kernel of the combine that pulls, without an output for one that only sends.
    fn pull_args(
        &self,
        context: &Context,
        slot: &Slot,
        tokens: u32,
        output: Option<&CombineOutput>,
        segments: u32,
    ) -> CombineArgs {
        context.arguments().pull(slot, tokens, output, segments, self.mask_view(slot))
    }
}
