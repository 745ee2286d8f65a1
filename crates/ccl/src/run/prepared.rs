//! A call that is ready to be launched.

use std::sync::Arc;

use anabranch_hip_jit::DevicePointer;
use anabranch_shmem::{MemoryUse, TeamTable};

use crate::device::args::{ChannelState, FingerprintArgs};
use crate::lower::Plan;
use crate::run::steps::Step;
use crate::types::{Algorithm, Shape};

/// A call that was checked and planned: a launch of it costs little, allocates nothing and may be captured. Its tensors have
/// to stay as long as it is launched.
#[derive(Debug)]
pub struct Prepared {
    pub(crate) plan: Plan,
    pub(crate) shape: Shape,
    /// In the order of the stream.
    pub(crate) steps: Vec<Step>,
    pub(crate) comm: DevicePointer<ChannelState>,
    /// What the arguments point to.
    pub(crate) table: Option<Arc<TeamTable>>,
    pub(crate) uses: Vec<MemoryUse>,
    pub(crate) description: Arc<str>,
    pub(crate) fingerprint: Option<Box<FingerprintArgs>>,
}

impl Prepared {
    /// How it is done.
    pub const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The algorithm.
    pub const fn algorithm(&self) -> Algorithm {
        self.plan.algorithm
    }

    /// Blocks of the launch.
    pub const fn blocks(&self) -> u32 {
        self.plan.blocks
    }

    /// The call without its addresses.
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// What runs, and how.
    pub fn describe(&self) -> &str {
        &self.description
    }
}

/// What runs, and how.
pub(crate) fn describe(shape: &Shape, plan: &Plan) -> String {
    let op = shape.op.map_or_else(String::new, |op| format!(" {}", op.name()));
    format!(
        "{} {}{op} {} elements over {} ranks: {}, {} blocks of {} threads",
        shape.collective,
        shape.data_type,
        shape.count,
        shape.members,
        plan.algorithm,
        plan.blocks,
        plan.threads
    )
}
