//! Waits inside kernels, for pictures of runs: which rank was waited for, from when to when.
//!
//! Kernels note them in a ring in pinned host memory (`note_wait` in `anabranch/wait.h`), which the host reads without a call of the
//! runtime. Times are those of the clock that kernels read; [`WaitTrace::look`] says what the host's clock shows at one of its moments.

use std::collections::HashMap;
use std::mem::{ManuallyDrop, offset_of};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anabranch_clock::Moment;
use anabranch_hip::{Error as HipError, LaunchShape, Stream, Trace};
use anabranch_hip_jit::control::{WAIT_NOTES, WaitNote};
use anabranch_hip_jit::{DevicePointer, KernelSpec, LoadedKernel, PRELUDE, device_struct, kernel_unit};
use anabranch_ranks::Group;
use bytemuck::Zeroable as _;

use crate::error::Result;
use crate::fault::names::OperationNames;
use crate::fault::notes::{NOTE_BYTES, Notes, TracedWait};
use crate::fault::state::FaultState;
use crate::world::World;

/// Looks at both clocks; the shortest counts.
const TRIES: u32 = 8;
/// How long one may take: the device may be busy.
const PATIENCE: Duration = Duration::from_millis(20);
/// How long the end of a trace waits for a look that took too long.
const DRAIN: Duration = Duration::from_secs(1);

device_struct! {
    /// Arguments of `anabranch_shmem_clock`.
    pub struct ClockArgs {
        /// Gets the clock, in ns.
        pub time_ns: DevicePointer<u64>,
        /// Gets the number of this launch, after the clock.
        pub number: DevicePointer<u64>,
        /// The number.
        pub this_number: u64,
    }
}

kernel_unit! {
    /// The clock of kernels.
    pub static CLOCK_UNIT: "clock", include_str!("../kernels/clock.hip"), &[PRELUDE];
    /// Stores it where the host polls for it.
    pub const CLOCK: Kernel<ClockArgs> = "anabranch_shmem_clock";
}

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

/// Waits inside the kernels of a world are noted until this is dropped.
#[derive(Debug)]
pub struct WaitTrace {
    // These end before the memory that they write.
    stream: Stream,
    clock: LoadedKernel<ClockArgs>,
    state: Arc<FaultState>,
    notes: Arc<Notes>,
    names: Arc<OperationNames>,
    groups: Arc<Mutex<HashMap<u64, Group>>>,
    /// The number of the next note.
    next: u64,
    lost: u64,
}

impl World {
    /// Lets kernels of this rank note their waits. `None` where they are compiled without (`kernels.note_waits`). Allocates, and loads a
    /// kernel: no kernel may be in flight that waits for what this thread launches later.
    ///
    /// # Errors
    /// [`anabranch_hip::Error::Traced`] while another trace of this world's waits lives; a kernel that does not compile; the codes of
    /// memory and of a stream.
    pub fn trace_waits(&self) -> Result<Option<WaitTrace>> {
        if !self.inner.notes_waits() {
            return Ok(None);
        }
        let device = self.device();
        let clock = self.jit().load(device, &KernelSpec::new(&CLOCK_UNIT))?.get(CLOCK)?;
        let stream = device.create_stream()?;
        let state = Arc::clone(&self.inner.state);
        let Some(notes) = state.control().start_notes(device)? else {
            return Err(HipError::Traced { device: device.ordinal() }.into());
        };
        let (names, groups) = (Arc::clone(&self.inner.names), Arc::clone(&self.inner.groups));
        // After what an earlier trace has left.
        let mut next = 1;
        for place in 0..WAIT_NOTES {
            next = next.max(number_at(&notes, place)? + 1);
        }
        let trace = WaitTrace { stream, clock, state, notes, names, groups, next, lost: 0 };
        trace.state.control().note_waits()?;
        Ok(Some(trace))
    }
}

/// The number of the note at a place of the ring.
fn number_at(notes: &Notes, place: u64) -> Result<u64> {
    let offset = place as usize * NOTE_BYTES + offset_of!(WaitNote, number);
    Ok(notes.ring.atomic_u64(offset)?.load(Ordering::Acquire))
}

/// The whole note with the number `next`; counts those that were overwritten before it could be read.
fn next_note(notes: &Notes, next: &mut u64, lost: &mut u64) -> Result<Option<WaitNote>> {
    loop {
        let place = (*next - 1) % WAIT_NOTES;
        let number = number_at(notes, place)?;
        if number < *next {
            return Ok(None);
        }
        if number > *next {
            // Kernels have come round. This place had the note before the oldest that may be whole.
            let oldest = number - WAIT_NOTES + 1;
            *lost += oldest - *next;
            *next = oldest;
            continue;
        }
        let mut note = WaitNote::zeroed();
        notes.ring.read(place as usize * NOTE_BYTES, bytemuck::bytes_of_mut(&mut note))?;
        // A kernel that overwrites the note has stored 0 before.
        fence(Ordering::Acquire);
        if number_at(notes, place)? == number {
            *next += 1;
            return Ok(Some(note));
        }
    }
}

