//! Tensors as callers hand them over: an address, a length, a type.

use anabranch_hip::{DeviceAddress, DeviceBuffer};

use crate::error::{Error, Result};
use anabranch_elements::data_type::DataType;

/// The element types of rows that dispatch sends, as they are.
pub const ROW_TYPES: [DataType; 6] =
    [DataType::Bf16, DataType::F16, DataType::F32, DataType::F8E4m3, DataType::F8E4m3Fnuz, DataType::F4E2m1];

/// The element types of rows that combine sums.
pub const COMBINED_TYPES: [DataType; 3] = [DataType::Bf16, DataType::F16, DataType::F32];

/// A range of device memory that a launch reads or writes later, in stream order.
///
/// Making one is the promise that the memory stays valid, and that no other work touches it in a conflicting way, until
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
            let problem = format!("is not at a multiple of {alignment} bytes");
            return Err(Error::Address { what, address: self.address.0, problem });
        }
        Ok(())
    }
}

/// A type of row elements that hosts have, too: what the rows of [`ReceivedRow::values`](crate::ReceivedRow::values) and
/// [`ExpertParallel::write_combine_row`](crate::ExpertParallel::write_combine_row) are made of.
pub trait HostElement: bytemuck::Pod {
    /// The type in a plan.
    const DATA_TYPE: DataType;
}

impl HostElement for f32 {
    const DATA_TYPE: DataType = DataType::F32;
}

impl HostElement for half::f16 {
    const DATA_TYPE: DataType = DataType::F16;
}

impl HostElement for half::bf16 {
    const DATA_TYPE: DataType = DataType::Bf16;
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
    /// replayed graph reads it anew each time. Rows, ids and so on beyond that many are not read, and those of combine's
    /// output not written. It may be overwritten after the dispatch, in stream order. A number above `count` counts as `count`, and
    /// [`ExpertParallel::check_ids`](crate::ExpertParallel::check_ids) reports it. For plans with
    /// [`EpConfig::device_token_count`](crate::EpConfig::device_token_count), of which each call may have one or not.
    pub device_count: Option<DeviceSlice>,
}

/// Where combine finds the experts' output: the same on every rank of an operation.
#[derive(Clone, Copy, Debug)]
pub enum ExpertOutput {
    /// In the slot's combine window ([`Dispatched::combine_rows`](crate::Dispatched::combine_rows)), from which peers pull it.
    InWindow,
    /// In another buffer of the window's shape, `[rows][hidden]` of the combine type, 16-byte aligned. The received rows are
    /// pushed to their origins, in the form of the plan's codec.
    Staged(DeviceSlice),
}

/// Where combine writes. A [`DeviceSlice`] is one of rows alone.
#[derive(Clone, Copy, Debug)]
pub struct CombineOutput {
    /// `[tokens][hidden]` of the combine type, 16-byte aligned.
    pub rows: DeviceSlice,
    /// `[tokens][top_k]` f32, 4-byte aligned: for each token and each of its k the sum, in group-rank order in f32, of what is in
    /// the weight windows of the ranks that took it in; 0 for a token that none did. Given exactly where the plan combines weights
    /// ([`EpConfig::combine_weights`](crate::EpConfig::combine_weights)).
    pub weights: Option<DeviceSlice>,
}

impl From<DeviceSlice> for CombineOutput {
    fn from(rows: DeviceSlice) -> Self {
        Self { rows, weights: None }
    }
}

impl CombineOutput {
    /// Where the kernel writes weights, or null.
    pub(crate) fn weights_address(&self) -> DeviceAddress {
        self.weights.map_or(DeviceAddress::NULL, |weights| weights.address())
    }
}
