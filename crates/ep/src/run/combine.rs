//! Combine: checks, and the route.

use anabranch_hip::Stream;

use super::{Dispatched, ExpertParallel};
use crate::error::{Error, Result};
use crate::route::{Rest, Steps as _};
use crate::tensor::{CombineOutput, ExpertOutput};

impl ExpertParallel {
    /// Sums, for each token of the dispatch, the experts' rows of all ranks it went to, in group-rank order; zeros for a token without any
    /// copy. Collective: every member combines the same dispatch. It launches one kernel on the stream, which must be ordered after the
    /// experts' work, and does not block the host. The slot is free for the next dispatch, in stream order.
    ///
    /// `output` is `[tokens][hidden]` of the combine type, 16-byte aligned; a [`CombineOutput`] with a buffer for weights where the plan
    /// combines them.
    ///
    /// # Errors
    /// Before anything is launched: [`Error::ForeignHandle`], [`Error::Argument`], [`Error::Shape`], [`Error::Address`], or an earlier fault of
    /// the world. The handle is consumed in any case, and after an error its slot is lost. If one rank combines from the window and
    /// another from a buffer, the world has a fault.
    pub fn combine(
        &self,
        stream: &Stream,
        experts: ExpertOutput,
        dispatched: Dispatched,
        output: impl Into<CombineOutput>,
    ) -> Result<()> {
        let (output, Dispatched { mut slot, tokens, .. }) = (output.into(), dispatched);
        let _call = self.context.record("combine", self.context.plan.combine_row_bytes(), tokens as usize);
        self.check_output(tokens, &output)?;
        self.context.check_slot(&slot)?;
        let rows = self.context.expert_rows(experts, slot.get())?;
        let mut on = self.context.on(stream, &mut slot)?;
        let rest = self.route.offer(&mut on, rows, tokens, Some(&output))?;
        if rest != Rest::Nothing {
            self.route.sum(&mut on, tokens, &output, rest)?;
        }
        drop(on);
        slot.give_back();
        Ok(())
    }

    /// Frees the slot of a dispatch without a combine. Collective, like combine: all members release the operation, or all
    /// combine it. If one member releases it and another combines it from the window, the other sums undefined rows.
    ///
    /// # Errors
    /// As [`Self::combine`].
    pub fn release(&self, stream: &Stream, dispatched: Dispatched) -> Result<()> {
        let Dispatched { mut slot, .. } = dispatched;
        self.context.check_slot(&slot)?;
        self.route.release(&mut self.context.on(stream, &mut slot)?)?;
        slot.give_back();
        Ok(())
    }

    /// The checks of [`Self::combine`] on its arguments, or without an output those of [`Self::combine_send`], for callers that keep their
    /// handle where they fail. Not collective.
    ///
    /// # Errors
    /// As [`Self::combine`].
    pub fn check_combine(
        &self,
        experts: ExpertOutput,
        dispatched: &Dispatched,
        output: Option<&CombineOutput>,
    ) -> Result<()> {
        self.context.check_slot(&dispatched.slot)?;
        self.context.expert_rows(experts, dispatched.slot.get())?;
        output.map_or(Ok(()), |output| self.check_output(dispatched.tokens, output))
    }

    /// The check of a combine's output for this many tokens: [`Self::combine_recv`]'s. Not collective.
    ///
    /// # Errors
    /// As [`Self::combine`].
    pub fn check_output(&self, tokens: u32, output: &CombineOutput) -> Result<()> {
        let config = self.context.plan.config();
        if output.weights.is_some() != config.combine_weights {
            let given = if output.weights.is_some() { "given" } else { "missing" };
            let planned = format_args!("combine_weights = {}", config.combine_weights);
            return Err(Error::argument("the output for combined weights", given, planned));
        }
        if let Some(weights) = output.weights {
            weights.check("the combined weights", tokens as usize * config.top_k as usize * 4, 4, || {
                format!("[{tokens} tokens][{} top_k] f32", config.top_k)
            })?;
        }
        let row = self.context.plan.combine_row_bytes() as usize;
        output.rows.check("the combine output", tokens as usize * row, 16, || {
            format!("[{tokens} tokens][{} hidden] {}", config.hidden, config.combine_type)
        })
    }
}
