//! Small tables in device memory: lists of peer addresses, epochs. They come from chunks that live as long as the world,
//! since allocating and freeing device memory may wait for kernels, and kernels wait for peers.

use std::sync::{Arc, Mutex, PoisonError};

use anabranch_hip::{Device, DeviceAddress, DeviceBuffer};

use crate::error::Result;
use crate::heap::ranges::{ByteRange, FreeRanges};

const CHUNK_BYTES: u64 = 64 << 10;
const GRANULARITY: u64 = 64;

#[derive(Debug)]
pub(crate) struct Tables {
    device: Device,
    chunks: Mutex<Vec<Chunk>>,
}

#[derive(Debug)]
struct Chunk {
    memory: DeviceBuffer,
    free: FreeRanges,
}

impl Chunk {
    fn new(device: &Device, bytes: u64) -> Result<Self> {
        let memory = device.allocate(bytes as usize)?;
        Ok(Self { memory, free: FreeRanges::new(ByteRange { offset: 0, bytes }) })
    }
}

/// A table; its place is used again when it is dropped. The owner makes sure that no kernel reads it then.
#[derive(Debug)]
pub(crate) struct Table {
    tables: Arc<Tables>,
    chunk: usize,
    range: ByteRange,
    address: DeviceAddress,
}

impl Tables {
    /// With a first chunk, so that allocating another one, which may wait for kernels in flight, is rare.
    pub(crate) fn new(device: Device) -> Result<Arc<Self>> {
        let first = Chunk::new(&device, CHUNK_BYTES)?;
        Ok(Arc::new(Self { device, chunks: Mutex::new(vec![first]) }))
    }

    /// Writes `words` to device memory and waits for it.
    pub(crate) fn write(self: &Arc<Self>, words: &[u64]) -> Result<Table> {
        let bytes = (size_of_val(words) as u64).next_multiple_of(GRANULARITY).max(GRANULARITY);
        let table = self.place(bytes)?;
        // SAFETY: the range was just taken from a live chunk and is not known to any kernel yet.
        unsafe { self.device.write_memory(table.address, bytemuck::cast_slice(words)) }?;
        Ok(table)
    }

    fn place(self: &Arc<Self>, bytes: u64) -> Result<Table> {
        let mut chunks = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        let fit = chunks
            .iter()
            .enumerate()
            .find_map(|(index, chunk)| Some((index, chunk.free.lowest_fit(bytes, GRANULARITY)?)));
        let (chunk, offset) = if let Some(found) = fit {
            found
        } else {
            chunks.push(Chunk::new(&self.device, bytes.max(CHUNK_BYTES))?);
            (chunks.len() - 1, 0)
        };
        let range = ByteRange { offset, bytes };
        let mut address = DeviceAddress::NULL;
        if let Some(found) = chunks.get_mut(chunk) {
            found.free.take(range);
            address = found.memory.address().offset(offset);
        }
        Ok(Table { tables: Arc::clone(self), chunk, range, address })
    }
}

impl Table {
    pub(crate) fn address(&self) -> DeviceAddress {
        self.address
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        let mut chunks = self.tables.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(chunk) = chunks.get_mut(self.chunk) {
            chunk.free.give_back(self.range);
        }
    }
}
