//! Received rows in buffers of the caller, one after the other.

use anabranch_hip::Stream;
use anabranch_hip_jit::{DevicePointer, LoadedKernel};

use super::reader::ReceivedReader;
use crate::args::UnpackArgs;
use crate::error::Result;
use crate::kernels;
use crate::run::{Dispatched, ExpertParallel};
use crate::tensor::DeviceSlice;

/// Copies the rows of a plan's dispatches out of the windows. Not collective. Each launch of one value waits, on its stream, for the launch
/// before, unless it is captured; the caller orders replays of captured launches.
#[derive(Debug)]
pub struct RowUnpacker {
    // First: its drop waits for launches.
    reader: ReceivedReader,
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
    /// Errors of the compiler and the runtime.
    pub fn new(ep: &ExpertParallel) -> Result<Self> {
        let unit = ep.world().jit().load(ep.world().device(), &kernels::unpack())?;
        let unpack = unit.get(kernels::UNPACK)?;
        Ok(Self { reader: ReceivedReader::new(ep, unpack.raw().max_block_threads()?)?, unpack })
    }

    /// Copies the received rows. Not collective. It launches one kernel on the stream, which must be the dispatch's or ordered after it, and
    /// does not block the host. May be captured into a graph.
    ///
    /// # Errors
    /// Before anything is launched: [`Error::ForeignHandle`](crate::Error::ForeignHandle), [`Error::Shape`](crate::Error::Shape),
    /// [`Error::Address`](crate::Error::Address), or an earlier fault of the world.
    pub fn unpack(&self, stream: &Stream, dispatched: &Dispatched, output: &Unpacked) -> Result<()> {
        self.reader.check(dispatched)?;
        let plan = self.reader.plan();
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
        let args = UnpackArgs {
            received: self.reader.view(dispatched.slot.get()),
            rows: DevicePointer::new(DeviceSlice::address_of(output.rows)),
            scales: DevicePointer::new(DeviceSlice::address_of(output.scales)),
            ids: DevicePointer::new(DeviceSlice::address_of(output.ids)),
            weights: DevicePointer::new(DeviceSlice::address_of(output.weights)),
            count: output.count,
            row_bytes: plan.row_bytes(),
            scale_words: config.scale_bytes / 4,
            reserved: 0,
        };
        self.reader.launch(stream, || {
            // SAFETY: the windows belong to the slot that the handle holds; the outputs were checked against their shapes.
            unsafe { self.unpack.launch(self.reader.shape(0), stream, &args)? };
            Ok(())
        })
    }
}
