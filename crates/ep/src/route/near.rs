//! The route of ranks whose memory is mapped: kernels store to it and load from it.

use anabranch_hip::{DeviceAddress, Kernel as RawKernel};
use anabranch_hip_jit::LoadedKernel;
use anabranch_shmem::{LaunchEvent, LaunchGuard, World};

use super::context::{Call, enqueue, load, load_counted};
use super::{Context, Launcher, MaskTable, Rest, Split, Steps};
use crate::args::{
    CombineArgs, CombinePushArgs, CountArgs, DispatchArgs, DispatchExpertsArgs, DispatchReplayArgs,
    ExpertExpandArgs, FillWeightsArgs, LateWeightsArgs, MaskView, SaveRoutingArgs, SavedRouting,
};
use crate::error::Result;
use crate::kernels;
use crate::options::Mode;
use crate::plan::{Geometry, NearOptions, Plan};
use crate::route::Push;
use crate::slot::Slot;
use crate::tensor::{CombineOutput, DeviceSlice, Tokens};

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
    /// Where weights may be sent after the dispatch.
    late: Option<LoadedKernel<LateWeightsArgs>>,
    /// Where ranks may be masked.
    pub(crate) mask: Option<MaskTable>,
}

impl Near {
    pub(super) fn load(world: &World, plan: &Plan, options: &NearOptions) -> Result<Self> {
        let config = plan.config();
        let counted = |spec| load_counted(world, plan, spec);
        let masked = |spec| if options.patience.is_some() { kernels::masking(spec) } else { spec };
        let weighted =
            |spec| masked(if options.combine_weights { kernels::with_weights(spec) } else { spec });
        let count = match plan.mode() {
            Mode::Compact => Some(counted(kernels::count())?.get(kernels::COUNT)?),
            _ => None,
        };
        let dispatch = counted(masked(kernels::dispatch_cast(config.cast_from, config.dispatch_cast)))?;
        let pull = counted(weighted(kernels::combine(config.combine_type)))?;
        let push = if config.combine_source.pushes() {
            let unit = counted(weighted(kernels::combine_push(config.combine_type, options.codec)))?;
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
        let late = if options.late_weights {
            Some(counted(masked(kernels::late_weights()))?.get(kernels::LATE_WEIGHTS)?)
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
            replay: load(world, plan, kernels::dispatch_replay())?.get(kernels::DISPATCH_REPLAY)?,
            fill,
            late,
            mask: mask.transpose()?,
        })
    }

    fn mask_view(&self, slot: &Slot) -> MaskView {
        self.mask.as_ref().map_or(MaskView::NONE, |mask| mask.view(slot))
    }

    /// The end of a dispatch: fills the weight window, where there is one, and notes the launch.
    fn deliver(&self, on: &mut Launcher<'_>, launching: &mut LaunchGuard<'_>) -> Result<()> {
        let filled = self.fill.as_ref().map_or(Ok(()), |kernel| {
            let args = on.context.arguments().fill(on.slot.get());
            let geometry = on.context.plan.local_geometry(on.context.plan.rows(), &on.context.limits);
            enqueue(on.stream, kernel, &geometry, &args)
        });
        on.used(Call::DISPATCH_RECV, launching)?;
        filled
    }

    /// The arguments of a kernel that sends a dispatch's rows.
    fn dispatch_args(&self, on: &Launcher<'_>, tokens: &Tokens, geometry: &Geometry) -> DispatchArgs {
        let (slot, count) = (on.slot.get(), tokens.count as u32);
        on.context.arguments().dispatch(slot, Some(tokens), count, geometry, self.mask_view(slot))
    }

