//! The stand-in for experts that work on expert-major rows.

use std::sync::Arc;

use anabranch_hip::{DeviceBuffer, Stream};
use anabranch_hip_jit::{DevicePointer, LoadedUnit, bytemuck};
use anabranch_shmem::World;

use crate::error::Result;
use crate::expert_major::args::ReferenceExpertMajorArgs;
use crate::expert_major::{ExpertMajor, ExpertMajorPlan};
use crate::kernels;
use crate::tensor::DeviceSlice;

/// Multiplies each row of expert e of the group by 1 + (e mod 8) / 8: f32, rounded once. What a real engine replaces by
/// its grouped expert layers.
#[derive(Debug)]
pub struct ReferenceExpertMajor {
    unit: Arc<LoadedUnit>,
    plan: ExpertMajorPlan,
    expert_ids: DeviceBuffer,
    blocks: u32,
    block_threads: u32,
}

impl ReferenceExpertMajor {
    /// Compiles and loads the kernel. Not collective.
    ///
    /// # Errors
    /// Those of the compiler and the runtime.
    pub fn new(world: &World, layout: &ExpertMajor) -> Result<Self> {
        let plan = layout.plan().clone();
        let config = plan.dispatch_plan().config();
        let spec = kernels::reference_expert_major(config.dispatch_type, config.combine_type);
        let unit = world.jit().load(world.device(), &spec)?;
        let geometry = layout.geometry();
        let experts = bytemuck::cast_slice(plan.experts());
        let mut expert_ids = world.device().allocate(experts.len().max(16))?;
        expert_ids.copy_from_host(0, experts)?;
        Ok(Self { unit, plan, expert_ids, blocks: geometry.blocks, block_threads: geometry.block_threads })
    }

    /// Puts the kernel on the stream: reads the rows of `layout`, writes `output`, `[local experts][capacity][hidden]` of the
    /// combine type, 16-byte aligned.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape), [`Error::Alignment`](crate::Error::Alignment); those of the launch.
    ///
    /// # Safety
    /// `layout` must be the one this was made for.
    pub unsafe fn run(&self, stream: &Stream, layout: &ExpertMajor, output: DeviceSlice) -> Result<()> {
        let (local, capacity) = (self.plan.local_experts(), self.plan.capacity());
        let config = self.plan.dispatch_plan().config();
        output.check("the experts' output", self.plan.output_bytes() as usize, 16, || {
            format!(
                "[{local} local experts][{capacity} rows][{} hidden] {}",
                config.hidden, config.combine_type
            )
        })?;
        let args = ReferenceExpertMajorArgs {
            rows: DevicePointer::new(layout.rows()),
            output: DevicePointer::new(output.address()),
            counts: DevicePointer::new(layout.counts()),
            expert_ids: DevicePointer::new(self.expert_ids.address()),
            local_experts: local,
            reserved: 0,
            capacity,
            hidden: config.hidden,
        };
        let kernel = self.unit.kernel("anabranch_ep_reference_expert_major")?;
        // SAFETY: the struct is the kernel's own; the rows are the layout's, the caller vouches for it; the output was checked
        // against its shape, and making its slice promised that it stays valid.
        unsafe { kernel.launch(self.blocks, self.block_threads, 0, stream, &args)? };
        Ok(())
    }
}
