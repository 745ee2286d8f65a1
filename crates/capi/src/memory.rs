//! Memory of the symmetric heap.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use anabranch::GroupRank;
use anabranch::hip::DeviceAddress;
use anabranch::shmem::{DEFAULT_ALIGNMENT, SymmetricMemory};

use crate::group::anabranch_group;
use crate::handle::{Handle, OfWorld, Out, destroy, get, put, put_text, text, with};
use crate::state::State;
use crate::status::{Failure, anabranch_status};
use crate::versioned::{self, Versioned};
use crate::world::anabranch_world;

/// An allocation in the symmetric heap: device memory at the same offset on all ranks of a group, which peers reach directly. Not changed
/// after it was made: any thread may use it.
#[derive(Debug)]
pub struct anabranch_memory {
    state: Arc<State>,
    inner: Arc<SymmetricMemory>,
}

impl Handle for anabranch_memory {
    const NAME: &'static str = "memory";
}

impl OfWorld for anabranch_memory {
    fn state(&self) -> &State {
        &self.state
    }
}

/// Bytes of `anabranch_location.tag`.
pub const ANABRANCH_TAG_BYTES: usize = 64;

/// Where an address is in the heap.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct anabranch_location {
    /// `sizeof(anabranch_location)`, set by the caller.
    pub size: usize,
    /// 1 for memory of this rank's heap; else 0, and so are the other fields.
    pub is_found: u32,
    /// Ranks of the allocation's group.
    pub group_size: u32,
    /// Bytes from the start of the allocation to the address.
    pub offset: u64,
    /// Bytes of the allocation.
    pub bytes: u64,
    /// The tag that it was allocated with, cut to fit.
    pub tag: [c_char; ANABRANCH_TAG_BYTES],
}

// SAFETY: numbers, the size first.
unsafe impl Versioned for anabranch_location {
    const NAME: &'static str = "anabranch_location";
    const LEAST: usize = std::mem::offset_of!(anabranch_location, tag);
}

/// Allocates `bytes` bytes for the ranks of a group (NULL: the world), zeroed. Collective: all of them call it in the same order, with the
/// same arguments. `alignment` is a power of two, 0 for 256. `tag` (may be NULL) is a name for errors, and compared too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_heap_allocate(
    world: *const anabranch_world,
    group: *const anabranch_group,
    bytes: u64,
    alignment: u64,
    tag: *const c_char,
    memory: *mut *mut anabranch_memory,
) -> anabranch_status {
    let out = Out::new(memory);
    with(world, |world| {
        let out = out?;
        let members = world.state.group(group)?;
        let tag = text(tag, "tag")?.unwrap_or("memory");
        if bytes == 0 {
            return Err(Failure::usage("bytes is 0; allocate at least 1"));
        }
        let alignment = if alignment == 0 { DEFAULT_ALIGNMENT } else { alignment };
        let inner = Arc::new(world.state.live()?.allocate(&members, bytes, alignment, tag)?);
        world.state.note(&inner);
        out.give(anabranch_memory { state: Arc::clone(&world.state), inner });
        Ok(())
    })
}

/// Where it is in this rank's device memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_memory_address(memory: *const anabranch_memory) -> *mut c_void {
    get(memory).map_or(std::ptr::null_mut(), |memory| memory.inner.address().as_ptr())
}

/// Its bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_memory_bytes(memory: *const anabranch_memory) -> u64 {
    get(memory).map_or(0, |memory| memory.inner.bytes())
}

/// Where kernels of this rank find the part of a rank of the group, or NULL where it is not mapped here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_memory_peer_address(
    memory: *const anabranch_memory,
    group_rank: u32,
    address: *mut *mut c_void,
) -> anabranch_status {
    with(memory, |memory| {
        let size = memory.inner.group().size();
        if group_rank >= size {
            return Err(Failure::usage(format!(
                "group_rank is {group_rank}; the group has ranks 0 to {}",
                size - 1
            )));
        }
        let peer = memory.inner.peer_address(GroupRank::new(group_rank));
        put(address, peer.map_or(std::ptr::null_mut(), DeviceAddress::as_ptr), "address")
    })
}

/// Gives up an allocation. Not collective; calls in flight keep it until they are done. The place is used again when all ranks have.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_heap_free(memory: *mut anabranch_memory) {
    destroy(memory);
}

/// The allocation of this rank's heap that holds an address of device memory. Not collective.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_heap_locate(
    world: *const anabranch_world,
    address: *const c_void,
    location: *mut anabranch_location,
) -> anabranch_status {
    with(world, |world| {
        let found = world.state.live()?.locate(DeviceAddress(address as u64));
        let mut shown = anabranch_location {
            size: 0,
            is_found: 0,
            group_size: 0,
            offset: 0,
            bytes: 0,
            tag: [0; ANABRANCH_TAG_BYTES],
        };
        if let Some(found) = found {
            (shown.is_found, shown.group_size) = (1, found.group.size());
            (shown.offset, shown.bytes) = (found.offset, found.bytes);
            put_text(&found.tag, shown.tag.as_mut_ptr(), ANABRANCH_TAG_BYTES);
        }
        versioned::write(location, &shown)
    })
}
