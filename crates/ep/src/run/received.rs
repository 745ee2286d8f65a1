//! Received rows, copied to the host.

use anabranch_hip::{Device, DeviceAddress};

use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::run::{Dispatched, ExpertParallel};
use crate::tensor::HostElement;
use anabranch_elements::data_type::DataType;

/// The rows that one rank received, on the host.
#[derive(Debug)]
pub struct ReceivedRows {
    counts: Vec<u32>,
    offsets: Vec<u32>,
    sources: Vec<Source>,
    data_type: DataType,
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
    /// Copies the received rows, meta records, counts and offsets of a dispatch to the host. Wait for the stream of the dispatch first.
    /// Not collective.
    ///
    /// # Errors
    /// The error of a copy from the device.
    pub fn read(device: &Device, plan: &Plan, dispatched: &Dispatched) -> Result<Self> {
        let config = plan.config();
        let ranks = plan.ranks() as usize;
        let mut received = Self {
            counts: words(device, dispatched.counts(), ranks)?,
            offsets: words(device, dispatched.offsets(), ranks + 1)?,
            sources: Vec::with_capacity(ranks),
            data_type: config.dispatch_type,
            row_bytes: plan.row_bytes() as usize,
            meta_bytes: plan.meta_bytes() as usize,
            top_k: config.top_k as usize,
            scale_bytes: config.scale_bytes as usize,
        };
        for source in 0..ranks {
            let (stride, window) = (plan.row_stride() as usize, plan.rows() as usize);
            let first = if stride == 0 { received.offsets[source] as usize } else { source * stride };
            // Wrong counts and offsets are returned as they are, but no row outside the window is read.
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

impl ReceivedRows {
    /// Rows received from each rank.
    pub fn counts(&self) -> &[u32] {
        &self.counts
    }

    /// Running sum of the counts; the last is the total.
    pub fn offsets(&self) -> &[u32] {
        &self.offsets
    }

    /// The row at an index of the window; `None` where no row was received.
    pub fn row(&self, index: usize) -> Option<ReceivedRow<'_>> {
        let holds = |source: &&Source| {
            source.first <= index && index - source.first < source.payload.len() / self.row_bytes
        };
        let source = self.sources.iter().find(holds)?;
        let row = index - source.first;
        let record = source.meta.get(row * self.meta_bytes..(row + 1) * self.meta_bytes)?;
        let scales_at = 8 + 8 * self.top_k;
        Some(ReceivedRow {
            token: u32::from_ne_bytes([record[0], record[1], record[2], record[3]]),
            data_type: self.data_type,
            payload: source.payload.get(row * self.row_bytes..(row + 1) * self.row_bytes)?,
            ids: source.ids.get(row * self.top_k..(row + 1) * self.top_k)?,
            weights: source.weights.get(row * self.top_k..(row + 1) * self.top_k)?,
            scales: record.get(scales_at..scales_at + self.scale_bytes)?,
        })
    }
}

/// One received row with its meta record.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReceivedRow<'a> {
    /// The token's number on its source rank.
    pub token: u32,
    /// The dispatch type.
    pub data_type: DataType,
    /// `[hidden]` elements of that type, little endian.
    pub payload: &'a [u8],
    /// `[top_k]` expert ids; -1 is masked.
    pub ids: &'a [i32],
    /// `[top_k]` weights; zeros where the dispatch had none.
    pub weights: &'a [f32],
    /// `[scale_bytes]` of scales.
    pub scales: &'a [u8],
}

impl ReceivedRow<'_> {
    /// The payload as `[hidden]` elements.
    ///
    /// # Errors
    /// [`Error::Argument`] where the rows are of another type.
    pub fn values<T: HostElement>(&self) -> Result<Vec<T>> {
        if T::DATA_TYPE != self.data_type {
            return Err(Error::argument("the type of the values", T::DATA_TYPE, self.data_type));
        }
        Ok(self.payload.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect())
    }
}

impl ExpertParallel {
    /// Writes a row of the combine window from the host: the experts' output for the received row of this index
    /// ([`ReceivedRows::row`]), `[hidden]` elements of the combine type. Wait for the stream of the dispatch first. Not collective.
    ///
    /// # Errors
    /// [`Error::ForeignHandle`]; [`Error::Argument`] for another type than the combine type, another length than a row's, an index
    /// outside the window, or a plan without a combine window; the error of a copy to the device.
    pub fn write_combine_row<T: HostElement>(
        &self,
        dispatched: &Dispatched,
        index: usize,
        values: &[T],
    ) -> Result<()> {
        self.context.check_slot(&dispatched.slot)?;
        let (plan, config) = (self.plan(), self.plan().config());
        if !config.combine_source.pulls() {
            return Err(Error::source("in the combine window", config.combine_source));
        }
        if T::DATA_TYPE != config.combine_type {
            return Err(Error::argument("the type of the values", T::DATA_TYPE, config.combine_type));
        }
        if values.len() != config.hidden as usize {
            let planned = format_args!("hidden = {}", config.hidden);
            return Err(Error::argument("the number of values", values.len(), planned));
        }
        if index as u64 >= plan.rows() {
            return Err(Error::argument("the index of the row", index, format_args!("{} rows", plan.rows())));
        }
        let offset = index as u64 * u64::from(plan.combine_row_bytes());
        // SAFETY: the row lies in the window of the slot that the handle holds.
        unsafe {
            self.world()
                .device()
                .write_memory(dispatched.combine_rows().offset(offset), bytemuck::cast_slice(values))?;
        }
        Ok(())
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
