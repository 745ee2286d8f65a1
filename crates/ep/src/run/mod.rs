//! Dispatch and combine on a group: owns the plan and the slots, checks calls and passes them to the route.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anabranch_hip::Stream;
use anabranch_ranks::{Group, GroupRank};
use anabranch_shmem::{ExplainFault, LaunchOrder, LossTolerance, ResidencyPermit, World};

use crate::error::{Error, Result};
use crate::plan::launch::{self, Launch};
use crate::plan::{DeviceLimits, EpConfig, Geometry, Plan};
use crate::route::{
    self, COMBINE, COMBINE_NAME, COUNT, COUNT_NAME, Context, DISPATCH, DISPATCH_NAME, DevicePlacement, Route,
    Steps as _, UnexpectedFlags,
};
use crate::slot::{PoolMark, Slot, SlotPool};
use residency::{device_limits, reserve};

mod combine;
mod dispatch;
mod dropped;
mod experts;
mod handle;
mod late_weights;
mod mask;
mod received;
mod replay;
mod residency;
mod saved_routing;
mod split;

pub use dropped::DroppedCopy;
pub(crate) use experts::ExpertKernel;
pub use handle::Dispatched;
pub use received::{ReceivedRow, ReceivedRows};
pub use replay::ReplayedTokens;
pub use saved_routing::Routing;
pub use split::{CombineSent, DispatchSent};

/// Expert-parallel dispatch and combine over a group, on one rank.
///
/// All members create it collectively with equal configurations. Each operation in flight owns a slot: windows in the
/// symmetric heap, with flags and epochs. All members begin and end operations in the same order: the n-th dispatch of every
/// rank is the same operation, and a dispatch takes the free slot with the lowest number.
///
/// Plans and handles may be used from, and moved to, any thread. Threads that share a plan must keep that order; threads with
/// a plan each need no order between them.
#[derive(Debug)]
pub struct ExpertParallel {
    context: Context,
    route: Route,
    /// While it lives, the loss of a member does not fail the world; only for plans with masks.
    #[expect(dead_code, reason = "its drop ends the tolerance")]
    tolerance: Option<LossTolerance>,
    /// The share of the device for all slots' kernels at once.
    #[expect(dead_code, reason = "its drop returns the share")]
    residency: ResidencyPermit,
}

/// Plan, kernels and limits, built before the collective part of [`ExpertParallel::new`].
struct Prepared {
    plan: Plan,
    route: Route,
    limits: DeviceLimits,
}

impl ExpertParallel {
    /// Creates the plan: checks the configuration, compares it among the members, compiles and loads the kernels and allocates all
    /// slots. Collective over `group`.
    ///
    /// Blocks that wait for peers must be resident together: the blocks of all slots, and of all plans and teams of the
    /// world. The plan reserves a share of the device for `slots` grids until it is dropped. If the wanted number of blocks
    /// (`max_blocks`, or the choice for the device) does not fit, the grids have fewer, with a warning in the log; if not one block per
    /// slot fits, `new` fails.
    ///
    /// # Errors
    /// The errors of [`Plan::new`]; [`Error::Unreachable`]; no share of the device left
    /// ([`anabranch_shmem::Error::Residency`]); configurations that differ; an exhausted heap; compiler errors. A failure
    /// on one member is an error on all.
    pub fn new(world: &World, group: &Group, config: EpConfig) -> Result<Self> {
        Self::with(world, group, config, None)
    }

    /// [`Self::new`] for a plan whose launches are in one order with those of others, so that they share a part of the device for the
    /// grids of any number of slots. Collective over `group`; each member gives an order of its own of `world`.
    ///
    /// # Errors
    /// As [`Self::new`]; an order of another world ([`Error::Config`]).
    pub fn in_order(world: &World, group: &Group, config: EpConfig, order: &LaunchOrder) -> Result<Self> {
        Self::with(world, group, config, Some(order))
    }

