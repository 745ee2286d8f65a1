//! The plan of a call: algorithm, grid and block size. [`Plan::new`] chooses it (`planner`), `lower` turns it into launches.

use crate::recipes::Recipe;
use crate::types::Algorithm;

/// How a call runs. Equal on all members of the group, because it follows from values that are equal on all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Plan {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Blocks of the launch. Each block works on its own channel.
    pub blocks: u32,
    /// Threads per block.
    pub threads: u32,
    /// Whether `push` takes its form for large messages, which fills links better and costs further barriers. All-reduce and reduce_scatter:
    /// every member writes to one peer at a time, and to another than the others, with a barrier after each. Reduce: the root owns no part,
    /// and every member sends and receives the message once. False for all other algorithms.
    pub phased: bool,
    /// Whether the kernel of the sum also norms its rows. False if a kernel of its own does, and without a norm.
    pub norms: bool,
    /// How the algorithm runs the call.
    pub(crate) recipe: &'static Recipe,
}

/// Properties of the communicator that plans depend on. Equal on all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Channels of the communicator: the most blocks of a launch.
    pub channels: u32,
    /// Threads per block of all kernels but barriers.
    pub block_threads: u32,
    /// Threads of the one block of a barrier kernel: one wave, so that it fits beside other work.
    pub barrier_threads: u32,
    /// The most blocks of a kernel that sums and norms rows: channels with packets for long rows. 0: sum and norm have a kernel each.
    pub row_channels: u32,
    /// Threads per block of kernels that norm rows.
    pub row_threads: u32,
    /// The longest row of such a kernel, bytes: it is in local memory.
    pub row_bytes: u64,
}

/// Parts of a plan that a tuner or a test fixes. Every member gives the same. `None` leaves the part to [`Plan::chosen`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// The algorithm.
    pub algorithm: Option<Algorithm>,
    /// Blocks of the launch, 1 to [`Limits::channels`]. Ignored where copy engines move bytes without a reduction: barrier kernels have one
    /// block.
    pub blocks: Option<u32>,
    /// Bytes per block ([`Step::block_bytes`](crate::tuning::Step::block_bytes)), from which the number of blocks follows. Ignored if
    /// `blocks` is given.
    pub block_bytes: Option<u64>,
    /// [`Plan::phased`]. Ignored for algorithms other than `push`.
    pub phased: Option<bool>,
}
