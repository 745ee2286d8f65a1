//! Sizes that depend on the device: threads per block, and bytes of the memory of a communicator.

use anabranch_hip::RuntimeKind;
use anabranch_hip_jit::LOCAL_RESERVED_BYTES;
use anabranch_ranks::LinkSpeeds;
use anabranch_shmem::World;

use crate::device::channel::{ALIGNMENT, ChannelLayout, MOST_STAGING, PACKET_UNITS};
use crate::device::pipes::PipeLayout;
use crate::lower::norm::longest_row;
use crate::network::LinkLayout;
use crate::network::layout::{INTERNODE_CHANNELS, channels_for};
use crate::plan::Limits;
use crate::run::communicator::Communicator;
use crate::run::config::CclConfig;
use crate::types::{Error, Result};

/// Channels on a large GPU: one per multiprocessor, as a power of two.
const DEFAULT_CHANNELS: u32 = 128;
/// Channels of a group of one member, which only copies. Fewer channels take less memory for packets, and each has larger pieces of the staging.
const CHANNELS_ALONE: u32 = 32;

/// Channels with packets for long rows: the most blocks of a kernel that sums and norms rows. As many fill a link.
const MOST_ROW_CHANNELS: u32 = 32;
/// Local memory of a block that is not the kernel's: the launch header, and on NVIDIA 1 KiB of the driver.
const OF_RUNTIME: u32 = 2048;
/// Their packets of one source, stage and parity on large GPUs: a row of 8192 elements of two bytes in one epoch. In groups of more than
/// eight members fewer, so that they take 32 MiB in groups of up to 256.
const ROW_PACKET_UNITS: u32 = 2048;

impl Communicator {
    /// An upper bound of the bytes of the symmetric heap that a communicator of a group of `members` takes with this configuration. Without
    /// `ccl.check = "fingerprint"`, which takes one channel more. Not collective; allocates nothing.
    ///
    /// # Errors
    /// [`Error::Config`] for a field out of range, and for `members` outside 1 to the size of the world.
    pub fn most_heap_bytes(world: &World, members: u32, config: &CclConfig) -> Result<u64> {
        config.check()?;
        if !(1..=world.size()).contains(&members) {
            let allowed = "1 to the world's ranks";
            return Err(Error::Config { field: "members", given: members.into(), allowed });
        }
        let most = |is_internode| {
            // Shares are rounded per channel, so that fewer channels can take a little more.
            let of = |channels| Layouts::new(world, members, channels, config, is_internode).end;
            (1..=wanted_channels(world, members, config, is_internode)).map(of).fold(0, u64::max)
        };
        // Some groups are on one node, others are not.
        let has_nodes = config.nodes.is_some()
            || world.group().members().iter().any(|rank| world.peer_base(*rank).is_none());
        Ok(if has_nodes { most(true).max(most(false)) } else { most(false) })
    }
}

/// The memory of one communicator. With members on several nodes it is mostly links; channels and pipes, which no call uses there, have the
/// smallest size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layouts {
    pub(crate) comm: ChannelLayout,
    pub(crate) pipes: PipeLayout,
    /// Start and layout of the channels with packets for long rows (`kernels/reduce_norm.hip`).
    pub(crate) rows: (u64, ChannelLayout),
    /// Their number.
    pub(crate) row_channels: u32,
    pub(crate) links: Option<LinkLayout>,
    /// Bytes in total.
    pub(crate) end: u64,
}

impl Layouts {
    pub(crate) fn new(
        world: &World,
        members: u32,
        channels: u32,
        config: &CclConfig,
        is_internode: bool,
    ) -> Self {
        let (staging, pipe_bytes) = memory_sizes(world, members, config);
        if is_internode {
            let comm = ChannelLayout::new(members, 1, 0, 0);
            let pipes = PipeLayout::new(comm.bytes, members, 1, 0);
            let links = LinkLayout::new(pipes.end, members, channels, staging);
            let rows = (links.end, ChannelLayout::with(members, 0, 0, 0));
            return Self { comm, pipes, rows, row_channels: 0, links: Some(links), end: links.end };
        }
        let comm = ChannelLayout::new(members, channels, PACKET_UNITS, staging);
        // Messages of a single member have one block (`prepare_messages`), for which one pipe with large slots is best.
        let pipes = PipeLayout::new(comm.bytes, members, if members == 1 { 1 } else { channels }, pipe_bytes);
        let row_units = if is_large(world) {
            ROW_PACKET_UNITS.min(8 * ROW_PACKET_UNITS / members).max(64)
        } else {
            PACKET_UNITS
        };
        let row_channels = row_channels(members, channels);
        let rows = ChannelLayout::with(members, row_channels, row_units, 0);
        let start = pipes.end.next_multiple_of(ALIGNMENT);
        Self { comm, pipes, rows: (start, rows), row_channels, links: None, end: start + rows.bytes }
    }
}

