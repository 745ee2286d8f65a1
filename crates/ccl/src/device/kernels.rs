//! The kernels of this crate, for prebuilds and launches.

use anabranch_hip_jit::{Header, KernelSpec, KernelUnit, constants, kernel_unit};
use anabranch_shmem::device_api::{BarrierWorkspace, DEVICE_HEADERS as SHMEM_HEADERS};
use anabranch_shmem::{TeamView, World};

use crate::device::args::{
    BufferView, CommView, EngineReduceArgs, FingerprintArgs, GatherManyArgs, LinkPort, LinkState, LinkStep,
    MoveArgs, NetworkArgs, PipesArgs, ReduceArgs, Reduction,
};
use crate::device::headers::DEVICE_HEADERS;
use crate::device::norm::{ReduceNormArgs, RmsNormArgs};
use crate::device::uneven::{UnevenArgs, UnevenReduceArgs};
use crate::types::{DATA_TYPES, DataType};

const HEADERS: &[&[Header]] = &[SHMEM_HEADERS, DEVICE_HEADERS];

kernel_unit! {
    /// Moves bytes of any type.
    pub static MOVE_UNIT: "ccl_move", include_str!("../../kernels/move.hip"), HEADERS;
    /// A barrier.
    pub const BARRIER: Kernel<MoveArgs> = "anabranch_ccl_barrier";
    /// Moves bytes in packets.
    pub const MOVE_PACKETS: Kernel<MoveArgs> = "anabranch_ccl_move_packets";
    /// Moves bytes through the staging.
    pub const MOVE_STAGED: Kernel<MoveArgs> = "anabranch_ccl_move_staged";
    /// Moves bytes directly to the outputs.
    pub const MOVE_DIRECT: Kernel<MoveArgs> = "anabranch_ccl_move_direct";
    /// [`MOVE_PACKETS`] with different counts.
    pub const UNEVEN_PACKETS: Kernel<UnevenArgs> = "anabranch_ccl_move_uneven_packets";
    /// [`MOVE_STAGED`] with different counts.
    pub const UNEVEN_STAGED: Kernel<UnevenArgs> = "anabranch_ccl_move_uneven_staged";
    /// [`MOVE_DIRECT`] with different counts.
    pub const UNEVEN_DIRECT: Kernel<UnevenArgs> = "anabranch_ccl_move_uneven_direct";
}

kernel_unit! {
    /// Gathers several tensors of any types.
    pub static GATHER_MANY_UNIT: "ccl_gather_many", include_str!("../../kernels/gather_many.hip"), HEADERS;
    /// In packets.
    pub const GATHER_MANY_PACKETS: Kernel<GatherManyArgs> = "anabranch_ccl_gather_many_packets";
    /// Through the staging.
    pub const GATHER_MANY_STAGED: Kernel<GatherManyArgs> = "anabranch_ccl_gather_many_staged";
    /// Directly to the outputs.
    pub const GATHER_MANY_DIRECT: Kernel<GatherManyArgs> = "anabranch_ccl_gather_many_direct";
}

kernel_unit! {
    /// Sends and receives.
    pub static PIPES_UNIT: "ccl_pipes", include_str!("../../kernels/pipes.hip"), HEADERS;
    /// Messages between pairs of members.
    pub const PIPES: Kernel<PipesArgs> = "anabranch_ccl_pipes";
}

kernel_unit! {
    /// Reduces small messages of one type.
    pub static PACKET_REDUCE_UNIT: "ccl_packet_reduce", include_str!("../../kernels/packet_reduce.hip"), HEADERS;
    /// Every member reduces everything.
    pub const ONE_SHOT: Kernel<ReduceArgs> = "anabranch_ccl_one_shot";
    /// Every member reduces a part and sends it to all.
    pub const TWO_SHOT: Kernel<ReduceArgs> = "anabranch_ccl_two_shot";
    /// Every member reduces a part and keeps it.
    pub const SCATTER_PACKETS: Kernel<ReduceArgs> = "anabranch_ccl_scatter_packets";
    /// [`SCATTER_PACKETS`] with different counts.
    pub const UNEVEN_SCATTER_PACKETS: Kernel<UnevenReduceArgs> = "anabranch_ccl_uneven_scatter_packets";
}

