//! What a communicator is made with.

use crate::error::{Error, Result};
use crate::plan::Algorithm;

/// The configuration of a communicator, as a value. Equal on all members.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct CclConfig {
    /// The algorithm of every call (`ccl.algorithm`); `None` chooses for each.
    pub algorithm: Option<Algorithm>,
    /// The most blocks of a launch (`ccl.max_blocks`); 0 for as many as the device has multiprocessors, 128 at the most.
    pub max_blocks: u32,
    /// Bytes of the symmetric heap for staging (`ccl.staging_bytes`), shared by all blocks and members; 0 for an eighth of
    /// the heap up to 128 MiB on a large GPU, and 4 MiB on a small device. `push` of messages that do not fit goes in steps.
    pub staging_bytes: u64,
    /// Bytes of the symmetric heap for messages that are sent and not yet received (`ccl.pipe_bytes`), shared by all members; 0
    /// for a 32nd of the heap up to 32 MiB on a large GPU, and 1 MiB on a small device.
    pub pipe_bytes: u64,
}

/// The most lanes of a communicator.
pub(crate) const MOST_BLOCKS: u32 = 1024;

impl CclConfig {
    /// Forces an algorithm, or none.
    #[must_use]
    pub fn algorithm(mut self, algorithm: Option<Algorithm>) -> Self {
        self.algorithm = algorithm;
        self
    }

    /// Everything that has to be equal on all members, as setting and value.
    pub fn fields(&self) -> Vec<(String, String)> {
        let algorithm = self.algorithm.map_or("auto", Algorithm::name);
        [
            ("ccl.algorithm", algorithm.to_owned()),
            ("ccl.max_blocks", self.max_blocks.to_string()),
            ("ccl.staging_bytes", self.staging_bytes.to_string()),
            ("ccl.pipe_bytes", self.pipe_bytes.to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    /// Checks every field.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn check(&self) -> Result<()> {
        let refuse = |field, given, allowed| Err(Error::Config { field, given, allowed });
        if self.max_blocks > MOST_BLOCKS {
            return refuse("ccl.max_blocks", u64::from(self.max_blocks), "0 to 1024");
        }
        if self.staging_bytes != 0 && !(4096..=1 << 40).contains(&self.staging_bytes) {
            return refuse("ccl.staging_bytes", self.staging_bytes, "0, or 4096 to 2^40");
        }
        if self.pipe_bytes != 0 && !(4096..=1 << 40).contains(&self.pipe_bytes) {
            return refuse("ccl.pipe_bytes", self.pipe_bytes, "0, or 4096 to 2^40");
        }
        Ok(())
    }
}
