//! Waits inside kernels, for pictures of runs: which rank was waited for, from when to when.
//!
//! Kernels note them in a ring in pinned host memory (`note_wait` in `anabranch/wait.h`), which the host reads without a call of the
//! runtime. Times are those of the clock that kernels read; [`WaitTrace::look`] says what the host's clock shows at one of its moments.

use std::mem::offset_of;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use anabranch_clock::Moment;
use anabranch_hip::{HostBuffer, LaunchShape, Stream};
use anabranch_hip_jit::control::{NOTE_WAITS, WAIT_NOTES, WaitNote};
use anabranch_hip_jit::{DevicePointer, KernelSpec, LoadedKernel};
use bytemuck::Zeroable as _;

use crate::error::Result;
use crate::fault::state::FaultState;
use crate::fault::traced_wait::{NOTE_BYTES, TracedWait};
use crate::stamp::{STAMP, STAMP_UNIT, StampArgs};
use crate::world::{Inner, World};

/// Looks at both clocks; the shortest counts.
const TRIES: u32 = 8;
/// How long one may take: the device may be busy.
const PATIENCE: Duration = Duration::from_millis(20);

/// One moment by the clock of kernels and by the host's monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelClock {
    /// The clock of kernels, in ns.
    pub kernel_ns: u64,
    /// The host's, in ns.
    pub host_ns: u64,
    /// The most by which they may be apart, in ns.
    pub error_ns: u64,
}

/// Waits inside the kernels of a world are noted until this is dropped. One a world.
#[derive(Debug)]
pub struct WaitTrace {
    /// Not kept alive: that it goes is what the other ranks hear of.
    world: Weak<Inner>,
    state: Arc<FaultState>,
    ring: Arc<HostBuffer>,
    /// The number of the next note.
    next: u64,
    lost: u64,
    stamp: LoadedKernel<StampArgs>,
    /// A count and a stamp.
    words: HostBuffer,
    stream: Stream,
}

impl World {
    /// Lets kernels of this rank note their waits. `None` where they are compiled without ([`NOTE_WAITS`]).
    ///
    /// # Errors
    /// The first call compiles a kernel; the codes of memory and of a stream.
    pub fn trace_waits(&self) -> Result<Option<WaitTrace>> {
        let device = self.device();
        if !self.jit().config().parameters.iter().any(|(name, _)| *name == NOTE_WAITS) {
            return Ok(None);
        }
        let unit = self.jit().load(device, &KernelSpec::new(&STAMP_UNIT))?;
        let stamp = unit.get(STAMP)?;
        let words = device.allocate_host(16)?;
        words.write(0, &[0; 16])?;
        let stream = device.create_stream()?;
        let state = Arc::clone(&self.inner.state);
        let ring = state.control().start_notes(device)?;
        let mut trace = WaitTrace {
            world: Arc::downgrade(&self.inner),
            state,
            ring,
            next: 1,
            lost: 0,
            stamp,
            words,
            stream,
        };
        // What an earlier trace has left.
        trace.next = (0..WAIT_NOTES).map(|place| trace.number_at(place)).max().unwrap_or(0) + 1;
        Ok(Some(trace))
    }
}

impl WaitTrace {
    /// What was noted since the last call; nothing once the world is dropped. Calls no function of the runtime.
    ///
    /// # Errors
    /// None that the ring can have.
    pub fn take(&mut self) -> Result<Vec<TracedWait>> {
        let mut taken = Vec::new();
        let Some(world) = self.world.upgrade() else { return Ok(taken) };
        loop {
            let place = (self.next - 1) % WAIT_NOTES;
            let number = self.number_at(place);
            if number < self.next {
                return Ok(taken);
            }
            let mut note = WaitNote::zeroed();
            self.ring.read(place as usize * NOTE_BYTES, bytemuck::bytes_of_mut(&mut note))?;
            // A kernel has come round and overwrites it.
            std::sync::atomic::fence(Ordering::Acquire);
            if self.number_at(place) != number {
                continue;
            }
            self.lost += number - self.next;
            self.next = number + 1;
            taken.push(world.traced_wait(&note));
        }
    }

    fn number_at(&self, place: u64) -> u64 {
        let offset = place as usize * NOTE_BYTES + offset_of!(WaitNote, number);
        self.ring.atomic_u64(offset).map_or(0, |number| number.load(Ordering::Acquire))
    }

    /// Waits that were overwritten before [`Self::take`] came to them: more than 65,536 since the last call.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Looks at both clocks; `None` where the device does not answer in time.
    ///
    /// # Errors
    /// The codes of a launch.
    pub fn look(&mut self) -> Result<Option<KernelClock>> {
        let mut best: Option<KernelClock> = None;
        for _ in 0..TRIES {
            let Some(found) = self.look_once()? else { break };
            if best.is_none_or(|best| found.error_ns < best.error_ns) {
                best = Some(found);
            }
        }
        Ok(best)
    }

    fn look_once(&mut self) -> Result<Option<KernelClock>> {
        let now = || Moment::now().since_origin().as_nanos() as u64;
        let before_count = self.words.atomic_u64(0)?.load(Ordering::Acquire);
        let arguments = StampArgs {
            stamps: DevicePointer::new(self.words.device_address().offset(8)),
            count: DevicePointer::new(self.words.device_address()),
            capacity: 1,
        };
        let wave = self.stream.device().wave_size();
        let shape = LaunchShape { grid_blocks: 1, block_threads: wave, local_bytes: 0 };
        let (begun, before) = (Moment::now(), now());
        // SAFETY: the words are this trace's, whose drop waits for its stream.
        unsafe { self.stamp.launch(shape, &self.stream, &arguments) }?;
        while self.words.atomic_u64(0)?.load(Ordering::Acquire) == before_count {
            if begun.elapsed() > PATIENCE {
                return Ok(None);
            }
            std::thread::yield_now();
        }
        let half = (now() - before) / 2;
        let kernel_ns = self.words.atomic_u64(8)?.load(Ordering::Acquire);
        Ok(Some(KernelClock { kernel_ns, host_ns: before + half, error_ns: half }))
    }
}

impl Drop for WaitTrace {
    fn drop(&mut self) {
        if let Err(error) = self.state.control().end_notes() {
            tracing::warn!(%error, "kernels go on noting their waits");
        }
        if let Err(error) = self.stream.synchronize() {
            tracing::warn!(%error, "a look at the clocks is not over");
        }
    }
}
