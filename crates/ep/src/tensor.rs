//! Tensors as callers hand them over: an address, a length, a type.

use anabranch_hip::{DeviceAddress, DeviceBuffer};

use crate::data_type::DataType;
use crate::error::{Error, Result};

/// A range of device memory that a launch reads or writes later, in stream order.
///
/// Making one is the promise that the memory stays valid, and that nobody else touches it in a conflicting way, until
/// the stream has passed the work that got it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSlice {
    address: DeviceAddress,
    bytes: usize,
}

impl DeviceSlice {
    /// A range from a framework's pointer.
    ///
    /// # Safety
    /// The range must be memory that this rank's device reaches, and the promise above must hold.
    pub const unsafe fn from_raw(address: DeviceAddress, bytes: usize) -> Self {
        Self { address, bytes }
    }

    /// A whole buffer.
    ///
    /// # Safety
    /// The buffer must outlive the work that gets the range, and the promise above must hold.
    pub unsafe fn of(buffer: &DeviceBuffer) -> Self {
        Self { address: buffer.address(), bytes: buffer.len() }
    }

    /// Where it starts.
    pub const fn address(&self) -> DeviceAddress {
        self.address
    }

    /// Bytes.
    pub const fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Checks that the range holds `needed` bytes and starts at a multiple of `alignment`. A range of which nothing is
    /// needed may be anything.
    pub(crate) fn check(
        &self,
        what: &'static str,
        needed: usize,
        alignment: u64,
        shape: impl FnOnce() -> String,
    ) -> Result<()> {
        if needed == 0 {
            return Ok(());
        }
        if self.bytes < needed {
            return Err(Error::Shape { what, given: self.bytes, needed, shape: shape() });
        }
        if self.address.is_null() || !self.address.0.is_multiple_of(alignment) {
            return Err(Error::Alignment { what, address: self.address.0, alignment });
        }
        Ok(())
    }
}

/// What one rank dispatches.
#[derive(Clone, Copy, Debug)]
pub struct Tokens {
    /// Number of tokens; may be 0 and may differ from rank to rank. With `device_count`, the most there may be.
    pub count: usize,
    /// Type of the rows: [`EpConfig::token_type`](crate::EpConfig::token_type).
    pub data_type: DataType,
    /// `[count][hidden]`, 16-byte aligned.
    pub rows: DeviceSlice,
    /// `[count][top_k]` expert ids, i32, 4-byte aligned; -1 is masked.
    pub ids: DeviceSlice,
    /// `[count][top_k]` f32, 4-byte aligned; they travel with the rows.
    pub weights: Option<DeviceSlice>,
    /// `[count][scale_bytes]`, 4-byte aligned; all tokens of a plan have them, or none. None where the plan casts.
    pub scales: Option<DeviceSlice>,
    /// Where the number of tokens is known on the device alone: one u32, 4-byte aligned, which the kernels read when they run; a
    /// replayed graph reads it anew each time. Rows, ids and so on behind that many are not read, and those of combine's
    /// output not written. It may be overwritten behind the dispatch, in stream order. A number above `count` counts as `count`, and
    /// [`ExpertParallel::check_ids`](crate::ExpertParallel::check_ids) tells of it. For plans with
    /// [`EpConfig::device_token_count`](crate::EpConfig::device_token_count), of which each call may have one or not.
    pub device_count: Option<DeviceSlice>,
}
