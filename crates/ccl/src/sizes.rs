//! Sizes that depend on the device: threads of blocks, bytes of a communicator's memory.

use anabranch_shmem::World;

use crate::channel::ChannelLayout;
use crate::communicator::{Communicator, PACKET_UNITS};
use crate::config::CclConfig;
use crate::error::{Error, Result};
use crate::pipes::PipeLayout;
use crate::plan::Limits;

/// Lanes on a large GPU: one a multiprocessor, as a power of two.
const DEFAULT_LANES: u32 = 128;

impl Communicator {
    /// The most bytes of the symmetric heap that a communicator of a group of `members` takes with this configuration: with all the
    /// lanes that it asks for. Without `ccl.check = "fingerprint"`, which takes a lane more. Not collective; allocates nothing.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config), also for a group of no members.
    pub fn most_heap_bytes(world: &World, members: u32, config: &CclConfig) -> Result<u64> {
        config.check()?;
        if !(1..=world.size()).contains(&members) {
            let allowed = "1 to the world's ranks";
            return Err(Error::Config { field: "members", given: members.into(), allowed });
        }
        let (staging, pipe_bytes) = memory_sizes(world, config);
        // Shares are rounded for each lane: fewer lanes may take a little more.
        let of = |lanes| {
            let layout = ChannelLayout::new(members, lanes, PACKET_UNITS, staging);
            PipeLayout::new(layout.bytes, members, lanes, pipe_bytes).end
        };
        Ok((1..=wanted_lanes(world, config)).map(of).max().unwrap_or_default())
    }
}

/// Threads of blocks on this device. On a machine of CPU threads lanes are coroutines: few, with more to do each.
pub(crate) fn threads(world: &World) -> Limits {
    let device = world.device();
    let wave = device.wave_size();
    let (packet, bulk) = if is_large(world) { (256, 512) } else { (wave, wave) };
    let whole = |threads: u32| threads.next_multiple_of(wave);
    Limits { lanes: 1, packet_threads: whole(packet), bulk_threads: whole(bulk), meeting_threads: wave }
}

/// Bytes for staging and for pipes: as configured, or chosen.
pub(crate) fn memory_sizes(world: &World, config: &CclConfig) -> (u64, u64) {
    let chosen = |given: u64, share: u64, most: u64, small: u64| match given {
        0 if is_large(world) => (world.config().heap_bytes / share).min(most),
        0 => small,
        bytes => bytes,
    };
    (chosen(config.staging_bytes, 8, 512 << 20, 4 << 20), chosen(config.pipe_bytes, 32, 32 << 20, 1 << 20))
}

/// Whether the device is a large GPU, and not a machine of a few CPU threads.
fn is_large(world: &World) -> bool {
    world.device().multiprocessors() >= 32
}

/// The lanes that a communicator asks for.
pub(crate) fn wanted_lanes(world: &World, config: &CclConfig) -> u32 {
    match config.max_blocks {
        0 => world.device().multiprocessors().min(DEFAULT_LANES),
        blocks => blocks,
    }
}
