//! The share of the device that a plan's grids take.

use std::sync::Arc;

use anabranch_hip::Kernel;
use anabranch_hip_jit::LOCAL_RESERVED_BYTES;
use anabranch_shmem::{LaunchOrder, ResidencyPermit, World};

use crate::error::Result;
use crate::plan::{DeviceLimits, Plan};

/// Takes a share of the device for the grids that run at the same time, those of all slots without an order, and shrinks the grids to it.
pub(super) fn reserve(
    world: &World,
    plan: &Plan,
    limits: &mut DeviceLimits,
    order: Option<&LaunchOrder>,
) -> Result<ResidencyPermit> {
    let (wanted, resident) = (plan.most_blocks(limits), limits.resident_blocks);
    let (grids, share) = match order {
        None => (plan.config().slots, world.residency_share()),
        Some(order) => (1, Arc::clone(order.share())),
    };
    let permit = share.reserve_up_to(grids, wanted, resident)?;
    if permit.blocks() < wanted {
        let blocks = permit.blocks();
        tracing::warn!(
            wanted,
            blocks,
            grids,
            resident,
            "grids are smaller, so that those at the same time fit on the device"
        );
    }
    limits.resident_blocks = permit.blocks();
    Ok(permit)
}

/// The limits of launches on this device: the grid of each kernel must be resident, because its blocks wait for peers.
pub(super) fn device_limits(plan: &Plan, world: &World, kernels: &[&Kernel]) -> Result<DeviceLimits> {
    let (device, multiprocessors) = (world.device(), world.multiprocessors());
    let wave_size = device.wave_size();
    let mut most_threads = u32::MAX;
    for kernel in kernels {
        most_threads = most_threads.min(kernel.max_block_threads()?);
    }
    let preferred = Plan::preferred_waves(wave_size, device.multiprocessors());
    // Of blocks as wide as any launch's: narrower ones fit in no smaller number.
    let waves = match (plan.config().waves_per_block, plan.most_waves()) {
        (0, widest) => widest.max(preferred),
        (configured, _) => configured,
    };
    let waves = waves.min(most_threads / wave_size).max(1);
    let local = plan.dispatch_local_bytes().saturating_add(LOCAL_RESERVED_BYTES);
    let mut resident_blocks = u32::MAX;
    for kernel in kernels {
        resident_blocks = resident_blocks.min(world.max_resident_blocks(kernel, waves * wave_size, local)?);
    }
    Ok(DeviceLimits {
        wave_size,
        resident_blocks: resident_blocks.max(1),
        multiprocessors,
        preferred_waves: waves,
        local_bytes: (device.properties().shared_memory_per_block() as u32)
            .saturating_sub(LOCAL_RESERVED_BYTES),
    })
}
