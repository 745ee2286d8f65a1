//! What a communicator is made with.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use anabranch_ranks::{Across, LinkSettings};
use anabranch_shmem::MAX_COPY_STREAMS;
use serde::{Deserialize, Serialize};

use crate::device::channel::{LEAST_STAGING, MOST_BLOCKS};
use crate::plan::tuning::Table;
use crate::types::{Algorithm, Error, Result};

/// What is checked at every call beside what each member can see by itself: for finding out why a program hangs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Check {
    /// Nothing. A call that not all members make alike hangs up to the operation's deadline, or gives wrong results.
    #[default]
    Off,
    /// All members' calls are compared on the devices before their data moves, also in replayed graphs; a difference is
    /// [`Error::Mismatch`] on all members, with both calls. Launches of the communicator that overlap are reported, too. Costs a
    /// kernel of one block and a meeting of all members for each call: about as much as a barrier.
    ///
    /// Calls carry a number, also those that are captured: all members capture the same ones, and replay what they captured. Of
    /// [`Call::AllGatherMany`](crate::Call::AllGatherMany) the list is compared: how many tensors, and of each, in their order,
    /// type, count and, where peers write it, the output's place. Sends and receives are not compared: others have no part in
    /// them.
    Fingerprint,
}

impl Check {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Off, Self::Fingerprint];

    /// Its name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Fingerprint => "fingerprint",
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that names no check.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no check; allowed are {}", Check::ALL.map(Check::name).join(", "))]
pub struct UnknownCheck {
    /// The word given.
    pub given: String,
}

impl FromStr for Check {
    type Err = UnknownCheck;

    fn from_str(text: &str) -> Result<Self, UnknownCheck> {
        let found = Self::ALL.into_iter().find(|check| check.name() == text);
        found.ok_or_else(|| UnknownCheck { given: text.to_owned() })
    }
}

/// How members meet before and behind the copies of a collective by copy engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Meetings {
    /// `Stream` on NVIDIA GPUs where all members are mapped, `Kernel` elsewhere.
    #[default]
    Auto,
    /// By a kernel of one block each.
    Kernel,
    /// By the stream, which writes and waits for words: no compute unit is needed, so that a call goes on while another kernel has
    /// all of them. All members launch such calls alike: in a capture, whose replays would bring old words, kernels meet.
    Stream,
}

impl Meetings {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Kernel, Self::Stream];

    /// Its name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Kernel => "kernel",
            Self::Stream => "stream",
        }
    }
}

/// The configuration of a communicator, as a value. Equal on all members.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CclConfig {
    /// The algorithm of every call (`ccl.algorithm`); `None` chooses for each.
    pub algorithm: Option<Algorithm>,
    /// The most blocks of a launch (`ccl.max_blocks`); 0 for as many as the device has multiprocessors, 128 at the most; where members are on
    /// several machines 32, or fewer where the staging is too small for chunks that fill a NIC.
    pub max_blocks: u32,
    /// Bytes of the symmetric heap for staging (`ccl.staging_bytes`), shared by all blocks and members; 0 for an eighth of
    /// the heap up to 512 MiB on a large GPU, and 4 MiB on a small device. `push` of messages that do not fit goes in steps.
    pub staging_bytes: u64,
    /// Bytes of the symmetric heap for messages that are sent and not yet received (`ccl.pipe_bytes`), shared by all members; 0
    /// for a 32nd of the heap up to 32 MiB on a large GPU, and 1 MiB on a small device.
    pub pipe_bytes: u64,
    /// Streams for the copies to each member by [`Algorithm::CopyEngine`] (`ccl.copy_streams`), at most [`MAX_COPY_STREAMS`]: one where each
    /// member has a link of its own; more where one copy does not fill it (copies of less than half a MiB are never divided); 0 for one
    /// stream for all other members, where one copy fills all that a rank can send. `None`:
    /// [`Team::default_copy_streams`](anabranch_shmem::Team::default_copy_streams).
    pub copy_streams: Option<u32>,
    /// How members meet around copies by engine (`ccl.meetings`).
    pub meetings: Meetings,
    /// What is checked at every call (`ccl.check`).
    pub check: Check,
    /// Which way calls go where members are on several machines (`ccl.across`): [`Across::Auto`] by node where that can be done and bytes,
    /// requests and hops are estimated to take less time so, at the speeds of `links`, directly otherwise; [`Across::Direct`] for any machines; [`Across::Node`] for machines of which one has two members at
    /// least: sums only where the group's order goes machine by machine, and an all_to_all only with even counts. Other calls are an error.
    pub across: Across,
    /// The machine of each member, in group order, in place of what the world says: for tests of what goes between machines. Which numbers
    /// name them means nothing. `None` for those that the world's ranks are on.
    pub machines: Option<Arc<[u32]>>,
    /// Speeds of links (`[links]`), by which [`Across::Auto`] chooses and the sizes of chunks between machines; those of the device where
    /// nothing is set.
    pub links: LinkSettings,
    /// What was measured on machines of this kind (`ccl.table`); `None` for this crate's table of the device, if there is one.
    pub table: Option<Arc<Table>>,
}

impl CclConfig {
    /// The least that `staging_bytes` and `pipe_bytes` may be, bytes.
    pub const LEAST_STAGING: u64 = LEAST_STAGING;

    /// Forces an algorithm, or none.
    #[must_use]
    pub fn algorithm(mut self, algorithm: Option<Algorithm>) -> Self {
        self.algorithm = algorithm;
        self
    }

    /// Switches checks on or off.
    #[must_use]
    pub fn check_calls(mut self, check: Check) -> Self {
        self.check = check;
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
            (
                "ccl.copy_streams",
                self.copy_streams.map_or("the usual".to_owned(), |streams| streams.to_string()),
            ),
            ("ccl.meetings", self.meetings.name().to_owned()),
            ("ccl.check", self.check.to_string()),
            ("ccl.across", self.across.to_string()),
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
        if self.staging_bytes != 0 && !(LEAST_STAGING..=1 << 40).contains(&self.staging_bytes) {
            return refuse("ccl.staging_bytes", self.staging_bytes, "0, or 4096 to 2^40");
        }
        if self.pipe_bytes != 0 && !(LEAST_STAGING..=1 << 40).contains(&self.pipe_bytes) {
            return refuse("ccl.pipe_bytes", self.pipe_bytes, "0, or 4096 to 2^40");
        }
        if let Some(given) = self.copy_streams.filter(|given| *given > MAX_COPY_STREAMS) {
            return refuse("ccl.copy_streams", given.into(), "0 to 16");
        }
        self.links.check()?;
        Ok(())
    }
}
