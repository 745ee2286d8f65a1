//! Casts of rows that dispatch sends.

use std::fmt;
use std::str::FromStr;

use anabranch_ranks::UnknownWord;

use super::Fp8Format;
use anabranch_elements::data_type::DataType;

/// Elements of a block with one scale.
pub(crate) const BLOCK: u32 = 128;

/// The cast of rows in dispatch, which saves the caller a kernel. Each row is encoded once, however many ranks it goes to, and arrives
/// as a row of the plan's dispatch type with scales.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DispatchCast {
    /// Dispatch sends the caller's rows unchanged.
    #[default]
    None,
    /// 8 bits per element, and an f32 scale per block of 128 elements, `[hidden / 128]` f32 in the row's meta record in the place of the
    /// caller's scales. The hidden size must be a multiple of 128. The scale is max(largest magnitude of the block, 2^-100) divided by
    /// the format's largest value (448 or 240); an element is its code times the scale, as in DeepEP, which has 1e-4 in place of 2^-100.
    /// Elements are multiplied by the inverse of the scale, then rounded to nearest even. In a block with a NaN or an infinity, the scale
    /// (0x7fc00000) and all codes are NaN.
    Fp8Block(Fp8Format),
}

impl DispatchCast {
    /// All casts.
    pub const ALL: [Self; 3] =
        [Self::None, Self::Fp8Block(Fp8Format::E4m3fn), Self::Fp8Block(Fp8Format::E4m3fnuz)];

    /// Its name in configurations and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Fp8Block(Fp8Format::E4m3fn) => "fp8_block",
            Self::Fp8Block(Fp8Format::E4m3fnuz) => "fp8_block_fnuz",
        }
    }

    /// Type of the rows that are sent, which is the plan's dispatch type; `None` without a cast.
    pub const fn data_type(self) -> Option<DataType> {
        match self {
            Self::None => None,
            Self::Fp8Block(Fp8Format::E4m3fn) => Some(DataType::F8E4m3),
            Self::Fp8Block(Fp8Format::E4m3fnuz) => Some(DataType::F8E4m3Fnuz),
        }
    }

    /// Bytes of the scales of a row of `hidden` elements.
    pub const fn scale_bytes(self, hidden: u32) -> u32 {
        match self {
            Self::None => 0,
            Self::Fp8Block(_) => hidden / BLOCK * 4,
        }
    }
}

impl fmt::Display for DispatchCast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DispatchCast {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, UnknownWord> {
        UnknownWord::find(text, "cast of dispatched rows", &Self::ALL, Self::name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cast_parses_from_its_name() {
        for cast in DispatchCast::ALL {
            assert_eq!(cast.name().parse(), Ok(cast));
        }
        let refused = "fp4".parse::<DispatchCast>().unwrap_err().to_string();
        assert!(refused.contains("no cast") && refused.contains("fp8_block, fp8_block_fnuz"), "{refused}");
        let cast = DispatchCast::Fp8Block(Fp8Format::E4m3fnuz);
        assert_eq!((cast.data_type(), cast.scale_bytes(7168)), (Some(DataType::F8E4m3Fnuz), 224));
        assert_eq!((DispatchCast::None.data_type(), DispatchCast::None.scale_bytes(7168)), (None, 0));
    }
}
