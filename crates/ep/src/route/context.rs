//! State and launch of all routes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anabranch_hip::{CallSpan, DeviceAddress, HostCall, Stream};
use anabranch_hip_jit::{DeviceStruct, KernelSpec, LoadedKernel, LoadedUnit};
use anabranch_shmem::{
    ExplainFault, LaunchGuard, LaunchNote, LaunchOrder, LaunchTurn, NoteText, OperationCode, OperationName,
    Team, World,
};

use super::DevicePlacement;
use crate::error::{Error, Result};
use crate::kernels;
use crate::plan::{DeviceLimits, Geometry, Plan};
use crate::route::RankArguments;
use crate::slot::{Slot, SlotPool, SlotTicket};
use crate::tensor::ExpertOutput;

/// Dispatch in fault records.
pub const DISPATCH: OperationCode = OperationCode(0x300);
/// Combine in fault records.
pub const COMBINE: OperationCode = OperationCode(0x301);
/// The counts before a compact dispatch, in fault records.
pub const COUNT: OperationCode = OperationCode(0x302);

/// Names of the kernels' phases, by number.
pub(crate) const DISPATCH_NAME: OperationName = OperationName {
    name: "ep dispatch",
    phases: &[
        "start",
        "rows of a peer",
        "flag of a later dispatch",
        "a peer that dispatches with another routing, or without one",
        "a routing that holds another number of tokens by now, or none",
        "rows of a peer of another node, to forward",
        "flag of a later dispatch, to forward",
        "a peer that dispatches without the numbers of pairs",
    ],
};
pub(crate) const COUNT_NAME: OperationName =
    OperationName { name: "ep count", phases: &["start", "counts of a peer", "count of a later dispatch"] };
pub(crate) const COMBINE_NAME: OperationName = OperationName {
    name: "ep combine",
    phases: &[
        "start",
        "experts of a peer",
        "flag of a later combine",
        "a peer that combines another way",
        "late weights of a peer",
        "late weights of a later operation",
    ],
};

/// A call in reports of expired waits: its name, and the operation codes of its kernels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call(&'static str, &'static [OperationCode]);

const OF_DISPATCH: &[OperationCode] = &[COUNT, DISPATCH];
const OF_COMBINE: &[OperationCode] = &[COMBINE];

impl Call {
    /// A whole dispatch, or its send.
    pub(super) const DISPATCH: Self = Self("dispatch", OF_DISPATCH);
    /// The receive of a dispatch, and the kernel that fills the weight window after a whole dispatch.
    pub(super) const DISPATCH_RECV: Self = Self("dispatch receive", OF_DISPATCH);
    /// Weights after a dispatch.
    pub(super) const WEIGHTS: Self = Self("late weights", OF_COMBINE);
    /// A whole combine, or the send or receive of a combine that pushes.
    pub(super) const COMBINE: Self = Self("combine", OF_COMBINE);
    /// The send of a combine.
    pub(super) const COMBINE_SEND: Self = Self("combine send", OF_COMBINE);
    /// The receive of a combine.
    pub(super) const COMBINE_RECV: Self = Self("combine receive", OF_COMBINE);
    /// An internode operation that ends without a combine.
    #[cfg(feature = "rdma")]
    pub(super) const RELEASE: Self = Self("release", OF_COMBINE);
}

/// A plan on one rank, for the launches of every route.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) world: World,
    pub(crate) team: Team,
    pub(crate) plan: Plan,
    pub(crate) pool: Arc<SlotPool>,
    /// With the launches of other plans.
    pub(crate) order: Option<LaunchOrder>,
    /// Explains faults of the plan's kernels as long as it lives.
    #[expect(dead_code, reason = "the world has a weak reference")]
    pub(crate) explainer: Arc<dyn ExplainFault>,
    pub(crate) placement: Arc<DevicePlacement>,
    /// Resident blocks of the plan's kernels on the whole device, of which `limits` has the plan's share.
    pub(crate) device_blocks: u32,
    pub(crate) limits: DeviceLimits,
    /// The plan's name in reports; `launches` numbers the launches in them.
    pub(crate) name: Arc<str>,
    pub(crate) launches: AtomicU64,
}

/// Loads a kernel of a plan, compiled for the plan and its type of ids.
pub(crate) fn load(world: &World, plan: &Plan, spec: KernelSpec) -> Result<Arc<LoadedUnit>> {
    let spec = kernels::with_ids(spec, plan.config().id_type);
    Ok(world.jit().load(world.device(), &plan.known_to(spec))?)
}

/// The same for a kernel that has a variant for device token counts, which plans with them get.
pub(crate) fn load_counted(world: &World, plan: &Plan, spec: KernelSpec) -> Result<Arc<LoadedUnit>> {
    let counted = plan.config().device_token_count;
    load(world, plan, if counted { kernels::with_device_count(spec) } else { spec })
}

/// Launches a kernel without the slot's order and record.
pub(super) fn enqueue<A: DeviceStruct>(
    stream: &Stream,
    kernel: &LoadedKernel<A>,
    geometry: &Geometry,
    args: &A,
) -> Result<()> {
    // SAFETY: the addresses are of the slot's windows and words, which the handle holds until combine or release; of the same slot at
    // the peers; of memory of the plan and its route, whose drop waits for the slots; of an expert-major layout, whose drop waits for its
    // last launch; and of the caller's tensors, whose sizes were checked and whose `DeviceSlice`s promise that they stay valid.
    Ok(unsafe { kernel.launch(geometry.shape(), stream, args) }?)
}

