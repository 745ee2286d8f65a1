//! Reference experts for expert-major rows.

use anabranch_ep::{DataType, DeviceSlice, Error, ExpertMajor, ExpertMajorPlan, Result};
use anabranch_hip::{DeviceBuffer, LaunchShape, Stream};
use anabranch_hip_jit::{DevicePointer, KernelSpec, LoadedKernel, bytemuck, device_struct, kernel_unit};
use anabranch_shmem::World;

use super::{HEADERS, between};

device_struct! {
    /// Arguments of `anabranch_ep_reference_expert_major`.
    pub struct ReferenceExpertMajorArgs {
        /// `[local_experts][capacity][hidden]` of the dispatch type.
        pub rows: DevicePointer<u8>,
        /// The same shape in the combine type; written.
        pub output: DevicePointer<u8>,
        /// `[local_experts]`: rows of each expert.
        pub counts: DevicePointer<u32>,
        /// `[local_experts]`: their numbers in the group.
        pub expert_ids: DevicePointer<u32>,
        /// Experts of this rank.
        pub local_experts: u32,
        /// Not used.
        pub reserved: u32,
        /// Rows an expert has room for.
        pub capacity: u32,
        /// Elements of a row.
        pub hidden: u32,
    }
}

kernel_unit! {
    /// The reference experts for expert-major rows; parameters `EP_INPUT` and `EP_ELEMENT`.
    static EXPERT_MAJOR_UNIT: "ep_reference_expert_major",
        include_str!("../../../kernels/ep_reference_expert_major.hip"), &[HEADERS];
    /// Multiplies rows of one type, and writes another.
    pub const REFERENCE_EXPERT_MAJOR: Kernel<ReferenceExpertMajorArgs> = "anabranch_ep_reference_expert_major";
}

/// The reference experts for expert-major rows, from one type to another.
pub fn reference_expert_major(input: DataType, output: DataType) -> KernelSpec {
    between(KernelSpec::new(&EXPERT_MAJOR_UNIT), input, output)
}

/// Multiplies each row of expert e of the group by 1 + (e mod 8) / 8: f32, rounded once. What a real engine replaces by
/// its grouped expert layers.
#[derive(Debug)]
pub struct ReferenceExpertMajor {
    kernel: LoadedKernel<ReferenceExpertMajorArgs>,
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
        let spec = reference_expert_major(config.dispatch_type, config.combine_type);
        let kernel = world.jit().load(world.device(), &spec)?.get(REFERENCE_EXPERT_MAJOR)?;
        let geometry = layout.geometry();
        let experts = bytemuck::cast_slice(plan.experts());
        let mut expert_ids = world.device().allocate(experts.len().max(16))?;
        expert_ids.copy_from_host(0, experts)?;
        Ok(Self { kernel, plan, expert_ids, blocks: geometry.blocks, block_threads: geometry.block_threads })
    }

    /// Puts the kernel on the stream: reads the rows of `layout`, writes `output`, `[local experts][capacity][hidden]` of the
    /// combine type, 16-byte aligned.
    ///
    /// # Errors
    /// [`Error::Shape`]; those of the launch.
    ///
    /// # Safety
    /// `layout` must be the one this was made for.
    pub unsafe fn run(&self, stream: &Stream, layout: &ExpertMajor, output: DeviceSlice) -> Result<()> {
        let (local, capacity) = (self.plan.local_experts(), self.plan.capacity());
        let config = self.plan.dispatch_plan().config();
        let (what, needed) = ("the experts' output", self.plan.output_bytes() as usize);
        if output.len() < needed {
            let shape = format!(
                "[{local} local experts][{capacity} rows][{} hidden] {}",
                config.hidden, config.combine_type
            );
            return Err(Error::Shape { what, given: output.len(), needed, shape });
        }
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
        let shape =
            LaunchShape { grid_blocks: self.blocks, block_threads: self.block_threads, local_bytes: 0 };
        // SAFETY: the rows are the layout's, the caller vouches for it; the output was checked
        // against its shape, and making its slice promised that it stays valid.
        unsafe { self.kernel.launch(shape, stream, &args)? };
        Ok(())
    }
}
