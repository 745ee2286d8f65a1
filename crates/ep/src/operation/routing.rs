//! A routing that is kept: what later dispatches need to go the same way without routing anew.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anabranch_clock::Moment;
use anabranch_hip::{DeviceBuffer, Event, Stream};
use anabranch_hip_jit::bytemuck::{self, Zeroable as _};

use super::{Dispatched, ExpertParallel, pointer};
use crate::args::{KeepRoutingArgs, KeptRouting, RoutingHead};
use crate::cast::DispatchCast;
use crate::error::{Error, Result};
use crate::plan::RoutingLayout;
use crate::slot::{POLL, PoolMark, lock};

/// Where the copies of a dispatch's tokens went, kept in device memory of its own ([`Plan::routing_bytes`](crate::Plan::routing_bytes)),
/// so that the dispatch's slot is free to be combined: for each token its rows at its destinations, for each rank how many rows
/// went there and came from there, and the ids and weights of the tokens. [`ExpertParallel::dispatch_with`] sends other rows the
/// same way, any number of times, on whatever slot is free: the gradients of a backward pass, or a replay.
///
/// All ranks keep the same dispatch, and dispatch again with what they kept of it. Dropping it waits for the dispatches that read
/// it; replays of captured ones are in the hands of whoever replays them.
#[derive(Debug)]
pub struct Routing {
    memory: DeviceBuffer,
    layout: RoutingLayout,
    pool: PoolMark,
    /// How long to wait for kernels that read it.
    patience: Duration,
    /// Tokens of the dispatch that was kept; none yet.
    tokens: Option<u32>,
    /// Behind the last kernel that wrote it and was not captured.
    kept: Option<Arc<Event>>,
    /// Behind the kernels that have read it since.
    read: Mutex<Vec<Arc<Event>>>,
}

/// An event behind what was put on the stream so far; none behind captured work: graphs do not know the world outside, and
/// whoever captures or launches them keeps the order.
fn event_behind(stream: &Stream) -> Result<Option<Arc<Event>>> {
    if stream.is_capturing()? {
        return Ok(None);
    }
    let event = Arc::new(stream.device().create_event()?);
    stream.record(&event)?;
    Ok(Some(event))
}

/// Puts a stream behind an event, unless it is being captured.
fn order_behind(stream: &Stream, event: &Event) -> Result<()> {
    if stream.is_capturing()? { Ok(()) } else { Ok(stream.wait_event(event)?) }
}

/// An error of the work is the world's to report; the launch is over then too.
fn is_over(event: &Arc<Event>) -> bool {
    event.is_done().unwrap_or(true)
}

impl Routing {
    /// Tokens of this rank's that a dispatch with it sends: those of the dispatch that was kept. `None` before one was kept.
    pub fn tokens(&self) -> Option<u32> {
        self.tokens
    }

    /// Device memory that it takes, in bytes.
    pub fn bytes(&self) -> u64 {
        self.layout.bytes
    }

    pub(super) fn belongs_to(&self, ep: &ExpertParallel) -> bool {
        self.pool.is_of(&ep.pool)
    }

    pub(super) fn view(&self) -> KeptRouting {
        let at = |offset| self.memory.address().offset(offset);
        KeptRouting {
            head: pointer(at(self.layout.head)),
            sent: pointer(at(self.layout.sent)),
            counts: pointer(at(self.layout.counts)),
            send_map: pointer(at(self.layout.send_map)),
            ids: pointer(at(self.layout.ids)),
            weights: pointer(at(self.layout.weights)),
        }
    }

    /// Puts the stream behind the kernel that wrote it.
    pub(super) fn order_behind_keep(&self, stream: &Stream) -> Result<()> {
        self.kept.as_ref().map_or(Ok(()), |kept| order_behind(stream, kept))
    }

    /// Notes a kernel that reads it.
    pub(super) fn read_on(&self, stream: &Stream) -> Result<()> {
        if let Some(event) = event_behind(stream)? {
            let mut read = lock(&self.read);
            read.retain(|event| !is_over(event));
            read.push(event);
        }
        Ok(())
    }
}

impl Drop for Routing {
    fn drop(&mut self) {
        // Kernels in flight use the memory. They have a deadline, and so has this wait.
        let start = Moment::now();
        let waiting: Vec<_> = lock(&self.read).drain(..).chain(self.kept.take()).collect();
        while !waiting.iter().all(is_over) {
            if start.elapsed() > self.patience {
                tracing::warn!(
                    "a dispatch with a routing is still queued behind other work while the routing is dropped"
                );
                return;
            }
            anabranch_clock::sleep(POLL);
        }
    }
}

