//! Counts of received pairs for each expert of this rank.

use std::sync::{Arc, Mutex};

use anabranch_hip::{Device, DeviceBuffer, LaunchShape, Stream};
use anabranch_hip_jit::{DevicePointer, LOCAL_RESERVED_BYTES, LoadedKernel, bytemuck};
use anabranch_ranks::GroupRank;
use anabranch_shmem::{LaunchEvent, World};

use super::plan::{ExpertMajorGeometry, check_local, geometry, run_count_bytes};
use crate::args::{ExpertCountArgs, ExpertSumArgs, ReceivedView};
use crate::error::{Error, Result};
use crate::kernels;
use crate::lock::lock;
use crate::plan::{DeviceLimits, Plan};
use crate::route::DevicePlacement;
use crate::run::{Dispatched, ExpertParallel};
use crate::slot::{PoolMark, SlotAddresses, wait_until_over};
use crate::tensor::DeviceSlice;

/// Counts, for the dispatches of one plan, the received pairs of each expert of this rank. A pair is a received row and an index
/// k at which its token names an expert of this rank; a token that names one expert twice counts twice.
///
/// Not collective. It owns `[blocks][local experts]` u32 of device memory. Each launch waits, on its stream, for the launch before,
/// unless it is captured; the caller orders replays of captured launches.
#[derive(Debug)]
pub struct LocalExpertCounter {
    world: World,
    plan: Plan,
    rank: GroupRank,
    pool: PoolMark,
    placement: Arc<DevicePlacement>,
    first_expert: u32,
    local_experts: u32,
    /// `[experts]`, where a table places them.
    local_numbers: Option<DeviceBuffer>,
    count: LoadedKernel<ExpertCountArgs>,
    sum: LoadedKernel<ExpertSumArgs>,
    run_counts: DeviceBuffer,
    geometry: ExpertMajorGeometry,
    limits: DeviceLimits,
    last: LastUse,
}

impl LocalExpertCounter {
    /// Compiles and loads the kernels and allocates. Not collective.
    ///
    /// # Errors
    /// [`Error::Config`] when the rank has too many experts for a block's local memory; errors of the compiler and the runtime.
    pub fn new(ep: &ExpertParallel) -> Result<Self> {
        let (world, plan) = (ep.world(), ep.plan());
        let device = world.device();
        let unit = world.jit().load(device, &kernels::expert_count())?;
        let (count, sum) = (unit.get(kernels::EXPERT_COUNT)?, unit.get(kernels::EXPERT_SUM)?);
        let limits = limits(device, plan, count.raw().max_block_threads()?);
        let experts = plan.experts_on(ep.rank());
        let local_experts = experts.len() as u32;
        check_local(u64::from(local_experts) * 4, local_experts, &limits)?;
        let geometry = geometry(plan, &limits);
        let bytes = run_count_bytes(local_experts, geometry) as usize;
        Ok(Self {
            world: world.clone(),
            plan: plan.clone(),
            rank: ep.rank(),
            pool: ep.pool_mark(),
            placement: Arc::clone(ep.device_placement()),
            first_expert: experts.first().copied().unwrap_or_default(),
            local_experts,
            local_numbers: local_numbers(device, plan, &experts)?,
            count,
            sum,
            run_counts: device.allocate(bytes.max(16))?,
            geometry,
            limits,
            last: LastUse::default(),
        })
    }

    /// Writes the number of received pairs of each local expert, also zeros, to `output`: `[local experts]`
    /// u32, 4-byte aligned. Launches two kernels on the stream, which must be the dispatch's or ordered after it, and does not block the
    /// host. Not collective. May be captured into a graph.
    ///
    /// # Errors
    /// Before anything is launched: [`Error::ForeignHandle`], [`Error::Shape`], [`Error::Address`], or an earlier fault of the world.
    pub fn local_expert_counts(
        &self,
        stream: &Stream,
        dispatched: &Dispatched,
        output: DeviceSlice,
    ) -> Result<()> {
        self.check(dispatched)?;
        let experts = self.local_experts;
        output.check("the local expert counts", experts as usize * 4, 4, || {
            format!("[{experts} local experts] u32")
        })?;
        self.last.launch(&self.world, stream, || {
            let _launching = self.world.launching(stream)?;
            self.count(stream, dispatched)?;
            if experts == 0 {
                return Ok(());
            }
            let args = ExpertSumArgs {
                run_counts: DevicePointer::new(self.run_counts.address()),
                offsets: DevicePointer::new(dispatched.offsets()),
                output: DevicePointer::new(output.address()),
                ranks: self.plan.ranks(),
                local_experts: experts,
                count_blocks: self.geometry.blocks,
                reserved: 0,
            };
            let block_threads = self.geometry.block_threads;
            let grid_blocks = experts.div_ceil(block_threads);
            let shape = LaunchShape { grid_blocks, block_threads, local_bytes: 0 };
            // SAFETY: the counts belong to `self`, which waits for its last launch before
            // it is dropped, the offsets to the slot that the handle holds; `output` was checked against its shape.
            unsafe { self.sum.launch(shape, stream, &args)? };
            Ok(())
        })
    }

    /// Counts the pairs of each run of rows. The caller orders the stream and notes the use.
    fn count(&self, stream: &Stream, dispatched: &Dispatched) -> Result<()> {
        let args = ExpertCountArgs {
            received: self.view(dispatched.slot.get()),
            run_counts: DevicePointer::new(self.run_counts.address()),
        };
        let ExpertMajorGeometry { blocks: grid_blocks, block_threads } = self.geometry;
        let shape = LaunchShape { grid_blocks, block_threads, local_bytes: self.local_experts * 4 };
        // SAFETY: the windows belong to the slot that the handle holds, the counts, of as many
        // runs as the grid has blocks, to `self`, which waits for its last launch before it is dropped.
        unsafe { self.count.launch(shape, stream, &args)? };
        Ok(())
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

    pub(super) fn world(&self) -> &World {
        &self.world
    }

    pub(super) fn limits(&self) -> &DeviceLimits {
        &self.limits
    }

    pub(super) fn last(&self) -> &LastUse {
        &self.last
    }

    /// Waits for the last launch that was not captured, as long as an operation may take.
    pub(super) fn wait_for_last(&self) {
        if !self.last.wait(self.world.operation_deadline()) {
            tracing::warn!(
                "expert-major kernels are still queued after other work while their memory is freed"
            );
        }
    }

    /// The shape of the launches.
    pub fn geometry(&self) -> ExpertMajorGeometry {
        self.geometry
    }

    /// Experts of this rank, possibly none.
    pub fn local_experts(&self) -> u32 {
        self.local_experts
    }
}

impl Drop for LocalExpertCounter {
    fn drop(&mut self) {
        // Launches in flight need the memory and the module.
        self.wait_for_last();
    }
}

/// After the last launch that was not captured.
#[derive(Debug, Default)]
pub(super) struct LastUse(Mutex<Option<LaunchEvent>>);

impl LastUse {
    /// Launches after the last launch, also from another thread on another stream. The caller orders replays of captured launches.
    /// `work` takes the world's launch guard, never the caller before: all launches of a layout then take both locks in one order.
    pub(super) fn launch<T>(
        &self,
        world: &World,
        stream: &Stream,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
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