    fn with(world: &World, group: &Group, config: EpConfig, order: Option<&LaunchOrder>) -> Result<Self> {
        let config = route::located(world, group, config);
        let mut fields = config.fields();
        fields.push(("launch order".to_owned(), order.map_or("own", |_| "with others").to_owned()));
        let launches = launch::compared(&config, group.size(), &world.device().name());
        fields.push(("table".to_owned(), launches));
        let prepared = Self::prepare(world, group, config, order);
        world.compare(group, "ep configuration", fields)?;
        agree(world, group, "ep plan", &prepared)?;
        let Prepared { plan, mut route, mut limits } = prepared?;
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
        let explainer: Arc<dyn ExplainFault> = Arc::new(UnexpectedFlags);
        for code in [COUNT, DISPATCH, COMBINE] {
            world.explain_faults(code, Arc::downgrade(&explainer));
        }
        tracing::info!("{} ranks will each allocate\n{}", plan.ranks(), plan.memory());
        let team = world.team(group)?;
        // First the collective allocations, which succeed or fail on all ranks, then the allocations that may fail on one.
        let heaps: Result<Vec<_>, _> = (0..plan.config().slots)
            .map(|index| world.allocate(group, plan.layout().bytes, 256, &format!("ep slot {index}")))
            .collect();
        let heaps = heaps?;
        let device_blocks = limits.resident_blocks;
        let own = reserve(world, &plan, &mut limits, order).and_then(|permit| {
            let heaps = (0..).zip(heaps);
            let slots = heaps.map(|(number, heap)| Slot::new(world.device(), &plan, number, heap));
            let slots = slots.collect::<Result<Vec<_>>>()?;
            let placement = DevicePlacement::new(world.device(), &plan)?;
            route.attach(&team)?;
            Ok((permit, slots, Arc::new(placement)))
        });
        agree(world, group, "ep slots", &own)?;
        let (residency, slots, placement) = own?;
        let tolerance = plan.route().masks().then(|| world.tolerate_losses(group)).transpose()?;
        let context = Context {
            world: world.clone(),
            team,
            plan,
            pool: SlotPool::new(slots),
            order: order.cloned(),
            explainer,
            placement,
            device_blocks,
            limits,
            name: world.name_in_group("expert parallelism", group).into(),
            launches: AtomicU64::new(0),
        };
        Ok(Self { context, route, tolerance, residency })
    }

    fn prepare(
        world: &World,
        group: &Group,
        config: EpConfig,
        order: Option<&LaunchOrder>,
    ) -> Result<Prepared> {
        if order.is_some_and(|order| !order.share().is_of(world)) {
            return Err(Error::config(
                "launch order",
                "an order of another world",
                "an order of the plan's world",
            ));
        }
        let device = world.device();
        let plan = Plan::new(config, group.size())?.for_device(&device.name());
        route::check_reach(world, group, &plan)?;
        plan.config().on_timeout.check_deadline(world.operation_deadline())?;
        let route = Route::load(world, group, &plan)?;
        let limits = device_limits(&plan, world, &route.waiting_kernels())?;
        plan.dispatch_geometry(plan.config().max_tokens, &limits)?;
        Ok(Prepared { plan, route, limits })
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.context.plan
    }

    pub(crate) fn world(&self) -> &World {
        &self.context.world
    }

    pub(crate) fn device_placement(&self) -> &Arc<DevicePlacement> {
        &self.context.placement
    }

    pub(crate) fn pool_mark(&self) -> PoolMark {
        PoolMark::of(&self.context.pool)
    }

    pub(crate) fn is_marked(&self, mark: &PoolMark) -> bool {
        mark.is_of(&self.context.pool)
    }

    /// The group.
    pub fn group(&self) -> &Group {
        self.context.team.group()
    }

    /// This rank in the group.
    pub fn rank(&self) -> GroupRank {
        self.context.team.rank()
    }