    /// The count of a compact dispatch, then what `launch` launches, and what follows a whole dispatch.
    fn send_by(
        &self,
        on: &mut Launcher<'_>,
        tokens: &Tokens,
        whole: bool,
        launch: impl FnOnce(&Launcher<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut launching = on.context.world.launching(on.stream)?;
        on.order_after()?;
        if let Some(kernel) = &self.count {
            let geometry = on.context.plan.count_geometry(tokens.count as u32, &on.context.limits);
            enqueue(on.stream, kernel, &geometry, &on.context.arguments().count(on.slot.get(), tokens))?;
        }
        let launched = launch(on);
        // Once the counts are sent, peers wait for this operation, even if its second kernel was not launched.
        if launched.is_ok() || self.count.is_some() {
            on.used(Call::DISPATCH, &mut launching)?;
        }
        launched?;
        if whole && self.fill.is_some() { self.deliver(on, &mut launching) } else { Ok(()) }
    }

    /// A whole dispatch that expands. The caller vouches for the expand's arguments as [`enqueue`] does for the dispatch's.
    pub(crate) fn send_to_experts(
        &self,
        mut on: Launcher<'_>,
        tokens: &Tokens,
        kernel: &LoadedKernel<DispatchExpertsArgs>,
        geometry: &Geometry,
        experts: ExpertExpandArgs,
    ) -> Result<()> {
        self.send_by(&mut on, tokens, true, |on| {
            let dispatch = self.dispatch_args(on, tokens, geometry);
            let args = on.context.arguments().dispatch_experts(on.slot.get(), dispatch, experts);
            enqueue(on.stream, kernel, geometry, &args)
        })
    }

    /// Launches a combine that pushes: the send with rows alone, the receive with an output alone, the whole with both.
    fn push(&self, on: &mut Launcher<'_>, push: Push<'_>) -> Result<()> {
        #[expect(clippy::expect_used, reason = "expert_rows refuses buffers of a plan that does not push")]
        let kernels = self.push.as_ref().expect("the kernels that push");
        let kernel = match (push.rows.is_null(), push.output) {
            (false, Some(_)) => &kernels.whole,
            (false, None) => &kernels.send,
            (true, _) => &kernels.recv,
        };
        let geometry = on.context.plan.combine_push_geometry(push.tokens, &on.context.limits);
        let args = on.context.arguments().push(on.slot.get(), push, &geometry, self.mask_view(on.slot.get()));
        on.launch(kernel, &geometry, &args, Call::COMBINE)
    }

    /// The kernel that sends weights after a dispatch, in a plan that has them.
    pub(crate) fn late_weights(&self) -> Option<&LoadedKernel<LateWeightsArgs>> {
        self.late.as_ref()
    }

    /// Sends weights of this rank's tokens, which were checked, to the rows of their copies.
    pub(crate) fn send_weights(
        &self,
        on: &mut Launcher<'_>,
        kernel: &LoadedKernel<LateWeightsArgs>,
        tokens: u32,
        weights: DeviceSlice,
    ) -> Result<()> {
        let (plan, limits) = (&on.context.plan, &on.context.limits);
        let words = u64::from(tokens) * u64::from(plan.fan_out() * plan.config().top_k);
        let geometry = plan.local_geometry(words.div_ceil(limits.wave_size.into()), limits);
        let args = on.context.arguments().late_weights(
            on.slot.get(),
            tokens,
            weights,
            self.mask_view(on.slot.get()),
        );
        on.launch(kernel, &geometry, &args, Call::WEIGHTS)
    }

    /// Saves the routing of a dispatch. The caller has ordered the stream.
    pub(crate) fn save(&self, on: &mut Launcher<'_>, tokens: u32, saved: SavedRouting) -> Result<()> {
        let args = on.context.arguments().save(on.slot.get(), tokens, saved);
        let geometry = on.context.plan.local_geometry(tokens.into(), &on.context.limits);
        enqueue(on.stream, &self.save, &geometry, &args)
    }

    /// A whole dispatch with a saved routing. `read` gets the event after the kernel that reads the routing. `launching` is for the
    /// launcher's stream.
    pub(crate) fn replay(
        &self,
        mut on: Launcher<'_>,
        tokens: &Tokens,
        saved: SavedRouting,
        launching: &mut LaunchGuard<'_>,
        read: impl FnOnce(LaunchEvent),
    ) -> Result<()> {
        let count = tokens.count as u32;
        let geometry = on.context.plan.dispatch_geometry(count, &on.context.limits)?;
        let mask = self.mask_view(on.slot.get());
        let args = on.context.arguments().replay(on.slot.get(), tokens, &geometry, mask, saved);
        enqueue(on.stream, &self.replay, &geometry, &args)?;
        // Also when what follows fails: the kernel is in flight.
        let noted = on.context.world.event_after(on.stream).map(read);
        self.deliver(&mut on, launching)?;
        Ok(noted?)
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

impl Steps for Near {
    fn waiting_kernels(&self) -> Vec<&RawKernel> {
        let all = self.dispatch.raw().into_iter().chain(self.pull.raw()).chain([self.replay.raw()]);
        all.chain(self.push.iter().flat_map(Split::raw))
            .chain(self.count.as_ref().map(LoadedKernel::raw))
            .chain(self.late.as_ref().map(LoadedKernel::raw))
            .collect()
    }

    fn send(&self, on: &mut Launcher<'_>, tokens: &Tokens, geometry: &Geometry, whole: bool) -> Result<bool> {
        let kernel = if whole { &self.dispatch.whole } else { &self.dispatch.send };
        self.send_by(on, tokens, whole, |on| {
            enqueue(on.stream, kernel, geometry, &self.dispatch_args(on, tokens, geometry))
        })?;
        Ok(whole)
    }

    fn recv(&self, on: &mut Launcher<'_>, tokens: u32) -> Result<()> {
        let mut launching = on.context.world.launching(on.stream)?;
        on.order_after()?;
        let geometry = on.context.plan.receive_geometry(&on.context.limits);
        let args = on.context.arguments().dispatch(
            on.slot.get(),
            None,
            tokens,
            &geometry,
            self.mask_view(on.slot.get()),
        );
        enqueue(on.stream, &self.dispatch.recv, &geometry, &args)?;
        self.deliver(on, &mut launching)
    }

    fn offer(
        &self,
        on: &mut Launcher<'_>,
        rows: Option<DeviceAddress>,
        tokens: u32,
        output: Option<&CombineOutput>,
    ) -> Result<Rest> {
        match (rows, output) {
            (Some(rows), _) => self.push(on, Push { rows, tokens, output })?,
            (None, Some(_)) => {
                let geometry = on.context.plan.combine_geometry(tokens, &on.context.limits);
                let args = self.pull_args(on.context, on.slot.get(), tokens, output, geometry.segments);
                on.launch(&self.pull.whole, &geometry, &args, Call::COMBINE)?;
            }
            (None, None) => {
                let geometry = on.context.offering_geometry(tokens);
                let args = self.pull_args(on.context, on.slot.get(), tokens, None, geometry.segments);
                on.launch(&self.pull.send, &geometry, &args, Call::COMBINE_SEND)?;
            }
        }
        Ok(match (output, rows) {
            (Some(_), _) => Rest::Nothing,
            (None, None) => Rest::Sum,
            (None, Some(_)) => Rest::SumPushed,
        })
    }

    fn sum(&self, on: &mut Launcher<'_>, tokens: u32, output: &CombineOutput, rest: Rest) -> Result<()> {
        if rest == Rest::SumPushed {
            let push = Push { rows: DeviceAddress::NULL, tokens, output: Some(output) };
            return self.push(on, push);
        }
        let geometry = on.context.plan.combine_geometry(tokens, &on.context.limits);
        let args = self.pull_args(on.context, on.slot.get(), tokens, Some(output), geometry.segments);
        on.launch(&self.pull.recv, &geometry, &args, Call::COMBINE_RECV)
    }

    fn release(&self, on: &mut Launcher<'_>) -> Result<()> {
        let geometry = on.context.plan.combine_geometry(0, &on.context.limits);
        let args = self.pull_args(on.context, on.slot.get(), 0, None, geometry.segments);
        on.launch(&self.pull.whole, &geometry, &args, Call::COMBINE)
    }

    fn drain(&self, _: &Context) -> Result<()> {
        Ok(())
    }
}
