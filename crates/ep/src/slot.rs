//! Slots: the memory of one operation in flight, and the pool that hands them out.

use std::mem::offset_of;
use std::ops::Deref;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use anabranch_clock::Moment;
use anabranch_hip::{Device, DeviceBuffer, Stream};
use anabranch_hip_jit::bytemuck::{self, Zeroable};
use anabranch_shmem::{LaunchEvent, SymmetricMemory};

use crate::args::SlotState;
use crate::error::{Error, Result};
use crate::lock::lock;
use crate::plan::Plan;

#[cfg_attr(not(feature = "simulation"), expect(unreachable_pub, reason = "the feature exports it"))]
mod addresses;

#[cfg(not(feature = "simulation"))]
pub(crate) use addresses::SlotAddresses;
#[cfg(feature = "simulation")]
pub use addresses::SlotAddresses;

/// The interval of polls of events; their kernels have a deadline.
const POLL: Duration = Duration::from_micros(50);

/// Waits for the work before all events, `limit` at most; whether it is over.
pub(crate) fn wait_until_over(events: &[LaunchEvent], limit: Duration) -> bool {
    let start = Moment::now();
    while !events.iter().all(|event| event.is_over()) {
        if start.elapsed() > limit {
            return false;
        }
        anabranch_clock::sleep(POLL);
    }
    true
}

/// The memory of one slot: windows and flags in the symmetric heap, maps and counters in this rank's own memory.
#[derive(Debug)]
pub(crate) struct Slot {
    heap: SymmetricMemory,
    own: Mutex<DeviceBuffer>,
    at: SlotAddresses,
}

impl Deref for Slot {
    type Target = SlotAddresses;

    fn deref(&self) -> &SlotAddresses {
        &self.at
    }
}

impl Slot {
    /// The plan's slot of this number over its symmetric part; allocates its own part.
    pub(crate) fn new(device: &Device, plan: &Plan, number: u32, heap: SymmetricMemory) -> Result<Self> {
        let mut own = device.allocate(SlotAddresses::own_bytes(plan) as usize)?;
        own.fill(0)?;
        let at = SlotAddresses::new(plan, number, (heap.address(), heap.offset()), own.address());
        own.copy_from_host(at.own_offset(at.state()), bytemuck::bytes_of(&SlotState::fresh()))?;
        Ok(Self { heap, own: Mutex::new(own), at })
    }

    /// A number that is unique among all slots that a group has allocated.
    pub(crate) fn sequence(&self) -> u64 {
        self.heap.sequence()
    }

    /// The first entries of the send map, once the work that writes them has ended.
    pub(crate) fn read_send_map(&self, entries: usize) -> Result<Vec<u64>> {
        let mut map = vec![0u64; entries];
        lock(&self.own).copy_to_host(self.own_offset(self.send_map()), bytemuck::cast_slice_mut(&mut map))?;
        Ok(map)
    }

    /// The greatest epoch that this rank may have sent a peer: one more than that of the last dispatch or combine that ended, because a
    /// send sends an epoch that only its receive ends. No launch may be in flight.
    pub(crate) fn sent_epoch(&self) -> Result<u64> {
        let state = self.read_state()?;
        Ok(state.dispatch_epoch.max(state.combine_epoch) + 1)
    }

    /// Continues after this epoch. No launch may be in flight.
    pub(crate) fn set_epoch(&self, epoch: u64) -> Result<()> {
        let mut own = lock(&self.own);
        for field in [offset_of!(SlotState, dispatch_epoch), offset_of!(SlotState, combine_epoch)] {
            own.copy_from_host(self.own_offset(self.state()) + field, &epoch.to_ne_bytes())?;
        }
        Ok(())
    }

