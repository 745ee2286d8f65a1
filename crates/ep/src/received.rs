//! What a dispatch delivered, copied to the host, in the form that the oracle judges.

use anabranch_hip::{Device, DeviceAddress};

use crate::error::Result;
use crate::operation::Dispatched;
use crate::oracle::{Row, Rows};
use crate::plan::Plan;

/// The rows that one rank received, on the host.
#[derive(Debug)]
pub struct ReceivedRows {
    counts: Vec<u32>,
    offsets: Vec<u32>,
    sources: Vec<Source>,
    row_bytes: usize,
    meta_bytes: usize,
    top_k: usize,
    scale_bytes: usize,
}

/// The rows of one source: payload and decoded meta records.
#[derive(Debug)]
struct Source {
    /// Its first row in the window.
    first: usize,
    payload: Vec<u8>,
    meta: Vec<u8>,
    ids: Vec<i32>,
    weights: Vec<f32>,
}

impl ReceivedRows {
    /// Copies everything that a dispatch delivered. The stream of the dispatch must have been waited for.
    ///
    /// # Errors
    /// The code of a copy.
    pub fn read(device: &Device, plan: &Plan, dispatched: &Dispatched) -> Result<Self> {
        let config = plan.config();
        let ranks = plan.ranks() as usize;
        let mut received = Self {
            counts: words(device, dispatched.counts(), ranks)?,
            offsets: words(device, dispatched.offsets(), ranks + 1)?,
            sources: Vec::with_capacity(ranks),
            row_bytes: plan.row_bytes() as usize,
            meta_bytes: plan.meta_bytes() as usize,
            top_k: config.top_k as usize,
            scale_bytes: config.scale_bytes as usize,
        };
        for source in 0..ranks {
            let (stride, window) = (plan.row_stride() as usize, plan.rows() as usize);
            let first = if stride == 0 { received.offsets[source] as usize } else { source * stride };
            // Counts and offsets that are wrong are told by the oracle, and not followed out of the window.
            let first = first.min(window);
            let rows = (received.counts[source] as usize).min(window - first);
            let payload =
                bytes(device, dispatched.rows(), first * received.row_bytes, rows * received.row_bytes)?;
            let meta =
                bytes(device, dispatched.meta(), first * received.meta_bytes, rows * received.meta_bytes)?;
            let part = received.decode(first, payload, meta);
            received.sources.push(part);
        }
        Ok(received)
    }

    fn decode(&self, first: usize, payload: Vec<u8>, meta: Vec<u8>) -> Source {
        let (mut ids, mut weights) = (Vec::new(), Vec::new());
        for record in meta.chunks_exact(self.meta_bytes) {
            let word = |index: usize| {
                let at = index * 4;
                u32::from_ne_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]])
            };
            ids.extend((0..self.top_k).map(|k| word(2 + k) as i32));
            weights.extend((0..self.top_k).map(|k| f32::from_bits(word(2 + self.top_k + k))));
        }
        Source { first, payload, meta, ids, weights }
    }
}

impl Rows for ReceivedRows {
    fn counts(&self) -> &[u32] {
        &self.counts
    }

    fn offsets(&self) -> Option<&[u32]> {
        Some(&self.offsets)
    }

    fn row(&self, index: usize) -> Option<Row<'_>> {
        let holds = |source: &&Source| {
            source.first <= index && index - source.first < source.payload.len() / self.row_bytes
        };
        let source = self.sources.iter().find(holds)?;
        let row = index - source.first;
        let record = source.meta.get(row * self.meta_bytes..(row + 1) * self.meta_bytes)?;
        let scales_at = 8 + 8 * self.top_k;
        Some(Row {
            token: u32::from_ne_bytes([record[0], record[1], record[2], record[3]]),
            payload: source.payload.get(row * self.row_bytes..(row + 1) * self.row_bytes)?,
            ids: source.ids.get(row * self.top_k..(row + 1) * self.top_k)?,
            weights: source.weights.get(row * self.top_k..(row + 1) * self.top_k)?,
            scales: record.get(scales_at..scales_at + self.scale_bytes)?,
        })
    }
}

fn bytes(device: &Device, window: DeviceAddress, offset: usize, length: usize) -> Result<Vec<u8>> {
    let mut target = vec![0; length];
    // SAFETY: the windows belong to the slot that the caller's handle holds, and hold this range by the plan.
    unsafe { device.read_memory(window.offset(offset as u64), &mut target)? };
    Ok(target)
}

fn words(device: &Device, address: DeviceAddress, count: usize) -> Result<Vec<u32>> {
    let raw = bytes(device, address, 0, count * 4)?;
    Ok(raw.chunks_exact(4).map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]])).collect())
}
