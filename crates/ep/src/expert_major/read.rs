//! The output of an expand, copied to the host, in the form that the oracle compares.

use anabranch_hip::{Device, DeviceAddress};
use anabranch_hip_jit::bytemuck::{self, Zeroable};

use super::ExpertMajor;
use crate::args::ExpertRowSource;
use crate::error::Result;
use crate::options::ScaleLayout;

/// The expert-major layout of one rank, on the host, with the rows of each expert and their padding.
#[derive(Clone, Debug, Default)]
pub struct ExpertMajorRows {
    /// `[local experts]`: rows of each.
    pub counts: Vec<u32>,
    /// `[local experts]`: pairs of each.
    pub pairs: Vec<u32>,
    /// `[local experts][ranks + 1]`: first row of each source within each expert.
    pub source_offsets: Vec<u32>,
    /// `[Plan::rows][top_k]`: the slot map.
    pub slot_map: Vec<u32>,
    /// Each local expert's rows.
    pub experts: Vec<ExpertTable>,
}

/// The rows of one expert, padding included.
#[derive(Clone, Debug, Default)]
pub struct ExpertTable {
    /// The source of each row.
    pub sources: Vec<ExpertRowSource>,
    /// `[rows][row_bytes]`.
    pub rows: Vec<u8>,
    /// Row by row in every layout: `[rows][`[`ScaleLayout::row_bytes`]`]`.
    pub scales: Vec<u8>,
}

impl ExpertMajorRows {
    /// Copies the output of the last expand to the host. Wait for its stream first.
    ///
    /// # Errors
    /// The error of a copy from the device.
    pub fn read(device: &Device, layout: &ExpertMajor) -> Result<Self> {
        let plan = layout.plan();
        let dispatch = plan.dispatch_plan();
        let local = plan.local_experts() as usize;
        let pairs = dispatch.rows() as usize * dispatch.config().top_k as usize;
        let mut read = Self {
            counts: words(device, layout.counts(), local)?,
            pairs: words(device, layout.pairs(), local)?,
            source_offsets: words(device, layout.source_offsets(), local * (dispatch.ranks() as usize + 1))?,
            slot_map: words(device, layout.slot_map(), pairs)?,
            experts: Vec::with_capacity(local),
        };
        let (capacity, alignment) = (plan.capacity() as usize, plan.alignment() as usize);
        for (expert, count) in read.counts.iter().enumerate() {
            // A wrong count must not cause a read outside the buffers.
            let rows = (*count as usize).next_multiple_of(alignment).min(capacity);
            let first = expert * capacity;
            let mut sources = vec![ExpertRowSource::zeroed(); rows];
            let record = size_of::<ExpertRowSource>();
            copy(device, layout.sources(), first * record, bytemuck::cast_slice_mut(&mut sources))?;
            let part = |address, width: u32| {
                let mut target = vec![0; rows * width as usize];
                copy(device, address, first * width as usize, &mut target).map(|()| target)
            };
            let width = plan.scale_layout().row_bytes(dispatch.config().scale_bytes);
            let scales = if plan.scale_layout() == ScaleLayout::Rows {
                part(layout.scales(), width)?
            } else {
                let count = width as usize / 4;
                let expert_start = layout.scales().offset(u64::from(width) * first as u64);
                let columns = words(device, expert_start, count * capacity)?;
                let word = |at: usize| columns[at % count * capacity + at / count];
                (0..rows * count).flat_map(|at| word(at).to_ne_bytes()).collect()
            };
            read.experts.push(ExpertTable {
                sources,
                rows: part(layout.rows(), dispatch.row_bytes())?,
                scales,
            });
        }
        Ok(read)
    }

    /// Dropped pairs of all experts of the rank.
    pub fn dropped(&self) -> u64 {
        self.pairs.iter().zip(&self.counts).map(|(pairs, kept)| u64::from(pairs.saturating_sub(*kept))).sum()
    }
}

fn copy(device: &Device, start: DeviceAddress, offset: usize, target: &mut [u8]) -> Result<()> {
    // SAFETY: the buffers of the layout live as long as it is borrowed, and hold this range by its plan.
    unsafe { device.read_memory(start.offset(offset as u64), target)? };
    Ok(())
}

fn words(device: &Device, address: DeviceAddress, count: usize) -> Result<Vec<u32>> {
    let mut target = vec![0u32; count];
    copy(device, address, 0, bytemuck::cast_slice_mut(&mut target))?;
    Ok(target)
}