    /// Reads and clears the record of invalid ids: `(count, token, id)`. Writes only these two words, so that a
    /// launch in flight keeps its epochs and counters; ids that it counts meanwhile may be lost.
    pub(crate) fn take_invalid(&self) -> Result<Option<(u32, u32, i32)>> {
        let state = self.read_state()?;
        if state.invalid_count == 0 {
            return Ok(None);
        }
        let first = state.invalid_first;
        let found = (state.invalid_count, (first >> 38) as u32, first as u32 as i32);
        let place = |field: usize| self.own_offset(self.state()) + field;
        let mut own = lock(&self.own);
        own.copy_from_host(place(offset_of!(SlotState, invalid_first)), &u64::MAX.to_ne_bytes())?;
        own.copy_from_host(place(offset_of!(SlotState, invalid_count)), &0u32.to_ne_bytes())?;
        Ok(Some(found))
    }

    /// Reads and clears the record of device token counts above their bounds: `(dispatches, first count, its bound)`. As for
    /// [`Self::take_invalid`], a launch in flight keeps its words.
    pub(crate) fn take_excess(&self) -> Result<Option<(u32, u32, u32)>> {
        let state = self.read_state()?;
        if state.excess_count == 0 {
            return Ok(None);
        }
        let place = self.own_offset(self.state()) + offset_of!(SlotState, excess_count);
        lock(&self.own).copy_from_host(place, &0u32.to_ne_bytes())?;
        Ok(Some((state.excess_count, state.excess_given, state.excess_allowed)))
    }

    /// The slot's words. A word is defined once the work that writes it has ended.
    pub(crate) fn read_state(&self) -> Result<SlotState> {
        let mut state = SlotState::zeroed();
        lock(&self.own).copy_to_host(self.own_offset(self.state()), bytemuck::bytes_of_mut(&mut state))?;
        Ok(state)
    }
}

/// All slots of a plan, and which are held.
#[derive(Debug)]
pub(crate) struct SlotPool {
    slots: Vec<Slot>,
    uses: Mutex<Vec<Use>>,
}

#[derive(Debug, Default)]
struct Use {
    busy: bool,
    /// The handle was dropped, and peers still wait for a combine.
    lost: bool,
    /// How often it was taken.
    taken: u64,
    /// After the last launch that was not captured.
    eager: Option<LaunchEvent>,
}

impl SlotPool {
    pub(crate) fn new(slots: Vec<Slot>) -> Arc<Self> {
        let uses = slots.iter().map(|_| Use::default()).collect();
        Arc::new(Self { slots, uses: Mutex::new(uses) })
    }

    pub(crate) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Waits for the last launch on every slot, `limit` at most; whether all are over. The caller waits for replays of captured
    /// launches.
    pub(crate) fn wait_until_idle(&self, limit: Duration) -> bool {
        let events: Vec<_> = lock(&self.uses).iter().filter_map(|one| one.eager.clone()).collect();
        wait_until_over(&events, limit)
    }

    /// Number of slots with an operation whose handle still exists.
    pub(crate) fn held(&self) -> usize {
        lock(&self.uses).iter().filter(|one| one.busy && !one.lost).count()
    }

    /// The slots whose handles were dropped without combine or release.
    pub(crate) fn lost(&self) -> Vec<&Slot> {
        let uses = lock(&self.uses);
        let lost = self.slots.iter().zip(uses.iter()).filter(|(_, one)| one.lost);
        lost.map(|(slot, _)| slot).collect()
    }

    /// Notes a launch on a slot without a holder. It is in no order with other plans: it waits for no peer.
    pub(crate) fn used_unheld(&self, slot: &Slot, event: LaunchEvent) {
        if let Some(one) = lock(&self.uses).get_mut(slot.number() as usize) {
            one.eager = Some(event);
        }
    }

    /// Frees the lost slots, after a reset: no peer waits for their operations.
    pub(crate) fn recover(&self) {
        for one in lock(&self.uses).iter_mut().filter(|one| one.lost) {
            (one.busy, one.lost) = (false, false);
        }
    }

