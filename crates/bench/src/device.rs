//! The benchmarks' own kernels and what goes into them. Unsafe code of this program stands here and in `shmem/region.rs`.
#![expect(unsafe_code, reason = "launching a kernel and copying between addresses are the caller's promise")]

use std::sync::Arc;

use anabranch::{Error, Group, GroupRank, World};
use anabranch_hip::{DeviceAddress, DeviceBuffer, LaunchShape, Stream};
use anabranch_hip_jit::{
    DevicePointer, Kernel, KernelSpec, LoadedKernel, LoadedUnit, PRELUDE, device_struct, kernel_unit,
};
use anabranch_shmem::p2p::{self, P2P_UNIT, P2pCopyArgs, P2pPingArgs};
use anabranch_shmem::{SymmetricMemory, Team};
use anyhow::{Context as _, bail};

device_struct! {
    /// Arguments of the time stamp kernel.
    pub(crate) struct StampArgs {
        pub(crate) stamps: DevicePointer<u64>,
        pub(crate) count: DevicePointer<u64>,
        pub(crate) capacity: u64,
    }
}

kernel_unit! {
    static STAMP_UNIT: "bench_stamp", include_str!("../kernels/stamp.hip"), &[PRELUDE];
    const STAMP: Kernel<StampArgs> = "anabranch_bench_stamp";
}

/// Number of the ping in fault records.
const PING: u32 = 0x1000;
/// Bytes between two flag words of the ping.
const FLAG_STRIDE: u32 = 128;

/// The most bytes of a ping's payload: what the kernel keeps in registers.
const MAX_PAYLOAD: u64 = 2 * 16 * 1024;

/// Bytes of the symmetric heap that [`Links`] with these areas take.
///
/// # Errors
/// More than 64 bits can say.
pub(crate) fn heap_bytes(area: u64, ranks: u32) -> anyhow::Result<u64> {
    let flags = u64::from(ranks) * u64::from(FLAG_STRIDE);
    let bytes = area.checked_mul(2).and_then(|areas| areas.checked_add(flags));
    bytes.with_context(|| format!("two areas of {area} bytes are more than any heap holds"))
}

/// Kernels that are not in the registry.
pub(crate) fn own_kernels() -> Vec<KernelSpec> {
    vec![KernelSpec::new(&STAMP_UNIT)]
}

/// What the transfers launch.
pub(crate) fn kernels() -> Vec<KernelSpec> {
    vec![KernelSpec::new(&P2P_UNIT), KernelSpec::new(&STAMP_UNIT)]
}

/// How bytes get from one rank to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mechanism {
    /// The runtime's copy engine, pushing.
    CopyEngine,
    /// Stores of a kernel at the sender.
    Store,
    /// Loads of a kernel at the receiver.
    Load,
}

impl Mechanism {
    pub(crate) const ALL: [Self; 3] = [Self::CopyEngine, Self::Store, Self::Load];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::CopyEngine => "copy_engine",
            Self::Store => "store",
            Self::Load => "load",
        }
    }

    pub(crate) fn pushes(self) -> bool {
        self != Self::Load
    }
}

/// Which ranks move bytes in one run: rank r to or from the ranks r + `first_step` up to r + `first_step` + `peers` - 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pattern {
    pub(crate) first_step: u32,
    pub(crate) peers: u32,
    /// Bytes for each peer, a multiple of 16.
    pub(crate) bytes: u64,
    /// Bytes between the areas of two peers; 0 where only one pair is active.
    pub(crate) stride: u64,
}

/// Areas in the symmetric heap and kernels to move bytes between them, on one rank.
#[derive(Debug)]
pub(crate) struct Links {
    pub(crate) team: Team,
    memory: SymmetricMemory,
    area: u64,
    flags: u64,
    kernels: Arc<LoadedUnit>,
    wrong: DeviceBuffer,
    base: DeviceBuffer,
    seed: u32,
}

impl Links {
    /// Allocates areas of `area` bytes for sending and for receiving. Collective over the group.
    ///
    /// # Errors
    /// More than the heap holds; what made the world fail.
    pub(crate) fn new(world: &World, group: &Group, area: u64) -> anyhow::Result<Self> {
        Self::allocate(world, group, area, heap_bytes(area, group.size())?).map_err(anyhow::Error::from)
    }