kernel_unit! {
    /// RMSNorm of a sum over ranks, of rows of one type ([`NORM_TYPES`]). The arithmetic of sums uses `Reduction`, which its arguments lack.
    pub static REDUCE_NORM_UNIT: "ccl_reduce_norm", include_str!("../../kernels/reduce_norm.hip"), HEADERS,
        layouts [Reduction];
    /// [`ONE_SHOT`] of rows, and their norm.
    pub const ONE_SHOT_NORM: Kernel<ReduceNormArgs> = "anabranch_ccl_one_shot_norm";
    /// [`TWO_SHOT`] of rows, and their norm.
    pub const TWO_SHOT_NORM: Kernel<ReduceNormArgs> = "anabranch_ccl_two_shot_norm";
    /// The norm of a sum in memory.
    pub const RMS_NORM: Kernel<RmsNormArgs> = "anabranch_ccl_rms_norm";
}

kernel_unit! {
    /// Reduces large messages of one type.
    pub static BULK_REDUCE_UNIT: "ccl_bulk_reduce", include_str!("../../kernels/bulk_reduce.hip"), HEADERS;
    /// Every member reads its part from all inputs.
    pub const PULL: Kernel<ReduceArgs> = "anabranch_ccl_pull";
    /// Every member writes parts to their owners' staging.
    pub const PUSH: Kernel<ReduceArgs> = "anabranch_ccl_push";
    /// [`PUSH`] of a reduce_scatter with different counts.
    pub const UNEVEN_PUSH: Kernel<UnevenReduceArgs> = "anabranch_ccl_uneven_push";
    /// A barrier, then each member reduces the contributions that copy engines moved to its staging.
    pub const ENGINE_REDUCE: Kernel<EngineReduceArgs> = "anabranch_ccl_engine_reduce";
}

kernel_unit! {
    /// Reduces large messages of one type to a root.
    pub static PUSH_TO_ROOT_UNIT: "ccl_push_to_root", include_str!("../../kernels/push_to_root.hip"), HEADERS;
    /// Every member but the root reduces a part, and writes it to the root.
    pub const PUSH_TO_ROOT: Kernel<ReduceArgs> = "anabranch_ccl_push_to_root";
}

kernel_unit! {
    /// Broadcasts in two hops.
    pub static TWO_HOP_UNIT: "ccl_two_hop", include_str!("../../kernels/two_hop.hip"), HEADERS;
    /// A broadcast in two hops.
    pub const TWO_HOP: Kernel<MoveArgs> = "anabranch_ccl_two_hop";
}

// `channel.h` uses `BufferView`, which is not in the arguments of fingerprints.
kernel_unit! {
    /// Compares the members' calls.
    pub static FINGERPRINT_UNIT: "ccl_fingerprint", include_str!("../../kernels/fingerprint.hip"), HEADERS,
        layouts [BufferView];
    /// Compares the calls of all members before they move data.
    pub const FINGERPRINT: Kernel<FingerprintArgs> = "anabranch_ccl_fingerprint";
}

// The headers use these structs, which arguments contain only as words.
kernel_unit! {
    /// Moves bytes of any type between nodes. Uses the device functions of the heap, which are compiled for the routes of a world
    /// ([`World::kernel`]).
    pub static NETWORK_MOVE_UNIT: "ccl_network_move", include_str!("../../kernels/network_move.hip"), HEADERS,
        layouts [BarrierWorkspace, LinkState, LinkStep, LinkPort];
    /// Runs the steps of one member.
    pub const NETWORK_MOVE: Kernel<NetworkArgs> = "anabranch_ccl_network_move";
}

