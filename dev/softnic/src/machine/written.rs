//! Memory of tests, which remembers where it was written.

use std::sync::Mutex;

use anabranch_hip::NoMemory;

use crate::decode::AtomicOperation;
use crate::memory::NicMemory;

/// The addresses of writes, in order. Nothing can be read.
#[derive(Debug, Default)]
pub(super) struct Written(pub(super) Mutex<Vec<u64>>);

impl NicMemory for Written {
    fn read(&self, address: u64, target: &mut [u8]) -> Result<(), NoMemory> {
        Err(NoMemory { address, bytes: target.len() as u64 })
    }

    fn write(&self, address: u64, _: &[u8]) -> Result<(), NoMemory> {
        self.0.lock().unwrap().push(address);
        Ok(())
    }

    fn atomic(&self, address: u64, _: &AtomicOperation) -> Result<u64, NoMemory> {
        Err(NoMemory { address, bytes: 8 })
    }
}
