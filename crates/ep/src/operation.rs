//! Dispatch and combine on a group: makes the plan, owns the slots, launches the kernels.

use std::sync::Arc;
use std::time::Duration;

use anabranch_hip::{DeviceAddress, Stream};
use anabranch_hip_jit::{DevicePointer, LOCAL_RESERVED_BYTES, LoadedUnit};
use anabranch_ranks::{Group, GroupRank};
use anabranch_shmem::{OperationCode, OperationName, ResidencyPermit, Team, World};

use crate::args::{CombineArgs, DispatchArgs};
use crate::error::{Error, Result};
use crate::kernels;
use crate::plan::{DeviceLimits, EpConfig, FLAG_STRIDE, Geometry, Plan};
use crate::slot::{Slot, SlotPool, SlotTicket};
use crate::tensor::{DeviceSlice, Tokens};

/// Dispatch in fault records.
pub const DISPATCH: OperationCode = OperationCode(0x300);
/// Combine in fault records.
pub const COMBINE: OperationCode = OperationCode(0x301);

/// Names of the kernels' phases, by number.
const DISPATCH_NAME: OperationName =
    OperationName { name: "ep dispatch", phases: &["start", "rows of a peer", "flag of a later dispatch"] };
const COMBINE_NAME: OperationName =
    OperationName { name: "ep combine", phases: &["start", "experts of a peer", "flag of a later combine"] };

/// Expert-parallel dispatch and combine over a group, on one rank.
///
/// Made collectively by all members with equal configurations. Each operation in flight owns a slot: windows in the
/// symmetric heap, flags and epochs of its own. All members use slots in the same order: the n-th dispatch of every
/// rank is the same operation.
#[derive(Debug)]
pub struct ExpertParallel {
    world: World,
    team: Team,
    plan: Plan,
    pool: Arc<SlotPool>,
    dispatch: Arc<LoadedUnit>,
    combine: Arc<LoadedUnit>,
    limits: DeviceLimits,
    /// The share of the device for all slots' kernels at once.
    #[expect(dead_code, reason = "held, for its drop")]
    residency: ResidencyPermit,
}

/// A dispatch whose combine has not been given yet. Holds the slot; give it to [`ExpertParallel::combine`] or
/// [`ExpertParallel::release`], which every member must do in the same order.
#[derive(Debug)]
#[must_use = "the slot stays busy until the handle is combined or released"]
pub struct Dispatched {
    slot: SlotTicket,
    tokens: u32,
}

/// Where combine finds the experts' output.
#[derive(Clone, Copy, Debug)]
pub enum ExpertOutput {
    /// In the slot's combine window ([`Dispatched::combine_rows`]), where peers pull it without a copy.
    InWindow,
    /// In another buffer of the window's shape, `[ranks][max_tokens][hidden]` of the combine type, 16-byte aligned; the
    /// kernel copies the received rows into the window first.
    Staged(DeviceSlice),
}

impl ExpertParallel {
    /// Makes the plan: checks the configuration, compares it among the members, allocates all slots and compiles and
    /// loads the kernels. Collective over `group`.
    ///
    /// Blocks that wait for peers must fit on the device together, those of all slots and of all plans and teams of the
    /// world: the plan takes a share of the device for `slots` grids, and until it is dropped others get what is left. A grid
    /// has as many blocks as asked for (`max_blocks`, or the choice for the device) where that many fit, fewer where not,
    /// with a warning in the log; when not one block a slot fits, the plan is refused.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Unreachable`], a device that is taken
    /// ([`anabranch_shmem::Error::Residency`]), configurations that differ, heap exhaustion, compiler errors. A failure
    /// on one member is an error on all.
    pub fn new(world: &World, group: &Group, config: EpConfig) -> Result<Self> {
        let fields = config.fields();
        let prepared = Self::prepare(world, group, config);
        world.compare(group, "ep configuration", fields)?;
        agree(world, group, "ep plan", &prepared)?;
        let (plan, dispatch, combine, mut limits) = prepared?;
        world.name_operation(DISPATCH, DISPATCH_NAME);
        world.name_operation(COMBINE, COMBINE_NAME);
        let team = world.team(group)?;
        // First what all allocate together, which succeeds or fails on all, then what one may lack alone.
        let heaps: Result<Vec<_>, _> = (0..plan.config().slots)
            .map(|index| world.allocate(group, plan.layout().bytes, 256, &format!("ep slot {index}")))
            .collect();
        let heaps = heaps?;
        let own = reserve(world, &plan, &mut limits).and_then(|permit| {
            let slots = heaps.into_iter().map(|heap| Slot::new(world.device(), &plan, heap));
            Ok((permit, slots.collect::<Result<Vec<_>>>()?))
        });
        agree(world, group, "ep slots", &own)?;
        let (residency, slots) = own?;
        let (world, pool) = (world.clone(), SlotPool::new(slots));
        Ok(Self { world, team, plan, pool, dispatch, combine, limits, residency })
    }

