//! Sizes that depend on the device: threads of blocks, bytes of a communicator's memory.

use anabranch_ranks::LinkSpeeds;
use anabranch_shmem::World;

use crate::device::channel::{ChannelLayout, MOST_STAGING, PACKET_UNITS};
use crate::device::pipes::PipeLayout;
use crate::network::LinkLayout;
use crate::network::form::lanes_for;
use crate::network::layout::CROSSING_LANES;
use crate::plan::Limits;
use crate::run::communicator::Communicator;
use crate::run::config::CclConfig;
use crate::types::{Error, Result};

/// Channels on a large GPU: one a multiprocessor, as a power of two.
const DEFAULT_CHANNELS: u32 = 128;

impl Communicator {
    /// The most bytes of the symmetric heap that a communicator of a group of `members` takes with this configuration: with all the
    /// channels that it asks for. Without `ccl.check = "fingerprint"`, which takes a channel more. Not collective; allocates nothing.
    ///
    /// # Errors
    /// [`Error::Config`](crate::types::Error::Config), also for a group of no members.
    pub fn most_heap_bytes(world: &World, members: u32, config: &CclConfig) -> Result<u64> {
        config.check()?;
        if !(1..=world.size()).contains(&members) {
            let allowed = "1 to the world's ranks";
            return Err(Error::Config { field: "members", given: members.into(), allowed });
        }
        let most = |is_crossing| {
            // Shares are rounded for each channel: fewer channels may take a little more.
            let of = |channels| Layouts::new(world, members, channels, config, is_crossing).end;
            (1..=wanted_channels(world, members, config, is_crossing)).map(of).fold(0, u64::max)
        };
        // Some groups are on one machine, others are not.
        let crosses = config.machines.is_some()
            || world.group().members().iter().any(|rank| world.peer_base(*rank).is_none());
        Ok(if crosses { most(true).max(most(false)) } else { most(false) })
    }
}

/// The memory of one communicator. Where members are on several machines it is links; channels and pipes, which no call uses there, are as
/// small as can be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layouts {
    pub(crate) comm: ChannelLayout,
    pub(crate) pipes: PipeLayout,
    pub(crate) links: Option<LinkLayout>,
    /// All bytes.
    pub(crate) end: u64,
}

impl Layouts {
    pub(crate) fn new(
        world: &World,
        members: u32,
        channels: u32,
        config: &CclConfig,
        is_crossing: bool,
    ) -> Self {
        let (staging, pipe_bytes) = memory_sizes(world, config);
        if is_crossing {
            let comm = ChannelLayout::new(members, 1, 0, 0);
            let pipes = PipeLayout::new(comm.bytes, members, 1, 0);
            let links = LinkLayout::new(pipes.end, members, channels, staging);
            return Self { comm, pipes, links: Some(links), end: links.end };
        }
        let comm = ChannelLayout::new(members, channels, PACKET_UNITS, staging);
        let pipes = PipeLayout::new(comm.bytes, members, channels, pipe_bytes);
        Self { comm, pipes, links: None, end: pipes.end }
    }
}

/// Threads of blocks on this device. On a machine of CPU threads channels are coroutines: few, with more to do each.
pub(crate) fn threads(world: &World) -> Limits {
    let device = world.device();
    let wave = device.wave_size();
    let (packet, bulk) = if is_large(world) { (256, 512) } else { (wave, wave) };
    let whole = |threads: u32| threads.next_multiple_of(wave);
    Limits { channels: 1, packet_threads: whole(packet), bulk_threads: whole(bulk), meeting_threads: wave }
}

/// Bytes for staging and for pipes: as configured, or chosen.
fn memory_sizes(world: &World, config: &CclConfig) -> (u64, u64) {
    let chosen = |given: u64, share: u64, most: u64, small: u64| match given {
        0 if is_large(world) => (world.config().heap_bytes / share).min(most),
        0 => small,
        bytes => bytes,
    };
    (chosen(config.staging_bytes, 8, MOST_STAGING, 4 << 20), chosen(config.pipe_bytes, 32, 32 << 20, 1 << 20))
}

/// Whether the device is a large GPU, and not a machine of a few CPU threads.
fn is_large(world: &World) -> bool {
    world.device().multiprocessors() >= 32
}

/// The speeds of links: as configured, or of the device.
pub(crate) fn speeds(world: &World, config: &CclConfig) -> LinkSpeeds {
    config.links.on(&world.device().arch())
}

/// The channels that a communicator of so many members asks for.
pub(crate) fn wanted_channels(world: &World, members: u32, config: &CclConfig, is_crossing: bool) -> u32 {
    let most = |most: u32| world.device().multiprocessors().min(most);
    match config.max_blocks {
        0 if is_crossing => {
            let (staging, _) = memory_sizes(world, config);
            lanes_for(members, staging, most(CROSSING_LANES), &speeds(world, config))
        }
        0 => most(DEFAULT_CHANNELS),
        blocks => blocks,
    }
}
