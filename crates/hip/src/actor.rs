//! Engines in software: what a runtime made of CPU threads runs beside kernels and streams.

use std::fmt;

/// What came of one step of something that runs a little at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Something was done; more may follow at once.
    Progress,
    /// Nothing could be done until somebody else acts.
    Waiting,
    /// It is over and is dropped.
    Finished,
}

/// An engine in software (a copy engine, a NIC) that runs under the scheduler of a runtime made of CPU threads.
///
/// `step` must return soon and must not block: blocks of running kernels share its thread. Where everything waits, threads
/// rest for a while between rounds. An actor that holds a handle of its runtime keeps the runtime alive until it finishes.
pub trait Actor: Send {
    /// Does a little of the engine's work.
    fn step(&mut self) -> Step;
}

/// Memory as an engine of one device sees it: addresses are those that the device's kernels use. Every access is checked: it lies
/// in memory that the device may touch; words in one allocation, copies in one or several that lie side by side. What is stored is seen by kernels as a store of another agent.
pub trait EngineMemory: Send + Sync + fmt::Debug {
    /// Copies bytes. They do not overlap.
    ///
    /// # Errors
    /// The range that is not the engine's to touch; what lies before it may have been copied.
    fn copy(&self, source: u64, target: u64, bytes: u64) -> Result<(), NoMemory>;

    /// Loads a word of 32 bits, with acquire; the address is a multiple of 4.
    ///
    /// # Errors
    /// As for a copy.
    fn load_32(&self, address: u64) -> Result<u32, NoMemory>;

    /// Stores a word of 32 bits, with release; the address is a multiple of 4.
    ///
    /// # Errors
    /// As for a copy.
    fn store_32(&self, address: u64, value: u32) -> Result<(), NoMemory>;

    /// Loads a word of 64 bits, with acquire; the address is a multiple of 8.
    ///
    /// # Errors
    /// As for a copy.
    fn load_64(&self, address: u64) -> Result<u64, NoMemory>;

    /// Stores a word of 64 bits, with release; the address is a multiple of 8.
    ///
    /// # Errors
    /// As for a copy.
    fn store_64(&self, address: u64, value: u64) -> Result<(), NoMemory>;

    /// Adds to 64 bits, atomically; wraps. The address is a multiple of 8.
    ///
    /// # Errors
    /// As for a copy.
    fn add_64(&self, address: u64, value: u64) -> Result<(), NoMemory>;

    /// Copies out to the engine's own memory. Words of 4 and 8 bytes at multiples of their size are loaded in one piece.
    ///
    /// # Errors
    /// As for a copy.
    fn read(&self, address: u64, target: &mut [u8]) -> Result<(), NoMemory>;

    /// Copies in from the engine's own memory. Words of 4 and 8 bytes at multiples of their size are stored in one piece.
    ///
    /// # Errors
    /// As for a copy.
    fn write(&self, address: u64, source: &[u8]) -> Result<(), NoMemory>;

    /// Stores `new` where `expected` is, atomically, and gives what was there. The address is a multiple of 4.
    ///
    /// # Errors
    /// As for a copy.
    fn compare_swap_32(&self, address: u64, expected: u32, new: u32) -> Result<u32, NoMemory>;

    /// Stores `new` where `expected` is, atomically, and gives what was there. The address is a multiple of 8.
    ///
    /// # Errors
    /// As for a copy.
    fn compare_swap_64(&self, address: u64, expected: u64, new: u64) -> Result<u64, NoMemory>;
}

/// A range that is not an engine's to touch: of no allocation, beyond its end, off its alignment, or of a device without access;
/// or the engine's own device is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes at {address:#x} are not memory that the engine may touch")]
pub struct NoMemory {
    /// Where it starts.
    pub address: u64,
    /// Its bytes.
    pub bytes: u64,
}