impl WaitTrace {
    /// What was noted since the last call. Calls no function of the runtime.
    ///
    /// # Errors
    /// None that the ring can have.
    pub fn take(&mut self) -> Result<Vec<TracedWait>> {
        let mut taken = Vec::new();
        while let Some(note) = next_note(&self.notes, &mut self.next, &mut self.lost)? {
            let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
            match TracedWait::of(&note, &self.names, &groups) {
                Some(wait) => taken.push(wait),
                None => self.lost += 1,
            }
        }
        Ok(taken)
    }

    /// Waits that [`Self::take`] did not return: overwritten, as there were more than 65,536 since the last call, or of a group that is not
    /// known.
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
        let clock = &self.notes.clock;
        let this_number = self.notes.looks.fetch_add(1, Ordering::Relaxed) + 1;
        let arguments = ClockArgs {
            time_ns: DevicePointer::new(clock.device_address()),
            number: DevicePointer::new(clock.device_address().offset(8)),
            this_number,
        };
        let wave = self.stream.device().wave_size();
        let shape = LaunchShape { grid_blocks: 1, block_threads: wave, local_bytes: 0 };
        let (begun, before) = (Moment::now(), Trace::now_ns());
        // SAFETY: the words are of `notes`, which the drop leaks where this launch is not over.
        unsafe { self.clock.launch(shape, &self.stream, &arguments) }?;
        while clock.atomic_u64(8)?.load(Ordering::Acquire) != this_number {
            if begun.elapsed() > PATIENCE {
                return Ok(None);
            }
            std::thread::yield_now();
        }
        let half = (Trace::now_ns() - before) / 2;
        let kernel_ns = clock.atomic_u64(0)?.load(Ordering::Acquire);
        Ok(Some(KernelClock { kernel_ns, host_ns: before + half, error_ns: half }))
    }
}

impl Drop for WaitTrace {
    fn drop(&mut self) {
        if let Err(error) = self.state.control().end_notes() {
            tracing::warn!(%error, "kernels go on noting their waits");
        }
        let (begun, last) = (Moment::now(), self.notes.looks.load(Ordering::Relaxed));
        let is_over =
            || self.notes.clock.atomic_u64(8).is_ok_and(|number| number.load(Ordering::Acquire) == last);
        while !is_over() {
            if begun.elapsed() > DRAIN {
                // What the launch writes, and its code, stay.
                let _stays = ManuallyDrop::new((Arc::clone(&self.notes), self.clock.clone()));
                return;
            }
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use anabranch_hip::DeviceOrdinal;
    use anabranch_hip_host::{HostConfig, HostMachine};

    use super::*;
    use crate::fault::control::Control;

    /// A ring that is lapped gives its last notes, and counts the others.
    #[test]
    fn overwritten_notes_are_counted() {
        let machine = HostMachine::new(HostConfig::default()).unwrap();
        let device = machine.runtime().device(DeviceOrdinal(0)).unwrap();
        let control = Control::new(&device, Duration::from_secs(1)).unwrap();
        let notes = control.start_notes(&device).unwrap().unwrap();
        assert!(control.start_notes(&device).unwrap().is_none(), "one trace at a time");
        let (mut next, mut lost, mut found) = (1, 0, Vec::new());
        let write = |number: u64| {
            let place = (number - 1) % WAIT_NOTES;
            let note = WaitNote { number, epoch: number, ..WaitNote::zeroed() };
            notes.ring.write(place as usize * NOTE_BYTES, bytemuck::bytes_of(&note)).unwrap();
        };
        for (first, last, expected_lost) in
            [(1, 3, 0), (4, WAIT_NOTES + 4, 1), (WAIT_NOTES + 5, 3 * WAIT_NOTES + 9, WAIT_NOTES + 6)]
        {
            (first..=last).for_each(write);
            while let Some(note) = next_note(&notes, &mut next, &mut lost).unwrap() {
                found.push(note.epoch);
            }
            assert_eq!((next, lost), (last + 1, expected_lost));
            assert_eq!(found.last(), Some(&last));
        }
        assert_eq!(found.len() as u64 + lost, 3 * WAIT_NOTES + 9);
        assert!(found.is_sorted());
    }
}
