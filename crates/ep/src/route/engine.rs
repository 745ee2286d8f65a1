//! The route of copy engines: between send and receive no kernel of an operation is on the device.
//!
//! The send's kernel, on the caller's stream, posts rows to the queues that kernels can write. For other members copies fork from
//! the stream, and a stream of the plan joins them; a kernel there then stores the flags. The slot's last launch is on
//! that stream, so the receive, on whatever stream, waits for both.

use std::sync::Mutex;

use anabranch_hip::{DeviceAddress, Kernel as RawKernel, Stream};
use anabranch_hip_jit::LoadedKernel;
use anabranch_ranks::GroupRank;
use anabranch_shmem::{PeerCopy, Team, World};

use super::context::{Call, enqueue, load_counted};
use super::pointer;
use super::{COMBINE, Context, Launcher, Rest, Steps};
use crate::args::{CombineArgs, CombineEngineArgs, DispatchEngineArgs, MaskView};
use crate::error::Result;
use crate::kernels;
use crate::lock::lock;
use crate::plan::{FLAG_STRIDE, Geometry, Plan};
use crate::slot::Slot;
use crate::tensor::{CombineOutput, Tokens};

/// The route of copy engines.
#[derive(Debug)]
pub(crate) struct Engine {
    dispatch_send: LoadedKernel<DispatchEngineArgs>,
    dispatch_flag: LoadedKernel<DispatchEngineArgs>,
    dispatch_recv: LoadedKernel<DispatchEngineArgs>,
    drain: LoadedKernel<DispatchEngineArgs>,
    combine_send: LoadedKernel<CombineEngineArgs>,
    combine_flag: LoadedKernel<CombineEngineArgs>,
    combine_recv: LoadedKernel<CombineEngineArgs>,
    release: LoadedKernel<CombineArgs>,
    /// Members to which streams copy, in the order of ranks after this one.
    streamed: Vec<GroupRank>,
    /// Locked during a fork: forks of two calls must not mix.
    joins: Mutex<Joins>,
}

/// The streams that join copies: one for eager work, and one for captures.
#[derive(Debug)]
struct Joins {
    running: Stream,
    captured: Stream,
}

/// One piece of this rank's memory per peer, and its target there.
struct Pieces {
    source: DeviceAddress,
    /// Offset of the window in the heap.
    window: u64,
    row_bytes: u32,
    /// Rows to copy.
    rows: u32,
}

impl Engine {
    pub(super) fn load(world: &World, plan: &Plan) -> Result<Self> {
        let (config, device) = (plan.config(), world.device());
        let dispatch =
            load_counted(world, plan, kernels::dispatch_engine(config.cast_from, config.dispatch_cast))?;
        let combine = load_counted(world, plan, kernels::combine_engine(config.combine_type))?;
        let pull = load_counted(world, plan, kernels::combine(config.combine_type))?;
        let joins =
            Joins { running: device.create_priority_stream()?, captured: device.create_priority_stream()? };
        Ok(Self {
            dispatch_send: dispatch.get(kernels::DISPATCH_ENGINE_SEND)?,
            dispatch_flag: dispatch.get(kernels::DISPATCH_ENGINE_FLAG)?,
            dispatch_recv: dispatch.get(kernels::DISPATCH_ENGINE_RECV)?,
            drain: dispatch.get(kernels::DISPATCH_ENGINE_DRAIN)?,
            combine_send: combine.get(kernels::COMBINE_ENGINE_SEND)?,
            combine_flag: combine.get(kernels::COMBINE_ENGINE_FLAG)?,
            combine_recv: combine.get(kernels::COMBINE_ENGINE_RECV)?,
            release: pull.get(kernels::COMBINE)?,
            streamed: Vec::new(),
            joins: Mutex::new(joins),
        })
    }

    pub(super) fn attach(&mut self, team: &Team) -> Result<()> {
        let (size, me) = (team.size(), team.rank().get());
        let all = (1..=size).map(|turn| GroupRank::new((me + turn) % size));
        self.streamed = all.filter(|peer| !team.copies_by_queues(*peer)).collect();
        if !self.streamed.is_empty() {
            team.prepare_copies(team.default_copy_streams())?;
        }
        Ok(())
    }

