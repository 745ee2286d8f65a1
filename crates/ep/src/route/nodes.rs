//! The route of ranks on several nodes: kernels store rows for ranks of this node and put rows for other nodes.

use anabranch_hip::{DeviceAddress, DeviceBuffer, Kernel as RawKernel};
use anabranch_hip_jit::{LoadedKernel, bytemuck};
use anabranch_ranks::Group;
use anabranch_shmem::Error::NotAMember;
use anabranch_shmem::World;

use super::context::{Call, enqueue, load, load_counted};
use super::{Context, Launcher, Rest, Split, Steps};
use crate::args::{CombineNodesArgs, DispatchNodesArgs, NodesView};
use crate::error::Result;
use crate::kernels;
use crate::plan::{Geometry, NodesOptions, Plan};
use crate::tensor::{CombineOutput, Tokens};

/// The internode route.
#[derive(Debug)]
pub(crate) struct Internode {
    dispatch: Split<DispatchNodesArgs>,
    drain: LoadedKernel<DispatchNodesArgs>,
    /// Where tokens go once to each node.
    relay: Option<LoadedKernel<DispatchNodesArgs>>,
    combine: Split<CombineNodesArgs>,
    #[expect(dead_code, reason = "kernels read it")]
    table: DeviceBuffer,
    view: NodesView,
}

impl Internode {
    pub(super) fn load(world: &World, group: &Group, plan: &Plan, options: &NodesOptions) -> Result<Self> {
        let (config, by_node) = (plan.config(), options.by_node);
        let spec = world.kernel(&kernels::DISPATCH_NODES_UNIT);
        let spec = kernels::dispatch_nodes(spec, config.cast_from, config.dispatch_cast, by_node);
        let dispatch = load_counted(world, plan, spec)?;
        let relay = if by_node {
            Some(load(world, plan, kernels::dispatch_relay())?.get(kernels::DISPATCH_RELAY)?)
        } else {
            None
        };
        let spec = world.kernel(&kernels::COMBINE_NODES_UNIT);
        let combine = load_counted(world, plan, kernels::combine_nodes(spec, config.combine_type))?;
        let rank = world.rank();
        let me =
            group.rank_of(rank).ok_or_else(|| NotAMember { step: "expert parallelism".to_owned(), rank })?;
        let words = NodesView::table(plan, me);
        let mut table = world.device().allocate(words.len() * 4)?;
        table.copy_from_host(0, bytemuck::cast_slice(&words))?;
        let view = NodesView::new(plan, me, table.address());
        let of_dispatch =
            [kernels::DISPATCH_NODES, kernels::DISPATCH_NODES_SEND, kernels::DISPATCH_NODES_RECV];
        let of_combine = [kernels::COMBINE_NODES, kernels::COMBINE_NODES_SEND, kernels::COMBINE_NODES_RECV];
        Ok(Self {
            dispatch: Split::of(&dispatch, of_dispatch)?,
            drain: dispatch.get(kernels::DISPATCH_NODES_DRAIN)?,
            relay,
            combine: Split::of(&combine, of_combine)?,
            table,
            view,
        })
    }
}

impl Steps for Internode {
    fn waiting_kernels(&self) -> Vec<&RawKernel> {
        let all = self.dispatch.raw().into_iter().chain(self.combine.raw()).chain([self.drain.raw()]);
        all.chain(self.relay.as_ref().map(LoadedKernel::raw)).collect()
    }

    fn send(&self, on: &mut Launcher<'_>, tokens: &Tokens, geometry: &Geometry, whole: bool) -> Result<bool> {
        // Rows that are forwarded need a second kernel.
        let whole = whole && self.relay.is_none();
        let kernel = if whole { &self.dispatch.whole } else { &self.dispatch.send };
        let args = on.context.arguments().dispatch_nodes(
            on.slot.get(),
            self.view,
            Some(tokens),
            tokens.count as u32,
            geometry,
        );
        on.launch(kernel, geometry, &args, Call::DISPATCH)?;
        Ok(whole)
    }

    fn recv(&self, on: &mut Launcher<'_>, tokens: u32) -> Result<()> {
        let (plan, limits) = (&on.context.plan, &on.context.limits);
        // The blocks for `max_tokens`: other ranks decide how many tokens come.
        let (kernel, geometry) = match &self.relay {
            None => (&self.dispatch.recv, plan.receive_geometry(limits)),
            Some(relay) => (relay, plan.dispatch_geometry(plan.config().max_tokens, limits)?),
        };
        let args = on.context.arguments().dispatch_nodes(on.slot.get(), self.view, None, tokens, &geometry);
        on.launch(kernel, &geometry, &args, Call::DISPATCH_RECV)
    }

    fn offer(
        &self,
        on: &mut Launcher<'_>,
        rows: Option<DeviceAddress>,
        tokens: u32,
        output: Option<&CombineOutput>,
    ) -> Result<Rest> {
        let (plan, limits) = (&on.context.plan, &on.context.limits);
        let (kernel, call, rest) = match output {
            Some(_) => (&self.combine.whole, Call::COMBINE, Rest::Nothing),
            None => (&self.combine.send, Call::COMBINE_SEND, Rest::Sum),
        };
        let geometry = match (rows, output) {
            // The whole grid copies rows to the window; other ranks decide how many.
            (Some(_), _) => plan.combine_push_geometry(tokens, limits),
            (None, Some(_)) => plan.combine_geometry(tokens, limits),
            (None, None) => on.context.offering_geometry(tokens),
        };
        let rows = rows.unwrap_or(DeviceAddress::NULL);
        let args = on.context.arguments().combine_nodes(
            on.slot.get(),
            self.view,
            rows,
            tokens,
            output,
            geometry.segments,
        );
        on.launch(kernel, &geometry, &args, call)?;
        Ok(rest)
    }

    fn sum(&self, on: &mut Launcher<'_>, tokens: u32, output: &CombineOutput, _: Rest) -> Result<()> {
        let geometry = on.context.plan.combine_geometry(tokens, &on.context.limits);
        let null = DeviceAddress::NULL;
        let args = on.context.arguments().combine_nodes(
            on.slot.get(),
            self.view,
            null,
            tokens,
            Some(output),
            geometry.segments,
        );
        on.launch(&self.combine.recv, &geometry, &args, Call::COMBINE_RECV)
    }

    fn release(&self, on: &mut Launcher<'_>) -> Result<()> {
        let null = DeviceAddress::NULL;
        let args = CombineNodesArgs {
            releases: 1,
            ..on.context.arguments().combine_nodes(on.slot.get(), self.view, null, 0, None, 1)
        };
        on.launch(&self.combine.whole, &on.context.offering_geometry(0), &args, Call::RELEASE)
    }

    /// Completes the puts to other nodes, after all launches of the plan, so that the slots' memory may be freed.
    fn drain(&self, context: &Context) -> Result<()> {
        let Some(slot) = context.pool.slots().first() else { return Ok(()) };
        let stream = context.world.device().create_stream()?;
        let geometry = context.plan.receive_geometry(&context.limits);
        let args = context.arguments().dispatch_nodes(slot, self.view, None, 0, &geometry);
        let mut launching = context.world.launching(&stream)?;
        enqueue(&stream, &self.drain, &geometry, &args)?;
        context.pool.used_unheld(slot, launching.launched()?);
        Ok(())
    }
}
