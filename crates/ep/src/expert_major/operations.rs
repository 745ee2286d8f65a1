//! Dispatch to the experts' rows, in one kernel where the plan has it, and combine from them.

use std::cell::Cell;

use anabranch_hip::Stream;

use super::ExpertMajor;
use crate::error::{Error, Result};
use crate::run::{Dispatched, ExpertKernel, ExpertParallel};
use crate::tensor::{CombineOutput, ExpertOutput, LayoutOutput, Tokens};

impl ExpertMajor {
    /// Dispatches and expands: [`ExpertParallel::dispatch`], then [`Self::expand`], with the same results. One kernel does both where kernels
    /// move the rows of the plan ([`Self::is_one_kernel`]), after the counts of a compact dispatch; else each has its own. Collective: all
    /// members call it, or [`ContiguousExperts::dispatch`](super::ContiguousExperts::dispatch); one that calls [`ExpertParallel::dispatch`] is a
    /// fault of the world, since its rows come without what one kernel needs. `ep` is the plan that the layout was made for.
    ///
    /// After a fault the counts of experts are zero, or some of their rows are those of an earlier dispatch.
    ///
    /// # Errors
    /// [`Error::ForeignHandle`] for another plan; as [`ExpertParallel::dispatch`] and [`Self::expand`]. After an error of the expand the slot
    /// of the dispatch is lost.
    pub fn dispatch(&mut self, ep: &ExpertParallel, stream: &Stream, tokens: &Tokens) -> Result<Dispatched> {
        if !self.counter.reader().belongs_to(ep) {
            return Err(Error::ForeignHandle);
        }
        let Some(kernel) = &self.kernel else {
            let dispatched = ep.dispatch(stream, tokens)?;
            self.expand(stream, &dispatched)?;
            return Ok(dispatched);
        };
        if !kernel.is_whole() {
            let dispatched = self.counter.reader().in_order(stream, || {
                ep.dispatch_to_experts(stream, tokens, kernel, |slot| self.expand_args(slot))
            })?;
            self.expand(stream, &dispatched)?;
            return Ok(dispatched);
        }
        // The buffers are written from the launch on; what fails before it leaves them to the dispatch that they hold.
        let is_reached = Cell::new(false);
        let dispatched = self.counter.reader().in_order(stream, || {
            ep.dispatch_to_experts(stream, tokens, kernel, |slot| {
                is_reached.set(true);
                self.expand_args(slot)
            })
        });
        if is_reached.get() {
            self.holds = dispatched.as_ref().ok().map(|dispatched| dispatched.slot.taken());
        }
        dispatched
    }

    /// Contracts into the combine window and combines: [`Self::contract`], then [`ExpertParallel::combine`], with a kernel for each. Collective,
    /// as the combine. `ep` is the plan that the layout was made for.
    ///
    /// # Errors
    /// As [`Self::check_combine`], before anything is launched; an earlier fault of the world. The handle is consumed in any case, and after
    /// an error its slot is lost.
    pub fn combine(
        &self,
        ep: &ExpertParallel,
        stream: &Stream,
        experts: impl Into<LayoutOutput>,
        dispatched: Dispatched,
        output: impl Into<CombineOutput>,
    ) -> Result<()> {
        let (experts, output) = (experts.into(), output.into());
        self.check_combine(ep, experts, &dispatched, &output)?;
        self.launch_contract(stream, &dispatched, experts, dispatched.combine_rows())?;
        ep.combine(stream, ExpertOutput::InWindow, dispatched, output)
    }

    /// The checks of [`Self::combine`] on its arguments, for callers that keep their handle where they fail. Not collective.
    ///
    /// # Errors
    /// [`Error::ForeignHandle`] for another plan; as [`Self::contract`] and [`ExpertParallel::check_combine`].
    pub fn check_combine(
        &self,
        ep: &ExpertParallel,
        experts: impl Into<LayoutOutput>,
        dispatched: &Dispatched,
        output: &CombineOutput,
    ) -> Result<()> {
        if !self.counter.reader().belongs_to(ep) {
            return Err(Error::ForeignHandle);
        }
        self.check_contract("combine", dispatched, experts.into())?;
        ep.check_combine(ExpertOutput::InWindow, dispatched, Some(output))
    }

    /// Whether [`Self::dispatch`] is one kernel: where kernels move the rows, no rank may be masked, and a block's local memory and the plan's
    /// share of the device hold it. Members may differ.
    pub fn is_one_kernel(&self) -> bool {
        self.kernel.as_ref().is_some_and(ExpertKernel::is_whole)
    }

    /// Blocks and threads of a block of [`Self::dispatch`] with `tokens`, where it is one kernel.
    pub fn dispatch_shape(&self, tokens: u32) -> Option<(u32, u32)> {
        let geometry = self.kernel.as_ref()?.geometry(self.plan.dispatch_plan(), tokens)?;
        Some((geometry.blocks, geometry.block_threads))
    }
}
