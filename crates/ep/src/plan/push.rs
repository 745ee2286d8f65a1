//! The combine that pushes: its window, its launch, and which configurations are refused.

use super::launch::LaunchOperation;
use super::share::Share;
use super::{DeviceLimits, EpConfig, Geometry, Plan};
use crate::error::{Error, Result};
use crate::options::{CombineCodec, CombineSource};

impl EpConfig {
    pub(super) fn check_codec(&self) -> Result<()> {
        let codec = self.combine_codec;
        if codec == CombineCodec::None {
            return Ok(());
        }
        if self.combine_source != CombineSource::Buffer {
            return Err(Error::Unsupported {
                with: format!("combine_codec is {codec}"),
                field: "combine_source",
                given: self.combine_source.to_string(),
                allowed: CombineSource::Buffer.name(),
                why: "rows are encoded while they are pushed, and those in the combine window are pulled as they are",
            });
        }
        let block = codec.block_elements();
        if !self.hidden.is_multiple_of(block) {
            let allowed = format!("the codec {codec} needs a multiple of {block} elements a row");
            return Err(Error::config("hidden", self.hidden, allowed));
        }
        Ok(())
    }

    /// Bytes of a row as it is pushed.
    pub(super) fn wire_bytes(&self) -> u64 {
        self.combine_codec.wire_bytes(self.combine_type, self.hidden)
    }

    /// Bytes of the combined weights of a row; 0 where there are none.
    pub(super) fn weight_bytes(&self) -> u64 {
        if self.combine_weights { u64::from(self.top_k) * 4 } else { 0 }
    }

    /// Rows of the push window: each token's from each of its destinations, however many rows a rank may receive. Where ranks
    /// may be masked, each token's from each rank: one that is late then writes where no other rank does.
    pub(super) fn push_rows(&self, ranks: u32) -> u64 {
        let places = if self.on_timeout.masks() { ranks } else { self.top_k.min(ranks) };
        u64::from(places) * u64::from(self.max_tokens)
    }
}

impl Plan {
    /// Bytes of a row as it is pushed, a multiple of 16.
    pub fn combine_wire_bytes(&self) -> u32 {
        self.config.wire_bytes() as u32
    }

    /// The launch of a combine of `tokens` that pushes: the whole grid, since other ranks decide how many rows there are to push.
    /// `segments` is that of the sums; a row that is pushed is cut into at most [`Self::push_segments`].
    pub fn combine_push_geometry(&self, tokens: u32, limits: &DeviceLimits) -> Geometry {
        let Share { waves, blocks, segments: finest } =
            self.share(LaunchOperation::CombinePush, tokens, limits);
        let segments = (waves * blocks / tokens.max(1)).clamp(1, finest);
        let local_bytes = self.combine_local_bytes();
        Geometry { blocks, block_threads: waves * limits.wave_size, parts: 1, segments, local_bytes }
    }

    /// The most waves that share a row while it is pushed in a combine of `tokens`.
    pub fn push_segments(&self, tokens: u32, limits: &DeviceLimits) -> u32 {
        self.share(LaunchOperation::CombinePush, tokens, limits).segments
    }
}
