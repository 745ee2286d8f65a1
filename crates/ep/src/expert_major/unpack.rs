//! Received rows in buffers of the caller, one after the other.

use anabranch_hip::{DeviceAddress, LaunchShape, Stream};
use anabranch_hip_jit::{DevicePointer, LoadedKernel};

use super::LocalExpertCounter;
use crate::args::UnpackArgs;
use crate::error::Result;
use crate::kernels;
use crate::run::{Dispatched, ExpertParallel};
use crate::tensor::DeviceSlice;

/// Copies the rows of a plan's dispatches out of the windows. Not collective. Each launch of one value waits, on its stream, for the launch
/// before, unless it is captured; the caller orders replays of captured launches.
#[derive(Debug)]
pub struct RowUnpacker {
    counter: LocalExpertCounter,
    unpack: LoadedKernel<UnpackArgs>,
}

/// The outputs of [`RowUnpacker::unpack`], each optional. Row n is the n-th received row in the order of source rank, then token.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unpacked {
    /// Rows of each output. It may be more or less than were received.
    pub count: u32,
    /// `[count][hidden]` of the dispatch type, 16-byte aligned. Rows after the received ones are not written.
    pub rows: Option<DeviceSlice>,
    /// `[count][scale_bytes]`, 4-byte aligned. Those after the received rows are not written.
    pub scales: Option<DeviceSlice>,
    /// `[count][top_k]` i64, 8-byte aligned: the number of each expert among this rank's; -1 for experts of other ranks, and after the
    /// received rows.
    pub ids: Option<DeviceSlice>,
    /// `[count][top_k]` f32, 4-byte aligned: the dispatched weights; 0 where the id is -1.
    pub weights: Option<DeviceSlice>,
}

impl RowUnpacker {
    /// Compiles and loads the kernels. Not collective.
    ///
    /// # Errors
    /// As [`LocalExpertCounter::new`].
    pub fn new(ep: &ExpertParallel) -> Result<Self> {
        let unit = ep.world().jit().load(ep.world().device(), &kernels::unpack())?;
        Ok(Self { counter: LocalExpertCounter::new(ep)?, unpack: unit.get(kernels::UNPACK)? })
    }

    /// Copies the received rows. Not collective. It launches one kernel on the stream, which must be the dispatch's or ordered after it, and
    /// does not block the host. May be captured into a graph.
    ///
    /// # Errors
    /// Before anything is launched: [`Error::ForeignHandle`](crate::Error::ForeignHandle), [`Error::Shape`](crate::Error::Shape),
    /// [`Error::Address`](crate::Error::Address), or an earlier fault of the world.
    pub fn unpack(&self, stream: &Stream, dispatched: &Dispatched, output: &Unpacked) -> Result<()> {
        self.counter.check(dispatched)?;
        let plan = self.counter.plan();
        let (config, count) = (plan.config(), output.count as usize);
        let (row, scale_bytes, top_k) =
            (plan.row_bytes() as usize, config.scale_bytes as usize, config.top_k as usize);
        let (hidden, of) = (config.hidden, config.dispatch_type);
        let outputs = [
            ("the rows", output.rows, row, 16, format!("[{hidden} hidden] {of}")),
            ("the scales", output.scales, scale_bytes, 4, format!("[{scale_bytes} scale bytes]")),
            ("the ids", output.ids, top_k * 8, 8, format!("[{top_k} top_k] i64")),
            ("the weights", output.weights, top_k * 4, 4, format!("[{top_k} top_k] f32")),
        ];
        for (what, slice, bytes, alignment, shape) in outputs {
            if let Some(slice) = slice {
                slice.check(what, count * bytes, alignment, || format!("[{count} rows]{shape}"))?;
            }
        }
        let address = |slice: Option<DeviceSlice>| slice.map_or(DeviceAddress::NULL, |slice| slice.address());
        let args = UnpackArgs {
            received: self.counter.view(dispatched.slot.get()),
            rows: DevicePointer::new(address(output.rows)),
            scales: DevicePointer::new(address(output.scales)),
            ids: DevicePointer::new(address(output.ids)),
            weights: DevicePointer::new(address(output.weights)),
            count: output.count,
            row_bytes: plan.row_bytes(),
            scale_words: config.scale_bytes / 4,
            reserved: 0,
        };
        let geometry = self.counter.geometry();
        let shape = LaunchShape {
            grid_blocks: geometry.blocks,
            block_threads: geometry.block_threads,
            local_bytes: 0,
        };
        self.counter.last().launch(self.counter.world(), stream, || {
            let _launching = self.counter.world().launching(stream)?;
            // SAFETY: the windows belong to the slot that the handle holds; the outputs were checked against their shapes.
            unsafe { self.unpack.launch(shape, stream, &args)? };
            Ok(())
        })
    }
}

impl Drop for RowUnpacker {
    fn drop(&mut self) {
        // A launch in flight needs the module.
        self.counter.wait_for_last();
    }
}
