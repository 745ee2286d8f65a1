//! Reference experts of tests and benchmarks, as launches.

use anabranch_ep::{DataType, Dispatched, Error, Plan, Result};
use anabranch_hip::{DeviceAddress, DeviceBuffer, LaunchShape, Stream};
use anabranch_hip_jit::{
    DevicePointer, Header, KernelSpec, LoadedKernel, bytemuck, device_headers, device_struct, kernel_unit,
};
use anabranch_ranks::GroupRank;
use anabranch_shmem::World;

mod expert_major;

pub use expert_major::{ReferenceExpertMajor, ReferenceExpertMajorArgs, reference_expert_major};

const HEADERS: &[Header] = device_headers!();

device_struct! {
    /// Arguments of `anabranch_ep_reference_expert`.
    pub struct ReferenceExpertArgs {
        /// Of each expert, where its ranks begin in `owners`, then their number, `[experts + 1]`; null where experts are placed evenly.
        pub starts: DevicePointer<u32>,
        /// The ranks of all experts.
        pub owners: DevicePointer<u32>,
        /// Received rows.
        pub rows: DevicePointer<u8>,
        /// Their meta records.
        pub meta: DevicePointer<u8>,
        /// The combine window, or a buffer of its shape.
        pub output: DevicePointer<u8>,
        /// Rows from each rank.
        pub counts: DevicePointer<u32>,
        /// Their running sum.
        pub offsets: DevicePointer<u32>,
        /// Experts of the group.
        pub experts: u32,
        /// Ranks of the group.
        pub ranks: u32,
        /// This rank.
        pub rank: u32,
        /// `Plan::row_stride`.
        pub row_stride: u32,
        /// Elements of a row.
        pub hidden: u32,
        /// Experts that a token names.
        pub top_k: u32,
        /// Bytes of a meta record.
        pub meta_bytes: u32,
        /// Zero.
        pub reserved: u32,
    }
}

kernel_unit! {
    /// The reference expert; parameters `EP_INPUT` and `EP_ELEMENT`.
    static REFERENCE_EXPERT_UNIT: "ep_reference_expert", include_str!("../../kernels/ep_reference_expert.hip"), &[HEADERS];
    /// Multiplies rows of one type, and writes another.
    pub const REFERENCE_EXPERT: Kernel<ReferenceExpertArgs> = "anabranch_ep_reference_expert";
}

/// The reference expert from one type to another.
pub fn reference_expert(input: DataType, output: DataType) -> KernelSpec {
    between(KernelSpec::new(&REFERENCE_EXPERT_UNIT), input, output)
}

fn between(spec: KernelSpec, input: DataType, output: DataType) -> KernelSpec {
    spec.with("EP_INPUT", input.device_name()).with("EP_ELEMENT", output.device_name())
}

/// Multiplies each received row by the sum of its weights for experts of this rank: f32, rounded once. What a real
/// engine replaces by its expert layers.
#[derive(Debug)]
pub struct ReferenceExpert {
    kernel: LoadedKernel<ReferenceExpertArgs>,
    plan: Plan,
    /// Where a table places experts.
    owners: Option<DeviceBuffer>,
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
        let spec = reference_expert(config.dispatch_type, config.combine_type);
        let kernel = world.jit().load(device, &spec)?.get(REFERENCE_EXPERT)?;
        let upload = |words: &[u32]| {
            let mut buffer = device.allocate(words.len() * 4)?;
            buffer.copy_from_host(0, bytemuck::cast_slice(words))?;
            Ok::<_, Error>(buffer)
        };
        let owners = config.placement.as_ref().map(|table| {
            let (mut starts, mut owners) = (vec![0], Vec::new());
            for expert in 0..config.experts {
                owners.extend(table.ranks_of(expert).iter().map(|rank| rank.get()));
                starts.push(owners.len() as u32);
            }
            starts.extend(owners);
            upload(&starts)
        });
        let owners = owners.transpose()?;
        let waves = Plan::preferred_waves(device.wave_size(), device.multiprocessors());
        Ok(Self {
            kernel,
            plan: plan.clone(),
            owners,
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
        let at = |words: u64| {
            let table = self.owners.as_ref().map(|table| table.address().offset(words * 4));
            table.map_or(DevicePointer::NULL, DevicePointer::new)
        };
        let args = ReferenceExpertArgs {
            starts: at(0),
            owners: at(u64::from(config.experts) + 1),
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
        let shape =
            LaunchShape { grid_blocks: self.blocks, block_threads: self.block_threads, local_bytes: 0 };
        // SAFETY: the windows belong to the slot that `dispatched` holds; the caller
        // vouches for `output`.
        unsafe { self.kernel.launch(shape, stream, &args)? };
        Ok(())
    }
}
