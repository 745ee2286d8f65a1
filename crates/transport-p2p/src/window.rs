//! One range of addresses for the memory of all ranks.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use anabranch_hip::{Device, DeviceAddress, PhysicalHandle, PhysicalMemory, ReservedRange, VirtualMapping};
use anabranch_ranks::GlobalRank;
use anabranch_transport::{Audience, PeerInfo, Region};

use crate::descriptors::{Address, ExchangeError, Mailbox, Patience};
use crate::offer::{Name, Offer};

/// Why a flat range, or a slot of it, cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WindowError {
    #[error(
        "{device} has no virtual memory management, or its memory cannot be exported as file descriptors (amd: ROCm 7.2 on)"
    )]
    Unsupported { device: anabranch_hip::DeviceOrdinal },
    #[error("{ranks} slots for {bytes} bytes in units of {granularity} bytes are more than can be addressed")]
    TooLarge { ranks: u32, bytes: u64, granularity: u64 },
    #[error("a range of {bytes} bytes cannot be reserved")]
    Reserve {
        bytes: u64,
        #[source]
        source: anabranch_hip::Error,
    },
    #[error("{bytes} bytes of uncached physical memory cannot be allocated")]
    Allocate {
        bytes: u64,
        #[source]
        source: anabranch_hip::Error,
    },
    #[error("this rank's memory cannot be exported as a file descriptor")]
    Export {
        #[source]
        source: anabranch_hip::Error,
    },
    #[error("its file descriptor cannot be imported")]
    Import {
        #[source]
        source: anabranch_hip::Error,
    },
    #[error("slot {slot} of the flat range at {base} cannot be mapped")]
    Map {
        /// The slot: the rank's number.
        slot: u32,
        base: DeviceAddress,
        #[source]
        source: anabranch_hip::Error,
    },
    #[error("no file descriptor came from {peer}")]
    NoDescriptor { peer: GlobalRank },
    /// A rank beyond the last slot.
    #[error("{peer} has no slot: there are {ranks}")]
    NoSlot { peer: GlobalRank, ranks: u32 },
    #[error("no mailbox could be made for the file descriptors of other ranks")]
    Mailbox {
        #[source]
        source: ExchangeError,
    },
    /// The runtime.
    #[error(transparent)]
    Hip(#[from] anabranch_hip::Error),
}

/// Sizes of a flat range, equal on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlatLayout {
    ranks: u32,
    stride: u64,
}

impl FlatLayout {
    /// A slot of at least `bytes` for each of `ranks` ranks. The stride is `bytes` rounded up to what every device can map
    /// in: the least common multiple of the `granularities` of all ranks' devices.
    ///
    /// # Errors
    /// [`WindowError::TooLarge`].
    pub fn new(
        ranks: u32,
        bytes: u64,
        granularities: impl IntoIterator<Item = u64>,
    ) -> Result<Self, WindowError> {
        let common = granularities.into_iter().try_fold(1u64, |common, next| {
            let next = next.max(1);
            (common / greatest_common_divisor(common, next)).checked_mul(next)
        });
        let granularity = common.unwrap_or(u64::MAX);
        let stride = bytes.max(1).checked_next_multiple_of(granularity);
        // All of it as a length of this process's address space.
        let whole = stride.and_then(|stride| stride.checked_mul(u64::from(ranks)));
        match (stride, whole) {
            (Some(stride), Some(whole)) if isize::try_from(whole).is_ok() => Ok(Self { ranks, stride }),
            _ => Err(WindowError::TooLarge { ranks, bytes, granularity }),
        }
    }

    /// Slots.
    pub fn ranks(self) -> u32 {
        self.ranks
    }

    /// Bytes from the start of one slot to the start of the next, all of them memory.
    pub fn stride(self) -> u64 {
        self.stride
    }

