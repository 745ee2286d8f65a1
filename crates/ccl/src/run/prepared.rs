//! Prepared calls.

use std::sync::Arc;

use anabranch_hip_jit::DevicePointer;
use anabranch_shmem::{MemoryUse, TeamTable};

use crate::device::args::{ChannelState, FingerprintArgs};
use crate::plan::Plan;
use crate::run::steps::Step;
use crate::types::{Algorithm, Shape};

/// A checked and planned call. A launch of it allocates nothing and may be captured. Its tensors must stay allocated as long as it is
/// launched.
#[derive(Debug)]
pub struct Prepared {
    pub(crate) plan: Plan,
    pub(crate) shape: Shape,
    /// The steps, in stream order.
    pub(crate) steps: Vec<Step>,
    pub(crate) comm: DevicePointer<ChannelState>,
    /// Device memory that the arguments point to.
    pub(crate) table: Option<Arc<TeamTable>>,
    pub(crate) uses: Vec<MemoryUse>,
    pub(crate) description: Arc<str>,
    pub(crate) fingerprint: Option<Box<FingerprintArgs>>,
}

impl Prepared {
    /// The plan.
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

    /// The call without addresses.
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Description of the call and its plan, for logs and reports.
    pub fn describe(&self) -> &str {
        &self.description
    }
}

/// Description of the call and its plan, for logs and reports.
pub(crate) fn describe(shape: &Shape, plan: &Plan) -> String {
    let op = shape.op.map_or_else(String::new, |op| format!(" {}", op.name()));
    let norm = match shape.norm_row {
        None => String::new(),
        Some(row) if plan.norms => format!(" with RMSNorm of rows of {row}"),
        Some(row) => format!(", then RMSNorm of rows of {row}"),
    };
    format!(
        "{} {}{op} {} elements over {} ranks{norm}: {}, {} blocks of {} threads",
        shape.collective,
        shape.data_type,
        shape.count,
        shape.members,
        plan.algorithm,
        plan.blocks,
        plan.threads
    )
}
