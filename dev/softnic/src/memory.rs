//! The memory that a NIC in software reads and writes.

use std::fmt;
use std::sync::Arc;

use anabranch_hip::{EngineMemory, NoMemory};

use crate::decode::{AtomicOperation, Width};

/// Memory by the addresses that the rank's kernels use, checked: what is not there is an error.
pub trait NicMemory: Send + Sync + fmt::Debug {
    /// Copies out. Words of 4 and 8 bytes at multiples of their size in one piece, with acquire.
    ///
    /// # Errors
    /// The range that is not the NIC's to touch.
    fn read(&self, address: u64, target: &mut [u8]) -> Result<(), NoMemory>;

    /// Copies in. Words of 4 and 8 bytes at multiples of their size in one piece, with release.
    ///
    /// # Errors
    /// As for a read; what lies before the place that is not there may have been written.
    fn write(&self, address: u64, source: &[u8]) -> Result<(), NoMemory>;

    /// Does an atomic operation on a word in host byte order, and gives the old value. Atomic towards other requests that this NIC
    /// does; towards kernels where the memory can do that, as with NICs.
    ///
    /// # Errors
    /// As for a read.
    fn atomic(&self, address: u64, operation: &AtomicOperation) -> Result<u64, NoMemory>;
}

/// 8 bytes in one piece, in memory order.
pub(crate) fn word(memory: &dyn NicMemory, address: u64) -> Result<[u8; 8], NoMemory> {
    let mut bytes = [0; 8];
    memory.read(address, &mut bytes)?;
    Ok(bytes)
}

/// Memory of the runtime that is made of CPU threads.
#[derive(Clone, Debug)]
pub(crate) struct HostRuntimeMemory(pub(crate) Arc<dyn EngineMemory>);

impl NicMemory for HostRuntimeMemory {
    fn read(&self, address: u64, target: &mut [u8]) -> Result<(), NoMemory> {
        self.0.read(address, target)
    }

    fn write(&self, address: u64, source: &[u8]) -> Result<(), NoMemory> {
        self.0.write(address, source)
    }

    fn atomic(&self, address: u64, operation: &AtomicOperation) -> Result<u64, NoMemory> {
        match operation.width() {
            Width::Four => {
                let mut old = self.0.load_32(address)?;
                loop {
                    let new = operation.apply(old.into()) as u32;
                    match self.0.compare_swap_32(address, old, new)? {
                        found if found == old => return Ok(old.into()),
                        found => old = found,
                    }
                }
            }
            Width::Eight => {
                let mut old = self.0.load_64(address)?;
                loop {
                    match self.0.compare_swap_64(address, old, operation.apply(old))? {
                        found if found == old => return Ok(old),
                        found => old = found,
                    }
                }
            }
        }
    }
}
