//! The stand-in expert of tests and benchmarks, as a launch.

use std::sync::Arc;

use anabranch_hip::{DeviceAddress, Stream};
use anabranch_hip_jit::{DevicePointer, LoadedUnit};
use anabranch_ranks::GroupRank;
use anabranch_shmem::World;

use crate::args::ReferenceExpertArgs;
use crate::error::Result;
use crate::kernels;
use crate::operation::Dispatched;
use crate::placement::DevicePlacement;
use crate::plan::Plan;

mod expert_major;

pub use expert_major::ReferenceExpertMajor;

/// Multiplies each received row by the sum of its weights for experts of this rank: f32, rounded once. What a real
/// engine replaces by its expert layers.
#[derive(Debug)]
pub struct ReferenceExpert {
    unit: Arc<LoadedUnit>,
    plan: Plan,
    placement: DevicePlacement,
    rank: GroupRank,
    blocks: u32,
    block_threads: u32,
}

impl ReferenceExpert {
    /// Compiles and loads the kernel for a plan. Not collective.
    ///
    /// # Errors
    /// Those of the compiler and the runtime.
    pub fn new(world: &World, plan: &Plan, rank: GroupRank) -> Result<Self> {
        let device = world.device();
        let config = plan.config();
        let spec = kernels::reference_expert(config.dispatch_type, config.combine_type);
        let unit = world.jit().load(device, &spec)?;
        let waves = Plan::preferred_waves(device.wave_size(), device.multiprocessors());
        Ok(Self {
            unit,
            plan: plan.clone(),
            placement: DevicePlacement::new(device, plan)?,
            rank,
            blocks: device.multiprocessors().min(128),
            block_threads: waves * device.wave_size(),
        })
    }

    /// Puts the kernel on the stream: reads the rows of `dispatched`, writes `output`, which is its combine window or a
    /// buffer of that shape.
    ///
    /// # Errors
    /// Those of the launch.
    ///
    /// # Safety
    /// `output` must hold `[rows][hidden]` of the combine type, valid until the stream has passed the kernel;
    /// `dispatched` must be of the plan this was made for.
    pub unsafe fn run(&self, stream: &Stream, dispatched: &Dispatched, output: DeviceAddress) -> Result<()> {
        let config = self.plan.config();
        let args = ReferenceExpertArgs {
            placement: self.placement.view(),
            rows: DevicePointer::new(dispatched.rows()),
            meta: DevicePointer::new(dispatched.meta()),
            output: DevicePointer::new(output),
            counts: DevicePointer::new(dispatched.counts()),
            offsets: DevicePointer::new(dispatched.offsets()),
            ranks: self.plan.ranks(),
            rank: self.rank.get(),
            row_stride: self.plan.row_stride(),
            hidden: config.hidden,
            top_k: config.top_k,
            experts: config.experts,
            meta_bytes: self.plan.meta_bytes(),
            reserved: 0,
        };
        let kernel = self.unit.kernel("anabranch_ep_reference_expert")?;
        // SAFETY: the struct is the kernel's own; its windows belong to the slot that `dispatched` holds; the caller
        // vouches for `output`.
        unsafe { kernel.launch(self.blocks, self.block_threads, 0, stream, &args)? };
        Ok(())
    }
}
