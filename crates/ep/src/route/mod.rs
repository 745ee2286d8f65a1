//! The routes of a plan at run time: their kernels, device memory and launches.
//!
//! [`Steps`] has four steps. Of a dispatch, `send` sends the rows and `recv` waits for the peers' rows. Of a combine, `offer` makes the
//! experts' rows available to their origins, and `sum` waits for the peers and sums. A whole operation is both steps, which a route may
//! do in one kernel.

use anabranch_hip::{DeviceAddress, Kernel as RawKernel};
use anabranch_hip_jit::{DeviceStruct, Kernel, LoadedKernel, LoadedUnit};
use anabranch_ranks::Group;
use anabranch_shmem::{Team, World};

#[cfg(not(feature = "rdma"))]
use crate::error::Error;
use crate::error::Result;
use crate::plan::{self, Geometry, Plan};
use crate::tensor::{CombineOutput, Tokens};

#[cfg_attr(not(feature = "simulation"), expect(unreachable_pub, reason = "the feature exports it"))]
mod arguments;
mod context;
mod engine;
mod mask;
mod near;
#[cfg(feature = "rdma")]
mod nodes;
mod placement;
mod reach;
mod unexpected;

pub(crate) use arguments::pointer;
#[cfg(feature = "simulation")]
pub use arguments::{Push, RankArguments};
#[cfg(not(feature = "simulation"))]
pub(crate) use arguments::{Push, RankArguments};
pub use context::{COMBINE, COUNT, DISPATCH};
pub(crate) use context::{COMBINE_NAME, COUNT_NAME, Context, DISPATCH_NAME, Launcher, load, load_counted};
use engine::Engine;
pub(crate) use mask::MaskTable;
pub(crate) use near::Near;
#[cfg(feature = "rdma")]
use nodes::Internode;
pub(crate) use placement::DevicePlacement;
pub(crate) use reach::{check_reach, located};
pub(crate) use unexpected::UnexpectedFlags;

/// The steps of a route. A dispatch is `send` and `recv`, a combine `offer` and `sum`.
#[enum_dispatch::enum_dispatch]
pub(crate) trait Steps {
    /// Kernels whose grids wait for peers.
    fn waiting_kernels(&self) -> Vec<&RawKernel>;

    /// Sends the tokens' rows and counts. With `whole`, a route that has one kernel for both also receives, and returns `true`.
    fn send(&self, on: &mut Launcher<'_>, tokens: &Tokens, geometry: &Geometry, whole: bool) -> Result<bool>;

    /// Waits for the rows of all ranks, and writes counts and offsets.
    fn recv(&self, on: &mut Launcher<'_>, tokens: u32) -> Result<()>;

    /// Makes the experts' rows, in the window or at `rows`, available to their origins. With the output of a whole combine, a route that
    /// has one kernel for both also sums.
    fn offer(
        &self,
        on: &mut Launcher<'_>,
        rows: Option<DeviceAddress>,
        tokens: u32,
        output: Option<&CombineOutput>,
    ) -> Result<Rest>;

    /// Waits for the rows of all ranks, and sums them. `rest` is not [`Rest::Nothing`].
    fn sum(&self, on: &mut Launcher<'_>, tokens: u32, output: &CombineOutput, rest: Rest) -> Result<()>;

    /// Ends an operation without a sum.
    fn release(&self, on: &mut Launcher<'_>) -> Result<()>;

    /// Completes what copy engines and NICs may still read or write of the slots, after all that the plan has launched.
    fn drain(&self, context: &Context) -> Result<()>;
}

/// A plan's route.
#[enum_dispatch::enum_dispatch(Steps)]
#[derive(Debug)]
pub(crate) enum Route {
    Near(Near),
    Engine(Engine),
    #[cfg(feature = "rdma")]
    Nodes(Internode),
}

/// The rest of a combine after `offer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Nothing: the kernel of `offer` also sums.
    Nothing,
    /// The sum of rows in windows.
    Sum,
    /// The sum of rows that kernels push.
    SumPushed,
}

impl Route {
    /// Compiles and loads the kernels of a plan, and allocates their tables.
    pub(crate) fn load(world: &World, group: &Group, plan: &Plan) -> Result<Self> {
        Ok(match plan.route() {
            plan::Route::Near(options) => Self::Near(Near::load(world, plan, options)?),
            plan::Route::Engine => Self::Engine(Engine::load(world, plan)?),
            #[cfg(feature = "rdma")]
            plan::Route::Nodes(options) => Self::Nodes(Internode::load(world, group, plan, options)?),
            #[cfg(not(feature = "rdma"))]
            plan::Route::Nodes(options) => {
                return Err(Error::Unsupported {
                    with: "this build has no `rdma`".to_owned(),
                    field: "nodes",
                    given: format!("{} nodes for {} ranks", options.nodes.count(), group.size()),
                    allowed: "one node",
                    why: "enable the cargo feature `rdma` of anabranch",
                });
            }
        })
    }

    /// Prepares what needs the plan's team.
    pub(crate) fn attach(&mut self, team: &Team) -> Result<()> {
        if let Self::Engine(engine) = self { engine.attach(team) } else { Ok(()) }
    }

    /// The route of mapped memory, the only one with masks and saved routings.
    pub(crate) fn near(&self) -> Option<&Near> {
        if let Self::Near(near) = self { Some(near) } else { None }
    }
}

/// The kernels of an operation: whole, send and receive.
#[derive(Debug)]
struct Split<A> {
    whole: LoadedKernel<A>,
    send: LoadedKernel<A>,
    recv: LoadedKernel<A>,
}

impl<A: DeviceStruct> Split<A> {
    fn of(unit: &LoadedUnit, [whole, send, recv]: [Kernel<A>; 3]) -> Result<Self> {
        Ok(Self { whole: unit.get(whole)?, send: unit.get(send)?, recv: unit.get(recv)? })
    }

    fn raw(&self) -> [&RawKernel; 3] {
        [self.whole.raw(), self.send.raw(), self.recv.raw()]
    }
}