/// Threads per block on this device. On the host device channels are coroutines: few threads with more work each.
pub(crate) fn threads(world: &World) -> Limits {
    let device = world.device();
    let wave = device.wave_size();
    // On large GPUs half of the launch bounds of the kernels, 512: then two blocks surely fit on a multiprocessor, and one communicator does
    // not take all of a GPU. `PER_MULTIPROCESSOR` in crates/nccl counts on it.
    let threads = if is_large(world) { 256_u32.next_multiple_of(wave) } else { wave };
    // A row is the work of one block, which therefore has more threads than other blocks on large GPUs: half of those that a compiler counts
    // on (`ANABRANCH_WIDE_BLOCK` in `anabranch/target_*.h`), so that two blocks fit on a multiprocessor, as the reservation of the
    // communicator counts.
    let is_wide = is_large(world) && device.runtime().kind() != RuntimeKind::Amd;
    let row_threads = if is_wide { 2 * threads } else { threads };
    Limits {
        channels: 1,
        block_threads: threads,
        barrier_threads: wave,
        row_channels: 0,
        row_threads,
        row_bytes: 0,
    }
}

/// Bytes of staging and of pipes: the configured ones, or defaults. A group of one member sends nothing to peers. It takes at most what a small
/// device takes, so that the heap has memory for many such groups.
fn memory_sizes(world: &World, members: u32, config: &CclConfig) -> (u64, u64) {
    let chosen = |given: u64, share: u64, most: u64, small: u64| {
        let bytes = match given {
            0 if is_large(world) => (world.config().heap_bytes / share).min(most),
            0 => small,
            bytes => bytes,
        };
        if members == 1 { bytes.min(small) } else { bytes }
    };
    (
        chosen(config.staging_bytes, 8, MOST_STAGING, 4 << 20),
        chosen(config.pipe_bytes, 16, 128 << 20, 1 << 20),
    )
}

/// Blocks of a kernel that sums and norms rows, each with a channel of rows. A member alone norms in a kernel without channels.
fn row_channels(members: u32, channels: u32) -> u32 {
    if members == 1 { 0 } else { channels.min(MOST_ROW_CHANNELS) }
}

/// The longest row of such a kernel, bytes: two blocks have room on a multiprocessor.
pub(crate) fn row_bytes(world: &World, members: u32) -> u64 {
    longest_row(members, (local_memory(world) / 2).saturating_sub(OF_RUNTIME))
}

/// Local memory that a block can have, bytes.
pub(crate) fn local_memory(world: &World) -> u32 {
    (world.device().properties().shared_memory_per_block() as u32).saturating_sub(LOCAL_RESERVED_BYTES)
}

/// Whether the device is a large GPU, and not the host device with a few CPU threads.
fn is_large(world: &World) -> bool {
    world.device().multiprocessors() >= 32
}

/// Link speeds: the configured ones, or those of the device.
pub(crate) fn speeds(world: &World, config: &CclConfig) -> LinkSpeeds {
    config.links.on(&world.device().arch())
}

/// The number of channels that a communicator of `members` members requests.
pub(crate) fn wanted_channels(world: &World, members: u32, config: &CclConfig, is_internode: bool) -> u32 {
    let shared = if config.shared_blocks == 0 { u32::MAX } else { config.shared_blocks };
    let most = |most: u32| world.multiprocessors().min(most).min(shared);
    match config.max_blocks {
        0 if is_internode => {
            let (staging, _) = memory_sizes(world, members, config);
            channels_for(members, staging, most(INTERNODE_CHANNELS), &speeds(world, config))
        }
        0 => most(if members == 1 { CHANNELS_ALONE } else { DEFAULT_CHANNELS }),
        blocks => blocks,
    }
}
