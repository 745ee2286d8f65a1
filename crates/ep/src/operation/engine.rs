//! Dispatch and combine whose rows copy engines move: what a plan keeps for it, and the launches, always in halves.
//!
//! A first half's kernel, on the caller's stream, gives rows to queues, where kernels write these. For other members copies fork from
//! the stream; a stream of the plan's own joins them, and tells the flags behind them. The slot is then behind that stream, which is how
//! a second half, on whatever stream, waits for both.

use std::sync::{Arc, Mutex};

use anabranch_hip::{Device, DeviceAddress, Stream};
use anabranch_hip_jit::{DevicePointer, LoadedUnit};
use anabranch_ranks::GroupRank;
use anabranch_shmem::{Leg, Team, World};

use super::residency::LaunchedUnit;
use super::{COMBINE, CombineOutput, CombineSent, ExpertOutput, ExpertParallel, calls, pointer};
use crate::args::{CombineEngineArgs, DispatchEngineArgs, MaskView};
use crate::error::Result;
use crate::kernels;
use crate::plan::{FLAG_STRIDE, Geometry, Plan};
use crate::slot::{Slot, SlotTicket, lock};
use crate::tensor::Tokens;

/// The kernels.
#[derive(Debug)]
pub(super) struct EngineUnits {
    pub(super) dispatch: Arc<LoadedUnit>,
    pub(super) combine: Arc<LoadedUnit>,
}

impl EngineUnits {
    pub(super) fn launched(&self) -> [LaunchedUnit<'_>; 2] {
        [(&self.dispatch, kernels::DISPATCH_ENGINE.entries), (&self.combine, kernels::COMBINE_ENGINE.entries)]
    }

    pub(super) fn load(world: &World, plan: &Plan) -> Result<Self> {
        let config = plan.config();
        let load = |spec| {
            let spec = if config.device_token_count { kernels::with_device_count(spec) } else { spec };
            world.jit().load(world.device(), &spec)
        };
        Ok(Self {
            dispatch: load(kernels::dispatch_engine(config.cast_from, config.dispatch_cast))?,
            combine: load(kernels::combine_engine(config.combine_type))?,
        })
    }
}

/// What a plan whose rows engines move has besides.
#[derive(Debug)]
pub(super) struct Engine {
    units: EngineUnits,
    /// Members to which streams copy, the next one first.
    streamed: Vec<GroupRank>,
    /// Held while a fork is made: those of two calls must not mix.
    joins: Mutex<Joins>,
}

/// The streams that join copies: one for work that runs, and one for captures.
#[derive(Debug)]
struct Joins {
    running: Stream,
    captured: Stream,
}

impl Engine {
    pub(super) fn new(device: &Device, team: &Team, units: EngineUnits) -> Result<Self> {
        let (size, me) = (team.size(), team.rank().get());
        let all = (1..=size).map(|turn| GroupRank::new((me + turn) % size));
        let streamed: Vec<_> = all.filter(|peer| !team.copies_by_queues(*peer)).collect();
        if !streamed.is_empty() {
            team.prepare_legs(team.usual_leg_streams())?;
        }
        let joins =
            Joins { running: device.create_priority_stream()?, captured: device.create_priority_stream()? };
        Ok(Self { units, streamed, joins: Mutex::new(joins) })
    }
}

/// A piece of this rank's memory for each rank, and where they go at it.
struct Pieces {
    source: DeviceAddress,
    /// Of the window in the heap.
    window: u64,
    row_bytes: u32,
    /// Rows that are copied.
    rows: u32,
}

