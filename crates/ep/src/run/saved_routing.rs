//! Saved routings, with which later dispatches send rows to the same places without routing.

use std::sync::Mutex;
use std::time::Duration;

use anabranch_hip::{DeviceAddress, DeviceBuffer, Stream};
use anabranch_hip_jit::bytemuck::{self, Zeroable as _};
use anabranch_shmem::LaunchEvent;

use super::{Dispatched, ExpertParallel};
use crate::args::{RoutingHead, SavedRouting};
use crate::error::{Error, Result};
use crate::lock::lock;
use crate::options::DispatchCast;
use crate::plan::{Route, RoutingLayout};
use crate::route::Near;
use crate::slot::{PoolMark, wait_until_over};
use crate::tensor::DeviceSlice;

/// The routing of a dispatch, in device memory of its own or of the caller ([`Plan::routing_bytes`](crate::Plan::routing_bytes)), so that
/// the dispatch can be combined: the destination rows of each token, the rows sent to and received from each rank, and the ids and weights of the
/// tokens. [`ExpertParallel::dispatch_with`] sends other rows with it, any number of times, on any free slot: the gradients of a
/// backward pass, or a replay.
///
/// All ranks save the same dispatch and use what they saved of it. Its drop waits for the dispatches that read it; the caller
/// orders replays of captured ones.
#[derive(Debug)]
pub struct Routing {
    /// `None` for memory of the caller.
    memory: Option<DeviceBuffer>,
    view: SavedRouting,
    bytes: u64,
    pool: PoolMark,
    /// The longest wait of the drop for kernels that read it.
    patience: Duration,
    /// Tokens of the saved dispatch; `None` while it is empty.
    tokens: Option<u32>,
    /// After the last kernel that wrote it and was not captured.
    saved: Option<LaunchEvent>,
    /// After the kernels that have read it since.
    read: Mutex<Vec<LaunchEvent>>,
}

impl Routing {
    /// This rank's number of tokens in the saved dispatch; `None` while the routing is empty.
    pub fn tokens(&self) -> Option<u32> {
        self.tokens
    }

    /// Device memory of the routing, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn belongs_to(&self, ep: &ExpertParallel) -> bool {
        self.pool.is_of(&ep.context.pool)
    }

    pub(super) fn view(&self) -> SavedRouting {
        self.view
    }

    /// Makes the stream wait for the kernel that wrote it. The caller orders captured work with eager work.
    pub(super) fn order_after_save(&self, stream: &Stream, is_captured: bool) -> Result<()> {
        let saved = self.saved.as_ref().filter(|_| !is_captured);
        Ok(saved.map_or(Ok(()), |saved| stream.wait_event(saved))?)
    }

    /// Notes a kernel that reads it, by the event after it.
    pub(super) fn read_until(&self, event: LaunchEvent, is_captured: bool) {
        if !is_captured {
            let mut read = lock(&self.read);
            read.retain(|event| !event.is_over());
            read.push(event);
        }
    }
}

impl Drop for Routing {
    fn drop(&mut self) {
        if self.memory.is_none() {
            return;
        }
        // Kernels in flight use the memory. They have a deadline, and so has this wait.
        let waiting: Vec<_> = lock(&self.read).drain(..).chain(self.saved.take()).collect();
        if !wait_until_over(&waiting, self.patience) {
            tracing::warn!(
                "a dispatch with a routing is still queued after other work while the routing is dropped"
            );
        }
    }
}

impl ExpertParallel {
    /// Allocates an empty routing, for programs that save routings in their hot path ([`Self::save_routing`]) or in
    /// graphs. Not collective.
    ///
    /// # Errors
    /// [`Error::NotPlanned`] for a plan with casts, device token counts, masks, several nodes or copy engines; the runtime's error when the
    /// device is out of memory.
    pub fn allocate_routing(&self) -> Result<Routing> {
        self.saving_route()?;
        let layout = RoutingLayout::of(&self.context.plan);
        let mut memory = self.context.world.device().allocate(layout.bytes as usize)?;
        memory.fill(0)?;
        let nothing = RoutingHead { tokens: u32::MAX, ..RoutingHead::zeroed() };
        memory.copy_from_host(layout.head as usize, bytemuck::bytes_of(&nothing))?;
        let address = memory.address();
        Ok(self.routing_at(address, Some(memory), None))
    }