    /// The limits of the plan's launches on this device.
    pub fn limits(&self) -> &DeviceLimits {
        &self.context.limits
    }

    /// The shape of a dispatch of `tokens`.
    ///
    /// # Errors
    /// [`Error::Config`] when a block's tables do not fit the device's local memory.
    pub fn dispatch_geometry(&self, tokens: u32) -> Result<Geometry> {
        self.context.plan.dispatch_geometry(tokens, &self.context.limits)
    }

    /// The shape of a combine of `tokens` that pushes.
    pub fn combine_push_geometry(&self, tokens: u32) -> Geometry {
        self.context.plan.combine_push_geometry(tokens, &self.context.limits)
    }

    /// The shape of a combine of `tokens` that pulls.
    pub fn combine_geometry(&self, tokens: u32) -> Geometry {
        self.context.plan.combine_geometry(tokens, &self.context.limits)
    }

    /// Replaces the configured and measured launch shapes of this rank, for measurements; `None` restores them. The plan's share of the
    /// device still limits blocks and waves per block. Does not change results; members may differ. Not collective.
    pub fn force_launch(&mut self, launch: Option<Launch>) {
        self.context.plan.force_launch(launch);
    }

    /// Reports bad input of this rank's dispatches since the last call: expert ids out of range, which counted as -1, and device token
    /// counts above their bounds, which counted as the bounds. Waits for the stream and for the plan's launches on other streams. Not
    /// collective.
    ///
    /// # Errors
    /// [`Error::InvalidExpert`] with the first such id; [`Error::ExcessTokens`] with the first such count, if there is no such id, else by the
    /// next call; [`anabranch_shmem::Error::StreamBusy`]; a fault of the world.
    pub fn check_ids(&self, stream: &Stream) -> Result<()> {
        self.context.world.synchronize(stream)?;
        let limit = self.patience();
        if !self.context.pool.wait_until_idle(limit) {
            return Err(anabranch_shmem::Error::StreamBusy { waited: limit }.into());
        }
        for slot in self.context.pool.slots() {
            if let Some((count, token, id)) = slot.take_invalid()? {
                let experts = self.context.plan.config().experts;
                return Err(Error::InvalidExpert { rank: self.rank(), count, token, id, experts });
            }
            if let Some((count, given, allowed)) = slot.take_excess()? {
                return Err(Error::ExcessTokens { rank: self.rank(), count, given, allowed });
            }
        }
        Ok(())
    }

    /// The longest time that launched kernels may take, unless other work on their streams delays them.
    fn patience(&self) -> Duration {
        self.context.world.operation_deadline() + Duration::from_secs(1)
    }
}

/// Ends a step that each member does for itself. If one failed, it keeps its own error, and the others get an error that names the first
/// such member.
fn agree<T>(world: &World, group: &Group, step: &str, outcome: &Result<T>) -> Result<()> {
    let failure = outcome.as_ref().err().map(|error| error as &(dyn std::error::Error + 'static));
    match world.agree_outcome(group, step, failure) {
        Err(_) if outcome.is_err() => Ok(()), // the caller returns its own, which has the details
        agreed => Ok(agreed?),
    }
}

impl Drop for ExpertParallel {
    fn drop(&mut self) {
        // Kernels in flight need the slots' memory and the modules. They have a deadline, and so has this wait. Engines need the memory,
        // too; an operation that has ended has waited for them.
        let has_ended = self.context.pool.wait_until_idle(self.patience());
        if !has_ended {
            tracing::warn!("dispatch or combine is still queued after other work while its plan is dropped");
        }
        if let Err(error) = self.route.drain(&self.context) {
            tracing::warn!(%error, "copies or puts may still be under way while their plan is dropped");
        }
        if !self.context.pool.wait_until_idle(self.patience()) && has_ended {
            tracing::warn!("copy engines or NICs still work on a plan's operations while it is dropped");
        }
    }
}
