//! What a joined world has.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use anabranch::RuntimeKind;
use anabranch::hip::DeviceAddress;

use crate::group::anabranch_group;
use crate::handle::{Handle, OfWorld, destroy, get, limit, put, slice, slice_mut, text, with};
use crate::state::State;
use crate::status::{Failure, Result, anabranch_status};

/// One rank's side of a joined world. Any thread may use it; calls that are collective come from one thread at a time, in the same order
/// on all ranks.
#[derive(Debug)]
pub struct anabranch_world {
    pub(crate) state: Arc<State>,
}

impl Handle for anabranch_world {
    const NAME: &'static str = "world";
}

impl OfWorld for anabranch_world {
    fn state(&self) -> &State {
        &self.state
    }
}

/// A value of a world that is not NULL.
fn of<T>(world: *const anabranch_world, otherwise: T, value: impl FnOnce(&State) -> T) -> T {
    get(world).map_or(otherwise, |world| value(&world.state))
}

/// This rank, from 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_world_rank(world: *const anabranch_world) -> u32 {
    of(world, u32::MAX, |state| state.world.rank().get())
}

/// Ranks of the world.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_world_size(world: *const anabranch_world) -> u32 {
    of(world, 0, |state| state.world.size())
}

/// This rank among those of its machine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_world_local_rank(world: *const anabranch_world) -> u32 {
    of(world, u32::MAX, |state| state.local_rank)
}

/// The number of this rank's device, as `cudaSetDevice` and `hipSetDevice` take it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_world_device(world: *const anabranch_world) -> u32 {
    of(world, u32::MAX, |state| state.world.device().ordinal().0)
}

/// The runtime: `"amd"`, `"nvidia"` or `"host"`. On `host` every address of the process is device memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_world_runtime(world: *const anabranch_world) -> *const c_char {
    let name = |state: &State| match state.world.device().runtime().kind() {
        RuntimeKind::Amd => c"amd",
        RuntimeKind::Nvidia => c"nvidia",
        RuntimeKind::Host => c"host",
    };
    of(world, c"", name).as_ptr()
}

/// Leaves: waits for this rank's work, then for all ranks. Collective; every rank does it after its last call, whether calls failed or not.
/// Doing it again does nothing. Handles of the world stay to be destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_world_leave(world: *mut anabranch_world) -> anabranch_status {
    with(world, |world| world.state.leave())
}

/// Frees the handle. A world that this rank has not left is left without the others, whose calls then fail, when all its handles are
/// destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_world_destroy(world: *mut anabranch_world) {
    destroy(world);
}

/// Returns what made the world fail, if it did. Does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_world_check(world: *const anabranch_world) -> anabranch_status {
    with(world, |world| Ok(world.state.live()?.check()?))
}

/// Makes the world fail with this reason: later calls fail, and those of the other ranks when they notice.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_world_poison(
    world: *const anabranch_world,
    reason: *const c_char,
) -> anabranch_status {
    with(world, |world| {
        world.state.live()?.poison(text(reason, "reason")?.unwrap_or("poisoned by the program"));
        Ok(())
    })
}

fn tag_of(tag: *const c_char, otherwise: &str) -> Result<&str> {
    Ok(text(tag, "tag")?.unwrap_or(otherwise))
}

/// Waits on the host until all ranks of the group (NULL: the world) have come. Collective. `tag` (may be NULL) is a name for errors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_world_barrier(
    world: *const anabranch_world,
    group: *const anabranch_group,
    tag: *const c_char,
) -> anabranch_status {
    with(world, |world| {
        let members = world.state.group(group)?;
        Ok(world.state.live()?.barrier(&members, tag_of(tag, "barrier")?)?)
    })
}

/// Gives `bytes` bytes of host memory to all ranks of the group (NULL: the world): `all` gets those of every rank, in the group's order.
/// Collective, through the rendezvous, for small data. All ranks give as many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_world_exchange(
    world: *const anabranch_world,
    group: *const anabranch_group,
    tag: *const c_char,
    data: *const c_void,
    bytes: usize,
    all: *mut c_void,
) -> anabranch_status {
    with(world, |world| {
        let members = world.state.group(group)?;
        let data = slice(data.cast::<u8>(), bytes, "data")?;
        if all.is_null() && bytes > 0 {
            return Err(Failure::usage("all is NULL"));
        }
        let parts = world.state.live()?.exchange(&members, tag_of(tag, "exchange")?, data)?;
        for (part, rank) in parts.iter().zip(members.members()) {
            if part.len() != bytes {
                let text =
                    format!("{rank} gave {} bytes, and this rank {bytes}; all give as many", part.len());
                return Err(Failure { ranks: vec![rank.get()], ..Failure::usage(text) });
            }
        }
        let joined = parts.concat();
        // SAFETY: the caller's: `bytes` for each rank of the group.
        unsafe { std::ptr::copy_nonoverlapping(joined.as_ptr(), all.cast::<u8>(), joined.len()) };
        Ok(())
    })
}

/// Waits on the host until all work on the stream is done, and returns what made it fail: the error names the rank that is missing. After
/// `limit_seconds` (below 0: none) `ANABRANCH_ERROR_BUSY`. Use it in place of `cudaStreamSynchronize`, which does not notice a lost rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_synchronize(
    world: *const anabranch_world,
    stream: *mut c_void,
    limit_seconds: f64,
) -> anabranch_status {
    with(world, |world| {
        let stream = world.state.stream(stream)?;
        Ok(world.state.live()?.synchronize_within(&stream, limit(limit_seconds)?)?)
    })
}

/// Copies `bytes` bytes from host memory to this rank's device memory. Waits, in no order with any stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_write(
    world: *const anabranch_world,
    device: *mut c_void,
    host: *const c_void,
    bytes: usize,
) -> anabranch_status {
    with(world, |world| {
        let host = slice(host.cast::<u8>(), bytes, "host")?;
        let (address, runtime) = (DeviceAddress(device as u64), world.state.live()?.device());
        // SAFETY: the caller's: `bytes` of device memory.
        Ok(unsafe { runtime.write_memory(address, host) }?)
    })
}

/// Copies `bytes` bytes from this rank's device memory to host memory. Waits, in no order with any stream: synchronize first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_read(
    world: *const anabranch_world,
    host: *mut c_void,
    device: *const c_void,
    bytes: usize,
) -> anabranch_status {
    with(world, |world| {
        let host = slice_mut(host.cast::<u8>(), bytes, "host")?;
        let (address, runtime) = (DeviceAddress(device as u64), world.state.live()?.device());
        // SAFETY: the caller passes `bytes` bytes of device memory.
        Ok(unsafe { runtime.read_memory(address, host) }?)
    })
}

/// A number of the world's heap.
pub(crate) fn put_number(place: *mut u64, value: u64, name: &str) -> Result {
    if place.is_null() { Ok(()) } else { put(place, value, name) }
}

/// Bytes of the symmetric heap of this rank: all, and those that are free here. Either pointer may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_heap_usage(
    world: *const anabranch_world,
    bytes: *mut u64,
    free_bytes: *mut u64,
) -> anabranch_status {
    with(world, |world| {
        let usage = world.state.live()?.heap_usage();
        put_number(bytes, usage.heap_bytes, "bytes")?;
        put_number(free_bytes, usage.free, "free_bytes")
    })
}
