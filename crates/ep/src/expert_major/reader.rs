//! The received rows of a plan's dispatches, for kernels of this rank that work on them.

use std::sync::{Arc, Mutex};

use anabranch_hip::{Device, DeviceBuffer, LaunchShape, Stream};
use anabranch_hip_jit::{DevicePointer, LOCAL_RESERVED_BYTES, bytemuck};
use anabranch_ranks::GroupRank;
use anabranch_shmem::{LaunchEvent, World};

use super::plan::{ExpertMajorGeometry, geometry};
use crate::args::ReceivedView;
use crate::error::{Error, Result};
use crate::lock::lock;
use crate::plan::{DeviceLimits, Plan};
use crate::route::DevicePlacement;
use crate::run::{Dispatched, ExpertParallel};
use crate::slot::{PoolMark, SlotAddresses, wait_until_over};

/// How kernels read the rows of a plan's dispatches, the shape of their launches, and the order of those.
///
/// Its drop waits for the last launch that was not captured. Owners declare it before the kernels and the memory that launches use, since
/// fields are dropped in the order of their declaration.
#[derive(Debug)]
pub(super) struct ReceivedReader {
    world: World,
    plan: Plan,
    rank: GroupRank,
    pool: PoolMark,
    placement: Arc<DevicePlacement>,
    first_expert: u32,
    local_experts: u32,
    /// `[experts]`, where a table places them.
    local_numbers: Option<DeviceBuffer>,
    geometry: ExpertMajorGeometry,
    limits: DeviceLimits,
    last: LastUse,
}

impl ReceivedReader {
    /// For kernels that allow blocks of so many threads. Not collective.
    pub(super) fn new(ep: &ExpertParallel, most_threads: u32) -> Result<Self> {
        let (world, plan) = (ep.world(), ep.plan());
        let limits = limits(world.device(), plan, most_threads);
        let experts = plan.experts_on(ep.rank());
        Ok(Self {
            world: world.clone(),
            plan: plan.clone(),
            rank: ep.rank(),
            pool: ep.pool_mark(),
            placement: Arc::clone(ep.device_placement()),
            first_expert: experts.first().copied().unwrap_or_default(),
            local_experts: experts.len() as u32,
            local_numbers: local_numbers(world.device(), plan, &experts)?,
            geometry: geometry(plan, &limits),
            limits,
            last: LastUse::default(),
        })
    }

    /// An error for a handle of another plan.
    pub(super) fn check(&self, dispatched: &Dispatched) -> Result<()> {
        if dispatched.slot.belongs_to_mark(&self.pool) { Ok(()) } else { Err(Error::ForeignHandle) }
    }

    /// The dispatch on a slot, as the kernels read it.
    pub(super) fn view(&self, slot: &SlotAddresses) -> ReceivedView {
        let local_numbers = self.local_numbers.as_ref();
        ReceivedView {
            placement: self.placement.view(),
            local_numbers: local_numbers
                .map_or(DevicePointer::NULL, |words| DevicePointer::new(words.address())),
            rows: DevicePointer::new(slot.rows()),
            meta: DevicePointer::new(slot.meta()),
            offsets: DevicePointer::new(slot.offsets()),
            ranks: self.plan.ranks(),
            row_stride: self.plan.row_stride(),
            top_k: self.plan.config().top_k,
            meta_bytes: self.plan.meta_bytes(),
            first_expert: self.first_expert,
            local_experts: self.local_experts,
            rank: self.rank.get(),
            reserved: 0,
        }
    }

    /// Whether it was made for this plan.
    pub(super) fn belongs_to(&self, ep: &ExpertParallel) -> bool {
        ep.is_marked(&self.pool)
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    pub(super) fn limits(&self) -> &DeviceLimits {
        &self.limits
    }

    /// Launches after the last launch that was not captured, under the world's launch guard.
    pub(super) fn launch(&self, stream: &Stream, work: impl FnOnce() -> Result<()>) -> Result<()> {
        self.in_order(stream, || {
            let _launching = self.world.launching(stream)?;
            work()
        })
    }

    /// The same for work that takes the guard itself.
    pub(super) fn in_order<T>(&self, stream: &Stream, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.last.launch(&self.world, stream, work)
    }

    /// The shape of the launches.
    pub(super) fn geometry(&self) -> ExpertMajorGeometry {
        self.geometry
    }

    /// The same, with so much local memory for a block.
    pub(super) fn shape(&self, local_bytes: u32) -> LaunchShape {
        let ExpertMajorGeometry { blocks: grid_blocks, block_threads } = self.geometry;
        LaunchShape { grid_blocks, block_threads, local_bytes }
    }

    /// Experts of this rank, possibly none.
    pub(super) fn local_experts(&self) -> u32 {
        self.local_experts
    }
}

impl Drop for ReceivedReader {
    fn drop(&mut self) {
        // Launches in flight need the memory and the modules.
        if !self.last.wait(self.world.operation_deadline()) {
            tracing::warn!(
                "expert-major kernels are still queued after other work while their memory is freed"
            );
        }
    }
}

/// After the last launch that was not captured.
#[derive(Debug, Default)]
struct LastUse(Mutex<Option<LaunchEvent>>);

impl LastUse {
    /// Launches after the last launch, also from another thread on another stream. The caller orders replays of captured launches.
    /// `work` takes the world's launch guard, never the caller before: all launches of a layout then take both locks in one order.
    fn launch<T>(&self, world: &World, stream: &Stream, work: impl FnOnce() -> Result<T>) -> Result<T> {
        if stream.is_capturing()? {
            return work();
        }
        let mut last = lock(&self.0);
        if let Some(event) = &*last {
            stream.wait_event(event)?;
        }
        let launched = work();
        // Records also after an error: a first kernel may have been launched.
        *last = Some(world.event_after(stream)?);
        launched
    }

    /// Waits for the last launch, `limit` at most; whether it is over.
    fn wait(&self, limit: std::time::Duration) -> bool {
        let last = lock(&self.0).clone();
        wait_until_over(last.as_slice(), limit)
    }
}

/// The local number of each expert of the group, all ones for experts of other ranks; empty where experts are placed evenly.
fn local_numbers(device: &Device, plan: &Plan, experts: &[u32]) -> Result<Option<DeviceBuffer>> {
    if plan.config().placement.is_none() {
        return Ok(None);
    }
    let mut words = vec![u32::MAX; plan.config().experts as usize];
    for (local, expert) in experts.iter().enumerate() {
        words[*expert as usize] = local as u32;
    }
    let mut buffer = device.allocate(words.len() * 4)?;
    buffer.copy_from_host(0, bytemuck::cast_slice(&words))?;
    Ok(Some(buffer))
}

/// Limits of the launches. Their blocks wait for no peer, so a grid need not be resident.
fn limits(device: &Device, plan: &Plan, most_threads: u32) -> DeviceLimits {
    let wave_size = device.wave_size();
    let preferred = Plan::preferred_waves(wave_size, device.multiprocessors());
    let waves = if plan.config().waves_per_block == 0 { preferred } else { plan.config().waves_per_block };
    DeviceLimits {
        wave_size,
        resident_blocks: u32::MAX,
        multiprocessors: device.multiprocessors(),
        preferred_waves: waves.min(most_threads.min(1024) / wave_size).max(1),
        local_bytes: (device.properties().shared_memory_per_block() as u32)
            .saturating_sub(LOCAL_RESERVED_BYTES),
    }
}
