//! Tensors: the buffers of calls.

use anabranch_hip::{DeviceAddress, DeviceBuffer};
use anabranch_hip_jit::DevicePointer;
use anabranch_ranks::GroupRank;
use anabranch_shmem::{MemoryUse, Registration, SymmetricMemory, Team};

use crate::device::args::{BufferView, NOTHING};
use crate::types::{DataType, Error, LocationKind, Result};

/// A contiguous array of elements in device memory: address, type and count. A view: copies name the same elements.
///
/// The kind of memory (local, symmetric or registered) decides which algorithms can run a call, and is part of the call: all members give
/// the same kind for the same argument, as they give the same count and type. `check = "fingerprint"` compares it.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    location: Location<'a>,
    data_type: DataType,
    count: u64,
}

/// Memory of a tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Location<'a> {
    Local(DeviceAddress),
    Symmetric(&'a SymmetricMemory, u64),
    Registered(&'a Registration, u64),
}

impl<'a> Tensor<'a> {
    /// `count` elements anywhere in device memory of this rank, for example a tensor of a framework. `address` is a multiple of the element
    /// size; the call checks that.
    ///
    /// # Safety
    /// `[address, address + count * size)` must be device memory of this rank, and must stay allocated and free of conflicting accesses
    /// until every launch of a call with the tensor is complete.
    pub const unsafe fn local(address: DeviceAddress, data_type: DataType, count: u64) -> Self {
        Self { location: Location::Local(address), data_type, count }
    }

    /// `count` elements of a buffer of the device of this rank, from byte `byte_offset` on. Local memory, as [`Self::local`].
    ///
    /// # Errors
    /// As [`Self::symmetric`].
    ///
    /// # Safety
    /// The buffer must outlive every launch of a call with the tensor, and be free of conflicting accesses until then.
    pub unsafe fn of_buffer(
        buffer: &'a DeviceBuffer,
        byte_offset: u64,
        data_type: DataType,
        count: u64,
    ) -> Result<Self> {
        inside(buffer.len() as u64, byte_offset, data_type, count)?;
        Ok(Self { location: Location::Local(buffer.address().offset(byte_offset)), data_type, count })
    }

    /// `count` elements of an allocation in the symmetric heap, from byte `byte_offset` on. All members give the same allocation and
    /// offset. The group of the allocation contains all members of the group of the call. Launches keep the allocation until they are
    /// complete, except captured launches: keep it as long as the graph is replayed. A launch after the allocation was dropped is an error.
    ///
    /// # Errors
    /// [`Error::Bounds`] if the elements do not fit into the allocation; [`Error::Alignment`] if `byte_offset` is not a multiple of the
    /// element size.
    pub fn symmetric(
        memory: &'a SymmetricMemory,
        byte_offset: u64,
        data_type: DataType,
        count: u64,
    ) -> Result<Self> {
        inside(memory.bytes(), byte_offset, data_type, count)?;
        Ok(Self { location: Location::Symmetric(memory, byte_offset), data_type, count })
    }

    /// `count` elements of registered memory, from byte `byte_offset` of the registration of every member on. The registration must be kept
    /// until every launch of a call with the tensor is complete.
    ///
    /// # Errors
    /// As [`Self::symmetric`].
    pub fn registered(
        registration: &'a Registration,
        byte_offset: u64,
        data_type: DataType,
        count: u64,
    ) -> Result<Self> {
        inside(registration.bytes(), byte_offset, data_type, count)?;
        Ok(Self { location: Location::Registered(registration, byte_offset), data_type, count })
    }

    /// The `count` elements from element `start` on. In-place forms use it for the part of this rank.
    ///
    /// # Errors
    /// [`Error::Bounds`] if they are not all in the tensor.
    pub fn narrow(self, start: u64, count: u64) -> Result<Self> {
        let size = u64::from(self.data_type.bytes());
        if start.checked_add(count).is_none_or(|end| end > self.count) {
            let (byte_offset, length) = (start.saturating_mul(size), self.bytes());
            return Err(Error::Bounds { byte_offset, data_type: self.data_type, count, length });
        }
        let bytes = start * size;
        let location = match self.location {
            Location::Local(address) => Location::Local(address.offset(bytes)),
            Location::Symmetric(memory, offset) => Location::Symmetric(memory, offset + bytes),
            Location::Registered(registration, offset) => Location::Registered(registration, offset + bytes),
        };
        Ok(Self { location, count, ..self })
    }

    /// Type of the elements.
    pub const fn data_type(&self) -> DataType {
        self.data_type
    }

    /// Number of elements.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Bytes of all elements.
    pub const fn bytes(&self) -> u64 {
        self.count * self.data_type.bytes() as u64
    }

    /// Kind of memory.
    pub const fn kind(&self) -> LocationKind {
        match self.location {
            Location::Local(_) => LocationKind::Local,
            Location::Symmetric(..) => LocationKind::Symmetric,
            Location::Registered(..) => LocationKind::Registered,
        }
    }

    /// Address of the elements of this rank.
    ///
    /// # Errors
    /// [`Error::Foreign`] if the registration is of another group, or not all members have the symmetric allocation.
    pub(crate) fn address(&self, team: &Team) -> Result<DeviceAddress> {
        match self.location {
            Location::Local(address) => Ok(address),
            Location::Symmetric(memory, offset) => {
                // On ranks without this allocation, or in another world, the same offset can be other memory.
                let all_have_it = team.group().members().iter().all(|rank| memory.group().contains(*rank));
                let base = team.peer_base(team.rank()).filter(|_| all_have_it);
                let own = base.map(|base| base.offset(memory.offset()));
                own.filter(|own| *own == memory.address())
                    .map(|own| own.offset(offset))
                    .ok_or(Error::Foreign { what: "symmetric memory" })
            }
            Location::Registered(registration, offset) => {
                let own =
                    registration.peer_address(team.rank()).filter(|_| registration.group() == team.group());
                Ok(own.ok_or(Error::Foreign { what: "a registration" })?.offset(offset))
            }
        }
    }

    /// Address of the elements of a member, as mapped on this rank.
    ///
    /// # Errors
    /// As [`Self::address`]; [`Error::Foreign`] for local memory of another member.
    pub(crate) fn address_at(&self, team: &Team, member: GroupRank) -> Result<DeviceAddress> {
        let own = self.address(team)?;
        let there = match self.location {
            Location::Local(_) => None,
            Location::Symmetric(memory, offset) => {
                team.peer_base(member).map(|base| base.offset(memory.offset() + offset))
            }
            Location::Registered(registration, offset) => {
                registration.peer_address(member).map(|start| start.offset(offset))
            }
        };
        let there = if member == team.rank() { Some(own) } else { there };
        there.ok_or(Error::Foreign { what: "memory that its owner alone reaches" })
    }

    /// The buffer as kernels see it.
    pub(crate) fn place(&self, team: &Team) -> BufferView {
        match self.location {
            Location::Local(address) => {
                BufferView { bases: DevicePointer::NULL, offset: address.0, own: address.0 }
            }
            Location::Symmetric(memory, offset) => {
                let (bases, own) = (team.view().peer_bases, memory.address().offset(offset).0);
                BufferView { bases, offset: memory.offset() + offset, own }
            }
            Location::Registered(registration, offset) => {
                // A tensor that this rank does not access can be of another group.
                let own =
                    registration.peer_address(team.rank()).map_or(0, |address| address.offset(offset).0);
                BufferView { bases: registration.table(), offset, own }
            }
        }
    }

    /// The alignment of the elements of all members, at most 16. Addresses of registered memory differ between members.
    pub(crate) fn alignment(&self, team: &Team) -> u64 {
        let of = |address: u64| 1 << address.trailing_zeros().min(4);
        match self.location {
            Location::Local(address) => of(address.0),
            Location::Symmetric(memory, offset) => of(memory.offset() + offset),
            Location::Registered(registration, offset) => {
                let peers = team.group().ranks().filter_map(|rank| registration.peer_address(rank));
                peers.map(|address| of(address.0 + offset)).fold(16, u64::min)
            }
        }
    }

    /// The number of the registration and the offset in it, or the offset in the heap: equal on all members where peers access the tensor.
    pub(crate) fn identity(&self) -> (u64, u64) {
        match self.location {
            Location::Local(_) => (NOTHING, NOTHING),
            Location::Symmetric(memory, offset) => (NOTHING, memory.offset() + offset),
            Location::Registered(registration, offset) => (registration.sequence(), offset),
        }
    }

    /// The allocation that a launch keeps.
    pub(crate) fn usage(&self) -> Option<MemoryUse> {
        match self.location {
            Location::Symmetric(memory, _) => Some(memory.usage()),
            _ => None,
        }
    }
}

fn inside(length: u64, byte_offset: u64, data_type: DataType, count: u64) -> Result<()> {
    let size = u64::from(data_type.bytes());
    let end = count.checked_mul(size).and_then(|bytes| bytes.checked_add(byte_offset));
    if end.is_none_or(|end| end > length) {
        return Err(Error::Bounds { byte_offset, data_type, count, length });
    }
    if !byte_offset.is_multiple_of(size) {
        return Err(Error::Alignment { address: byte_offset, data_type });
    }
    Ok(())
}
