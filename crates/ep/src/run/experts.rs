//! Dispatch and combine whose kernels also expand and contract, for the expert-major layout.

use anabranch_hip::Stream;
use anabranch_hip_jit::{LOCAL_RESERVED_BYTES, LoadedKernel};

use super::{Dispatched, ExpertParallel};
use crate::args::{CombineExpertsArgs, DispatchExpertsArgs, ExpertContractArgs, ExpertExpandArgs};
use crate::error::Result;
use crate::kernels;
use crate::plan::{DeviceLimits, Plan};
use crate::route::Near;
use crate::slot::SlotAddresses;
use crate::tensor::{CombineOutput, Tokens};

/// The kernels, and the limits of their grids: the plan's share of the device, of which they may hold fewer blocks than the plan's own.
#[derive(Debug)]
pub(crate) struct ExpertKernels {
    dispatch: LoadedKernel<DispatchExpertsArgs>,
    combine: LoadedKernel<CombineExpertsArgs>,
    limits: DeviceLimits,
    /// Local memory of a block of the dispatch.
    local_bytes: u32,
}

impl ExpertParallel {
    /// The kernels for expands with so much local memory; `None` where the plan has no such kernels: rows that copy engines or NICs move,
    /// ranks that may be masked, or tables that do not fit a block's local memory or the plan's share of the device.
    pub(crate) fn expert_kernels(&self, expand_bytes: u64) -> Result<Option<ExpertKernels>> {
        let (world, plan, limits) = (self.world(), self.plan(), self.limits());
        if self.route.near().is_none_or(|near| near.mask.is_some()) {
            return Ok(None);
        }
        let local = u64::from(plan.dispatch_local_bytes()) + expand_bytes;
        if local > u64::from(limits.local_bytes) {
            return Ok(None);
        }
        let local_bytes = local as u32; // at most the device's local memory
        let config = plan.config();
        let load = |spec, weighted| {
            let spec = if config.device_token_count { kernels::with_device_count(spec) } else { spec };
            let spec = if weighted { kernels::with_weights(spec) } else { spec };
            world.jit().load(world.device(), &spec)
        };
        let dispatch = load(kernels::dispatch_experts(config.cast_from, config.dispatch_cast), false)?;
        let combine = load(kernels::combine_experts(config.combine_type), config.combine_weights)?;
        let (dispatch, combine) =
            (dispatch.get(kernels::DISPATCH_EXPERTS)?, combine.get(kernels::COMBINE_EXPERTS)?);
        let mut waves = limits.preferred_waves;
        for kernel in [dispatch.raw(), combine.raw()] {
            waves = waves.min(kernel.max_block_threads()? / limits.wave_size).max(1);
        }
        let mut resident = u32::MAX;
        for kernel in [dispatch.raw(), combine.raw()] {
            let each = kernel
                .blocks_per_multiprocessor(waves * limits.wave_size, local_bytes + LOCAL_RESERVED_BYTES)?;
            resident = resident.min(each * world.multiprocessors());
        }
        let share = u64::from(limits.resident_blocks) * u64::from(resident)
            / u64::from(self.context.device_blocks.max(1));
        if share == 0 {
            return Ok(None);
        }
        let resident_blocks = (share as u32).min(resident); // a part of `resident`
        let limits = DeviceLimits { preferred_waves: waves, resident_blocks, ..*limits };
        Ok(Some(ExpertKernels { dispatch, combine, limits, local_bytes }))
    }

    /// [`Self::dispatch`] whose kernel also expands, with the arguments that `expand` gives for the slot.
    pub(crate) fn dispatch_to_experts(
        &self,
        stream: &Stream,
        tokens: &Tokens,
        kernels: &ExpertKernels,
        expand: impl FnOnce(&SlotAddresses) -> ExpertExpandArgs,
    ) -> Result<Dispatched> {
        let context = &self.context;
        let _call = context.record("dispatch", context.plan.token_bytes(), tokens.count);
        context.world.check()?;
        self.check_tokens(tokens)?;
        let count = tokens.count as u32;
        let ExpertKernels { dispatch, limits, local_bytes, .. } = kernels;
        let geometry = context.plan.dispatch_experts_geometry(count, *local_bytes, limits);
        let mut slot = context.pool.take(stream)?;
        let args = expand(slot.get());
        let mut on = context.on(stream, &mut slot);
        self.mapped().send_to_experts(&mut on, tokens, dispatch, &geometry, args)?;
        Ok(Dispatched { slot, tokens: count })
    }

    /// [`Self::combine`] from the window whose kernel also contracts.
    pub(crate) fn combine_from_experts(
        &self,
        stream: &Stream,
        dispatched: Dispatched,
        kernels: &ExpertKernels,
        contract: ExpertContractArgs,
        output: &CombineOutput,
    ) -> Result<()> {
        let (context, Dispatched { mut slot, tokens }) = (&self.context, dispatched);
        let _call = context.record("combine", context.plan.combine_row_bytes(), tokens as usize);
        self.check_output(tokens, output)?;
        context.check_slot(&slot)?;
        let geometry = context.plan.combine_experts_geometry(tokens, &kernels.limits);
        let mut on = context.on(stream, &mut slot);
        let sum = (tokens, output);
        self.mapped().combine_from_experts(&mut on, sum, &kernels.combine, &geometry, contract)?;
        slot.give_back();
        Ok(())
    }

    #[expect(clippy::expect_used, reason = "only plans with this route have expert kernels")]
    fn mapped(&self) -> &Near {
        self.route.near().expect("the route of mapped memory")
    }
}

impl ExpertKernels {
    /// Blocks and threads of a block of a dispatch and of a combine of `tokens`.
    pub(crate) fn shapes(&self, plan: &Plan, tokens: u32) -> [(u32, u32); 2] {
        let dispatch = plan.dispatch_experts_geometry(tokens, self.local_bytes, &self.limits);
        let combine = plan.combine_experts_geometry(tokens, &self.limits);
        [dispatch, combine].map(|geometry| (geometry.blocks, geometry.block_threads))
    }
}
