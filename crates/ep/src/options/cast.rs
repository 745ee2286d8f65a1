//! What dispatch makes of the caller's rows before it sends them.

use std::fmt;
use std::str::FromStr;

use super::{Fp8Format, UnknownWord, codec::find};
use anabranch_elements::data_type::DataType;

/// Elements of a block with one scale.
pub(crate) const BLOCK: u32 = 128;

/// What dispatch turns rows into before it sends them, so that callers need no kernel of their own for that. Each row is encoded
/// once, however many ranks it goes to, and arrives as one of the plan's dispatch type with scales.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DispatchCast {
    /// Rows travel as they are given.
    #[default]
    None,
    /// 8 bits an element, and an f32 scale for each block of 128 elements of a row, `[hidden / 128]` f32 in the row's meta record,
    /// where scales of the caller's would lie: the block's largest magnitude, counted as 2^-100 where it is smaller (0 too),
    /// divided by the format's largest value (448, or 240). That is the factor that gives the element back, as DeepEP has it, which
    /// counts magnitudes below 1e-4 as that. Elements are multiplied by the inverse quotient, then rounded to nearest even. A block
    /// that holds a NaN or an infinity has a NaN as its scale (0x7fc00000) and as each of its elements. A hidden size that
    /// is a multiple of 128.
    Fp8Block(Fp8Format),
}

impl DispatchCast {
    /// All of them.
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

    /// Type of the rows that travel, the plan's dispatch type; none where that is the caller's.
    pub const fn data_type(self) -> Option<DataType> {
        match self {
            Self::None => None,
            Self::Fp8Block(Fp8Format::E4m3fn) => Some(DataType::F8E4m3),
            Self::Fp8Block(Fp8Format::E4m3fnuz) => Some(DataType::F8E4m3Fnuz),
        }
    }

    /// Bytes of the scales that a row of `hidden` elements gets.
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
        find(text, "cast of dispatched rows", &Self::ALL, Self::name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cast_is_found_by_its_name_and_says_what_it_sends() {
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
