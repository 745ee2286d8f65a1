//! Dispatch and combine as send and recv, with other work of the stream between.
//!
//! The send does not wait for peers; the recv does. Work that the caller puts on the stream between them runs while
//! rows are on their way. Flags and epochs are the same as for whole operations, so one rank may split an operation that another does
//! not; but a dispatch of a layout by expert ([`ExpertMajor::dispatch`](crate::ExpertMajor::dispatch)) is never split, and all ranks call
//! it. As many operations may be in flight as the plan has slots; with more than one, all ranks begin and end operations (the recv, too)
//! in the same order, which decides the slot of each. Each call returns the handle that the next one takes, so another order does not
//! compile.

use anabranch_hip::Stream;

use super::{Dispatched, ExpertParallel};
use crate::error::Result;
use crate::route::{Rest, Steps as _};
use crate::slot::SlotTicket;
use crate::tensor::{CombineOutput, ExpertOutput, Tokens};

/// A dispatch that has been sent. Holds the slot; pass it to [`ExpertParallel::dispatch_recv`] before a combine.
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

/// A combine that has been sent. Holds the slot; pass it to [`ExpertParallel::combine_recv`].
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
    rest: Rest,
}

impl DispatchSent {
    /// Tokens that this rank dispatched; with a device token count, its upper bound.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }
}

impl CombineSent {
    /// Tokens of the combine's output; with a device token count, its upper bound.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }
}

impl ExpertParallel {
    /// The send of a [dispatch](Self::dispatch): sends every token and the counts. In the slotted mode its kernel waits for
    /// no peer; in the compact mode the kernel before it waits for the peers' counts. Collective with
    /// [`Self::dispatch_recv`]; the tokens may be overwritten after it, in stream order.
    ///
    /// ```
    /// # use anabranch_ep::{DeviceSlice, ExpertOutput, ExpertParallel, Result, Tokens};
    /// # fn layer(
    /// #     ep: &ExpertParallel, stream: &anabranch_hip::Stream, tokens: &Tokens, output: DeviceSlice,
    /// #     other_work: impl Fn(), experts: impl Fn(&anabranch_ep::Dispatched),
    /// # ) -> Result<()> {
    /// let sent = ep.dispatch_send(stream, tokens)?;
    /// other_work(); // on the same stream, while rows are on their way
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
        let _call = self.context.record("dispatch_send", self.context.plan.token_bytes(), tokens.count);
        let (slot, _) = self.send(stream, tokens, false)?;
        Ok(DispatchSent { slot, tokens: tokens.count as u32 })
    }

    /// The recv of a dispatch: waits for the rows of all peers and writes counts and offsets. The stream may differ from the send's; it
    /// then waits for the send.
    ///
    /// # Errors
    /// [`Error::ForeignHandle`](crate::Error::ForeignHandle), or an earlier fault of the world; the slot is then lost.
    pub fn dispatch_recv(&self, stream: &Stream, sent: DispatchSent) -> Result<Dispatched> {
        let DispatchSent { mut slot, tokens } = sent;
        let _call = self.context.record("dispatch_recv", self.context.plan.token_bytes(), tokens as usize);
        self.context.check_slot(&slot)?;
        self.route.recv(&mut self.context.on(stream, &mut slot)?, tokens)?;
        Ok(Dispatched::new(slot, tokens))
    }

    /// The send of a [combine](Self::combine): flags to the peers that the experts' rows are in the window, or pushes the rows of another
    /// buffer to their origins. It waits for no peer. Collective with [`Self::combine_recv`]. The window must not be written after it;
    /// another buffer may, in stream order. With [`Payload::CopyEngine`](crate::Payload::CopyEngine) the buffer may be written only after
    /// the recv, in stream order.
    ///
    /// # Errors
    /// As [`Self::combine`].
    pub fn combine_send(
        &self,
        stream: &Stream,
        experts: ExpertOutput,
        dispatched: Dispatched,
    ) -> Result<CombineSent> {
        let Dispatched { mut slot, tokens, .. } = dispatched;
        let _call =
            self.context.record("combine_send", self.context.plan.combine_row_bytes(), tokens as usize);
        self.context.check_slot(&slot)?;
        let rows = self.context.expert_rows(experts, slot.get())?;
        let rest = self.route.offer(&mut self.context.on(stream, &mut slot)?, rows, tokens, None)?;
        Ok(CombineSent { slot, tokens, rest })
    }

    /// The recv of a combine: waits for the peers and sums. The stream may differ from the send's; it then waits for the send. The slot is
    /// free for the next dispatch, in stream order.
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
        let (output, CombineSent { mut slot, tokens, rest }) = (output.into(), sent);
        let _call =
            self.context.record("combine_recv", self.context.plan.combine_row_bytes(), tokens as usize);
        self.check_output(tokens, &output)?;
        self.context.check_slot(&slot)?;
        self.route.sum(&mut self.context.on(stream, &mut slot)?, tokens, &output, rest)?;
        slot.give_back();
        Ok(())
    }
}