    /// Copies pieces to the members whose routes have no queues, concurrently with later work of the stream, and launches `flag` after
    /// them, which is then the slot's last launch.
    fn copy_by_streams(
        &self,
        on: &mut Launcher<'_>,
        pieces: &[Pieces],
        flag: impl FnOnce(&Stream) -> Result<()>,
    ) -> Result<()> {
        if self.streamed.is_empty() {
            return Ok(());
        }
        let (world, team) = (&on.context.world, &on.context.team);
        let joins = lock(&self.joins);
        let joins = if on.is_captured { &joins.captured } else { &joins.running };
        let mut launching = world.launching(joins)?;
        let (stride, me) = (u64::from(on.context.plan.row_stride()), u64::from(team.rank().get()));
        let mut copies = Vec::with_capacity(self.streamed.len() * pieces.len());
        for peer in &self.streamed {
            let Some(base) = team.peer_base(*peer) else { continue };
            for piece in pieces {
                let part = stride * u64::from(piece.row_bytes);
                copies.push(PeerCopy {
                    peer: *peer,
                    target: base.offset(piece.window + me * part),
                    source: piece.source.offset(u64::from(peer.get()) * part),
                    bytes: u64::from(piece.rows) * u64::from(piece.row_bytes),
                });
            }
        }
        // SAFETY: the sources are in the slot, or in a buffer that the caller does not write before the receive. The targets are this
        // rank's rows in the peers' slots, which no rank accesses before the flag, as the kernels argue.
        if let Err(error) = unsafe { team.fork_copies(on.stream, joins, &copies) } {
            // Some copies may run, and no flag follows them: the slot must not be reused, and the peers must not wait.
            world.poison(&format!("copies of a plan's rows failed: {error}"));
            return Err(error.into());
        }
        let flagged = flag(joins);
        on.used_on(joins, &mut launching)?;
        flagged
    }
}

impl Steps for Engine {
    fn waiting_kernels(&self) -> Vec<&RawKernel> {
        let dispatch = [&self.dispatch_send, &self.dispatch_flag, &self.dispatch_recv, &self.drain];
        let combine = [&self.combine_send, &self.combine_flag, &self.combine_recv];
        let all = dispatch.map(LoadedKernel::raw).into_iter().chain(combine.map(LoadedKernel::raw));
        all.chain([self.release.raw()]).collect()
    }

    fn send(&self, on: &mut Launcher<'_>, tokens: &Tokens, geometry: &Geometry, _: bool) -> Result<bool> {
        let context = on.context;
        let (plan, count) = (&context.plan, tokens.count as u32);
        let args = dispatch_args(on.context, on.slot.get(), Some(tokens), count, geometry);
        on.launch(&self.dispatch_send, geometry, &args, Call::DISPATCH)?;
        let (layout, rows, at) = (plan.layout(), count.min(plan.row_stride()), on.slot.get().heap_offset());
        let pieces = [
            Pieces {
                source: on.slot.get().staged_rows(),
                window: at + layout.rows,
                row_bytes: plan.row_bytes(),
                rows,
            },
            Pieces {
                source: on.slot.get().staged_meta(),
                window: at + layout.meta,
                row_bytes: plan.meta_bytes(),
                rows,
            },
        ];
        self.copy_by_streams(on, &pieces, |joins| {
            enqueue(joins, &self.dispatch_flag, &plan.receive_geometry(&context.limits), &args)
        })?;
        Ok(false)
    }

    fn recv(&self, on: &mut Launcher<'_>, tokens: u32) -> Result<()> {
        let geometry = on.context.plan.receive_geometry(&on.context.limits);
        let args = dispatch_args(on.context, on.slot.get(), None, tokens, &geometry);
        on.launch(&self.dispatch_recv, &geometry, &args, Call::DISPATCH_RECV)
    }

