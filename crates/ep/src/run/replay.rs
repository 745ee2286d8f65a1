//! Dispatch with a saved routing: checks and launch.

use anabranch_hip::Stream;

use super::{Dispatched, ExpertParallel, Routing};
use crate::error::{Error, Result};
use crate::tensor::{DeviceSlice, Tokens};
use anabranch_elements::data_type::DataType;

/// What one rank dispatches with a saved routing: as many tokens as it dispatched when the routing was saved, in that order.
#[derive(Clone, Copy, Debug)]
pub struct ReplayedTokens {
    /// Type of the rows.
    pub data_type: DataType,
    /// `[tokens][hidden]`, 16-byte aligned.
    pub rows: DeviceSlice,
    /// `[tokens][top_k]` f32, 4-byte aligned; `None` for the weights that were saved.
    pub weights: Option<DeviceSlice>,
    /// `[tokens][scale_bytes]`, 4-byte aligned; where the plan has them.
    pub scales: Option<DeviceSlice>,
}

impl ExpertParallel {
    /// Sends tokens to the ranks and rows to which those went whose routing was saved. Collective, like
    /// [`Self::dispatch`]: every member calls it with what it saved of the same dispatch. Rows, scales and weights are the new ones,
    /// and really move; ids, and the copies that are dropped for lack of room, are as they were. One kernel, in the
    /// compact mode, too: nothing is routed or counted. Its handle is a dispatch's: combine it, or release it, or save its routing.
    ///
    /// May be captured into a graph; the routing must then live, and what it keeps be there, whenever the graph is launched.
    ///
    /// # Errors
    /// Before anything moves: [`Error::ForeignHandle`] for a routing of another plan, [`Error::CallOrder`] for one in which nothing was saved, and those of
    /// [`Self::dispatch`]. A rank that dispatches with another routing than a peer, or routes anew, is a fault of the world.
    pub fn dispatch_with(
        &self,
        stream: &Stream,
        routing: &Routing,
        tokens: &ReplayedTokens,
    ) -> Result<Dispatched> {
        let near = self.saving_route()?;
        let _launching = self.context.world.launching(stream)?;
        if !routing.belongs_to(self) {
            return Err(Error::ForeignHandle);
        }
        let count = routing.tokens().ok_or_else(|| {
            let problem = "the routing is empty; save that of a dispatch first".to_owned();
            Error::CallOrder { call: "dispatch_with", problem }
        })?;
        let (saved, top_k) = (routing.view(), self.context.plan.config().top_k as usize);
        // SAFETY: the kernel reads the ids in the routing's own memory, which has those of every token.
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
        let mut slot = self.context.pool.take(stream)?;
        routing.order_after_save(stream)?;
        // The routing's memory lives until this kernel is over, which its drop waits for.
        near.replay(&self.context, stream, &mut slot, &tokens, saved, || routing.read_on(stream))?;
        Ok(Dispatched { slot, tokens: count })
    }
}
