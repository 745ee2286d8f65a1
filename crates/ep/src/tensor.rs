//! Tensors of the caller: an address, a length, a type.

use anabranch_hip::{DeviceAddress, DeviceBuffer};

use crate::error::{Error, Result};
use anabranch_elements::data_type::DataType;

/// The element types of rows that dispatch sends.
pub const ROW_TYPES: [DataType; 6] =
    [DataType::Bf16, DataType::F16, DataType::F32, DataType::F8E4m3, DataType::F8E4m3Fnuz, DataType::F4E2m1];

/// The element types of rows that combine sums.
pub const COMBINED_TYPES: [DataType; 3] = [DataType::Bf16, DataType::F16, DataType::F32];

/// A range of device memory that a launch reads or writes later, in stream order.
///
/// Its constructors are `unsafe`: the caller promises that the memory stays valid, and that no other work conflicts with the access, until
/// the stream has completed the work that was given the slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSlice {
    address: DeviceAddress,
    bytes: usize,
}

impl DeviceSlice {
    /// A range from a framework's pointer.
    ///
    /// # Safety
    /// This rank's device can access the range, and the type's promise holds.
    pub const unsafe fn from_raw(address: DeviceAddress, bytes: usize) -> Self {
        Self { address, bytes }
    }

    /// A whole buffer.
    ///
    /// # Safety
    /// The buffer outlives the work that is given the slice, and the type's promise holds.
    pub unsafe fn of(buffer: &DeviceBuffer) -> Self {
        Self { address: buffer.address(), bytes: buffer.len() }
    }

    /// The start address.
    pub const fn address(&self) -> DeviceAddress {
        self.address
    }

    /// The start address of a tensor that a call may be without; null then.
    pub(crate) fn address_of(slice: Option<Self>) -> DeviceAddress {
        slice.map_or(DeviceAddress::NULL, |slice| slice.address())
    }

    /// The length in bytes.
    pub const fn len(&self) -> usize {
        self.bytes
    }

    /// Whether the length is 0.
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Checks that the range holds `needed` bytes and starts at a multiple of `alignment`. With `needed` 0 every range
    /// is valid.
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

/// A row element type with a host type: the element of [`ReceivedRow::values`](crate::ReceivedRow::values) and
/// [`ExpertParallel::write_combine_row`](crate::ExpertParallel::write_combine_row).
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

/// The tokens that one rank dispatches.
#[derive(Clone, Copy, Debug)]
pub struct Tokens {
    /// Number of tokens, 0 to [`EpConfig::max_tokens`](crate::EpConfig::max_tokens); ranks may differ. With `device_count`, the upper bound.
    pub count: usize,
    /// Type of the rows: [`EpConfig::token_type`](crate::EpConfig::token_type).
    pub data_type: DataType,
    /// `[count][hidden]`, 16-byte aligned.
    pub rows: DeviceSlice,
    /// `[count][top_k]` expert ids of [`EpConfig::id_type`](crate::EpConfig::id_type), aligned to their size; -1 names no expert.
    pub ids: DeviceSlice,
    /// `[count][top_k]` f32 weights, 4-byte aligned, sent with the rows; `None` sends zeros.
    pub weights: Option<DeviceSlice>,
    /// `[count][scale_bytes]`, 4-byte aligned; given exactly where [`EpConfig::scale_bytes`](crate::EpConfig::scale_bytes) is not 0. `None`
    /// where the plan casts.
    pub scales: Option<DeviceSlice>,
    /// The number of tokens in device memory, where the host does not know it: one u32, 4-byte aligned, which the kernels read when they
    /// run; each replay of a graph reads it again. Dispatch reads no rows, ids, weights or scales beyond it, and combine writes no output
    /// rows beyond it. It may be overwritten after the dispatch, in stream order. A number above `count` counts as `count`, and
    /// [`ExpertParallel::check_ids`](crate::ExpertParallel::check_ids) reports it. Optional in each call of a plan with
    /// [`EpConfig::device_token_count`](crate::EpConfig::device_token_count), not allowed in other plans.
    pub device_count: Option<DeviceSlice>,
}

/// Where combine reads the experts' output: the same variant on every rank of an operation.
#[derive(Clone, Copy, Debug)]
pub enum ExpertOutput {
    /// In the slot's combine window ([`Dispatched::combine_rows`](crate::Dispatched::combine_rows)), from which peers pull it.
    InWindow,
    /// In another buffer of the window's shape, `[rows][hidden]` of the combine type, 16-byte aligned. Combine pushes the rows to their
    /// origins, encoded by the plan's codec.
    Staged(DeviceSlice),
}

/// What the experts made of an expert-major layout, for its contract. A [`DeviceSlice`] converts to rows with the dispatched weights.
#[derive(Clone, Copy, Debug)]
pub struct LayoutOutput {
    /// `[local experts][capacity][hidden]` of the combine type, 16-byte aligned. Rows beyond an expert's count are not read.
    pub rows: DeviceSlice,
    /// `[local experts][capacity]` f32, 4-byte aligned: the weight of each row, in place of the dispatched or late one. Those of rows beyond an
    /// expert's count are not read.
    pub weights: Option<DeviceSlice>,
}

impl From<DeviceSlice> for LayoutOutput {
    fn from(rows: DeviceSlice) -> Self {
        Self { rows, weights: None }
    }
}

/// Where combine writes. A [`DeviceSlice`] converts to an output without weights.
#[derive(Clone, Copy, Debug)]
pub struct CombineOutput {
    /// `[tokens][hidden]` of the combine type, 16-byte aligned.
    pub rows: DeviceSlice,
    /// `[tokens][top_k]` f32, 4-byte aligned: for each token and each of its `top_k` entries the sum, in group-rank order in f32, of the weight
    /// windows of the ranks that received the token; 0 for a token that no rank received. Given exactly where the plan combines weights
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
        DeviceSlice::address_of(self.weights)
    }
}
