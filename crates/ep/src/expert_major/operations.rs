//! Dispatch to the experts' rows and combine from them, each in one kernel where the plan has it.

use std::cell::Cell;

use anabranch_hip::Stream;

use super::ExpertMajor;
use crate::error::{Error, Result};
use crate::run::{Dispatched, ExpertParallel};
use crate::tensor::{CombineOutput, DeviceSlice, Tokens};

impl ExpertMajor {
    /// Dispatches and expands: [`ExpertParallel::dispatch`], then [`Self::expand`], with the same results. One kernel does both where kernels
    /// move the rows of the plan ([`Self::is_one_kernel`]), after the counts of a compact dispatch; else each has its own. Collective, as
    /// the dispatch; other members may dispatch and expand in two steps. `ep` is the plan that the layout was made for.
    ///
    /// One kernel is the faster way for few tokens; `docs/performance.md` has both ways on H200, which differ by at most 3 % from 512 on.
    ///
    /// After a fault the counts of experts are zero, or some of their rows are those of an earlier dispatch.
    ///
    /// # Errors
    /// [`Error::ForeignHandle`] for another plan; as [`ExpertParallel::dispatch`].
    pub fn dispatch(&mut self, ep: &ExpertParallel, stream: &Stream, tokens: &Tokens) -> Result<Dispatched> {
        if !self.counter.belongs_to(ep) {
            return Err(Error::ForeignHandle);
        }
        let Some(kernels) = &self.kernels else {
            let dispatched = ep.dispatch(stream, tokens)?;
            self.expand(stream, &dispatched)?;
            return Ok(dispatched);
        };
        // The buffers are written from the launch on; what fails before it leaves them to the dispatch that they hold.
        let is_reached = Cell::new(false);
        let dispatched = self.counter.last().launch(stream, || {
            ep.dispatch_to_experts(stream, tokens, kernels, |slot| {
                is_reached.set(true);
                self.expand_args(slot)
            })
        });
        if is_reached.get() {
            self.holds = dispatched.as_ref().ok().map(|dispatched| dispatched.slot.taken());
        }
        dispatched
    }

    /// Contracts into the combine window and combines: [`Self::contract`], then [`ExpertParallel::combine`], with the same results. One kernel
    /// does both where [`Self::is_one_kernel`]; else each has its own. Collective, as the combine; other members may contract
    /// and combine in two steps, which were faster on H200 with every number of tokens (`docs/performance.md`).
    ///
    /// # Errors
    /// As [`Self::contract`] and [`ExpertParallel::combine`].
    pub fn combine(
        &self,
        ep: &ExpertParallel,
        stream: &Stream,
        experts: DeviceSlice,
        dispatched: Dispatched,
        output: impl Into<CombineOutput>,
    ) -> Result<()> {
        if !self.counter.belongs_to(ep) {
            return Err(Error::ForeignHandle);
        }
        let Some(kernels) = &self.kernels else {
            let rows = self.contract(stream, &dispatched, experts)?;
            return ep.combine(stream, rows, dispatched, output);
        };
        self.check_window()?;
        let args = self.contract_args("combine", &dispatched, experts, dispatched.combine_rows())?;
        let output = output.into();
        self.counter
            .last()
            .launch(stream, || ep.combine_from_experts(stream, dispatched, kernels, args, &output))
    }

    /// Whether [`Self::dispatch`] and [`Self::combine`] are one kernel each: where kernels move the rows, no rank may be masked, and a block's
    /// local memory holds the tables of both operations.
    pub fn is_one_kernel(&self) -> bool {
        self.kernels.is_some()
    }

    /// Blocks and threads of a block of [`Self::dispatch`] and [`Self::combine`] with `tokens`, where they are one kernel each.
    pub fn operation_shapes(&self, tokens: u32) -> Option<[(u32, u32); 2]> {
        self.kernels.as_ref().map(|kernels| kernels.shapes(self.plan.dispatch_plan(), tokens))
    }
}
