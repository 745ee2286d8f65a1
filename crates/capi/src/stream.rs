//! Streams for programs that have no runtime of their own.

use std::ffi::c_void;

use crate::handle::{put, with};
use crate::status::anabranch_status;
use crate::world::anabranch_world;

/// Makes a stream of this rank's device. On `nvidia` and `amd` it is a `cudaStream_t` or `hipStream_t`, and streams of those runtimes serve
/// as well; on `host` all streams but NULL come from here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_stream_create(
    world: *const anabranch_world,
    stream: *mut *mut c_void,
) -> anabranch_status {
    with(world, |world| {
        put(stream, std::ptr::null_mut(), "stream")?;
        let made = world.state.live()?.device().create_stream()?;
        put(stream, world.state.keep_stream(made), "stream")
    })
}

/// Destroys a stream of `anabranch_stream_create`, after its work was waited for. NULL is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_stream_destroy(
    world: *const anabranch_world,
    stream: *mut c_void,
) -> anabranch_status {
    with(world, |world| if stream.is_null() { Ok(()) } else { world.state.drop_stream(stream) })
}
