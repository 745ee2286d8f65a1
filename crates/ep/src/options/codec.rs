//! Where combine reads the experts' output, and the codecs of rows that it pushes.

use std::fmt;
use std::str::FromStr;

use anabranch_elements::float8::{F8E4m3, F8E4m3Fnuz};

use anabranch_elements::data_type::DataType;
use anabranch_ranks::UnknownWord;

anabranch_ranks::word_enum! {
    /// Where the experts' output may be, which decides whether combine pulls or pushes. The plan allocates the windows for it.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum CombineSource, name, "source of experts' output" {
        /// In the slot's combine window, from which the origins pull it.
        Window = "window",
        /// In any other buffer, from which combine pushes it to the origins.
        Buffer = "buffer",
        /// In either; each call chooses, the same on all ranks. Both windows share memory of the larger one's size, which is the combine
        /// window's unless [`EpConfig::max_recv`](crate::EpConfig::max_recv) makes that smaller. With
        /// [`OnTimeout::Mask`](crate::OnTimeout::Mask) each has its own memory.
        #[default]
        Any = "any",
    }
}

impl CombineSource {
    /// Whether rows may be pulled.
    pub const fn pulls(self) -> bool {
        matches!(self, Self::Window | Self::Any)
    }

    /// Whether rows may be pushed.
    pub const fn pushes(self) -> bool {
        matches!(self, Self::Buffer | Self::Any)
    }
}

/// An 8-bit floating-point format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fp8Format {
    /// OFP8 E4M3, torch's `float8_e4m3fn`: largest value 448.
    E4m3fn,
    /// Torch's `float8_e4m3fnuz` (MI300): largest value 240.
    E4m3fnuz,
}

impl Fp8Format {
    /// The largest value.
    pub fn largest(self) -> f32 {
        match self {
            Self::E4m3fn => F8E4m3::MAX.to_f32(),
            Self::E4m3fnuz => F8E4m3Fnuz::MAX.to_f32(),
        }
    }
}

/// Encoding of the rows that combine sends back to their origin. The origin sums the decoded rows in f32, in group-rank order, and rounds
/// once. Codecs apply to rows that are pushed ([`CombineSource::Buffer`]), of any combine type; all round to nearest even.
///
/// An encoded row is its codes, then the scales of its blocks, then padding to 16 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CombineCodec {
    /// Rows are sent unchanged.
    #[default]
    None,
    /// 8 bits per element, no scale. Magnitudes above the format's largest value, infinity too, become that value; a NaN stays a NaN. The
    /// hidden size must be a multiple of 16.
    Fp8Direct(Fp8Format),
    /// 8 bits per element, and an f32 scale per block of 128: max(largest magnitude of the block, 2^-100) divided by the format's largest
    /// value. Elements are multiplied by the inverse of the scale, then rounded. A block with a NaN or an infinity decodes to NaNs. The
    /// hidden size must be a multiple of 128.
    Fp8Block(Fp8Format),
    /// MXFP4 (OCP microscaling formats, version 1.0): E2M1, and an E8M0 scale per block of 32, 2^(floor(log2(largest
    /// magnitude)) - 2). Scaled magnitudes between 6 and 8 become 6. A block with a NaN or an infinity decodes to NaNs; a block of zeros
    /// has the smallest scale. The hidden size must be a multiple of 32.
    Fp4Block,
}

/// Codec, name, name in kernels, bits of an element, elements of a block, bytes of its scale.
const CODECS: [(CombineCodec, &str, &str, [u32; 3]); 6] = [
    (CombineCodec::None, "none", "None", [0, 1, 0]),
    (CombineCodec::Fp8Direct(Fp8Format::E4m3fn), "fp8_direct", "Fp8Direct", [8, 16, 0]),
    (CombineCodec::Fp8Direct(Fp8Format::E4m3fnuz), "fp8_direct_fnuz", "Fp8DirectFnuz", [8, 16, 0]),
    (CombineCodec::Fp8Block(Fp8Format::E4m3fn), "fp8_block", "Fp8Block", [8, 128, 4]),
    (CombineCodec::Fp8Block(Fp8Format::E4m3fnuz), "fp8_block_fnuz", "Fp8BlockFnuz", [8, 128, 4]),
    (CombineCodec::Fp4Block, "fp4_block", "Fp4Block", [4, 32, 1]),
];

impl CombineCodec {
    /// All codecs.
    pub const ALL: [Self; 6] = [CODECS[0].0, CODECS[1].0, CODECS[2].0, CODECS[3].0, CODECS[4].0, CODECS[5].0];

    const fn line(self) -> &'static (Self, &'static str, &'static str, [u32; 3]) {
        &CODECS[match self {
            Self::None => 0,
            Self::Fp8Direct(Fp8Format::E4m3fn) => 1,
            Self::Fp8Direct(Fp8Format::E4m3fnuz) => 2,
            Self::Fp8Block(Fp8Format::E4m3fn) => 3,
            Self::Fp8Block(Fp8Format::E4m3fnuz) => 4,
            Self::Fp4Block => 5,
        }]
    }

    /// Its name in configurations and reports.
    pub const fn name(self) -> &'static str {
        self.line().1
    }

    /// The name of the codec in the kernels.
    pub const fn device_name(self) -> &'static str {
        self.line().2
    }

    /// The number of elements of which a row must have a multiple: one block, or 16 bytes of codes.
    pub const fn block_elements(self) -> u32 {
        self.line().3[1]
    }

    /// Bytes of a row of `hidden` elements of `element` on the wire: codes and scales, rounded up to 16.
    pub fn wire_bytes(self, element: DataType, hidden: u32) -> u64 {
        let [bits, block, scale] = self.line().3;
        let hidden = u64::from(hidden);
        if self == Self::None {
            return element.bytes_of(hidden);
        }
        let scales = hidden / u64::from(block) * u64::from(scale);
        (hidden * u64::from(bits) / 8 + scales).next_multiple_of(16)
    }

    /// Elements that one lane encodes or decodes at a time.
    pub(crate) const fn per_lane(self, element: DataType) -> u32 {
        match self {
            Self::None => element.per_unit(),
            _ => 16,
        }
    }
}

impl fmt::Display for CombineCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CombineCodec {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, UnknownWord> {
        UnknownWord::find(text, "codec of combined rows", &Self::ALL, Self::name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_codec_parses_from_its_name() {
        for codec in CombineCodec::ALL {
            assert_eq!(codec.line().0, codec);
            assert_eq!(codec.name().parse(), Ok(codec));
        }
        let refused = "fp6".parse::<CombineCodec>().unwrap_err().to_string();
        assert!(refused.contains("no codec") && refused.contains("fp8_block_fnuz, fp4_block"), "{refused}");
        for source in CombineSource::ALL {
            assert_eq!(source.name().parse(), Ok(source));
            assert!(source.pulls() || source.pushes());
        }
    }

    #[test]
    fn rows_on_the_wire_have_the_bytes_of_their_parts() {
        let bytes = |name: &str, hidden| {
            name.parse::<CombineCodec>().map(|codec| codec.wire_bytes(DataType::Bf16, hidden))
        };
        assert_eq!(bytes("none", 7168), Ok(14_336));
        assert_eq!(bytes("fp8_direct", 7168), Ok(7168));
        // 56 scales of 4 bytes, then 224 of one.
        assert_eq!(bytes("fp8_block", 7168), Ok(7168 + 224));
        assert_eq!(bytes("fp4_block", 7168), Ok(3584 + 224));
        assert_eq!(bytes("fp8_block_fnuz", 128), Ok(144));
        assert_eq!(bytes("fp4_block", 32), Ok(32));
    }
}
