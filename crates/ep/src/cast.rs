//! What dispatch makes of the caller's rows before it sends them.

use std::fmt;
use std::str::FromStr;

use crate::codec::{Fp8Format, UnknownWord, find};
use crate::data_type::DataType;
use crate::error::{Error, Result};
use crate::plan::EpConfig;

/// Elements of a block with one scale.
const BLOCK: u32 = 128;

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

impl EpConfig {
    /// Sets what rows are turned into before they are sent.
    #[must_use]
    pub fn dispatch_cast(mut self, value: DispatchCast) -> Self {
        self.dispatch_cast = value;
        self
    }

    /// Sets the type of the rows that a cast takes: bf16, f16 or f32.
    #[must_use]
    pub fn cast_from(mut self, value: DataType) -> Self {
        self.cast_from = value;
        self
    }

    /// Type of the rows that a dispatch is given: that of the rows it sends, unless it casts.
    pub fn token_type(&self) -> DataType {
        if self.dispatch_cast == DispatchCast::None { self.dispatch_type } else { self.cast_from }
    }

    /// Bytes of scales that travel with a token: the caller's, or those that a cast makes.
    pub fn sent_scale_bytes(&self) -> u32 {
        match self.dispatch_cast {
            DispatchCast::None => self.scale_bytes,
            cast => cast.scale_bytes(self.hidden),
        }
    }

    pub(crate) fn check_cast(&self) -> Result<()> {
        let cast = self.dispatch_cast;
        let Some(sent) = cast.data_type() else { return Ok(()) };
        if self.dispatch_type != sent {
            return Err(Error::CastType {
                what: "dispatch_type",
                cast,
                given: self.dispatch_type,
                allowed: sent.to_string(),
            });
        }
        if !self.cast_from.is_combined() {
            let allowed = DataType::COMBINED.map(DataType::name).join(", ");
            return Err(Error::CastType { what: "cast_from", cast, given: self.cast_from, allowed });
        }
        let wrong =
            |field, given: u32, allowed| Err(Error::Config { field, given: u64::from(given), allowed });
        if self.hidden == 0 || !self.hidden.is_multiple_of(BLOCK) {
            let allowed = format!("the cast {cast} needs a positive multiple of {BLOCK} elements a row");
            return wrong("hidden", self.hidden, allowed);
        }
        if self.scale_bytes != 0 && self.scale_bytes != cast.scale_bytes(self.hidden) {
            let allowed = format!(
                "the cast {cast} makes the scales, {} bytes a token: leave it at 0",
                cast.scale_bytes(self.hidden)
            );
            return wrong("scale_bytes", self.scale_bytes, allowed);
        }
        Ok(())
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
