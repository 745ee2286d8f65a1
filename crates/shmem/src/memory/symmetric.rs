//! Collective allocation and freeing in the symmetric heap.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

use anabranch_hip::{DeviceAddress, HostCall};
use anabranch_ranks::{Group, GroupRank};
use serde::{Deserialize, Serialize};

use crate::collective::{Agreed, compare_fields, group_id};
use crate::error::{Error, Result};
use crate::heap::ledger::{AllocationId, Ledger, Purpose};
use crate::heap::ranges::{ByteRange, FreeRanges};
use crate::heap::{DEFAULT_ALIGNMENT, MAX_ALIGNMENT};
use crate::inflight::{InFlight, MemoryUse};
use crate::world::{Keep, World};

/// How full the heap is, as this rank knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapUsage {
    /// The setting `heap.bytes`.
    pub heap_bytes: u64,
    /// Bytes that are free here. What a request gets has to be free on all members.
    pub free: u64,
    /// The largest range that is free here.
    pub largest: u64,
    /// Allocations that this rank holds.
    pub live: usize,
}

/// The allocation of the heap that holds an address ([`World::locate`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeapLocation {
    /// The tag of the allocation.
    pub tag: String,
    /// The group that it was allocated for.
    pub group: Group,
    /// Bytes from the start of the allocation to the address.
    pub offset: u64,
    /// Bytes of the allocation.
    pub bytes: u64,
}

/// A rank's part of an allocation.
#[derive(Debug, Serialize, Deserialize)]
struct Request {
    bytes: u64,
    alignment: u64,
    tag: String,
    free: Vec<ByteRange>,
    dropped: Vec<AllocationId>,
}

/// A rank's part of freeing an allocation.
#[derive(Debug, Serialize, Deserialize)]
struct Release {
    id: AllocationId,
    dropped: Vec<AllocationId>,
}

/// Marks this rank as being in a collective call of the heap: a place that is being agreed on with one group must not be
/// offered to another. Not a lock: no thread waits for it.
struct Turn<'a>(&'a AtomicBool);

