//! Dispatch and combine in two halves, with other work of the stream between.
//!
//! The first half sends and ends; the second waits for the peers. What the caller puts on the stream between them runs while
//! rows are under way. Flags and epochs are those of the whole operations, so one rank may do in halves what another does whole. As
//! many operations may be in flight as the plan has slots; where that is more than one, all ranks begin operations and end them (with
//! the second half, too) in the same order, which decides who has which slot. Each half gives what the next one takes, so that
//! another order is no program.

use anabranch_hip::{DeviceAddress, Stream};

use super::push::Push;
use super::{CombineOutput, Dispatched, ExpertOutput, ExpertParallel, calls};
use crate::error::{Error, Result};
use crate::plan::Geometry;
use crate::slot::SlotTicket;
use crate::tensor::Tokens;

/// A dispatch whose rows are on their way. Holds the slot; give it to [`ExpertParallel::dispatch_recv`]: what was not received
/// cannot be combined.
///
/// ```compile_fail,E0308
/// # use anabranch_ep::{DeviceSlice, DispatchSent, ExpertOutput, ExpertParallel};
/// # fn unreceived(ep: &ExpertParallel, stream: &anabranch_hip::Stream, sent: DispatchSent, output: DeviceSlice) {
/// let _ = ep.combine(stream, ExpertOutput::InWindow, sent, output);
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the slot stays busy until the dispatch is received and combined or released"]
pub struct DispatchSent {
    slot: SlotTicket,
    tokens: u32,
}

/// A combine whose rows are offered to the peers, or pushed to them. Holds the slot; give it to [`ExpertParallel::combine_recv`],
/// once.
///
/// ```compile_fail,E0382
/// # use anabranch_ep::{CombineSent, DeviceSlice, ExpertParallel};
/// # fn twice(ep: &ExpertParallel, stream: &anabranch_hip::Stream, sent: CombineSent, output: DeviceSlice) {
/// let _ = ep.combine_recv(stream, sent, output);
/// let _ = ep.combine_recv(stream, sent, output);
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the slot stays busy until the combine is received"]
pub struct CombineSent {
    slot: SlotTicket,
    tokens: u32,
    pushed: bool,
}

impl DispatchSent {
    /// Tokens that this rank dispatched; where their number was in device memory, the most that it may have.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }
}

impl CombineSent {
    /// Of rows that kernels do not push.
    pub(super) fn in_window(slot: SlotTicket, tokens: u32) -> Self {
        Self { slot, tokens, pushed: false }
    }

    /// Tokens of the combine's output; where their number was in device memory, the most that are written.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }
}

