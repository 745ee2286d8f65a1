//! What a machine is made of.

use core::num::NonZeroUsize;
use core::time::Duration;

use crate::Error;

/// The wave widths that kernels may be compiled for.
pub const WAVE_WIDTHS: [u32; 4] = [1, 4, 32, 64];

/// The most threads of one block.
pub const MAX_BLOCK_THREADS: u32 = 1024;

/// The most local memory of one block, bytes.
pub const MAX_LOCAL_BYTES: u32 = 64 * 1024;

/// The shape of a [`HostMachine`](crate::HostMachine).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostConfig {
    /// Devices that the machine shows, 1 to 1024. Any number works whatever the number of cores.
    pub devices: u32,
    /// Lanes of a wave: 1 (fast), 4, 32 or 64 (faithful). Kernels must be compiled for the same width.
    pub wave_width: u32,
    /// Threads that run blocks and engines; `None` means one per core. A machine that shares its cores with
    /// the machines of other processes wants its share of them.
    pub workers: Option<NonZeroUsize>,
    /// Memory of one device, bytes. Pages are backed at the first touch, so this is a limit and not a cost.
    pub memory_bytes: u64,
    /// Multiprocessors of one device.
    pub multiprocessors: u32,
    /// Lanes that one multiprocessor keeps resident, at least [`MAX_BLOCK_THREADS`]. The product with
    /// `multiprocessors` and `devices` is the number of lane stacks for which address space is reserved.
    pub lanes_per_multiprocessor: u32,
    /// Stack of one lane, bytes; rounded up to pages.
    pub lane_stack_bytes: usize,
    /// The longest rest of a worker whose lanes all wait for memory that another agent has to change.
    pub longest_rest: Duration,
}

impl Default for HostConfig {
    fn default() -> Self {
        Self {
            devices: 8,
            wave_width: 1,
            workers: None,
            memory_bytes: 8 << 30,
            multiprocessors: 4,
            lanes_per_multiprocessor: 1024,
            lane_stack_bytes: 64 * 1024,
            longest_rest: Duration::from_micros(200),
        }
    }
}

impl HostConfig {
    /// Threads that run blocks, at most.
    pub const MOST_WORKERS: usize = 1024;

    /// Checks every field.
    ///
    /// # Errors
    /// [`Error::WaveWidth`] and [`Error::Range`].
    pub fn check(&self) -> Result<(), Error> {
        if !WAVE_WIDTHS.contains(&self.wave_width) {
            return Err(Error::WaveWidth { width: self.wave_width });
        }
        let range = |field, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                Ok(())
            } else {
                Err(Error::Range { field, value, least, most })
            }
        };
        range("devices", u64::from(self.devices), 1, 1024)?;
        range("workers", self.workers.map_or(1, NonZeroUsize::get) as u64, 1, Self::MOST_WORKERS as u64)?;
        range("memory_bytes", self.memory_bytes, 1 << 20, 1 << 46)?;
        range("multiprocessors", u64::from(self.multiprocessors), 1, 1024)?;
        let lanes = u64::from(self.lanes_per_multiprocessor);
        range("lanes_per_multiprocessor", lanes, u64::from(MAX_BLOCK_THREADS), 1 << 16)?;
        range("lane_stack_bytes", self.lane_stack_bytes as u64, 16 << 10, 64 << 20)?;
        range("longest_rest (microseconds)", self.longest_rest.as_micros() as u64, 1, 1_000_000)
    }

    /// Lanes that one device keeps resident.
    pub fn lanes_per_device(&self) -> u32 {
        self.multiprocessors.saturating_mul(self.lanes_per_multiprocessor)
    }
}
