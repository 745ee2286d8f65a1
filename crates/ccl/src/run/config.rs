//! Configuration of communicators.

use std::sync::Arc;

use anabranch_ranks::{Across, LinkSettings};
use anabranch_shmem::MAX_COPY_STREAMS;
use serde::{Deserialize, Serialize};

use crate::device::channel::{LEAST_STAGING, MOST_BLOCKS};
use crate::planner::tuning::Table;
use crate::types::{Algorithm, Error, Result};

anabranch_ranks::word_enum! {
    /// Checks of every call beyond the local ones, to find out why a program hangs.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    #[non_exhaustive]
    pub enum Check, name, "check" {
        /// No check. If members make different calls, they hang until the deadline of the operation, or get wrong results.
        #[default]
        Off = "off",
        /// Compares the calls of all members on the devices before their data moves, also in replayed graphs. A difference is
        /// [`Error::Mismatch`] on all members, with both calls. Overlapping launches of the communicator are reported, too. Costs a kernel of
        /// one block and a barrier per call. Only for groups on one node.
        ///
        /// Calls are numbered, also in captures: all members capture the same calls and replay what they captured. Of
        /// [`Call::AllGatherMany`](crate::Call::AllGatherMany) the list is compared: the number of tensors, and the type, the count and, if
        /// peers write it, the output offset of each tensor in order. Sends and receives are not compared.
        Fingerprint = "fingerprint",
    }
}

anabranch_ranks::word_enum! {
    /// What does the barriers before and after the copies of a collective by copy engine.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    #[non_exhaustive]
    pub enum BarrierMode, name, "barrier mode" {
        /// `Stream` on NVIDIA GPUs if all members are mapped, else `Kernel`.
        #[default]
        Auto = "auto",
        /// A kernel of one block.
        Kernel = "kernel",
        /// The stream, which writes and waits for words in memory. It needs no compute unit, so that a call makes progress while another kernel
        /// occupies all of them. All members launch such calls in the same way. In captures kernels do the barriers, because a replay would
        /// repeat old words.
        Stream = "stream",
    }
}

/// Configuration of a communicator. Equal on all members; [`Communicator::new`](crate::Communicator::new) compares it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CclConfig {
    /// The algorithm of every call (`ccl.algorithm`). `None` selects one per call. A call that the algorithm cannot run is
    /// [`Error::Algorithm`].
    pub algorithm: Option<Algorithm>,
    /// The most blocks of a launch (`ccl.max_blocks`), 0 to 1024. 0: the number of multiprocessors, at most 128, and at most five eighths of
    /// the blocks that are free (but see `shared_blocks`); in a group of one member at most 32; with members on several nodes at most 32, or
    /// fewer if the staging is too small for chunks that fill a NIC.
    pub max_blocks: u32,
    /// For programs with many groups, which choose it; no setting. With `max_blocks` 0: a further limit of the blocks of a launch, 1 to 1024,
    /// and at most a third of the free blocks in place of five eighths. With 64 a dozen communicators fit on an H200, of 64, 64, 45, 30, 20,
    /// 14, 9, 6, 4, 3, 2 and 1 blocks. 0: the rule of `max_blocks`. It does not limit a kernel that only norms rows, which waits for no peer.
    pub shared_blocks: u32,
    /// Bytes of the symmetric heap for staging (`ccl.staging_bytes`), 0 or 4096 to 2^40, shared by all blocks and members. 0: an eighth of
    /// the heap, at most 512 MiB, on a large GPU; 4 MiB on a small device. In a group of one member at most 4 MiB. `push` handles larger
    /// messages in several steps.
    pub staging_bytes: u64,
    /// Bytes of the symmetric heap for messages that are sent and not yet received (`ccl.pipe_bytes`), 0 or 4096 to 2^40, shared by all
    /// members. 0: a 16th of the heap, at most 128 MiB, on a large GPU; 1 MiB on a small device. In a group of one member at most 1 MiB.
    pub pipe_bytes: u64,
    /// Streams per member for copies by [`Algorithm::CopyEngine`] (`ccl.copy_streams`), at most [`MAX_COPY_STREAMS`]: one if each member
    /// has a link of its own; more if one copy does not fill it (copies below half a MiB are never split); 0 for one stream for all other
    /// members, if one copy fills all links of a rank. `None`: [`Team::default_copy_streams`](anabranch_shmem::Team::default_copy_streams).
    pub copy_streams: Option<u32>,
    /// What does the barriers around copies by engine (`ccl.meetings`).
    pub barriers: BarrierMode,
    /// Checks of every call (`ccl.check`).
    pub check: Check,
    /// The form of internode calls (`ccl.across`). [`Across::Direct`]: any nodes. [`Across::Node`]: nodes of which at least one has two
    /// members; reductions only if the members of each node are contiguous in the group, all_to_all only with equal counts; other calls are
    /// [`Error::Algorithm`]. [`Across::Auto`]: by node if that is possible and the cost model expects it to be faster at the speeds in
    /// `links`, else direct.
    pub across: Across,
    /// The node of each member, in group order, as arbitrary numbers, instead of the nodes that the world reports. For tests of internode
    /// calls. `None`: the nodes of the world.
    pub nodes: Option<Arc<[u32]>>,
    /// Link speeds (`[links]`), by which [`Across::Auto`] selects the form, and which set the size of internode chunks. Speeds that are not
    /// set are those of the device.
    pub links: LinkSettings,
    /// Table of measured algorithms (`ccl.table`). `None`: the embedded table of the device, if there is one.
    pub table: Option<Arc<Table>>,
}

impl CclConfig {
    /// The smallest `staging_bytes` and `pipe_bytes` other than 0, in bytes.
    pub const LEAST_STAGING: u64 = LEAST_STAGING;

    /// Sets the algorithm of every call. `None` selects one per call.
    #[must_use]
    pub fn algorithm(mut self, algorithm: Option<Algorithm>) -> Self {
        self.algorithm = algorithm;
        self
    }

    /// Sets the checks of every call.
    #[must_use]
    pub fn check_calls(mut self, check: Check) -> Self {
        self.check = check;
        self
    }

    /// The fields that have to be equal on all members, as (key, value).
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
            ("ccl.meetings", self.barriers.name().to_owned()),
            ("ccl.check", self.check.to_string()),
            ("ccl.across", self.across.to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    /// Checks every field.
    ///
    /// # Errors
    /// [`Error::Config`] for a field out of range; [`Error::Links`] for an invalid link speed.
    pub fn check(&self) -> Result<()> {
        let refuse = |field, given, allowed| Err(Error::Config { field, given, allowed });
        if self.max_blocks > MOST_BLOCKS {
            return refuse("ccl.max_blocks", u64::from(self.max_blocks), "0 to 1024");
        }
        if self.shared_blocks > MOST_BLOCKS {
            return refuse("shared_blocks", u64::from(self.shared_blocks), "0 to 1024");
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
