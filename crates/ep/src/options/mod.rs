//! The words of a configuration.

mod cast;
mod codec;
mod mask;
mod mode;
mod payload;
mod scale_layout;

pub(crate) use cast::BLOCK as CAST_BLOCK;
pub use cast::DispatchCast;
pub use codec::{CombineCodec, CombineSource, Fp8Format};
pub use mask::{MaskCause, MaskedRank, OnTimeout};
pub use mode::Mode;
pub use payload::Payload;
pub use scale_layout::ScaleLayout;