    fn prepare(
        world: &World,
        group: &Group,
        config: EpConfig,
    ) -> Result<(Plan, Arc<LoadedUnit>, Arc<LoadedUnit>, DeviceLimits)> {
        let plan = Plan::new(config, group.size())?;
        let unreachable = group.members().iter().find(|member| world.peer_base(**member).is_none());
        if let Some(peer) = unreachable {
            return Err(Error::Unreachable { peer: *peer });
        }
        let device = world.device();
        let dispatch = world.jit().load(device, &kernels::dispatch())?;
        let combine = world.jit().load(device, &kernels::combine(plan.config().combine_type))?;
        let limits = device_limits(&plan, &dispatch, &combine)?;
        plan.dispatch_geometry(plan.config().max_tokens, &limits)?;
        Ok((plan, dispatch, combine, limits))
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The group.
    pub fn group(&self) -> &Group {
        self.team.group()
    }

    /// This rank in the group.
    pub fn rank(&self) -> GroupRank {
        self.team.rank()
    }

    /// The shape of a dispatch of `tokens`.
    ///
    /// # Errors
    /// [`Error::Config`], as when the plan was made.
    pub fn dispatch_geometry(&self, tokens: u32) -> Result<Geometry> {
        self.plan.dispatch_geometry(tokens, &self.limits)
    }

    /// The shape of a combine of `tokens`.
    pub fn combine_geometry(&self, tokens: u32) -> Geometry {
        self.plan.combine_geometry(tokens, &self.limits)
    }

    /// Sends every token to the ranks that own its experts, and takes in the rows for this rank's experts. Collective:
    /// every member calls it, also with 0 tokens. It puts one kernel on the stream and returns.
    ///
    /// After it, in stream order, the handle's windows, counts and offsets are valid until its combine or release.
    /// May be captured into a graph, which then uses this slot at every replay: whoever launches the graph keeps its
    /// replays in order with other operations on the slot. Eager ones wait only for each other. Within a capture the caller
    /// keeps operations that follow each other on one slot on one stream, or orders their streams.
    ///
    /// # Errors
    /// Before anything moves: [`Error::TooManyTokens`], [`Error::Shape`], [`Error::Alignment`], [`Error::Type`],
    /// [`Error::Scales`], [`Error::SlotsBusy`], or a fault that the world has had.
    pub fn dispatch(&self, stream: &Stream, tokens: &Tokens) -> Result<Dispatched> {
        let _launching = self.world.launching(stream)?;
        self.check_tokens(tokens)?;
        let count = tokens.count as u32;
        let geometry = self.plan.dispatch_geometry(count, &self.limits)?;
        let mut slot = self.pool.take(stream)?;
        let layout = self.plan.layout();
        let args = DispatchArgs {
            team: self.team.view(),
            tokens: pointer(tokens.rows.address()),
            ids: pointer(tokens.ids.address()),
            weights: pointer(tokens.weights.map_or(DeviceAddress::NULL, |weights| weights.address())),
            scales: pointer(tokens.scales.map_or(DeviceAddress::NULL, |scales| scales.address())),
            send_map: pointer(slot.get().send_map()),
            sent: pointer(slot.get().sent()),
            counts: pointer(slot.get().counts()),
            offsets: pointer(slot.get().offsets()),
            state: pointer(slot.get().state()),
            rows_offset: slot.get().heap_offset() + layout.rows,
            meta_offset: slot.get().heap_offset() + layout.meta,
            flags_offset: slot.get().heap_offset() + layout.dispatch_flags,
            token_count: count,
            max_tokens: self.plan.config().max_tokens,
            top_k: self.plan.config().top_k,
            experts: self.plan.config().experts,
            fan_out: self.plan.fan_out(),
            row_bytes: self.plan.row_bytes(),
            meta_bytes: self.plan.meta_bytes(),
            scale_bytes: self.plan.config().scale_bytes,
            parts: geometry.parts,
            segments: geometry.segments,
            flag_stride: FLAG_STRIDE,
            operation: DISPATCH.0,
        };
        let kernel = self.dispatch.kernel("anabranch_ep_dispatch")?;
        // SAFETY: the argument struct is the kernel's own; its windows and words belong to the slot, which the ticket
        // keeps until combine or release; the caller's tensors were checked against their shapes, and making their
        // `DeviceSlice`s promised that they stay valid.
        unsafe {
            kernel.launch(geometry.blocks, geometry.block_threads, geometry.local_bytes, stream, &args)?;
        }
        slot.used_on(stream)?;
        Ok(Dispatched { slot, tokens: count })
    }

    /// Sums, for each token of the dispatch, the rows of all ranks it went to, in group-rank order. Collective: every
    /// member combines the same dispatch. It puts one kernel on the stream and returns; the slot is free for the next
    /// dispatch, in stream order.
    ///
    /// `output` is `[tokens][hidden]` of the combine type, 16-byte aligned.
    ///
    /// # Errors
    /// Before anything moves: [`Error::ForeignHandle`], [`Error::Shape`], [`Error::Alignment`], or a fault that the
    /// world has had. The handle is used up in any case, and after an error its slot is lost.
    pub fn combine(
        &self,
        stream: &Stream,
        experts: ExpertOutput,
        dispatched: Dispatched,
        output: DeviceSlice,
    ) -> Result<()> {
        let row = self.plan.combine_row_bytes() as usize;
        let tokens = dispatched.tokens;
        output.check("the combine output", tokens as usize * row, 16, || {
            format!(
                "[{tokens} tokens][{} hidden] {}",
                self.plan.config().hidden,
                self.plan.config().combine_type
            )
        })?;
        self.launch_combine(stream, experts, dispatched, tokens, output)
    }

    /// Gives the slot of a dispatch back without a combine. Collective, like combine.
    ///
    /// # Errors
    /// As [`Self::combine`].
    pub fn release(&self, stream: &Stream, dispatched: Dispatched) -> Result<()> {
        // SAFETY: nothing of a null range is read or written when no token is summed.
        let nothing = unsafe { DeviceSlice::from_raw(DeviceAddress::NULL, 0) };
        self.launch_combine(stream, ExpertOutput::InWindow, dispatched, 0, nothing)
    }

    fn launch_combine(
        &self,
        stream: &Stream,
        experts: ExpertOutput,
        dispatched: Dispatched,
        tokens: u32,
        output: DeviceSlice,
    ) -> Result<()> {
        let _launching = self.world.launching(stream)?;
        let mut slot = dispatched.slot;
        if !slot.belongs_to(&self.pool) {
            return Err(Error::ForeignHandle);
        }
        let staged = match experts {
            ExpertOutput::InWindow => DeviceAddress::NULL,
            ExpertOutput::Staged(rows) => {
                let (ranks, config) = (self.plan.ranks(), self.plan.config());
                let needed =
                    ranks as usize * config.max_tokens as usize * self.plan.combine_row_bytes() as usize;
                rows.check("the experts' output", needed, 16, || {
                    format!(
                        "[{ranks} ranks][{} max_tokens][{} hidden] {}",
                        config.max_tokens, config.hidden, config.combine_type
                    )
                })?;
                rows.address()
            }
        };
        let mut geometry = self.plan.combine_geometry(tokens, &self.limits);
        if !staged.is_null() {
            geometry.blocks = geometry.blocks.max(self.plan.staging_blocks(&self.limits));
        }
        slot.order_behind(stream)?;
        let layout = self.plan.layout();
        let args = CombineArgs {
            team: self.team.view(),
            staged: pointer(staged),
            output: pointer(output.address()),
            send_map: pointer(slot.get().send_map()),
            counts: pointer(slot.get().counts()),
            state: pointer(slot.get().state()),
            rows_offset: slot.get().heap_offset() + layout.combine_rows,
            flags_offset: slot.get().heap_offset() + layout.combine_flags,
            token_count: tokens,
            max_tokens: self.plan.config().max_tokens,
            fan_out: self.plan.fan_out(),
            row_bytes: self.plan.combine_row_bytes(),
            segments: geometry.segments,
            flag_stride: FLAG_STRIDE,
            operation: COMBINE.0,
            reserved: 0,
        };
        let kernel = self.combine.kernel("anabranch_ep_combine")?;
        // SAFETY: as for dispatch; the rows that it reads at peers belong to the same operation of their slots.
        unsafe {
            kernel.launch(geometry.blocks, geometry.block_threads, geometry.local_bytes, stream, &args)?;
        }
        slot.used_on(stream)?;
        slot.give_back();
        Ok(())
    }

    /// Whether this rank's dispatches have met expert ids out of range since the last call; such ids count as masked.
    /// Waits for the stream. Not collective.
    ///
    /// # Errors
    /// [`Error::InvalidExpert`] with the first one; or a fault of the world.
    pub fn check_ids(&self, stream: &Stream) -> Result<()> {
        self.world.synchronize(stream)?;
        let limit = self.patience();
        if !self.pool.wait_until_idle(limit) {
            return Err(anabranch_shmem::Error::StreamBusy { waited: limit }.into());
        }
        for slot in self.pool.slots() {
            if let Some((count, token, id)) = slot.take_invalid()? {
                let experts = self.plan.config().experts;
                return Err(Error::InvalidExpert { rank: self.rank(), count, token, id, experts });
            }
        }
        Ok(())
    }

    /// How long kernels that were launched may still take, unless other work on their streams holds them up.
    fn patience(&self) -> Duration {
        self.world.operation_deadline() + Duration::from_secs(1)
    }

    fn check_tokens(&self, tokens: &Tokens) -> Result<()> {
        let config = self.plan.config();
        let count = tokens.count;
        if count > config.max_tokens as usize {
            return Err(Error::TooManyTokens { given: count, max_tokens: config.max_tokens });
        }
        if tokens.data_type != config.dispatch_type {
            return Err(Error::Type {
                what: "the token rows",
                given: tokens.data_type,
                planned: config.dispatch_type,
            });
        }
        let top_k = config.top_k;
        tokens.rows.check("the token rows", count * self.plan.row_bytes() as usize, 16, || {
            format!("[{count} tokens][{} hidden] {}", config.hidden, config.dispatch_type)
        })?;
        tokens.ids.check("the expert ids", count * top_k as usize * 4, 4, || {
            format!("[{count} tokens][{top_k} top_k] i32")
        })?;
        if let Some(weights) = tokens.weights {
            weights.check("the weights", count * top_k as usize * 4, 4, || {
                format!("[{count} tokens][{top_k} top_k] f32")
            })?;
        }
        match (tokens.scales, config.scale_bytes) {
            (None, 0) => Ok(()),
            (Some(scales), planned) if planned > 0 => {
                scales.check("the scales", count * planned as usize, 4, || {
                    format!("[{count} tokens][{planned} bytes]")
                })
            }
            (given, planned) => {
                let given = given.map_or(0, |scales| scales.len().checked_div(count).unwrap_or(0) as u32);
                Err(Error::Scales { given, planned })
            }
        }
    }
}

impl Dispatched {
    /// Tokens that this rank dispatched.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Rows received: `[ranks][max_tokens][hidden]` of the dispatch type. Rank s's rows are the first `counts[s]` of its
    /// part, in the order of its tokens; the rest is undefined.
    pub fn rows(&self) -> DeviceAddress {
        self.slot.get().rows()
    }

