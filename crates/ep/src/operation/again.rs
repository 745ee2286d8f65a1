//! Dispatch with a kept routing: checks and launch.

use anabranch_hip::Stream;

use super::{Dispatched, ExpertParallel, Routing};
use crate::args::{DispatchAgainArgs, DispatchArgs};
use crate::data_type::DataType;
use crate::error::{Error, Result};
use crate::tensor::{DeviceSlice, Tokens};

/// What one rank dispatches with a kept routing: as many tokens as it dispatched when the routing was kept, in that order.
#[derive(Clone, Copy, Debug)]
pub struct ReplayedTokens {
    /// Type of the rows.
    pub data_type: DataType,
    /// `[tokens][hidden]`, 16-byte aligned.
    pub rows: DeviceSlice,
    /// `[tokens][top_k]` f32, 4-byte aligned; `None` for the weights that were kept.
    pub weights: Option<DeviceSlice>,
    /// `[tokens][scale_bytes]`, 4-byte aligned; where the plan has them.
    pub scales: Option<DeviceSlice>,
}

impl ExpertParallel {
    /// Sends tokens to the ranks and rows to which those went whose routing was kept. Collective, like
    /// [`Self::dispatch`]: every member calls it with what it kept of the same dispatch. Rows, scales and weights are the new ones,
    /// and really move; ids, and the copies that are dropped for lack of room, are as they were. One kernel, in the
    /// compact mode, too: nothing is routed or counted. Its handle is a dispatch's: combine it, or release it, or keep its routing.
    ///
    /// May be captured into a graph; the routing must then live, and what it keeps be there, whenever the graph is launched.
    ///
    /// # Errors
    /// Before anything moves: [`Error::ForeignHandle`] for a routing of another plan, [`Error::NothingKept`], and those of
    /// [`Self::dispatch`]. A rank that dispatches with another routing than a peer, or routes anew, is a fault of the world.
    pub fn dispatch_with(
        &self,
        stream: &Stream,
        routing: &Routing,
        tokens: &ReplayedTokens,
    ) -> Result<Dispatched> {
        let _launching = self.world.launching(stream)?;
        if !routing.belongs_to(self) {
            return Err(Error::ForeignHandle);
        }
        let count = routing.tokens().ok_or(Error::NothingKept)?;
        let kept = routing.view();
        // SAFETY: the kernel reads the ids in the routing's own memory, which has those of every token.
        let ids = unsafe { DeviceSlice::from_raw(kept.ids.address(), count as usize * self.top_k() * 4) };
        let tokens = Tokens {
            count: count as usize,
            data_type: tokens.data_type,
            rows: tokens.rows,
            ids,
            weights: tokens.weights,
            scales: tokens.scales,
        };
        self.check_tokens(&tokens)?;
        let geometry = self.plan.dispatch_geometry(count, &self.limits)?;
        let mut slot = self.pool.take(stream)?;
        routing.order_behind_keep(stream)?;
        let mut dispatch: DispatchArgs = self.dispatch_args(slot.get(), Some(&tokens), count, &geometry);
        if tokens.weights.is_none() {
            dispatch.weights = kept.weights;
        }
        let args = DispatchAgainArgs { dispatch, kept };
        let kernel = self.again.kernel("anabranch_ep_dispatch_again")?;
        // SAFETY: as for dispatch; the routing's memory lives until this kernel is over, which its drop waits for.
        unsafe {
            kernel.launch(geometry.blocks, geometry.block_threads, geometry.local_bytes, stream, &args)?;
        }
        let read = routing.read_on(stream);
        self.deliver(stream, &mut slot)?;
        read?;
        Ok(Dispatched { slot, tokens: count })
    }

    fn top_k(&self) -> usize {
        self.plan.config().top_k as usize
    }
}
