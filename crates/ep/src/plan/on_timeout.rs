//! Checks of [`OnTimeout`].

use std::time::Duration;

use crate::error::{Error, Result};
use crate::options::{Mode, OnTimeout};

impl OnTimeout {
    pub(crate) fn check(self, mode: Mode) -> Result<()> {
        let Self::Mask { patience } = self else { return Ok(()) };
        if mode != Mode::Slotted {
            return Err(Error::Unsupported {
                with: "on_timeout masks ranks".to_owned(),
                field: "mode",
                given: mode.to_string(),
                allowed: Mode::Slotted.name(),
                why: "ranks that differ in which ranks they mask would compute different offsets for the same rows",
            });
        }
        if patience.is_zero() {
            return Err(wrong_patience(patience, "allowed is more than none".to_owned()));
        }
        Ok(())
    }

    /// [`Self::check`] against a world whose kernels may run so long.
    pub(crate) fn check_deadline(self, deadline: Duration) -> Result<()> {
        if self.patience() < deadline {
            return Ok(());
        }
        let allowed = format!("allowed is less than the world's operation deadline, {deadline:?}");
        Err(wrong_patience(self.patience(), allowed))
    }
}

fn wrong_patience(given: Duration, allowed: String) -> Error {
    Error::config("the patience of on_timeout", format_args!("{given:?}"), allowed)
}