kernel_unit! {
    /// Reduces messages of one type between nodes. Compiled for the routes of a world, too.
    pub static NETWORK_REDUCE_UNIT: "ccl_network_reduce", include_str!("../../kernels/network_reduce.hip"), HEADERS,
        layouts [BarrierWorkspace, LinkState, LinkStep, LinkPort];
    /// Runs the steps of one member.
    pub const NETWORK_REDUCE: Kernel<NetworkArgs> = "anabranch_ccl_network_reduce";
}

/// Element types of rows with a norm.
pub const NORM_TYPES: [DataType; 3] = [DataType::Bf16, DataType::F16, DataType::F32];

/// Every unit of this crate.
pub static UNITS: [&KernelUnit; 11] = [
    &MOVE_UNIT,
    &GATHER_MANY_UNIT,
    &PIPES_UNIT,
    &TWO_HOP_UNIT,
    &PACKET_REDUCE_UNIT,
    &REDUCE_NORM_UNIT,
    &BULK_REDUCE_UNIT,
    &PUSH_TO_ROOT_UNIT,
    &NETWORK_MOVE_UNIT,
    &NETWORK_REDUCE_UNIT,
    &FINGERPRINT_UNIT,
];

/// Whether a unit is compiled for each element type.
pub(crate) fn is_typed(unit: &'static KernelUnit) -> bool {
    [&PACKET_REDUCE_UNIT, &REDUCE_NORM_UNIT, &BULK_REDUCE_UNIT, &PUSH_TO_ROOT_UNIT, &NETWORK_REDUCE_UNIT]
        .iter()
        .any(|typed| std::ptr::eq(*typed, unit))
}

/// The compilation of a unit for an element type. Units that only move bytes ignore the type.
pub fn spec(unit: &'static KernelUnit, data_type: DataType) -> KernelSpec {
    with_element(KernelSpec::new(unit), data_type)
}

/// The compilation of a unit for an element type and a communicator of a world: between nodes for the routes of the world, in a node for
/// the number of members.
pub(crate) fn spec_in(
    world: &World,
    members: u32,
    unit: &'static KernelUnit,
    data_type: DataType,
) -> KernelSpec {
    let is_routed =
        [&NETWORK_MOVE_UNIT, &NETWORK_REDUCE_UNIT].iter().any(|routed| std::ptr::eq(*routed, unit));
    if is_routed {
        return with_element(world.kernel(unit), data_type);
    }
    for_members(spec(unit, data_type), members)
}

/// The compilation for communicators of so many members. Not of [`NETWORK_MOVE_UNIT`] and [`NETWORK_REDUCE_UNIT`]. Structs with arrays
/// have no constants.
pub fn for_members(spec: KernelSpec, members: u32) -> KernelSpec {
    let team = || constants!(TeamView { size: members });
    let comm = || constants!(CommView { team: team() });
    let moved = || constants!(MoveArgs { comm: comm() });
    let reduced =
        || constants!(ReduceArgs { comm: comm(), reduction: constants!(Reduction { size: members }) });
    spec.knowing(moved())
        .knowing(reduced())
        .knowing(constants!(EngineReduceArgs { reduce: reduced() }))
        .knowing(constants!(ReduceNormArgs { comm: comm() }))
}

fn with_element(spec: KernelSpec, data_type: DataType) -> KernelSpec {
    if is_typed(spec.unit()) { spec.with("CCL_ELEMENT", data_type.device_name()) } else { spec }
}

/// Every kernel of this crate in every variant, for prebuilds.
pub fn kernels() -> Vec<KernelSpec> {
    let of_unit = |unit: &'static KernelUnit| {
        let types = match unit {
            _ if unit.name == REDUCE_NORM_UNIT.name => &NORM_TYPES[..],
            _ if is_typed(unit) => &DATA_TYPES[..],
            _ => &[DataType::U8],
        };
        types.iter().map(move |data_type| spec(unit, *data_type))
    };
    UNITS.into_iter().flat_map(of_unit).collect()
}