impl ExpertParallel {
    /// The first half of a dispatch.
    pub(super) fn send_by_engine(
        &self,
        engine: &Engine,
        stream: &Stream,
        tokens: &Tokens,
    ) -> Result<(SlotTicket, u32)> {
        let count = tokens.count as u32;
        let (mut slot, args) = {
            let _launching = self.world.launching(stream)?;
            self.check_tokens(tokens)?;
            let geometry = self.plan.dispatch_geometry(count, &self.limits)?;
            let mut slot = self.pool.take(stream)?;
            let args = self.dispatch_engine_args(slot.get(), Some(tokens), count, &geometry);
            let kernel = engine.units.dispatch.kernel("anabranch_ep_dispatch_engine_send")?;
            // SAFETY: as for dispatch; the staging is the slot's, and its last use is over, as the slot was behind it.
            unsafe {
                kernel.launch(
                    geometry.blocks,
                    geometry.block_threads,
                    geometry.local_bytes,
                    stream,
                    &args,
                )?;
            }
            self.used(&mut slot, stream, &calls::DISPATCH)?;
            (slot, args)
        };
        let (layout, rows) = (self.plan.layout(), count.min(self.plan.row_stride()));
        let at = slot.get().heap_offset();
        let (row_bytes, meta_bytes) = (self.plan.row_bytes(), self.plan.meta_bytes());
        let pieces = [
            Pieces { source: slot.get().staged_rows(), window: at + layout.rows, row_bytes, rows },
            Pieces {
                source: slot.get().staged_meta(),
                window: at + layout.meta,
                row_bytes: meta_bytes,
                rows,
            },
        ];
        self.copy_by_streams(engine, stream, &mut slot, &pieces, |joins| {
            let Geometry { blocks, block_threads, local_bytes, .. } =
                self.plan.receive_geometry(&self.limits);
            let kernel = engine.units.dispatch.kernel("anabranch_ep_dispatch_engine_flag")?;
            // SAFETY: as above; of the tokens nothing is read.
            unsafe { kernel.launch(blocks, block_threads, local_bytes, joins, &args) }.map_err(Into::into)
        })?;
        Ok((slot, count))
    }

    /// The second half of a dispatch. The stream is behind the first.
    pub(super) fn receive_by_engine(
        &self,
        engine: &Engine,
        stream: &Stream,
        slot: &Slot,
        tokens: u32,
    ) -> Result<()> {
        let geometry = self.plan.receive_geometry(&self.limits);
        let args = self.dispatch_engine_args(slot, None, tokens, &geometry);
        let kernel = engine.units.dispatch.kernel("anabranch_ep_dispatch_engine_recv")?;
        // SAFETY: as for the first half; of the tokens only the number is read.
        unsafe {
            kernel.launch(geometry.blocks, geometry.block_threads, geometry.local_bytes, stream, &args)?;
        }
        Ok(())
    }

    /// The first half of a combine.
    pub(super) fn combine_send_by_engine(
        &self,
        engine: &Engine,
        stream: &Stream,
        experts: ExpertOutput,
        mut slot: SlotTicket,
        tokens: u32,
    ) -> Result<CombineSent> {
        self.check_slot(&slot)?;
        let source = match experts {
            ExpertOutput::Staged(rows) => {
                self.check_pushed(&rows, slot.get())?;
                rows.address()
            }
            ExpertOutput::InWindow if !self.plan.config().combine_source.pulls() => {
                return Err(self.wrong_source("the combine window"));
            }
            ExpertOutput::InWindow => slot.get().combine_rows(),
        };
        let args = self.combine_engine_args(slot.get(), source, tokens, None, 1);
        let Geometry { block_threads, local_bytes, .. } = self.plan.combine_geometry(tokens, &self.limits);
        {
            let _launching = self.world.launching(stream)?;
            slot.order_behind(stream)?;
            let kernel = engine.units.combine.kernel("anabranch_ep_combine_engine_send")?;
            // SAFETY: the argument struct is the kernel's own; the rows were checked, or are the slot's window, and the caller leaves
            // them alone until the second half.
            unsafe { kernel.launch(1, block_threads, local_bytes, stream, &args)? };
            self.used(&mut slot, stream, &calls::COMBINE_SEND)?;
        }
        let pieces = [Pieces {
            source,
            window: args.rows_offset,
            row_bytes: args.row_bytes,
            // Others decide how many there are.
            rows: self.plan.row_stride(),
        }];
        self.copy_by_streams(engine, stream, &mut slot, &pieces, |joins| {
            let kernel = engine.units.combine.kernel("anabranch_ep_combine_engine_flag")?;
            // SAFETY: as above.
            unsafe { kernel.launch(1, block_threads, local_bytes, joins, &args) }.map_err(Into::into)
        })?;
        Ok(CombineSent::in_window(slot, tokens))
    }

    /// The second half of a combine. The stream is behind the first.
    pub(super) fn sum_by_engine(
        &self,
        engine: &Engine,
        stream: &Stream,
        slot: &Slot,
        tokens: u32,
        output: &CombineOutput,
    ) -> Result<()> {
        let geometry = self.plan.combine_geometry(tokens, &self.limits);
        let args =
            self.combine_engine_args(slot, DeviceAddress::NULL, tokens, Some(output), geometry.segments);
        let kernel = engine.units.combine.kernel("anabranch_ep_combine_engine_recv")?;
        // SAFETY: as for combine; the rows that it reads are this rank's own.
        unsafe {
            kernel.launch(geometry.blocks, geometry.block_threads, geometry.local_bytes, stream, &args)?;
        }
        Ok(())
    }