    fn bytes(self) -> u64 {
        self.stride * u64::from(self.ranks)
    }
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// This rank's view of one range of addresses for the memory of all ranks: slot r, at `base + r * stride`, is rank r's.
///
/// Every rank reserves a range of its own; the bases differ, the slots do not. It holds this rank's physical memory, mapped
/// at its slot from the beginning. The peers' slots are mapped one by one, and empty where nothing was.
///
/// Only the rank's own device reaches the addresses: threads of one process map each other's memory into their own ranges.
#[derive(Debug)]
pub struct FlatWindow {
    device: Device,
    rank: GlobalRank,
    layout: FlatLayout,
    own: VirtualMapping,
    memory: Arc<PhysicalMemory>,
    range: ReservedRange,
    /// For other processes, until they have been given it.
    outgoing: Mutex<Option<Outgoing>>,
    mailbox: Option<Address>,
    /// Descriptors that came and are not imported yet.
    incoming: Mutex<BTreeMap<GlobalRank, OwnedFd>>,
    /// Slots of peers that are mapped now.
    mapped: Mutex<HashMap<GlobalRank, Weak<VirtualMapping>>>,
}

#[derive(Debug)]
struct Outgoing {
    descriptor: OwnedFd,
    mailbox: Mailbox,
}

impl FlatWindow {
    /// What the device maps in, bytes: what the ranks tell each other for the layout.
    ///
    /// # Errors
    /// [`WindowError::Unsupported`], or the runtime's error.
    pub fn granularity(device: &Device) -> Result<u64, WindowError> {
        if !device.has_virtual_memory()? {
            return Err(WindowError::Unsupported { device: device.ordinal() });
        }
        Ok(device.physical_granularity()? as u64)
    }

    /// Reserves the range, allocates this rank's memory (of the kind that peers may write while a kernel here reads it) and
    /// maps it at its slot. With peers in other processes the memory is exported too, and a mailbox opened for theirs.
    /// The memory's contents are undefined.
    ///
    /// # Errors
    /// What could not be had; nothing is left behind.
    pub fn new(
        device: &Device,
        rank: GlobalRank,
        layout: FlatLayout,
        audience: Audience,
    ) -> Result<Self, WindowError> {
        if rank.get() >= layout.ranks {
            return Err(WindowError::NoSlot { peer: rank, ranks: layout.ranks });
        }
        let (bytes, stride) = (layout.bytes(), layout.stride);
        let range =
            device.reserve(bytes as usize, 0).map_err(|source| WindowError::Reserve { bytes, source })?;
        let memory = device
            .create_physical_uncached(stride as usize)
            .map_err(|source| WindowError::Allocate { bytes: stride, source })?;
        let memory = Arc::new(memory);
        let own = map(device, &range, rank, stride, &memory)?;
        let outgoing = match audience {
            Audience::ThisProcess => None,
            Audience::ThisHost => {
                let descriptor = memory.export().map_err(|source| WindowError::Export { source })?;
                let mailbox = Mailbox::open().map_err(|source| WindowError::Mailbox { source })?;
                Some(Outgoing { descriptor, mailbox })
            }
        };
        Ok(Self {
            device: device.clone(),
            rank,
            layout,
            own,
            memory,
            range,
            mailbox: outgoing.as_ref().map(|outgoing| outgoing.mailbox.address()),
            outgoing: Mutex::new(outgoing),
            incoming: Mutex::default(),
            mapped: Mutex::default(),
        })
    }

    /// Where slot 0 starts.
    pub fn base(&self) -> DeviceAddress {
        self.range.address()
    }

    /// Where this rank's slot starts.
    pub fn address(&self) -> DeviceAddress {
        self.own.address()
    }

    /// The sizes.
    pub fn layout(&self) -> FlatLayout {
        self.layout
    }

    /// Where a region of this rank's slot starts in it; `None` for any other region.
    pub(crate) fn own_offset(&self, region: Region) -> Option<u64> {
        let offset = region.address.checked_sub(self.address().0)?;
        (offset.checked_add(region.bytes)? <= self.layout.stride).then_some(offset)
    }

    pub(crate) fn handle(&self) -> PhysicalHandle {
        self.memory.handle()
    }

    pub(crate) fn mailbox(&self) -> Option<Address> {
        self.mailbox
    }

