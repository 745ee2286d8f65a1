//! Argument structs of the kernels that norm rows (`kernels/reduce_norm.hip`).

use anabranch_hip_jit::device_struct;

use crate::device::args::{BufferView, CommView};

/// Values of [`RowNorm::format`], as in `ccl/row_codes.h`.
pub(crate) const NORM_PLAIN: u32 = 0;
pub(crate) const NORM_E4M3: u32 = 1;
pub(crate) const NORM_E4M3_FNUZ: u32 = 2;

/// Bytes of a unit of a row: `UNIT_BYTES` in `ccl/row_codes.h`.
pub(crate) const UNIT_BYTES: u64 = 8;
/// Local memory for the sums of squares: four times `PARTIALS` in `ccl/row_codes.h`.
pub(crate) const PARTIAL_BYTES: u32 = 4 * 1024;

device_struct! {
    /// RMSNorm of the rows of a sum. Addresses are of memory of this rank.
    pub struct RowNorm {
        /// `[rows][row]`, or 0: added to the sum.
        pub residual: u64,
        /// `[rows][row]`, or 0: written with the sum and the residual. May be `residual`.
        pub kept: u64,
        /// `[row]`.
        pub weight: u64,
        /// `[rows][row]` in the element type or in 8 bits; written.
        pub output: u64,
        /// f32: one, or if `group` is set one for each row and group, written.
        pub scales: u64,
        /// f32 between the scales of two rows.
        pub scale_row_stride: u64,
        /// f32 between the scales of two groups.
        pub scale_group_stride: u64,
        /// Rows.
        pub rows: u64,
        /// Units of 8 bytes in a row of the element type.
        pub units: u32,
        /// Elements with a scale of their own, or 0.
        pub group: u32,
        /// The format of the output: 0 the element type, 1 E4M3, 2 E4M3 fnuz.
        pub format: u32,
        /// Where the partial sums and the row are in local memory, a multiple of 8.
        pub local: u32,
        /// Added to the mean of the squares.
        pub epsilon: f32,
        /// Unused.
        pub padding: u32,
    }
}

device_struct! {
    /// Arguments of the kernels that sum and norm rows.
    pub struct ReduceNormArgs {
        /// The channels of rows of the communicator.
        pub comm: CommView,
        /// The contributions, `[rows][row]`.
        pub input: BufferView,
        /// The norm.
        pub norm: RowNorm,
    }
}

device_struct! {
    /// Arguments of the kernel that norms rows.
    pub struct RmsNormArgs {
        /// The norm.
        pub norm: RowNorm,
        /// Address of the sum, `[rows][row]`.
        pub sum: u64,
    }
}
