//! Dispatch that numbers pairs, whose kernel also expands, for the layouts by expert.

use anabranch_hip::Stream;
use anabranch_hip_jit::{LOCAL_RESERVED_BYTES, LoadedKernel};

use super::{Dispatched, ExpertParallel};
use crate::args::{DispatchExpertsArgs, ExpertExpandArgs};
use crate::error::Result;
use crate::kernels;
use crate::plan::{DeviceLimits, Geometry, Plan};
use crate::route::load_counted;
use crate::slot::SlotAddresses;
use crate::tensor::Tokens;

/// The kernels of a layout's dispatches.
#[derive(Debug)]
pub(crate) struct ExpertKernel {
    /// Without an expand.
    numbered: LoadedKernel<DispatchExpertsArgs>,
    /// With it, where a block's local memory and the plan's share of the device hold it.
    whole: Option<Whole>,
}

/// The kernel that expands, and the limits of its grid: the plan's share of the device, of which it may hold fewer blocks than the plan's own.
#[derive(Debug)]
struct Whole {
    kernel: LoadedKernel<DispatchExpertsArgs>,
    limits: DeviceLimits,
    /// Local memory of a block.
    local_bytes: u32,
}

impl ExpertParallel {
    /// The kernels for a rank with so many experts, of padded rows or of the rows of all experts one after the other; `None` where the plan has
    /// none, on all ranks alike: rows that copy engines or NICs move, ranks that may be masked, or more experts than a block can count.
    pub(crate) fn expert_kernel(
        &self,
        local_experts: u32,
        is_contiguous: bool,
    ) -> Result<Option<ExpertKernel>> {
        let (world, plan, limits) = (self.world(), self.plan(), self.limits());
        if !plan.numbers_pairs() {
            return Ok(None);
        }
        let config = plan.config();
        let numbering = plan.numbering_local_bytes();
        if numbering > u64::from(limits.local_bytes) {
            return Ok(None);
        }
        let spec = kernels::dispatch_experts(config.cast_from, config.dispatch_cast);
        let spec = if is_contiguous { kernels::contiguous(spec) } else { spec };
        let unit = load_counted(world, plan, spec)?;
        let numbered = unit.get(kernels::DISPATCH_NUMBERED)?;
        let kernel = unit.get(kernels::DISPATCH_EXPERTS)?;
        let local =
            numbering + plan.placing_local_bytes(local_experts, limits.preferred_waves, is_contiguous);
        if local > u64::from(limits.local_bytes) {
            return Ok(Some(ExpertKernel { numbered, whole: None }));
        }
        let local_bytes = local as u32; // at most the device's local memory
        let most_waves = kernel.raw().max_block_threads()? / limits.wave_size;
        let waves = limits.preferred_waves.min(most_waves).max(1);
        let (threads, local) = (waves * limits.wave_size, local_bytes + LOCAL_RESERVED_BYTES);
        let resident = world.max_resident_blocks(kernel.raw(), threads, local)?;
        let share = u64::from(limits.resident_blocks) * u64::from(resident)
            / u64::from(self.context.device_blocks.max(1));
        let resident_blocks = (share as u32).min(resident); // a part of `resident`
        let limits = DeviceLimits { preferred_waves: waves, resident_blocks, ..*limits };
        let whole = (share > 0).then_some(Whole { kernel, limits, local_bytes });
        Ok(Some(ExpertKernel { numbered, whole }))
    }

    /// [`Self::dispatch`] with the numbers of pairs, with the arguments that `expand` gives for the slot. It has expanded where
    /// [`ExpertKernel::is_whole`].
    pub(crate) fn dispatch_to_experts(
        &self,
        stream: &Stream,
        tokens: &Tokens,
        experts: &ExpertKernel,
        expand: impl FnOnce(&SlotAddresses) -> ExpertExpandArgs,
    ) -> Result<Dispatched> {
        let context = &self.context;
        let _call = context.record("dispatch", context.plan.token_bytes(), tokens.count);
        context.world.check()?;
        self.check_routed(tokens)?;
        let count = tokens.count as u32;
        let (kernel, geometry) = if let Some(whole) = &experts.whole {
            (&whole.kernel, whole.geometry(&context.plan, count))
        } else {
            let local_bytes = context.plan.numbering_local_bytes() as u32; // was compared with the device's
            let geometry = context.plan.dispatch_geometry(count, &context.limits)?;
            (&experts.numbered, Geometry { local_bytes, ..geometry })
        };
        let mut slot = context.pool.take()?;
        let args = expand(slot.get());
        #[expect(clippy::expect_used, reason = "only plans with this route have this kernel")]
        let near = self.route.near().expect("the route of mapped memory");
        near.send_to_experts(context.on(stream, &mut slot)?, tokens, kernel, &geometry, args)?;
        Ok(Dispatched::new(slot, count))
    }
}

impl ExpertKernel {
    /// Whether a dispatch also expands.
    pub(crate) fn is_whole(&self) -> bool {
        self.whole.is_some()
    }

    /// The shape of a dispatch of `tokens` that expands.
    pub(crate) fn geometry(&self, plan: &Plan, tokens: u32) -> Option<Geometry> {
        self.whole.as_ref().map(|whole| whole.geometry(plan, tokens))
    }
}

impl Whole {
    fn geometry(&self, plan: &Plan, tokens: u32) -> Geometry {
        plan.dispatch_experts_geometry(tokens, self.local_bytes, &self.limits)
    }
}