    fn allocate(world: &World, group: &Group, area: u64, bytes: u64) -> Result<Self, Error> {
        let team = world.team(group)?;
        let memory = world.allocate(group, bytes, 256, "bench links")?;
        let device = world.device();
        let word = || -> Result<DeviceBuffer, Error> {
            let mut word = device.allocate(8)?;
            word.fill(0)?;
            Ok(word)
        };
        let (wrong, base) = (word()?, word()?);
        let kernels = world.jit().load(device, &KernelSpec::new(&P2P_UNIT))?;
        Ok(Self { team, memory, area, flags: 2 * area, kernels, wrong, base, seed: 0x5eed_0000 })
    }

    /// Gives the areas back. Collective over the group.
    pub(crate) fn free(self) -> Result<(), Error> {
        Ok(self.memory.free()?)
    }

    /// A number for the words of one run, so that words of an earlier run do not match.
    pub(crate) fn next_seed(&mut self) -> u32 {
        self.seed += 1;
        self.seed
    }

    fn arguments(&self, pattern: &Pattern, pushed: bool, seed: u32) -> P2pCopyArgs {
        P2pCopyArgs {
            team: self.team.view(),
            wrong: DevicePointer::new(self.wrong.address()),
            outgoing: self.memory.offset(),
            incoming: self.memory.offset() + self.area,
            stride: pattern.stride,
            bytes: pattern.bytes,
            first_step: pattern.first_step,
            peers: pattern.peers,
            pushed: u32::from(pushed),
            seed,
        }
    }

    fn launch(
        &self,
        kernel: Kernel<P2pCopyArgs>,
        stream: &Stream,
        blocks: u32,
        arguments: &P2pCopyArgs,
    ) -> Result<(), Error> {
        let device = self.team.world().device();
        let threads = if device.multiprocessors() >= 32 { 512 } else { 4 * device.wave_size() };
        let kernel = self.kernels.get(kernel)?;
        let shape = LaunchShape { grid_blocks: blocks, block_threads: threads, local_bytes: 0 };
        // SAFETY: areas, words and table belong to `self`, which is freed after the stream
        // was waited for; the pattern's areas lie within `area` (`check`, which all callers have called).
        Ok(unsafe { kernel.launch(shape, stream, arguments) }?)
    }

    /// Refuses a pattern whose parts are not within the areas.
    fn check(&self, pattern: &Pattern) -> anyhow::Result<()> {
        let Pattern { first_step, peers, bytes, stride } = *pattern;
        let size = self.team.size();
        if !bytes.is_multiple_of(16) || !stride.is_multiple_of(16) {
            bail!("{bytes} bytes a peer, {stride} apart: both must be multiples of 16");
        }
        if peers == 0 || peers >= size || first_step == 0 || first_step >= size {
            bail!("{peers} peers from step {first_step} on: {size} ranks have steps 1 to {}", size - 1);
        }
        let end = u64::from(size - 1).checked_mul(stride).and_then(|last| last.checked_add(bytes));
        match end {
            Some(end) if end <= self.area => Ok(()),
            _ => bail!(
                "{bytes} bytes a peer, {stride} apart, leave the areas of {size} ranks: each has {} bytes",
                self.area
            ),
        }
    }

    /// Writes what is to be sent.
    pub(crate) fn fill(
        &self,
        stream: &Stream,
        pattern: &Pattern,
        pushed: bool,
        seed: u32,
    ) -> anyhow::Result<()> {
        self.check(pattern)?;
        let blocks = self.team.world().device().multiprocessors();
        Ok(self.launch(p2p::FILL, stream, blocks, &self.arguments(pattern, pushed, seed))?)
    }

    /// Moves the bytes, as the rank that pushes or pulls.
    pub(crate) fn run(
        &self,
        stream: &Stream,
        mechanism: Mechanism,
        pattern: &Pattern,
        blocks: u32,
    ) -> anyhow::Result<()> {
        self.check(pattern)?;
        let arguments = self.arguments(pattern, mechanism.pushes(), 0);
        Ok(match mechanism {
            Mechanism::Store => self.launch(p2p::STORE, stream, blocks, &arguments),
            Mechanism::Load => self.launch(p2p::LOAD, stream, blocks, &arguments),
            Mechanism::CopyEngine => self.copy_engine(stream, pattern),
        }?)
    }