    /// A routing in the caller's memory: for frameworks, which own what their calls write. It needs [`Plan::routing_bytes`] at a multiple of
    /// 16 bytes. With `tokens`, the memory has what [`Self::save_routing`] of a dispatch with so many tokens of this rank wrote, there or
    /// elsewhere; without, the routing is empty. Its drop does not wait. Not collective.
    ///
    /// # Errors
    /// [`Error::NotPlanned`] as [`Self::allocate_routing`]; [`Error::Shape`] and [`Error::Address`] for the memory.
    ///
    /// # Safety
    /// With `tokens`, the memory has a routing that this plan saved on this rank, for as many tokens, in the order of the streams that use
    /// it. Without, no dispatch with the routing runs before work that saves one into it. The memory stays valid, and nothing else writes it,
    /// until all work with the routing is over.
    ///
    /// [`Plan::routing_bytes`]: crate::Plan::routing_bytes
    pub unsafe fn routing_in(&self, memory: DeviceSlice, tokens: Option<u32>) -> Result<Routing> {
        self.saving_route()?;
        let bytes = self.context.plan.routing_bytes();
        memory.check("the routing", bytes as usize, 16, || format!("[{bytes}] u8"))?;
        Ok(self.routing_at(memory.address(), None, tokens))
    }

    fn routing_at(
        &self,
        address: DeviceAddress,
        memory: Option<DeviceBuffer>,
        tokens: Option<u32>,
    ) -> Routing {
        Routing {
            memory,
            view: SavedRouting::new(&self.context.plan, address),
            bytes: self.context.plan.routing_bytes(),
            pool: self.pool_mark(),
            patience: self.patience(),
            tokens,
            saved: None,
            read: Mutex::new(Vec::new()),
        }
    }

    /// The route, where it saves routings.
    pub(super) fn saving_route(&self) -> Result<&Near> {
        let (config, route) = (self.context.plan.config(), self.context.plan.route());
        let why = match (self.route.near(), route) {
            _ if config.dispatch_cast != DispatchCast::None => {
                "its dispatch casts rows, and one with a saved routing moves rows as they are"
            }
            _ if config.device_token_count => {
                "its number of tokens may be in device memory, and a saved routing has the number that the host gave"
            }
            _ if route.masks() => {
                "it masks ranks, and a saved routing names ranks that may be masked by then"
            }
            (_, Route::Nodes(_)) => {
                "its ranks are on several nodes, and a dispatch with a saved routing stores rows at their places"
            }
            (None, _) => {
                "copy engines move its rows, and a dispatch with a saved routing moves them by kernels"
            }
            (Some(near), _) => return Ok(near),
        };
        Err(Error::NotPlanned { what: "saved routing", why })
    }

    /// Allocates a routing and saves the dispatch in it: [`Self::allocate_routing`], then [`Self::save_routing`]. Not collective.
    ///
    /// # Errors
    /// The errors of both; [`Error::CallOrder`] on a stream that is being captured, where nothing can be allocated.
    pub fn routing(&self, stream: &Stream, dispatched: &mut Dispatched) -> Result<Routing> {
        if stream.is_capturing()? {
            let problem = "it allocates, which a capture does not allow; call allocate_routing before, and save_routing within";
            return Err(Error::CallOrder { call: "routing", problem: problem.to_owned() });
        }
        let mut routing = self.allocate_routing()?;
        self.save_routing(stream, dispatched, &mut routing)?;
        Ok(routing)
    }

    /// Saves the routing of a dispatch and replaces what `routing` held. It launches one kernel on the stream, which waits for no
    /// peer, and does not block the host; the dispatch may be combined or released right after, on any stream. The saved ids and weights
    /// are those that were sent, even if the caller has overwritten its buffers. Not collective, but a dispatch with the routing is:
    /// all ranks save the same dispatch. May be captured; each replay then saves the routing of its own dispatch.
    ///
    /// Eager calls wait for the eager calls that they depend on. Within a capture the caller puts the calls that save into a routing and
    /// the dispatches with it on one stream, or orders their streams. The caller also orders graphs with eager calls.
    ///
    /// # Errors
    /// [`Error::ForeignHandle`] for a handle or a routing of another plan; [`Error::NotPlanned`]; an earlier fault of the world.
    pub fn save_routing(
        &self,
        stream: &Stream,
        dispatched: &mut Dispatched,
        routing: &mut Routing,
    ) -> Result<()> {
        let near = self.saving_route()?;
        self.context.check_slot(&dispatched.slot)?;
        if !routing.belongs_to(self) {
            return Err(Error::ForeignHandle);
        }
        let Dispatched { slot, tokens, .. } = dispatched;
        let mut on = self.context.on(stream, slot)?;
        let mut launching = self.context.world.launching(stream)?;
        on.order_after()?;
        routing.order_after_save(stream, on.is_captured)?;
        for read in lock(&routing.read).iter().filter(|_| !on.is_captured) {
            stream.wait_event(read)?;
        }
        near.save(&mut on, *tokens, routing.view())?;
        let is_captured = on.is_captured;
        let used = on.used_on(stream, &mut launching);
        routing.tokens = Some(*tokens);
        if !is_captured {
            routing.saved = Some(self.context.world.event_after(stream)?);
        }
        used
    }
}