    fn offer(
        &self,
        on: &mut Launcher<'_>,
        rows: Option<DeviceAddress>,
        tokens: u32,
        _: Option<&CombineOutput>,
    ) -> Result<Rest> {
        let source = rows.unwrap_or_else(|| on.slot.get().combine_rows());
        let args = combine_args(on.context, on.slot.get(), source, tokens, None, 1);
        let geometry = on.context.offering_geometry(tokens);
        on.launch(&self.combine_send, &geometry, &args, Call::COMBINE_SEND)?;
        // Other ranks decide how many rows were received, so the most are copied.
        let rows = on.context.plan.row_stride();
        let pieces = [Pieces { source, window: args.rows_offset, row_bytes: args.row_bytes, rows }];
        self.copy_by_streams(on, &pieces, |joins| enqueue(joins, &self.combine_flag, &geometry, &args))?;
        Ok(Rest::Sum)
    }

    fn sum(&self, on: &mut Launcher<'_>, tokens: u32, output: &CombineOutput, _: Rest) -> Result<()> {
        let geometry = on.context.plan.combine_geometry(tokens, &on.context.limits);
        let null = DeviceAddress::NULL;
        let args = combine_args(on.context, on.slot.get(), null, tokens, Some(output), geometry.segments);
        on.launch(&self.combine_recv, &geometry, &args, Call::COMBINE_RECV)
    }

    /// A combine of no tokens, which moves no rows and so needs no engine.
    fn release(&self, on: &mut Launcher<'_>) -> Result<()> {
        let geometry = on.context.plan.combine_geometry(0, &on.context.limits);
        let args = on.context.arguments().pull(on.slot.get(), 0, None, geometry.segments, MaskView::NONE);
        on.launch(&self.release, &geometry, &args, Call::COMBINE)
    }

    /// Launches kernels that complete the queues of lost slots. Does not block the host.
    fn drain(&self, context: &Context) -> Result<()> {
        let lost = context.pool.lost();
        if lost.is_empty() {
            return Ok(());
        }
        let stream = lock(&self.joins);
        let stream = &stream.running;
        let mut launching = context.world.launching(stream)?;
        let geometry = context.plan.receive_geometry(&context.limits);
        for slot in lost {
            let args = dispatch_args(context, slot, None, 0, &geometry);
            enqueue(stream, &self.drain, &geometry, &args)?;
            context.pool.used_unheld(slot, launching.launched()?);
        }
        Ok(())
    }
}

fn dispatch_args(
    context: &Context,
    slot: &Slot,
    tokens: Option<&Tokens>,
    count: u32,
    geometry: &Geometry,
) -> DispatchEngineArgs {
    DispatchEngineArgs {
        dispatch: context.arguments().dispatch(slot, tokens, count, geometry, MaskView::NONE),
        staged_rows: pointer(slot.staged_rows()),
        staged_meta: pointer(slot.staged_meta()),
        posted: pointer(slot.posted()),
        slot: slot.number(),
        reserved: 0,
    }
}

fn combine_args(
    context: &Context,
    slot: &Slot,
    rows: DeviceAddress,
    tokens: u32,
    output: Option<&CombineOutput>,
    segments: u32,
) -> CombineEngineArgs {
    let (plan, start) = (&context.plan, slot.heap_offset());
    CombineEngineArgs {
        team: context.team.view(),
        rows: pointer(rows),
        counts: pointer(slot.counts()),
        output: pointer(output.map_or(DeviceAddress::NULL, |output| output.rows.address())),
        send_map: pointer(slot.send_map()),
        state: pointer(slot.state()),
        posted: pointer(slot.posted()),
        rows_offset: start + plan.layout().returned_rows,
        flags_offset: start + plan.layout().combine_flags,
        token_count: tokens,
        fan_out: plan.fan_out(),
        row_bytes: plan.combine_row_bytes(),
        row_stride: plan.row_stride(),
        segments,
        flag_stride: FLAG_STRIDE,
        operation: COMBINE.0,
        slot: slot.number(),
        mask: MaskView::NONE,
    }
}