    /// One copy a peer, one after the other: copies of one device that run at once share its links and slow each other down.
    fn copy_engine(&self, stream: &Stream, pattern: &Pattern) -> Result<(), Error> {
        let (me, size) = (self.team.rank().get(), self.team.size());
        let own = self.memory.address();
        for slot in 0..pattern.peers {
            let peer = (me + pattern.first_step + slot) % size;
            let Some(other) = self.memory.peer_address(GroupRank::new(peer)) else { continue };
            let source = own.offset(u64::from(peer) * pattern.stride);
            let target = other.offset(self.area + u64::from(me) * pattern.stride);
            // SAFETY: both ranges lie in areas of `self` (`run` has checked) and of its counterpart at the peer, which is
            // freed only after a collective call that this rank makes after waiting for the stream.
            unsafe { stream.copy_async(target, source, pattern.bytes as usize)? };
        }
        Ok(())
    }

    /// Whether everything that should have arrived here is what its sender wrote. Waits for the stream.
    pub(crate) fn verify(
        &mut self,
        stream: &Stream,
        pattern: &Pattern,
        pushed: bool,
        seed: u32,
    ) -> anyhow::Result<bool> {
        self.check(pattern)?;
        self.forget_wrong()?;
        let blocks = self.team.world().device().multiprocessors();
        self.launch(p2p::CHECK, stream, blocks, &self.arguments(pattern, pushed, seed))?;
        self.team.world().synchronize(stream).map_err(Error::from)?;
        Ok(self.nothing_wrong()?)
    }

    /// Sends `bytes` and a flag to and fro between this rank and `peer`, `rounds` times.
    pub(crate) fn ping(
        &self,
        stream: &Stream,
        peer: GroupRank,
        first: bool,
        bytes: u64,
        rounds: u32,
        verify: bool,
    ) -> anyhow::Result<()> {
        if bytes > MAX_PAYLOAD || bytes > self.area || !bytes.is_multiple_of(16) {
            bail!(
                "a payload of {bytes} bytes: allowed are multiples of 16 up to {}",
                self.area.min(MAX_PAYLOAD)
            );
        }
        let device = self.team.world().device();
        let arguments = P2pPingArgs {
            team: self.team.view(),
            base: DevicePointer::new(self.base.address()),
            wrong: DevicePointer::new(self.wrong.address()),
            flags_offset: self.memory.offset() + self.flags,
            outgoing: self.memory.offset(),
            incoming: self.memory.offset() + self.area,
            bytes,
            flag_stride: FLAG_STRIDE,
            peer: peer.get(),
            first: u32::from(first),
            rounds,
            operation: PING,
            verify: u32::from(verify),
        };
        // Two 16-byte units a thread, which the kernel keeps in registers; threads without one would only wait.
        let wave = device.wave_size();
        let threads = (bytes / 16).div_ceil(2).clamp(1, 1024) as u32;
        let threads = threads.next_multiple_of(wave);
        let kernel = self.kernels.get(p2p::PING).map_err(Error::from)?;
        let shape = LaunchShape { grid_blocks: 1, block_threads: threads, local_bytes: 16 };
        // SAFETY: as in `launch`; `bytes` was checked against `area` above.
        unsafe { kernel.launch(shape, stream, &arguments) }.map_err(Error::from)?;
        Ok(())
    }

    /// Forgets what the checks have counted. Nothing that counts may be running.
    pub(crate) fn forget_wrong(&mut self) -> Result<(), Error> {
        Ok(self.wrong.fill(0)?)
    }

    /// Whether the checks since [`Self::forget_wrong`] found nothing wrong. The stream must have been waited for.
    pub(crate) fn nothing_wrong(&self) -> Result<bool, Error> {
        let mut word = [0; 8];
        self.wrong.copy_to_host(0, &mut word)?;
        Ok(u64::from_ne_bytes(word) == 0)
    }
}