impl ExpertParallel {
    /// Memory for a routing, with none in it yet: for programs that keep routings in their hot path ([`Self::keep_routing`]) or in
    /// graphs. Not collective.
    ///
    /// # Errors
    /// [`Error::NoRouting`] for a plan whose dispatch casts rows or takes their number from device memory, or that masks ranks, or whose rows engines move; the
    /// runtime's, when the device has no room.
    pub fn allocate_routing(&self) -> Result<Routing> {
        let config = self.plan.config();
        if config.dispatch_cast != DispatchCast::None {
            let why = "its dispatch casts rows, and one with a kept routing moves rows as they are";
            return Err(Error::NoRouting { why });
        }
        if config.device_token_count {
            let why = "its number of tokens may be in device memory, and a kept routing has the number that the host gave";
            return Err(Error::NoRouting { why });
        }
        if config.on_timeout.masks() {
            let why = "it masks ranks, and a kept routing names ranks that may be masked by then";
            return Err(Error::NoRouting { why });
        }
        if config.way().is_some() {
            let why = "its ranks are on several nodes, and a dispatch with a kept routing stores rows at their places";
            return Err(Error::NoRouting { why });
        }
        if config.payload.is_by_engine() {
            let why = "copy engines move its rows, and a dispatch with a kept routing moves them by kernels";
            return Err(Error::NoRouting { why });
        }
        let layout = RoutingLayout::of(&self.plan);
        let mut memory = self.world.device().allocate(layout.bytes as usize)?;
        memory.fill(0)?;
        let nothing = RoutingHead { tokens: u32::MAX, ..RoutingHead::zeroed() };
        memory.copy_from_host(layout.head as usize, bytemuck::bytes_of(&nothing))?;
        Ok(Routing {
            memory,
            layout,
            pool: self.pool_mark(),
            patience: self.patience(),
            tokens: None,
            kept: None,
            read: Mutex::new(Vec::new()),
        })
    }

    /// Keeps the routing of a dispatch in memory that it allocates: [`Self::allocate_routing`] and [`Self::keep_routing`].
    ///
    /// # Errors
    /// As theirs; [`Error::Capturing`] on a stream that is being captured, where nothing can be allocated.
    pub fn routing(&self, stream: &Stream, dispatched: &mut Dispatched) -> Result<Routing> {
        if stream.is_capturing()? {
            return Err(Error::Capturing {
                call: "routing",
                instead: "allocate_routing, and keep_routing within",
            });
        }
        let mut routing = self.allocate_routing()?;
        self.keep_routing(stream, dispatched, &mut routing)?;
        Ok(routing)
    }

    /// Keeps the routing of a dispatch, in place of what was kept there before. It puts one kernel on the stream, which waits for no
    /// peer, and returns; the dispatch may be combined or released at once, on any stream. The ids and weights are those that were
    /// sent, whatever became of the caller's buffers. Not collective, but a dispatch with it is: all ranks keep the same
    /// dispatch. May be captured, and then keeps at each replay what was dispatched there.
    ///
    /// Eager work is put behind eager work that it needs. Within a capture the caller keeps what keeps a routing, what dispatches with
    /// it, and what keeps another in its place on one stream, or orders their streams; and so it orders graphs and eager calls.
    ///
    /// # Errors
    /// [`Error::ForeignHandle`] for a handle or a routing of another plan; a fault that the world has had.
    pub fn keep_routing(
        &self,
        stream: &Stream,
        dispatched: &mut Dispatched,
        routing: &mut Routing,
    ) -> Result<()> {
        let _launching = self.world.launching(stream)?;
        if !dispatched.slot.belongs_to(&self.pool) || !routing.belongs_to(self) {
            return Err(Error::ForeignHandle);
        }
        dispatched.slot.order_behind(stream)?;
        routing.order_behind_keep(stream)?;
        for read in lock(&routing.read).iter() {
            order_behind(stream, read)?;
        }
        let slot = dispatched.slot.get();
        let geometry = self.plan.local_geometry(dispatched.tokens.into(), &self.limits);
        let args = KeepRoutingArgs {
            team: self.team.view(),
            kept: routing.view(),
            send_map: pointer(slot.send_map()),
            routed: pointer(slot.routed()),
            room: pointer(slot.room()),
            counts: pointer(slot.counts()),
            state: pointer(slot.state()),
            meta_offset: slot.heap_offset() + self.plan.layout().meta,
            token_count: dispatched.tokens,
            row_stride: self.plan.row_stride(),
            top_k: self.plan.config().top_k,
            fan_out: self.plan.fan_out(),
            meta_bytes: self.plan.meta_bytes(),
            slot: dispatched.slot.number(),
        };
        let kernel = self.keep.kernel("anabranch_ep_keep_routing")?;
        // SAFETY: the argument struct is the kernel's own; the slot is held by the handle, as are its records at the peers until
        // this rank combines it, and the routing has room for every token of the plan.
        unsafe {
            kernel.launch(geometry.blocks, geometry.block_threads, geometry.local_bytes, stream, &args)?;
        }
        routing.tokens = Some(dispatched.tokens);
        if let Some(event) = event_behind(stream)? {
            routing.kept = Some(event);
        }
        dispatched.slot.used_on(stream)
    }
}