    /// Meta records of the rows: `[ranks][max_tokens][meta_bytes]`, each `{token u32, top_k u32, ids i32[K],
    /// weights f32[K], scales}`.
    pub fn meta(&self) -> DeviceAddress {
        self.slot.get().meta()
    }

    /// Rows received from each rank, `[ranks]` u32.
    pub fn counts(&self) -> DeviceAddress {
        self.slot.get().counts()
    }

    /// Running sum of the counts, `[ranks + 1]` u32; the last is the total.
    pub fn offsets(&self) -> DeviceAddress {
        self.slot.get().offsets()
    }

    /// The combine window: `[ranks][max_tokens][hidden]` of the combine type. Experts that write their output here, each
    /// row at the place of the row it came from, save combine a copy.
    pub fn combine_rows(&self) -> DeviceAddress {
        self.slot.get().combine_rows()
    }
}

fn pointer<T>(address: DeviceAddress) -> DevicePointer<T> {
    DevicePointer::new(address)
}

/// Ends a step that each member does for itself: its own error where it failed, an error that names the first such member
/// elsewhere.
fn agree<T>(world: &World, group: &Group, step: &str, outcome: &Result<T>) -> Result<()> {
    let failure = outcome.as_ref().err().map(|error| error as &(dyn std::error::Error + 'static));
    match world.agree_outcome(group, step, failure) {
        Err(_) if outcome.is_err() => Ok(()), // the caller returns its own, which says more
        agreed => Ok(agreed?),
    }
}

impl Drop for ExpertParallel {
    fn drop(&mut self) {
        // Kernels in flight need the slots' memory and the modules. They have a deadline, and so has this wait.
        if !self.pool.wait_until_idle(self.patience()) {
            tracing::warn!("dispatch or combine is still queued behind other work while its plan is dropped");
        }
    }
}

/// Takes a share of the device for the grids of all slots, and shrinks the grids to it.
fn reserve(world: &World, plan: &Plan, limits: &mut DeviceLimits) -> Result<ResidencyPermit> {
    // No grid is larger than that of staging.
    let wanted = plan.staging_blocks(limits);
    let slots = plan.config().slots;
    let permit = world.reserve_residency_up_to(slots, wanted, limits.resident_blocks)?;
    if permit.blocks() < wanted {
        let (blocks, resident) = (permit.blocks(), limits.resident_blocks);
        tracing::warn!(
            wanted,
            blocks,
            slots,
            resident,
            "grids are smaller, so that those of all slots fit on the device"
        );
    }
    limits.resident_blocks = permit.blocks();
    Ok(permit)
}

/// What launches may look like on this device: both kernels' grids must be resident as a whole, because their blocks
/// wait for peers.
fn device_limits(plan: &Plan, dispatch: &LoadedUnit, combine: &LoadedUnit) -> Result<DeviceLimits> {
    let dispatch = dispatch.kernel("anabranch_ep_dispatch")?;
    let combine = combine.kernel("anabranch_ep_combine")?;
    let device = dispatch.raw().device();
    let wave_size = device.wave_size();
    let most_threads = dispatch.raw().max_block_threads()?.min(combine.raw().max_block_threads()?);
    let preferred = Plan::preferred_waves(wave_size, device.multiprocessors());
    let waves = if plan.config().waves_per_block == 0 { preferred } else { plan.config().waves_per_block };
    let waves = waves.min(most_threads / wave_size).max(1);
    let local = plan.dispatch_local_bytes();
    let per_multiprocessor = dispatch
        .blocks_per_multiprocessor(waves * wave_size, local)?
        .min(combine.blocks_per_multiprocessor(waves * wave_size, local)?);
    Ok(DeviceLimits {
        wave_size,
        resident_blocks: (per_multiprocessor * device.multiprocessors()).max(1),
        multiprocessors: device.multiprocessors(),
        preferred_waves: waves,
        local_bytes: (device.properties().shared_memory_per_block() as u32)
            .saturating_sub(LOCAL_RESERVED_BYTES),
    })
}
