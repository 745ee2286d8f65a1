//! Dispatch and combine on a group: makes the plan, owns the slots, launches the kernels.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anabranch_hip::{DeviceAddress, Stream};
use anabranch_hip_jit::{DevicePointer, LoadedUnit};
use anabranch_ranks::{Group, GroupRank};
use anabranch_shmem::{LossTolerance, OperationCode, OperationName, ResidencyPermit, Team, World};

use crate::error::{Error, Result};
use crate::kernels;
use crate::launch::{self, Launch};
use crate::placement::DevicePlacement;
use crate::plan::{DeviceLimits, EpConfig, Geometry, Plan};
use crate::room::Mode;
use crate::slot::{PoolMark, Slot, SlotPool};
use engine::{Engine, EngineUnits};
use mask::MaskTable;
use nodes::{NodeLaunches, NodeUnits};
use residency::{LaunchedUnit, device_limits, reserve};

mod again;
mod calls;
mod combine;
mod dispatch;
mod dropped;
mod engine;
mod handle;
mod mask;
mod nodes;
mod push;
mod residency;
mod routing;
mod split;
mod weights;

pub use again::ReplayedTokens;
pub use combine::ExpertOutput;
pub use dropped::DroppedCopy;
pub use handle::Dispatched;
pub use routing::Routing;
pub use split::{CombineSent, DispatchSent};
pub use weights::CombineOutput;

/// Dispatch in fault records.
pub const DISPATCH: OperationCode = OperationCode(0x300);
/// Combine in fault records.
pub const COMBINE: OperationCode = OperationCode(0x301);
/// The counts before a compact dispatch, in fault records.
pub const COUNT: OperationCode = OperationCode(0x302);

/// Names of the kernels' phases, by number.
const DISPATCH_NAME: OperationName = OperationName {
    name: "ep dispatch",
    phases: &[
        "start",
        "rows of a peer",
        "flag of a later dispatch",
        "a peer that dispatches with another routing, or routes anew",
        "a routing that holds another number of tokens by now, or none",
        "rows of a peer of another node, to forward",
        "flag of a later dispatch, to forward",
    ],
};
const COUNT_NAME: OperationName =
    OperationName { name: "ep count", phases: &["start", "counts of a peer", "count of a later dispatch"] };
const COMBINE_NAME: OperationName = OperationName {
    name: "ep combine",
    phases: &["start", "experts of a peer", "flag of a later combine", "a peer that combines another way"],
};

/// Expert-parallel dispatch and combine over a group, on one rank.
///
/// Made collectively by all members with equal configurations. Each operation in flight owns a slot: windows in the
/// symmetric heap, flags and epochs of its own. All members begin and end operations in the same order: the n-th dispatch of every
/// rank is the same operation, and a dispatch takes the lowest slot that is free.
///
/// Plans, handles and halves may be used from, and moved to, any thread, whichever made the world. Threads that share a plan keep
/// that order among themselves; threads with a plan each need none.
#[derive(Debug)]
pub struct ExpertParallel {
    world: World,
    team: Team,
    plan: Plan,
    pool: Arc<SlotPool>,
    placement: Arc<DevicePlacement>,
    /// Of the compact mode.
    count: Option<Arc<LoadedUnit>>,
    dispatch: Arc<LoadedUnit>,
    combine: Arc<LoadedUnit>,
    /// The combine that pushes, where the plan has it.
    push: Option<Arc<LoadedUnit>>,
    /// Of dispatches with a kept routing.
    keep: Arc<LoadedUnit>,
    again: Arc<LoadedUnit>,
    /// Of plans that combine weights.
    fill: Option<Arc<LoadedUnit>>,
    /// Of plans whose rows copy engines move.
    engine: Option<Engine>,
    /// Of plans across nodes.
    nodes: Option<NodeLaunches>,
    limits: DeviceLimits,
    /// For reports, with the number of launches so far.
    name: Arc<str>,
    launches: AtomicU64,
    /// Where ranks may be masked; losses do not end the world then.
    mask: Option<MaskTable>,
    #[expect(dead_code, reason = "held, for its drop")]
    tolerance: Option<LossTolerance>,
    /// The share of the device for all slots' kernels at once.
    #[expect(dead_code, reason = "held, for its drop")]
    residency: ResidencyPermit,
}

