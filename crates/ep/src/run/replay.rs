//! Dispatch with a saved routing: checks and launch.

use anabranch_hip::Stream;

use super::{Dispatched, ExpertParallel, Routing};
use crate::error::{Error, Result};
use crate::tensor::{DeviceSlice, Tokens};
use anabranch_elements::data_type::DataType;

/// The tokens that one rank dispatches with a saved routing: as many as in the saved dispatch, in that order.
#[derive(Clone, Copy, Debug)]
pub struct ReplayedTokens {
    /// Type of the rows.
    pub data_type: DataType,
    /// `[tokens][hidden]`, 16-byte aligned.
    pub rows: DeviceSlice,
    /// `[tokens][top_k]` f32, 4-byte aligned; `None` sends the saved weights.
    pub weights: Option<DeviceSlice>,
    /// `[tokens][scale_bytes]`, 4-byte aligned; given exactly where the plan has scales.
    pub scales: Option<DeviceSlice>,
}

impl ExpertParallel {
    /// Sends tokens to the ranks and rows of a saved routing. Collective, like [`Self::dispatch`]: every member calls it with the
    /// routing that it saved of the same dispatch. Rows, scales and weights are new; ids and dropped copies are those of the saved
    /// dispatch. One kernel, also in the compact mode: nothing is routed or counted. The handle is a dispatch's: combine it, release
    /// it, or save its routing.
    ///
    /// May be captured into a graph; the routing must then live, with the same contents, whenever the graph is launched.
    ///
    /// # Errors
    /// Before anything is launched: [`Error::ForeignHandle`] for a routing of another plan, [`Error::CallOrder`] for an empty routing, and
    /// the errors of [`Self::dispatch`]. If a peer uses another routing, or dispatches without one, the world has a fault.
    pub fn dispatch_with(
        &self,
        stream: &Stream,
        routing: &Routing,
        tokens: &ReplayedTokens,
    ) -> Result<Dispatched> {
        let near = self.saving_route()?;
        if !routing.belongs_to(self) {
            return Err(Error::ForeignHandle);
        }
        let count = routing.tokens().ok_or_else(|| {
            let problem = "the routing is empty; save that of a dispatch first".to_owned();
            Error::CallOrder { call: "dispatch_with", problem }
        })?;
        let (saved, top_k) = (routing.view(), self.context.plan.config().top_k as usize);
        let bytes = self.context.plan.token_bytes();
        let _call = self.context.record("dispatch_with", bytes, count as usize);
        // SAFETY: the kernel reads the ids in the routing's own memory, which has the ids of every token.
        let ids = unsafe { DeviceSlice::from_raw(saved.ids.address(), count as usize * top_k * 4) };
        let tokens = Tokens {
            count: count as usize,
            data_type: tokens.data_type,
            rows: tokens.rows,
            ids,
            weights: tokens.weights,
            scales: tokens.scales,
            device_count: None,
        };
        self.check_tokens(&tokens)?;
        let mut slot = self.context.pool.take()?;
        let on = self.context.on(stream, &mut slot)?;
        let mut launching = self.context.world.launching(stream)?;
        on.order_after()?;
        let is_captured = on.is_captured;
        routing.order_after_save(stream, is_captured)?;
        // The routing's memory outlives this kernel: its drop waits for it.
        near.replay(on, &tokens, saved, &mut launching, |event| routing.read_until(event, is_captured))?;
        Ok(Dispatched::new(slot, count))
    }
}