/// Time stamps taken in stream order, on one device.
#[derive(Debug)]
pub(crate) struct Stamps {
    kernel: LoadedKernel<StampArgs>,
    words: DeviceBuffer,
    capacity: u64,
}

impl Stamps {
    /// Room for `capacity` stamps.
    pub(crate) fn new(world: &World, capacity: u64) -> Result<Self, Error> {
        let mut words = world.device().allocate((capacity as usize + 1) * 8)?;
        words.fill(0)?;
        let unit = world.jit().load(world.device(), &KernelSpec::new(&STAMP_UNIT))?;
        Ok(Self { kernel: unit.get(STAMP)?, words, capacity })
    }

    /// Takes the time after the work on the stream so far.
    pub(crate) fn take(&self, stream: &Stream) -> Result<(), Error> {
        let arguments = StampArgs {
            stamps: DevicePointer::new(self.words.address().offset(8)),
            count: DevicePointer::new(self.words.address()),
            capacity: self.capacity,
        };
        let threads = stream.device().wave_size();
        let shape = LaunchShape { grid_blocks: 1, block_threads: threads, local_bytes: 0 };
        // SAFETY: the words belong to `self`, which callers keep until they waited for the
        // stream; the kernel stays within `capacity`.
        Ok(unsafe { self.kernel.launch(shape, stream, &arguments) }?)
    }

    /// All stamps since the last call, in nanoseconds; clears them. Wait for the stream first.
    pub(crate) fn read(&mut self) -> Result<Vec<u64>, Error> {
        let mut word = [0; 8];
        self.words.copy_to_host(0, &mut word)?;
        let count = u64::from_ne_bytes(word).min(self.capacity) as usize;
        let mut bytes = vec![0; count * 8];
        self.words.copy_to_host(8, &mut bytes)?;
        self.words.copy_from_host(0, &[0; 8])?;
        Ok(bytes
            .chunks_exact(8)
            .map(|chunk| chunk.iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte)))
            .collect())
    }
}

/// Device memory filled from the host.
pub(crate) fn upload(world: &World, bytes: &[u8]) -> Result<DeviceBuffer, Error> {
    let mut buffer = world.device().allocate(bytes.len().max(16))?;
    buffer.copy_from_host(0, bytes)?;
    Ok(buffer)
}

/// A whole buffer as an argument of dispatch and combine.
///
/// The benchmarks keep their buffers until they have waited for the stream, as `DeviceSlice` requires.
pub(crate) fn slice(buffer: &DeviceBuffer) -> anabranch_ep::DeviceSlice {
    // SAFETY: see above.
    unsafe { anabranch_ep::DeviceSlice::of(buffer) }
}

/// Runs the reference expert into a buffer of the combine window's shape, or, without one, into that window.
pub(crate) fn run_expert(
    expert: &anabranch_conformance::ep::reference::ReferenceExpert,
    stream: &Stream,
    dispatched: &anabranch_ep::Dispatched,
    buffer: Option<&DeviceBuffer>,
) -> Result<(), Error> {
    let target: DeviceAddress = buffer.map_or(dispatched.combine_rows(), DeviceBuffer::address);
    // SAFETY: the window is the slot's own and has the shape, as has the buffer, which the benchmarks keep; the handle is of the
    // plan the expert was made for.
    Ok(unsafe { expert.run(stream, dispatched, target) }?)
}

/// Runs the reference experts on expert-major rows.
pub(crate) fn run_experts_major(
    experts: &anabranch_conformance::ep::reference::ReferenceExpertMajor,
    stream: &Stream,
    layout: &anabranch_ep::ExpertMajor,
    output: &DeviceBuffer,
) -> Result<(), Error> {
    // SAFETY: the benchmarks make the experts for the layout that they give.
    Ok(unsafe { experts.run(stream, layout, slice(output)) }?)
}

/// Replays a graph of work whose buffers the caller keeps.
pub(crate) fn replay(graph: &anabranch_hip::GraphExec, stream: &Stream) -> Result<(), Error> {
    // SAFETY: the benchmarks keep everything that the captured work uses until they have waited for the stream.
    Ok(unsafe { graph.launch(stream) }?)
}