/// What a rank makes alone.
struct Prepared {
    plan: Plan,
    count: Option<Arc<LoadedUnit>>,
    dispatch: Arc<LoadedUnit>,
    combine: Arc<LoadedUnit>,
    push: Option<Arc<LoadedUnit>>,
    keep: Arc<LoadedUnit>,
    again: Arc<LoadedUnit>,
    fill: Option<Arc<LoadedUnit>>,
    engine: Option<EngineUnits>,
    nodes: Option<NodeUnits>,
    limits: DeviceLimits,
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
    /// Those of [`Plan::new`]; [`Error::Patience`], [`Error::Unreachable`], [`Error::Across`], a device that is taken
    /// ([`anabranch_shmem::Error::Residency`]), configurations that differ, heap exhaustion, compiler errors. A failure
    /// on one member is an error on all.
    pub fn new(world: &World, group: &Group, config: EpConfig) -> Result<Self> {
        let config = nodes::located(world, group, config);
        let mut fields = config.fields();
        let launches = launch::compared(&config, group.size(), &world.device().name());
        fields.push(("table".to_owned(), launches));
        let prepared = Self::prepare(world, group, config);
        world.compare(group, "ep configuration", fields)?;
        agree(world, group, "ep plan", &prepared)?;
        let Prepared { plan, count, dispatch, combine, push, keep, again, fill, engine, nodes, mut limits } =
            prepared?;
        if plan.is_max_recv_clamped() {
            let (max_recv, rows) = (plan.config().max_recv, plan.rows());
            tracing::warn!(
                max_recv,
                rows,
                "max_recv is more than can ever arrive; the windows hold what can"
            );
        }
        if group.members().first() == Some(&world.rank()) {
            plan.launch_choice().report();
        }
        world.name_operation(COUNT, COUNT_NAME);
        world.name_operation(DISPATCH, DISPATCH_NAME);
        world.name_operation(COMBINE, COMBINE_NAME);
        tracing::info!("{} ranks will each allocate\n{}", plan.ranks(), plan.memory());
        let team = world.team(group)?;
        // First what all allocate together, which succeeds or fails on all, then what one may lack alone.
        let heaps: Result<Vec<_>, _> = (0..plan.config().slots)
            .map(|index| world.allocate(group, plan.layout().bytes, 256, &format!("ep slot {index}")))
            .collect();
        let heaps = heaps?;
        let own = reserve(world, &plan, &mut limits).and_then(|permit| {
            let heaps = (0..).zip(heaps);
            let slots = heaps.map(|(number, heap)| Slot::new(world.device(), &plan, number, heap));
            let placement = DevicePlacement::new(world.device(), &plan)?;
            let masks = plan.config().on_timeout.masks();
            let mask = masks.then(|| MaskTable::new(world.device(), plan.ranks())).transpose()?;
            let slots = slots.collect::<Result<Vec<_>>>()?;
            let engine = engine.map(|units| Engine::new(world.device(), &team, units)).transpose()?;
            let nodes = nodes
                .map(|units| NodeLaunches::new(world.device(), &plan, team.rank(), units))
                .transpose()?;
            Ok((permit, slots, Arc::new(placement), mask, engine, nodes))
        });
        agree(world, group, "ep slots", &own)?;
        let (residency, slots, placement, mask, engine, nodes) = own?;
        let tolerance = mask.is_some().then(|| world.tolerate_losses(group)).transpose()?;
        let name = world.name_in_group("expert parallelism", group).into();
        let (world, pool) = (world.clone(), SlotPool::new(slots));
        Ok(Self {
            world,
            team,
            plan,
            pool,
            placement,
            count,
            dispatch,
            combine,
            push,
            keep,
            again,
            fill,
            engine,
            nodes,
            limits,
            name,
            launches: AtomicU64::new(0),
            mask,
            tolerance,
            residency,
        })
    }

