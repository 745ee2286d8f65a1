//! Weights that are sent after a dispatch.

use anabranch_hip::Stream;

use super::{Dispatched, ExpertParallel};
use crate::error::{Error, Result};
use crate::tensor::DeviceSlice;

impl ExpertParallel {
    /// Sends weights of this rank's tokens to the ranks that received them, and waits for those of all ranks. After it, in stream order,
    /// [`Dispatched::late_weights`] has the weights of the received rows, which [`ExpertMajor::contract`](crate::ExpertMajor::contract) uses
    /// in place of the dispatched ones. Collective: every member sends weights of the same dispatch, once, before its combine. It launches
    /// one kernel on the stream, which must be ordered after the dispatch, and does not block the host.
    ///
    /// `weights` is `[tokens][top_k]` f32, 4-byte aligned, and may be overwritten after the kernel, in stream order.
    ///
    /// # Errors
    /// Before anything is launched: [`Error::ForeignHandle`]; [`Error::Argument`] in a plan without
    /// [`EpConfig::late_weights`](crate::EpConfig::late_weights); [`Error::CallOrder`] for a second call; [`Error::Shape`];
    /// [`Error::Address`]; an earlier fault of the world. After an error of the launch the dispatch can only be released.
    pub fn send_weights(
        &self,
        stream: &Stream,
        dispatched: &mut Dispatched,
        weights: DeviceSlice,
    ) -> Result<()> {
        let (context, tokens) = (&self.context, dispatched.tokens);
        let top_k = context.plan.config().top_k;
        let _call = context.record("send_weights", top_k * 4, tokens as usize);
        context.check_slot(&dispatched.slot)?;
        if !dispatched.late_weights().is_null() {
            let problem = "the weights of this dispatch were sent already".to_owned();
            return Err(Error::CallOrder { call: "send_weights", problem });
        }
        weights.check("the weights", tokens as usize * top_k as usize * 4, 4, || {
            format!("[{tokens} tokens][{top_k} top_k] f32")
        })?;
        let Some((near, kernel)) = self.route.near().and_then(|near| Some((near, near.late_weights()?)))
        else {
            let planned = "late_weights = false; plan it with late_weights, or give weights to the dispatch";
            return Err(Error::argument("the weights", "given after the dispatch", planned));
        };
        let mut on = context.on(stream, &mut dispatched.slot)?;
        // Also where the launch fails: the kernel may be in flight.
        dispatched.has_late_weights = true;
        near.send_weights(&mut on, kernel, tokens, weights)
    }
}
