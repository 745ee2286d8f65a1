//! Buffers as callers hand them over.

use anabranch_hip::{DeviceAddress, DeviceBuffer};
use anabranch_hip_jit::DevicePointer;
use anabranch_ranks::GroupRank;
use anabranch_shmem::{MemoryUse, Registration, SymmetricMemory, Team};

use crate::device::args::{BufferView, NOTHING};
use crate::types::{DataType, Error, LocationKind, Result};

/// A contiguous run of elements in device memory: where, of which type, how many.
///
/// Where it is decides what a collective can do. The kind (local, symmetric or registered) is a part of the call: all members
/// give the same kind for the same argument, as they give the same count and type. `check = "fingerprint"` compares it.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    location: Location<'a>,
    data_type: DataType,
    count: u64,
}

/// Where a tensor is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Location<'a> {
    Local(DeviceAddress),
    Symmetric(&'a SymmetricMemory, u64),
    Registered(&'a Registration, u64),
}

impl<'a> Tensor<'a> {
    /// Elements anywhere in this rank's device memory: a framework's tensor. `address` is a multiple of the element's size.
    ///
    /// # Safety
    /// `[address, address + count * size)` must be memory that this rank's device reaches, and stay so, used by nobody else in
    /// a conflicting way, until every launch of a call with it is over.
    pub const unsafe fn local(address: DeviceAddress, data_type: DataType, count: u64) -> Self {
        Self { location: Location::Local(address), data_type, count }
    }

    /// Elements of a buffer of this rank's device, `byte_offset` bytes into it. To peers it is as local as [`Self::local`].
    ///
    /// # Errors
    /// As [`Self::symmetric`].
    ///
    /// # Safety
    /// The buffer must outlive every launch of a call with the tensor, and nobody else may use these elements in a conflicting
    /// way until then.
    pub unsafe fn of_buffer(
        buffer: &'a DeviceBuffer,
        byte_offset: u64,
        data_type: DataType,
        count: u64,
    ) -> Result<Self> {
        inside(buffer.len() as u64, byte_offset, data_type, count)?;
        Ok(Self { location: Location::Local(buffer.address().offset(byte_offset)), data_type, count })
    }

    /// Elements in the symmetric heap, `byte_offset` bytes into an allocation: the same allocation and offset on all members. All
    /// members of the call's group have it: its own group is theirs, in any order, or a larger one.
    /// Launches keep the allocation until they are over, unless they are captured: then whoever replays the graph does. A launch
    /// after its handle was dropped is an error.
    ///
    /// # Errors
    /// [`Error::Bounds`] when it does not fit into the allocation; [`Error::Alignment`].
    pub fn symmetric(
        memory: &'a SymmetricMemory,
        byte_offset: u64,
        data_type: DataType,
        count: u64,
    ) -> Result<Self> {
        inside(memory.bytes(), byte_offset, data_type, count)?;
        Ok(Self { location: Location::Symmetric(memory, byte_offset), data_type, count })
    }

    /// Elements in registered memory, `byte_offset` bytes behind the start of every member's registration. The registration has
    /// to be kept until every launch of a call with it is over.
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

    /// The `count` elements from `start` on: how in-place forms name this rank's part.
    ///
    /// # Errors
    /// [`Error::Bounds`] when they are not all there.
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

    /// Where it is, as far as the choice of an algorithm cares.
    pub const fn kind(&self) -> LocationKind {
        match self.location {
            Location::Local(_) => LocationKind::Local,
            Location::Symmetric(..) => LocationKind::Symmetric,
            Location::Registered(..) => LocationKind::Registered,
        }
    }

    /// Where this rank's elements start.
    ///
    /// # Errors
    /// [`Error::Foreign`] when a registration is another group's, or not all members have the symmetric memory.
    pub(crate) fn address(&self, team: &Team) -> Result<DeviceAddress> {
        match self.location {
            Location::Local(address) => Ok(address),
            Location::Symmetric(memory, offset) => {
                // Elsewhere the same offsets may hold something else: at ranks without this allocation, or in another world.
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

    /// Where a member's elements start, as this rank reaches them.
    ///
    /// # Errors
    /// As [`Self::address`]; for memory that only its owner reaches, where the member is another.
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

    /// The place for the kernels.
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
                // A tensor that the call does not touch here may be another group's.
                let own =
                    registration.peer_address(team.rank()).map_or(0, |address| address.offset(offset).0);
                BufferView { bases: registration.table(), offset, own }
            }
        }
    }

    /// What a member's elements are aligned to, at most 16, as far as it is known: addresses of registered memory differ.
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

    /// What is equal on all members where peers reach it: the registration, and the offset in it or in the heap.
    pub(crate) fn identity(&self) -> (u64, u64) {
        match self.location {
            Location::Local(_) => (NOTHING, NOTHING),
            Location::Symmetric(memory, offset) => (NOTHING, memory.offset() + offset),
            Location::Registered(registration, offset) => (registration.sequence(), offset),
        }
    }

    /// The allocation that a launch has to keep.
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
