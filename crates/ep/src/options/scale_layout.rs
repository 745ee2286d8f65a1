//! Memory layout of the scales of rows grouped by expert.

use std::str::FromStr;

use anabranch_ranks::UnknownWord;

/// Memory layout of the scales of rows grouped by expert. E is the number of local experts, C the capacity, W the 32-bit words of a row's scales.
/// Grouped matrix products with scales by block read columns (DeepGEMM, whose loads need a C that is a multiple of 4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u32)]
pub enum ScaleLayout {
    /// `[E][C][W]`: the scales of a row are next to each other.
    #[default]
    Rows = 0,
    /// `[E][W][C]`: column-major, the rows of an expert are next to each other.
    Columns = 1,
    /// `[E][W / 4, rounded up][C]`: column-major, the exponents of four f32 scales (bits 23 to 30: ue8m0) in a word, the first in its lowest
    /// byte, zeros after the last. Exact for scales that are positive powers of two; of others the sign and the mantissa are lost. Not for
    /// the scales of a [`DispatchCast`](crate::DispatchCast).
    PackedColumns = 2,
}

impl ScaleLayout {
    /// All layouts.
    pub const ALL: [Self; 3] = [Self::Rows, Self::Columns, Self::PackedColumns];

    /// Its name in Python.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rows => "rows",
            Self::Columns => "columns",
            Self::PackedColumns => "packed_columns",
        }
    }

    /// Bytes of the scales of a row, of `scale_bytes` in the dispatch.
    pub const fn row_bytes(self, scale_bytes: u32) -> u32 {
        match self {
            Self::Rows | Self::Columns => scale_bytes,
            Self::PackedColumns => scale_bytes.div_ceil(16) * 4,
        }
    }
}

impl FromStr for ScaleLayout {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, UnknownWord> {
        UnknownWord::find(text, "layout of scales", &Self::ALL, Self::name)
    }
}
