//! Rows that dispatch casts: settings and checks.

use super::EpConfig;
use crate::error::{Error, Result};
use crate::options::{CAST_BLOCK as BLOCK, DispatchCast};
use crate::tensor::COMBINED_TYPES;
use anabranch_elements::data_type::{DataType, names};

impl EpConfig {
    /// Type of the caller's rows: `cast_from` with a cast, else `dispatch_type`.
    pub fn token_type(&self) -> DataType {
        if self.dispatch_cast == DispatchCast::None { self.dispatch_type } else { self.cast_from }
    }

    /// Bytes of scales that dispatch sends per token: the caller's, or the cast's.
    pub fn sent_scale_bytes(&self) -> u32 {
        match self.dispatch_cast {
            DispatchCast::None => self.scale_bytes,
            cast => cast.scale_bytes(self.hidden),
        }
    }

    /// Bytes of scales that the caller gives per token: none for a cast.
    pub(crate) fn given_scale_bytes(&self) -> u32 {
        if self.dispatch_cast == DispatchCast::None { self.scale_bytes } else { 0 }
    }

    pub(crate) fn check_cast(&self) -> Result<()> {
        let cast = self.dispatch_cast;
        let Some(sent) = cast.data_type() else { return Ok(()) };
        if self.dispatch_type != sent {
            let allowed = format!("with dispatch_cast {cast} allowed are {sent}");
            return Err(Error::config("dispatch_type", self.dispatch_type, allowed));
        }
        if !COMBINED_TYPES.contains(&self.cast_from) {
            let allowed = format!("with dispatch_cast {cast} allowed are {}", names(&COMBINED_TYPES));
            return Err(Error::config("cast_from", self.cast_from, allowed));
        }
        if self.hidden == 0 || !self.hidden.is_multiple_of(BLOCK) {
            let allowed = format!("the cast {cast} needs a positive multiple of {BLOCK} elements a row");
            return Err(Error::config("hidden", self.hidden, allowed));
        }
        if self.scale_bytes != 0 && self.scale_bytes != cast.scale_bytes(self.hidden) {
            let allowed = format!(
                "the cast {cast} makes the scales, {} bytes a token: leave it at 0",
                cast.scale_bytes(self.hidden)
            );
            return Err(Error::config("scale_bytes", self.scale_bytes, allowed));
        }
        Ok(())
    }
}