/// Where a step launches: the plan on this rank, the stream, and the slot; and the step's turn in the plan's order, which comes before the
/// world's launch guard, so that all threads take both in one order.
pub(crate) struct Launcher<'a> {
    pub(crate) context: &'a Context,
    pub(crate) stream: &'a Stream,
    pub(crate) slot: &'a mut SlotTicket,
    pub(crate) is_captured: bool,
    turn: Option<LaunchTurn<'a>>,
}

impl Launcher<'_> {
    /// Launches a kernel on the slot after its last launch, while the world cannot be left, and notes it.
    pub(super) fn launch<A: DeviceStruct>(
        &mut self,
        kernel: &LoadedKernel<A>,
        geometry: &Geometry,
        args: &A,
        call: Call,
    ) -> Result<()> {
        let mut launching = self.context.world.launching(self.stream)?;
        self.order_after()?;
        enqueue(self.stream, kernel, geometry, args)?;
        self.used(call, &mut launching)
    }

    /// Makes the stream wait for the slot's last launch.
    pub(crate) fn order_after(&self) -> Result<()> {
        self.slot.order_after(self.stream, self.is_captured)
    }

    /// Notes a launch on the slot, for its order and for reports. `launching` is for the launcher's stream.
    pub(super) fn used(&mut self, call: Call, launching: &mut LaunchGuard<'_>) -> Result<()> {
        let number = self.context.launches.fetch_add(1, Ordering::Relaxed) + 1;
        let (of, Call(name, operations)) = (Arc::clone(&self.context.name), call);
        let note = LaunchNote { of, kind: "launch", number, what: NoteText::Fixed(name), operations };
        self.context.team.note_launch(self.stream, note);
        self.used_on(self.stream, launching)
    }

    /// Notes a launch of the slot on the stream of `launching`, for its order.
    pub(crate) fn used_on(&mut self, stream: &Stream, launching: &mut LaunchGuard<'_>) -> Result<()> {
        self.slot.reached();
        let event = launching.launched()?;
        self.slot.used(event.clone(), self.is_captured);
        Ok(self.turn.as_mut().map_or(Ok(()), |turn| turn.launched_with(stream, event))?)
    }
}

impl Context {
    /// Records a call on this many tokens of `bytes` bytes in a trace of the device, by the number of its first launch.
    pub(crate) fn record(&self, name: &'static str, bytes: u32, tokens: usize) -> CallSpan {
        self.world.device().record_call(|| HostCall {
            sequence: Some(self.launches.load(Ordering::Relaxed) + 1),
            ..HostCall::on(name, Arc::clone(&self.name), Some(bytes as usize * tokens))
        })
    }

    /// Where a step of the plan launches, in its turn.
    pub(crate) fn on<'a>(&'a self, stream: &'a Stream, slot: &'a mut SlotTicket) -> Result<Launcher<'a>> {
        // Not in the turn, whose lock other threads wait for: after a fault this asks peers.
        self.world.check()?;
        let turn = self.order.as_ref().map(|order| order.begin(stream)).transpose()?;
        let is_captured =
            turn.as_ref().map_or_else(|| stream.is_capturing(), |turn| Ok(turn.is_captured()))?;
        Ok(Launcher { context: self, stream, slot, is_captured, turn })
    }

    pub(crate) fn check_slot(&self, slot: &SlotTicket) -> Result<()> {
        if slot.belongs_to(&self.pool) { Ok(()) } else { Err(Error::ForeignHandle) }
    }

    /// The checked address of the experts' rows; `None` for the combine window.
    pub(crate) fn expert_rows(&self, experts: ExpertOutput, slot: &Slot) -> Result<Option<DeviceAddress>> {
        let config = self.plan.config();
        let wrong = |given| Err(Error::source(given, config.combine_source));
        let rows = match experts {
            ExpertOutput::InWindow if config.combine_source.pulls() => return Ok(None),
            ExpertOutput::InWindow => return wrong("in the combine window"),
            ExpertOutput::Staged(_) if !config.combine_source.pushes() => return wrong("in a buffer"),
            ExpertOutput::Staged(rows) => rows,
        };
        let (window, what) = (self.plan.rows(), "the experts' output");
        let needed = window as usize * self.plan.combine_row_bytes() as usize;
        rows.check(what, needed, 16, || {
            format!("[{window} rows][{} hidden] {}", config.hidden, config.combine_type)
        })?;
        if slot.overlaps(rows.address(), needed as u64) {
            return Err(Error::in_windows(what, rows.address().0));
        }
        Ok(Some(rows.address()))
    }

    /// The shape of a kernel that only flags the rows in the window: one block of a combine.
    pub(super) fn offering_geometry(&self, tokens: u32) -> Geometry {
        Geometry { blocks: 1, ..self.plan.combine_geometry(tokens, &self.limits) }
    }

    pub(super) fn arguments(&self) -> RankArguments<'_> {
        RankArguments {
            plan: &self.plan,
            limits: &self.limits,
            team: self.team.view(),
            placement: self.placement.view(),
        }
    }
}