impl<'a> Turn<'a> {
    fn take(busy: &'a AtomicBool) -> Option<Self> {
        busy.compare_exchange(false, true, Ordering::AcqRel, Ordering::Acquire).ok().map(|_| Self(busy))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl World {
    /// Allocates `bytes` at the same offset of the heap of every member of `group`, zeroed, ready for use by all members on
    /// return. Zero bytes give a valid empty allocation.
    ///
    /// Collective over `group`: every member calls with the same arguments, in the same order as its other collective
    /// calls of that group. `tag` names its purpose and is compared too. One thread of a rank at a time.
    ///
    /// # Errors
    /// On all members alike: [`Error::Differs`] when the requests are not equal, [`Error::HeapExhausted`];
    /// [`Error::Invalid`] for the alignment and [`Error::InvalidState`] while another thread of this rank is in such a call
    /// ([`Error::FailedOn`] on the others); why the collective failed.
    pub fn allocate(&self, group: &Group, bytes: u64, alignment: u64, tag: &str) -> Result<SymmetricMemory> {
        self.allocate_after(group, bytes, alignment, tag, Ok(()))
    }

    /// [`Self::allocate`] after a preparation that may have failed here, which then is an error on all.
    pub(crate) fn allocate_after(
        &self,
        group: &Group,
        bytes: u64,
        alignment: u64,
        tag: &str,
        prepared: Result<()>,
    ) -> Result<SymmetricMemory> {
        let _call = self.device().record_call(|| HostCall::on("allocate", tag, Some(bytes as usize)));
        self.check()?;
        let step = format!("allocate ({tag})");
        let turn = Turn::take(&self.inner.heap_busy);
        let mut ready = prepared.and_then(|()| check_request(alignment));
        if turn.is_none() {
            let problem = format!(
                "{} is in another collective call of the heap; make them one after the other",
                self.rank()
            );
            ready = Err(Error::InvalidState { call: "allocate", problem });
        }
        // The granularity keeps neighbours on separate cache lines; an empty allocation has its range too.
        let needed = bytes.max(1).checked_next_multiple_of(DEFAULT_ALIGNMENT).unwrap_or(u64::MAX);
        let (sequence, range) = self.agree_on_place(group, &step, ready, bytes, needed, alignment, tag)?;

        let id = AllocationId { group: group_id(group), sequence };
        let purpose = Purpose { tag: tag.to_owned(), bytes, group: group.clone() };
        let members = group.members().iter().map(|member| member.get());
        let entered = self.ledger().enter(id, range, purpose, members);
        assert!(entered, "a range that this rank offered is free here until its turn ends");
        let zeroed = self.inner.zero(range);
        if let Err(error) = self.agree(group, "zero memory", zeroed) {
            self.ledger().revoke(id);
            return Err(error);
        }
        drop(turn);
        let in_flight = self.inner.in_flight.user();
        Ok(SymmetricMemory { world: self.clone(), group: group.clone(), id, range, bytes, in_flight })
    }

    /// Exchanges requests until a place is found. A second round is made when the first found none but announced
    /// dropped allocations; all members see the same messages and so decide alike.
    fn agree_on_place(
        &self,
        group: &Group,
        step: &str,
        ready: Result<()>,
        bytes: u64,
        needed: u64,
        alignment: u64,
        tag: &str,
    ) -> Result<(u64, ByteRange)> {
        let mut ready = Some(ready);
        loop {
            let first_round = ready.is_some();
            self.inner.sweep();
            let announced = self.ledger().announcements();
            let request = ready.take().unwrap_or(Ok(())).map(|()| Request {
                bytes,
                alignment,
                tag: tag.to_owned(),
                free: self.ledger().free().to_vec(),
                dropped: announced,
            });
            let Agreed { parts, sequence } = self.agree(group, step, request)?;
            self.note_drops(group, parts.iter().map(|request| request.dropped.as_slice()));
            let fields = parts.iter().map(|request| {
                [
                    ("bytes", request.bytes.to_string()),
                    ("alignment", request.alignment.to_string()),
                    ("tag", format!("{:?}", request.tag)),
                ]
                .map(|(name, value)| (name.to_owned(), value))
                .into()
            });
            compare_fields(step, group, &fields.collect::<Vec<_>>())?;
            let common = common_free(&parts);
            if let Some(offset) = common.lowest_fit(needed, alignment) {
                return Ok((sequence, ByteRange { offset, bytes: needed }));
            }
            if !first_round || parts.iter().all(|request| request.dropped.is_empty()) {
                return Err(Error::HeapExhausted {
                    tag: tag.to_owned(),
                    needed,
                    alignment,
                    largest: common.largest(),
                    total: common.total(),
                    missing: needed.saturating_sub(common.largest()),
                    heap_bytes: self.config().heap_bytes,
                });
            }
        }
    }

    fn note_drops<'a>(&self, group: &Group, announced: impl IntoIterator<Item = &'a [AllocationId]>) {
        let members: Vec<u32> = group.members().iter().map(|member| member.get()).collect();
        self.ledger().exchanged(&members, announced);
    }

    fn ledger(&self) -> std::sync::MutexGuard<'_, Ledger> {
        self.inner.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The allocation of this rank's heap that holds `address`, as this process has it; `None` for other memory, for the heaps of peers, and
    /// for allocations that this rank has dropped. Not collective.
    ///
    /// Other ranks can have other tensors at the same place: an address alone does not decide how a collective reaches its tensors, because
    /// that has to be equal on all members.
    pub fn locate(&self, address: DeviceAddress) -> Option<HeapLocation> {
        let at = address.0.checked_sub(self.inner.heap.address().0)?;
        let ledger = self.ledger();
        let (offset, Purpose { tag, bytes, group }) = ledger.find(at)?;
        Some(HeapLocation { tag: tag.clone(), group: group.clone(), offset, bytes: *bytes })
    }

    /// How full the heap is, as this rank knows.
    pub fn heap_usage(&self) -> HeapUsage {
        let ledger = self.ledger();
        HeapUsage {
            heap_bytes: self.config().heap_bytes,
            free: ledger.free().total(),
            largest: ledger.free().largest(),
            live: ledger.live(),
        }
    }
}

fn check_request(alignment: u64) -> Result<()> {
    if alignment.is_power_of_two() && alignment <= MAX_ALIGNMENT {
        Ok(())
    } else {
        let allowed = format!("a power of two up to {MAX_ALIGNMENT}");
        Err(Error::Invalid { call: "allocate", given: format!("alignment {alignment}"), allowed })
    }
}

fn common_free(parts: &[Request]) -> FreeRanges {
    let mut lists = parts.iter().map(|request| request.free.as_slice());
    let mut common = FreeRanges::default();
    for range in lists.next().unwrap_or_default() {
        common.give_back(*range);
    }
    lists.fold(common, |common, list| common.intersection(list))
}

/// Memory at the same offset of the heap of every member of a group.
///
/// Dropping it does not block: the range is used again after all members have dropped theirs and have announced that in the
/// next collective call of the heap, and after barriers and copies of teams that use it are over. Before you drop it, make
/// sure that no other kernel of this rank, and no graph that will be replayed, uses it. [`Self::free`] does the same at once.
#[derive(Debug)]
pub struct SymmetricMemory {
    world: World,
    group: Group,
    id: AllocationId,
    range: ByteRange,
    bytes: u64,
    /// Work of the host's own operations.
    in_flight: Arc<InFlight>,
}

impl SymmetricMemory {
    pub(crate) fn world(&self) -> &World {
        &self.world
    }