impl ExpertParallel {
    /// The first half of a [dispatch](Self::dispatch): sends every token and tells the counts. Slotted, its kernel waits for
    /// nobody; compact, the count before it waits for the peers' counts, and the rows go behind that. Collective with
    /// [`Self::dispatch_recv`]; the tokens may be overwritten behind it, in stream order.
    ///
    /// ```
    /// # use anabranch_ep::{DeviceSlice, ExpertOutput, ExpertParallel, Result, Tokens};
    /// # fn layer(
    /// #     ep: &ExpertParallel, stream: &anabranch_hip::Stream, tokens: &Tokens, output: DeviceSlice,
    /// #     other_work: impl Fn(), experts: impl Fn(&anabranch_ep::Dispatched),
    /// # ) -> Result<()> {
    /// let sent = ep.dispatch_send(stream, tokens)?;
    /// other_work(); // on the same stream, while rows are under way
    /// let dispatched = ep.dispatch_recv(stream, sent)?;
    /// experts(&dispatched); // write their rows to `dispatched.combine_rows()`
    /// let sent = ep.combine_send(stream, ExpertOutput::InWindow, dispatched)?;
    /// other_work();
    /// ep.combine_recv(stream, sent, output)
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Self::dispatch`].
    pub fn dispatch_send(&self, stream: &Stream, tokens: &Tokens) -> Result<DispatchSent> {
        let (slot, tokens) = match (&self.engine, &self.nodes) {
            (Some(engine), _) => self.send_by_engine(engine, stream, tokens)?,
            (None, Some(nodes)) => {
                self.send_across(nodes, stream, tokens, "anabranch_ep_dispatch_nodes_send")?
            }
            (None, None) => self.send(stream, tokens, "anabranch_ep_dispatch_send")?,
        };
        Ok(DispatchSent { slot, tokens })
    }

    /// The second half of a dispatch: one block waits for the rows of all peers and writes counts and offsets. The stream may be
    /// another than the first half's; it is put behind that.
    ///
    /// # Errors
    /// [`Error::ForeignHandle`], or a fault that the world has had; the slot is lost then.
    pub fn dispatch_recv(&self, stream: &Stream, sent: DispatchSent) -> Result<Dispatched> {
        let _launching = self.world.launching(stream)?;
        let DispatchSent { mut slot, tokens } = sent;
        self.check_slot(&slot)?;
        slot.order_behind(stream)?;
        if let Some(nodes) = &self.nodes {
            self.receive_across(nodes, stream, slot.get(), tokens)?;
            self.deliver(stream, &mut slot)?;
            return Ok(Dispatched { slot, tokens });
        }
        if let Some(engine) = &self.engine {
            self.receive_by_engine(engine, stream, slot.get(), tokens)?;
            self.deliver(stream, &mut slot)?;
            return Ok(Dispatched { slot, tokens });
        }
        let geometry = self.plan.receive_geometry(&self.limits);
        let args = self.dispatch_args(slot.get(), None, tokens, &geometry);
        let kernel = self.dispatch.kernel("anabranch_ep_dispatch_recv")?;
        // SAFETY: as for dispatch; of the tokens only the number is read.
        unsafe {
            kernel.launch(geometry.blocks, geometry.block_threads, geometry.local_bytes, stream, &args)?;
        }
        self.deliver(stream, &mut slot)?;
        Ok(Dispatched { slot, tokens })
    }

    /// The first half of a [combine](Self::combine): tells the peers that the experts' rows are in the window, or pushes them to
    /// their origins when they are elsewhere. It waits for nobody. Collective with [`Self::combine_recv`]. The window
    /// must not be written behind it; another buffer may, in stream order, unless copy engines move rows
    /// ([`Payload::CopyEngine`](crate::Payload::CopyEngine)): then not before the second half has passed.
    ///
    /// # Errors
    /// As [`Self::combine`].
    pub fn combine_send(
        &self,
        stream: &Stream,
        experts: ExpertOutput,
        dispatched: Dispatched,
    ) -> Result<CombineSent> {
        if let Some(nodes) = &self.nodes {
            return self.combine_send_across(nodes, stream, experts, dispatched);
        }
        if let Some(engine) = &self.engine {
            let Dispatched { slot, tokens } = dispatched;
            return self.combine_send_by_engine(engine, stream, experts, slot, tokens);
        }
        let _launching = self.world.launching(stream)?;
        let Dispatched { mut slot, tokens } = dispatched;
        self.check_slot(&slot)?;
        match experts {
            ExpertOutput::Staged(rows) => {
                self.check_pushed(&rows, slot.get())?;
                let push = Push { rows: rows.address(), tokens, output: None };
                self.launch_push(stream, &mut slot, "anabranch_ep_combine_push_send", push)?;
                Ok(CombineSent { slot, tokens, pushed: true })
            }
            ExpertOutput::InWindow if !self.plan.config().combine_source.pulls() => {
                Err(self.wrong_source("the combine window"))
            }
            ExpertOutput::InWindow => {
                let geometry = Geometry { blocks: 1, ..self.plan.combine_geometry(tokens, &self.limits) };
                slot.order_behind(stream)?;
                let args = self.combine_args(slot.get(), tokens, None, geometry.segments);
                let kernel = self.combine.kernel("anabranch_ep_combine_send")?;
                let Geometry { blocks, block_threads, local_bytes, .. } = geometry;
                // SAFETY: as for combine; nothing is written to an output.
                unsafe { kernel.launch(blocks, block_threads, local_bytes, stream, &args)? };
                self.used(&mut slot, stream, &calls::COMBINE_SEND)?;
                Ok(CombineSent { slot, tokens, pushed: false })
            }
        }
    }

    /// The second half of a combine: waits for the peers and sums. The stream may be another than the first half's; it is put
    /// behind that. The slot is free for the next dispatch, in stream order.
    ///
    /// `output` is as for [`Self::combine`].
    ///
    /// # Errors
    /// As [`Self::combine`].
    pub fn combine_recv(
        &self,
        stream: &Stream,
        sent: CombineSent,
        output: impl Into<CombineOutput>,
    ) -> Result<()> {
        let output = output.into();
        self.check_output(sent.tokens, &output)?;
        let _launching = self.world.launching(stream)?;
        let CombineSent { mut slot, tokens, pushed } = sent;
        self.check_slot(&slot)?;
        if pushed {
            let push = Push { rows: DeviceAddress::NULL, tokens, output: Some(output) };
            self.launch_push(stream, &mut slot, "anabranch_ep_combine_push_recv", push)?;
            slot.give_back();
            return Ok(());
        }
        slot.order_behind(stream)?;
        if let Some(nodes) = &self.nodes {
            self.sum_across(nodes, stream, slot.get(), tokens, &output)?;
            self.used(&mut slot, stream, &calls::COMBINE_RECV)?;
            slot.give_back();
            return Ok(());
        }
        if let Some(engine) = &self.engine {
            self.sum_by_engine(engine, stream, slot.get(), tokens, &output)?;
            self.used(&mut slot, stream, &calls::COMBINE_RECV)?;
            slot.give_back();
            return Ok(());
        }
        let geometry = self.plan.combine_geometry(tokens, &self.limits);
        let args = self.combine_args(slot.get(), tokens, Some(&output), geometry.segments);
        let kernel = self.combine.kernel("anabranch_ep_combine_recv")?;
        // SAFETY: as for combine.
        unsafe {
            kernel.launch(geometry.blocks, geometry.block_threads, geometry.local_bytes, stream, &args)?;
        }
        self.used(&mut slot, stream, &calls::COMBINE_RECV)?;
        slot.give_back();
        Ok(())
    }

    pub(super) fn check_slot(&self, slot: &SlotTicket) -> Result<()> {
        if slot.belongs_to(&self.pool) { Ok(()) } else { Err(Error::ForeignHandle) }
    }
}
