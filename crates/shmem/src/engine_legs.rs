//! Copies in the order of a stream by the queues of copy engines: a kernel of one wave posts them and waits until they are done.

use anabranch_hip::{DeviceAddress, Stream};
use anabranch_hip_jit::{DeviceStruct as _, KernelSpec, KernelUnit, PRELUDE, TypedKernel, device_struct};
use anabranch_ranks::GroupRank;
use anabranch_transport::TransportKind;
use bytemuck::Zeroable as _;

use crate::device_api::{BarrierWorkspace, DEVICE_HEADERS};
use crate::error::Result;
use crate::fault::OperationCode;
use crate::team::{Team, TeamView};

/// Copies of one launch.
pub(crate) const MOST_LEGS: usize = 32;

device_struct! {
    /// One copy by the engines to a peer.
    pub struct EngineLeg {
        /// Where from, as this rank's device knows it.
        pub source: u64,
        /// Where to.
        pub target: u64,
        /// How many bytes.
        pub bytes: u64,
        /// Whose queues, as a rank of the group.
        pub peer: u32,
        /// Zero.
        pub reserved: u32,
    }
}

device_struct! {
    /// Arguments of `anabranch_engine_legs`. One block of one wave.
    pub struct EngineLegsArgs {
        /// The team, with its queues.
        pub team: TeamView,
        /// The first `count` are copies.
        pub legs: [EngineLeg; 32],
        /// How many.
        pub count: u32,
        /// The operation's number in fault records.
        pub operation: u32,
    }
}

/// The unit as worlds with such queues load it, for building ahead.
pub fn engine_legs_kernel() -> KernelSpec {
    KernelSpec::new(&ENGINE_LEGS_UNIT).with("SHMEM_ENGINES", 1)
}

/// Copies by engines in stream order.
pub static ENGINE_LEGS_UNIT: KernelUnit = KernelUnit {
    name: "engine_legs",
    source: include_str!("../kernels/engine_legs.hip"),
    headers: &[PRELUDE, DEVICE_HEADERS],
    entries: &[ENTRY],
    layouts: &[BarrierWorkspace::c_declaration, EngineLegsArgs::c_declaration],
};
const ENTRY: &str = "anabranch_engine_legs";

impl Team {
    /// Whether copies to a member go by queues of copy engines that kernels write: those that [`TeamView::queues`] names for it. Not
    /// collective.
    pub fn copies_by_queues(&self, peer: GroupRank) -> bool {
        let route = self.group().global(peer).and_then(|rank| self.world().routes().get(rank.index()));
        let by_engine = route.is_some_and(|route| route.kind == TransportKind::Sdma);
        by_engine && self.engine_legs().is_some()
    }

    /// Puts copies on the stream, in kernels of [`MOST_LEGS`] each. The members have queues.
    ///
    /// # Errors
    /// The launch's.
    ///
    /// # Safety
    /// Sources and targets are memory that this rank's device reaches, stay so and are used by nobody else until the stream has
    /// passed the kernels.
    pub(crate) unsafe fn post_legs(&self, stream: &Stream, legs: &[EngineLeg]) -> Result<()> {
        let Some(kernel) = self.engine_legs() else { return Ok(()) };
        for some in legs.chunks(MOST_LEGS) {
            let mut arguments = EngineLegsArgs {
                team: self.view(),
                count: some.len() as u32,
                operation: OperationCode::ENGINE_COPY.0,
                ..EngineLegsArgs::zeroed()
            };
            for (place, leg) in arguments.legs.iter_mut().zip(some) {
                *place = *leg;
            }
            let wave = self.world().device().wave_size();
            // SAFETY: the kernel's struct; the queues stay while the world's mappings do, and for the rest the caller has promised.
            unsafe { kernel.launch(1, wave, 0, stream, &arguments) }?;
        }
        Ok(())
    }
}

impl EngineLeg {
    /// A copy by the queues to `peer`.
    pub(crate) fn new(peer: GroupRank, target: DeviceAddress, source: DeviceAddress, bytes: u64) -> Self {
        Self { source: source.0, target: target.0, bytes, peer: peer.get(), reserved: 0 }
    }
}

/// The kernel of a world with such queues.
pub(crate) fn load(world: &crate::World) -> Result<Option<TypedKernel>> {
    if !world.has_engine_queues() {
        return Ok(None);
    }
    let unit = world.jit().load(world.device(), &engine_legs_kernel())?;
    Ok(Some(unit.kernel(ENTRY)?.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_passes_the_lints() {
        let found = anabranch_hip_jit::lint::lint_source("engine_legs.hip", ENGINE_LEGS_UNIT.source);
        assert!(found.is_empty(), "{found:#?}");
    }
}