    fn prepare(world: &World, group: &Group, config: EpConfig) -> Result<Prepared> {
        let plan = Plan::new(config, group.size())?.for_device(&world.device().name());
        nodes::check_reach(world, group, &plan)?;
        let device = world.device();
        let config = plan.config();
        let on_timeout = config.on_timeout;
        on_timeout.check_deadline(world.operation_deadline())?;
        let load = |spec| {
            let spec = if config.device_token_count { kernels::with_device_count(spec) } else { spec };
            world.jit().load(device, &spec)
        };
        let masked = |spec| if on_timeout.masks() { kernels::masking(spec) } else { spec };
        let weighted = |spec| masked(if config.combine_weights { kernels::with_weights(spec) } else { spec });
        let dispatch = load(masked(kernels::dispatch_cast(config.cast_from, config.dispatch_cast)))?;
        let combine = load(weighted(kernels::combine(config.combine_type)))?;
        let count = match plan.mode() {
            Mode::Compact => Some(load(kernels::count())?),
            _ => None,
        };
        let push = config
            .pushes_by_kernels()
            .then(|| load(weighted(kernels::combine_push(config.combine_type, config.combine_codec))));
        let push = push.transpose()?;
        let keep = world.jit().load(device, &kernels::keep_routing())?;
        let again = world.jit().load(device, &kernels::dispatch_again())?;
        let fill = plan.config().combine_weights.then(|| world.jit().load(device, &kernels::fill_weights()));
        let fill = fill.transpose()?;
        let engine = config.payload.is_by_engine().then(|| EngineUnits::load(world, &plan)).transpose()?;
        let nodes = plan.across().map(|_| NodeUnits::load(world, &plan)).transpose()?;
        let mut units: Vec<LaunchedUnit<'_>> = vec![
            (&dispatch, kernels::DISPATCH.entries),
            (&again, kernels::DISPATCH_AGAIN.entries),
            (&combine, kernels::COMBINE.entries),
        ];
        units.extend(push.as_deref().map(|unit| (unit, kernels::COMBINE_PUSH.entries)));
        units.extend(count.as_deref().map(|unit| (unit, kernels::COUNT.entries)));
        units.extend(engine.iter().flat_map(EngineUnits::launched));
        units.extend(nodes.iter().flat_map(NodeUnits::launched));
        let limits = device_limits(&plan, device, &units)?;
        plan.dispatch_geometry(plan.config().max_tokens, &limits)?;
        Ok(Prepared { plan, count, dispatch, combine, push, keep, again, fill, engine, nodes, limits })
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    pub(crate) fn world(&self) -> &World {
        &self.world
    }

    pub(crate) fn device_placement(&self) -> &Arc<DevicePlacement> {
        &self.placement
    }

    pub(crate) fn pool_mark(&self) -> PoolMark {
        PoolMark::of(&self.pool)
    }

    /// The group.
    pub fn group(&self) -> &Group {
        self.team.group()
    }

    /// This rank in the group.
    pub fn rank(&self) -> GroupRank {
        self.team.rank()
    }

    /// What the plan's launches may take of the device.
    pub fn limits(&self) -> &DeviceLimits {
        &self.limits
    }

    /// The shape of a dispatch of `tokens`.
    ///
    /// # Errors
    /// [`Error::Config`], as when the plan was made.
    pub fn dispatch_geometry(&self, tokens: u32) -> Result<Geometry> {
        self.plan.dispatch_geometry(tokens, &self.limits)
    }

    /// The shape of a combine of `tokens` that pushes.
    pub fn combine_push_geometry(&self, tokens: u32) -> Geometry {
        self.plan.combine_push_geometry(tokens, &self.limits)
    }

    /// The shape of a combine of `tokens` that pulls.
    pub fn combine_geometry(&self, tokens: u32) -> Geometry {
        self.plan.combine_geometry(tokens, &self.limits)
    }

    /// Gives all launches of this rank this shape, in place of the configured and the measured ones, as far as the plan's share of
    /// the device allows it (blocks and waves of a block that it was made with); `None` takes it back. The results are the same, and
    /// members may differ. For measuring shapes: those of a program are fixed with its plan.
    #[doc(hidden)]
    pub fn force_launch(&mut self, launch: Option<Launch>) {
        self.plan.force_launch(launch);
    }

    /// Whether this rank's dispatches have met expert ids out of range since the last call, which count as masked, or numbers of
    /// tokens in device memory above their bounds, which count as the bounds. Waits for the stream. Not collective.
    ///
    /// # Errors
    /// [`Error::InvalidExpert`] with the first such id; [`Error::ExcessTokens`] with the first such number, where there is no
    /// such id or by the next call; or a fault of the world.
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
            if let Some((count, given, allowed)) = slot.take_excess()? {
                return Err(Error::ExcessTokens { rank: self.rank(), count, given, allowed });
            }
        }
        Ok(())
    }

    /// How long kernels that were launched may still take, unless other work on their streams holds them up.
    fn patience(&self) -> Duration {
        self.world.operation_deadline() + Duration::from_secs(1)
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
        // Kernels in flight need the slots' memory and the modules. They have a deadline, and so has this wait. Engines need the memory,
        // too; whoever ended an operation has waited for them.
        if !self.pool.wait_until_idle(self.patience()) {
            tracing::warn!("dispatch or combine is still queued behind other work while its plan is dropped");
        }
        if let Some(Err(error)) = self.nodes.as_ref().map(|nodes| self.complete_puts(nodes)) {
            tracing::warn!(%error, "what was put to other nodes may still be under way while its plan is dropped");
        }
        if let Err(error) = self.drain() {
            tracing::warn!(%error, "copies of operations that were dropped may still be under way");
        }
        if !self.pool.wait_until_idle(self.patience()) {
            tracing::warn!("copy engines still work on operations that were dropped while their plan is");
        }
    }
}
