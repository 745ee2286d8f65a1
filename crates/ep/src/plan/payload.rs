//! What the plan says of payload by copy engines: which configurations it refuses.

use super::EpConfig;
use crate::codec::CombineCodec;
use crate::error::{Error, Result};
use crate::payload::Payload;
use crate::room::Mode;

impl EpConfig {
    /// Sets what moves rows between ranks.
    #[must_use]
    pub fn payload(mut self, value: Payload) -> Self {
        self.payload = value;
        self
    }

    /// Whether experts' output is pulled from the combine window by kernels, copied from it by engines, or put from it to other nodes.
    pub(super) fn has_combine_window(&self) -> bool {
        self.combine_source.pulls() || self.way().is_some()
    }

    /// Whether kernels push experts' output.
    pub(crate) fn pushes_by_kernels(&self) -> bool {
        self.combine_source.pushes() && !self.payload.is_by_engine() && self.way().is_none()
    }

    pub(super) fn check_payload(&self, mode: Mode) -> Result<()> {
        if !self.payload.is_by_engine() {
            return Ok(());
        }
        let refused = |field, given: String, why, allowed: String| {
            Err(Error::Payload { payload: self.payload, field, given, why, allowed })
        };
        if mode != Mode::Slotted {
            let why = "in other modes the rows for a rank do not lie in one piece whose place is known before the counts";
            return refused("mode", mode.to_string(), why, Mode::Slotted.to_string());
        }
        if self.on_timeout.masks() {
            let why = "an engine may still copy for a rank that was masked";
            return refused("on_timeout", self.on_timeout.to_string(), why, "fault".to_owned());
        }
        if self.combine_codec != CombineCodec::None {
            let why = "an engine copies rows as they are";
            return refused(
                "combine_codec",
                self.combine_codec.to_string(),
                why,
                CombineCodec::None.to_string(),
            );
        }
        if self.combine_weights {
            let why = "combined weights are pulled or pushed by kernels beside the rows";
            return refused("combine_weights", "true".to_owned(), why, "false".to_owned());
        }
        Ok(())
    }
}
