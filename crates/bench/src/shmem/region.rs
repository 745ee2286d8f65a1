//! A part of the symmetric heap and kernels that work on it, on one rank.
#![expect(unsafe_code, reason = "launching a kernel is the caller's promise")]

use anabranch::{Error, Group, World};
use anabranch_hip::{DeviceBuffer, LaunchShape, Stream};
use anabranch_hip_jit::{DevicePointer, DeviceStruct, Kernel};
use anabranch_shmem::{DEFAULT_ALIGNMENT, LocalRegistration, SymmetricMemory, Team, TeamView};
use anyhow::ensure;

use super::super::link;

/// Number of these kernels in fault records.
pub(crate) const OPERATION: u32 = 0x1001;

/// How a kernel is launched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
}

/// A region of the heap, of equal size on all members of a group.
#[derive(Debug)]
pub(crate) struct Region<'w> {
    pub(crate) world: &'w World,
    team: Team,
    memory: SymmetricMemory,
    stream: Stream,
}

/// Device memory that kernels read and write, known to the NIC where peers are reached by one.
#[derive(Debug)]
pub(crate) struct Buffer {
    // Dropped before the memory.
    _known: LocalRegistration,
    memory: DeviceBuffer,
}

impl Buffer {
    pub(crate) fn pointer<T>(&self) -> DevicePointer<T> {
        DevicePointer::new(self.memory.address())
    }

    /// What it holds.
    pub(crate) fn contents(&self) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; self.memory.len()];
        self.memory.copy_to_host(0, &mut bytes)?;
        Ok(bytes)
    }

    /// What it holds, as words.
    pub(crate) fn words(&self) -> Result<Vec<u64>, Error> {
        Ok(words(&self.contents()?))
    }

    /// Whether all that it holds is zero: statuses of operations that went well.
    pub(crate) fn is_zero(&self) -> Result<bool, Error> {
        Ok(self.contents()?.iter().all(|byte| *byte == 0))
    }
}

/// Little-endian words.
pub(crate) fn words(bytes: &[u8]) -> Vec<u64> {
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    bytes.chunks_exact(8).map(word).collect()
}

impl<'w> Region<'w> {
    /// Collective over the group, as are all calls that say so.
    ///
    /// # Errors
    /// More than the heap holds; what made the world fail.
    pub(crate) fn new(world: &'w World, group: &Group, bytes: u64) -> Result<Self, Error> {
        let team = world.team(group)?;
        let memory = world.allocate(group, bytes, DEFAULT_ALIGNMENT, "bench shmem")?;
        Ok(Self { world, team, memory, stream: world.device().create_stream()? })
    }

    /// Gives it back. Collective.
    pub(crate) fn free(self) -> Result<(), Error> {
        Ok(self.memory.free()?)
    }

    /// Where it starts in the heap.
    pub(crate) fn offset(&self) -> u64 {
        self.memory.offset()
    }

    pub(crate) fn team(&self) -> TeamView {
        self.team.view()
    }

    /// This rank in the group.
    pub(crate) fn rank(&self) -> u32 {
        self.team.rank().get()
    }

    pub(crate) fn group(&self) -> &Group {
        self.team.group()
    }

    /// Memory of this rank alone with these contents.
    pub(crate) fn buffer(&self, contents: &[u8]) -> Result<Buffer, Error> {
        let mut memory = self.world.device().allocate(contents.len().max(16))?;
        memory.fill(0)?;
        memory.copy_from_host(0, contents)?;
        // SAFETY: `Buffer` drops the registration before the memory, and `run` has waited for the kernels that name it.
        let known = unsafe { self.world.register_local(memory.address(), memory.len() as u64) }?;
        Ok(Buffer { _known: known, memory })
    }

    /// Sets the first bytes of this rank's part; passed when all ranks have. Collective.
    pub(crate) fn fill(&mut self, contents: &[u8]) -> Result<(), Error> {
        self.memory.write(0, contents)?;
        Ok(self.world.barrier(self.group(), "bench shmem: filled")?)
    }

    /// The first bytes of this rank's part, when no rank writes to another's any more. Collective.
    pub(crate) fn contents(&self, bytes: usize) -> Result<Vec<u8>, Error> {
        self.world.barrier(self.group(), "bench shmem: written")?;
        let mut contents = vec![0; bytes];
        self.memory.read(0, &mut contents)?;
        Ok(contents)
    }

    /// Launches the kernel `times` times after a barrier of all ranks' streams, where there are arguments, and waits. Microseconds that all
    /// of it took on this rank's device. Collective.
    ///
    /// Offsets in the arguments lie in the region, and buffers in them are the caller's, who holds them until this returns.
    pub(crate) fn run<A: DeviceStruct>(
        &self,
        kernel: Kernel<A>,
        grid: Grid,
        times: u32,
        arguments: Option<&A>,
    ) -> anyhow::Result<f64> {
        ensure!(grid.blocks > 0 && grid.threads > 0, "a grid of {grid:?} has no thread");
        let device = self.world.device();
        let loaded = self.world.jit().load(device, &self.world.kernel(kernel.unit())).map_err(Error::from)?;
        let kernel = loaded.get(kernel).map_err(Error::from)?;
        let shape = LaunchShape { grid_blocks: grid.blocks, block_threads: grid.threads, local_bytes: 0 };
        self.team.barrier(&self.stream).map_err(Error::from)?;
        let event = || device.create_timing_event().map_err(Error::from);
        let (start, end) = (event()?, event()?);
        self.stream.record(&start).map_err(Error::from)?;
        for arguments in (0..times).filter_map(|_| arguments) {
            // SAFETY: what the arguments name lives until the wait below, by the callers in this folder.
            unsafe { kernel.launch(shape, &self.stream, arguments) }.map_err(Error::from)?;
        }
        self.stream.record(&end).map_err(Error::from)?;
        self.world.synchronize_within(&self.stream, link::patience(self.world)).map_err(Error::from)?;
        Ok(start.microseconds_until(&end).map_err(Error::from)?)
    }
}