    /// Puts behind the slots that nobody can end any more the completion of what they gave to queues. Waits for nothing.
    pub(super) fn drain(&self) -> Result<()> {
        let Some(engine) = &self.engine else { return Ok(()) };
        let lost = self.pool.lost();
        if lost.is_empty() {
            return Ok(());
        }
        let stream = lock(&engine.joins);
        let stream = &stream.running;
        let _launching = self.world.launching(stream)?;
        let geometry = self.plan.receive_geometry(&self.limits);
        for slot in lost {
            let args = self.dispatch_engine_args(slot, None, 0, &geometry);
            let kernel = engine.units.dispatch.kernel("anabranch_ep_dispatch_engine_drain")?;
            // SAFETY: the argument struct is the kernel's own; it touches the queues alone.
            unsafe {
                kernel.launch(
                    geometry.blocks,
                    geometry.block_threads,
                    geometry.local_bytes,
                    stream,
                    &args,
                )?;
            }
            let event = Arc::new(stream.device().create_event()?);
            stream.record(&event)?;
            self.pool.used_unheld(slot, event);
        }
        Ok(())
    }

    /// Copies pieces to the members whose routes have no queues, beside what the stream does next, and launches `flag` behind them; the
    /// slot's last launch is then that.
    fn copy_by_streams(
        &self,
        engine: &Engine,
        stream: &Stream,
        slot: &mut SlotTicket,
        pieces: &[Pieces],
        flag: impl FnOnce(&Stream) -> Result<()>,
    ) -> Result<()> {
        if engine.streamed.is_empty() {
            return Ok(());
        }
        let joins = lock(&engine.joins);
        let joins = if stream.is_capturing()? { &joins.captured } else { &joins.running };
        let _launching = self.world.launching(joins)?;
        let (stride, me) = (u64::from(self.plan.row_stride()), u64::from(self.rank().get()));
        let mut legs = Vec::with_capacity(engine.streamed.len() * pieces.len());
        for peer in &engine.streamed {
            let Some(base) = self.team.peer_base(*peer) else { continue };
            for piece in pieces {
                let part = stride * u64::from(piece.row_bytes);
                legs.push(Leg {
                    peer: *peer,
                    target: base.offset(piece.window + me * part),
                    source: piece.source.offset(u64::from(peer.get()) * part),
                    bytes: u64::from(piece.rows) * u64::from(piece.row_bytes),
                });
            }
        }
        // SAFETY: sources are the slot's, or the caller's, who leaves them alone until the second half; targets are places of this
        // rank in the peers' slots, which nobody else touches before the flag. The kernels say why that is so.
        if let Err(error) = unsafe { self.team.fork_legs(stream, joins, &legs) } {
            // Some copies may be under way, behind which nothing tells: the slot must not be used again, nor the peers wait.
            self.world.poison(&format!("copies of a plan's rows broke off: {error}"));
            return Err(error.into());
        }
        let told = flag(joins);
        slot.used_on(joins)?;
        told
    }

    fn dispatch_engine_args(
        &self,
        slot: &Slot,
        tokens: Option<&Tokens>,
        count: u32,
        geometry: &Geometry,
    ) -> DispatchEngineArgs {
        DispatchEngineArgs {
            dispatch: self.dispatch_args(slot, tokens, count, geometry),
            staged_rows: pointer(slot.staged_rows()),
            staged_meta: pointer(slot.staged_meta()),
            posted: pointer(slot.posted()),
            slot: slot.number(),
            reserved: 0,
        }
    }

    fn combine_engine_args(
        &self,
        slot: &Slot,
        rows: DeviceAddress,
        tokens: u32,
        output: Option<&CombineOutput>,
        segments: u32,
    ) -> CombineEngineArgs {
        let layout = self.plan.layout();
        CombineEngineArgs {
            team: self.team.view(),
            rows: pointer(rows),
            counts: pointer(slot.counts()),
            output: output.map_or(DevicePointer::NULL, |output| pointer(output.rows.address())),
            send_map: pointer(slot.send_map()),
            state: pointer(slot.state()),
            posted: pointer(slot.posted()),
            rows_offset: slot.heap_offset() + layout.returned_rows,
            flags_offset: slot.heap_offset() + layout.combine_flags,
            token_count: tokens,
            fan_out: self.plan.fan_out(),
            row_bytes: self.plan.combine_row_bytes(),
            row_stride: self.plan.row_stride(),
            segments,
            flag_stride: FLAG_STRIDE,
            operation: COMBINE.0,
            slot: slot.number(),
            mask: MaskView::NONE,
        }
    }
}