    pub(crate) fn in_flight(&self) -> &Arc<InFlight> {
        &self.in_flight
    }

    /// Where it starts, in bytes from the start of the heap; equal on all members.
    pub fn offset(&self) -> u64 {
        self.range.offset
    }

    /// The group's count of collective calls when it was made: with the group it names the allocation, equal on all members, and
    /// unlike its place it is never given again.
    pub fn sequence(&self) -> u64 {
        self.id.sequence
    }

    /// Bytes asked for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The group that it was allocated for.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Where it starts in this rank's memory.
    pub fn address(&self) -> DeviceAddress {
        self.world.inner.heap.address().offset(self.range.offset)
    }

    /// Where kernels of this rank find a member's part; `None` for a member that is not mapped here, or that is not there.
    pub fn peer_address(&self, peer: GroupRank) -> Option<DeviceAddress> {
        let base = self.world.peer_base(self.group.global(peer)?)?;
        Some(base.offset(self.range.offset))
    }

    /// For launches that use it ([`crate::Team::launch_in_order`]).
    pub fn usage(&self) -> MemoryUse {
        MemoryUse::new(&self.in_flight)
    }

    /// Copies out of this rank's part and waits for it, in no order with any stream: work whose results it shall see was waited for
    /// before. Kernels that write there meanwhile give old or new bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] for bytes outside the allocation, or the runtime's.
    pub fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        self.range_check("read", offset, target.len())?;
        // SAFETY: in range of this allocation, which the world keeps alive.
        unsafe { self.world.device().read_memory(self.address().offset(offset), target) }?;
        Ok(())
    }

    /// Copies into this rank's part and waits for it, in no order with any stream. Kernels that read there meanwhile see old or new
    /// bytes; those launched afterwards see new ones.
    ///
    /// # Errors
    /// [`Error::Invalid`] for bytes outside the allocation, or the runtime's.
    pub fn write(&mut self, offset: u64, source: &[u8]) -> Result<()> {
        self.range_check("write", offset, source.len())?;
        // SAFETY: in range of this allocation, which the world keeps alive; `&mut` keeps other users of this handle away,
        // and what kernels see is stated above.
        unsafe { self.world.device().write_memory(self.address().offset(offset), source) }?;
        Ok(())
    }

    pub(crate) fn range_check(&self, call: &'static str, offset: u64, bytes: usize) -> Result<()> {
        match offset.checked_add(bytes as u64) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => {
                let allowed = format!("bytes 0..{} of the allocation", self.bytes);
                Err(Error::Invalid { call, given: format!("{bytes} bytes at {offset}"), allowed })
            }
        }
    }

    /// Frees it on all members. Collective over the group: returns when every member has called it, and the place is free
    /// from then on.
    ///
    /// # Errors
    /// [`Error::Differs`] when members free different allocations; then, as in any other failure, it counts as dropped.
    pub fn free(self) -> Result<()> {
        let (world, group, id) = (self.world.clone(), self.group.clone(), self.id);
        // Announced like any drop; the exchange among all members settles it.
        drop(self);
        world.check()?;
        world.inner.sweep();
        let dropped = world.ledger().announcements();
        let agreed = world.agree(&group, "free memory", Ok(Release { id, dropped }))?;
        world.note_drops(&group, agreed.parts.iter().map(|release| release.dropped.as_slice()));
        let fields = agreed
            .parts
            .iter()
            .map(|release| vec![("allocation".to_owned(), release.id.sequence.to_string())])
            .collect::<Vec<_>>();
        compare_fields("free memory", &group, &fields)
    }
}

impl Drop for SymmetricMemory {
    fn drop(&mut self) {
        self.in_flight.close();
        self.world.inner.park(&self.in_flight, Keep::Allocation(self.id));
    }
}