    /// Gives this rank's descriptor to the ranks of other processes of this host and takes theirs. `peers` are the ranks
    /// of the world and the offers that their transports of this kind made of their slots. All ranks call it, after the
    /// offers were exchanged and before any is opened; those whose processes have no such peers return at once.
    /// Afterwards the mailbox is gone. Doing it again does nothing.
    ///
    /// # Errors
    /// [`ExchangeError`] with the rank.
    pub fn exchange(
        &self,
        local: &PeerInfo,
        peers: &[(&PeerInfo, Option<&[u8]>)],
        patience: &Patience<'_>,
    ) -> Result<(), ExchangeError> {
        let outgoing = self.outgoing.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Outgoing { descriptor, mailbox }) = outgoing else { return Ok(()) };
        let addresses: Vec<_> = peers
            .iter()
            .filter(|(peer, _)| {
                peer.same_host(local) && !peer.same_process(local) && peer.runtime == local.runtime
            })
            .filter_map(|(peer, offer)| match Offer::decode(peer.rank, (*offer)?).ok()?.name {
                Name::Physical { mailbox, .. } => Some((peer.rank, mailbox?)),
                Name::Address | Name::Ipc(_) => None,
            })
            .collect();
        let received = mailbox.exchange(self.rank, descriptor.as_fd(), &addresses, patience)?;
        *self.incoming.lock().unwrap_or_else(PoisonError::into_inner) = received;
        Ok(())
    }

    /// Maps a peer's memory at its slot, or shares the mapping that is there. `handle` is the peer's where it is a thread of
    /// this process; else the descriptor that came from it is imported.
    pub(crate) fn map(
        &self,
        peer: GlobalRank,
        handle: Option<PhysicalHandle>,
    ) -> Result<Arc<VirtualMapping>, WindowError> {
        let FlatLayout { ranks, stride } = self.layout;
        if peer.get() >= ranks {
            return Err(WindowError::NoSlot { peer, ranks });
        }
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mapping) = mapped.get(&peer).and_then(Weak::upgrade) {
            return Ok(mapping);
        }
        let memory = if let Some(handle) = handle {
            // SAFETY: the handle came with the offer of a thread of this process that uses the same runtime instance, and all
            // ranks have slots of `stride` bytes. The peer keeps its memory until the ranks have agreed on how mapping went.
            unsafe { self.device.borrow_physical(handle, stride as usize) }
        } else {
            let incoming = self.incoming.lock().unwrap_or_else(PoisonError::into_inner).remove(&peer);
            let descriptor = incoming.ok_or(WindowError::NoDescriptor { peer })?;
            // SAFETY: it came from the peer, whose slot has `stride` bytes as all have.
            unsafe { self.device.import_physical(descriptor.as_fd(), stride as usize) }
                .map_err(|source| WindowError::Import { source })?
        };
        let mapping = Arc::new(map(&self.device, &self.range, peer, stride, &Arc::new(memory))?);
        mapped.insert(peer, Arc::downgrade(&mapping));
        Ok(mapping)
    }

    /// Closes descriptors that came and were not needed: peers that another transport serves.
    pub fn forget_descriptors(&self) {
        self.incoming.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

fn map(
    device: &Device,
    range: &ReservedRange,
    rank: GlobalRank,
    stride: u64,
    memory: &Arc<PhysicalMemory>,
) -> Result<VirtualMapping, WindowError> {
    let (slot, base) = (rank.get(), range.address());
    let offset = u64::from(slot) * stride;
    range.map(offset as usize, memory, std::slice::from_ref(device)).map_err(|source| WindowError::Map {
        slot,
        base,
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_suit_every_device() {
        let layout = |ranks, bytes, of: &[u64]| FlatLayout::new(ranks, bytes, of.iter().copied());
        assert_eq!(layout(4, 100, &[64, 64]).unwrap(), FlatLayout { ranks: 4, stride: 128 });
        assert_eq!(layout(4, 4 << 20, &[1 << 21, 1 << 16]).unwrap().stride(), 4 << 20);
        assert_eq!(layout(1, 1, &[6, 4]).unwrap().stride(), 12);
        assert_eq!(layout(2, 0, &[64]).unwrap().stride(), 64);
        for (ranks, bytes, of) in
            [(2, u64::MAX, &[64][..]), (1 << 20, 1 << 50, &[64]), (1, 1, &[u64::MAX, u64::MAX - 1])]
        {
            assert!(matches!(layout(ranks, bytes, of), Err(WindowError::TooLarge { .. })), "{bytes}");
        }
    }
}