    /// Takes the free slot of the lowest number, the same on every rank when all begin and end operations in the same order.
    pub(crate) fn take(self: &Arc<Self>) -> Result<SlotTicket> {
        let mut uses = lock(&self.uses);
        let free = uses.iter().position(|one| !one.busy);
        let index = free.ok_or(Error::SlotsBusy { slots: self.slots.len() as u32 })?;
        uses[index].busy = true;
        uses[index].taken += 1;
        let (pool, number) = (Arc::clone(self), uses[index].taken);
        Ok(SlotTicket { pool, index, number, launched: None, reached: false, returned: false })
    }
}

/// Identifies the slots of one plan without keeping them alive.
#[derive(Clone, Debug)]
pub(crate) struct PoolMark(Weak<SlotPool>);

impl PoolMark {
    pub(crate) fn of(pool: &Arc<SlotPool>) -> Self {
        Self(Arc::downgrade(pool))
    }

    /// Whether it identifies this pool.
    pub(crate) fn is_of(&self, pool: &Arc<SlotPool>) -> bool {
        std::ptr::eq(Arc::as_ptr(pool), self.0.as_ptr())
    }
}

/// One use of one slot of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    slot: usize,
    number: u64,
}

/// A held slot, and the order of its launches: each waits for the one before.
#[derive(Debug)]
pub(crate) struct SlotTicket {
    pool: Arc<SlotPool>,
    index: usize,
    /// Which use of the slot it is.
    number: u64,
    /// After the holder's own last launch, captured or not.
    launched: Option<LaunchEvent>,
    /// Whether anything was launched, so that peers wait for the operation.
    reached: bool,
    returned: bool,
}

impl SlotTicket {
    pub(crate) fn get(&self) -> &Slot {
        &self.pool.slots[self.index]
    }

    pub(crate) fn belongs_to(&self, pool: &Arc<SlotPool>) -> bool {
        Arc::ptr_eq(&self.pool, pool)
    }

    pub(crate) fn belongs_to_mark(&self, mark: &PoolMark) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.pool), mark.0.as_ptr())
    }

    /// This use of the slot.
    pub(crate) fn taken(&self) -> Taken {
        Taken { slot: self.index, number: self.number }
    }

    /// Makes the stream wait for the holder's last launch, for example a combine for its dispatch; both captured, or neither. The first
    /// waits for the slot's last use.
    ///
    /// Captured and eager operations do not wait for each other: the caller orders the replays. Within a capture, successive
    /// operations on one slot belong on one stream, or on streams that the caller orders.
    pub(crate) fn order_after(&self, stream: &Stream, is_captured: bool) -> Result<()> {
        let before = match &self.launched {
            None if !is_captured => lock(&self.pool.uses)[self.index].eager.clone(),
            launched => launched.clone(),
        };
        Ok(before.map_or(Ok(()), |event| stream.wait_event(&event))?)
    }

    /// Notes that something was launched: peers wait for a combine or a release of the slot.
    pub(crate) fn reached(&mut self) {
        self.reached = true;
    }

    /// The event after the last launch.
    pub(crate) fn used(&mut self, event: LaunchEvent, is_captured: bool) {
        if !is_captured {
            lock(&self.pool.uses)[self.index].eager = Some(event.clone());
        }
        self.launched = Some(event);
    }

    /// Frees the slot for the next dispatch, after the work already on its stream.
    pub(crate) fn give_back(mut self) {
        lock(&self.pool.uses)[self.index].busy = false;
        self.returned = true;
    }
}

impl Drop for SlotTicket {
    fn drop(&mut self) {
        if self.returned {
            return;
        }
        if !self.reached {
            // Nothing was launched, so no peer waits for it.
            lock(&self.pool.uses)[self.index].busy = false;
            return;
        }
        lock(&self.pool.uses)[self.index].lost = true;
        tracing::warn!(
            slot = self.index,
            "a dispatch was dropped without combine or release; its slot stays busy, because peers still expect one"
        );
    }
}

#[cfg(test)]
mod tests;
