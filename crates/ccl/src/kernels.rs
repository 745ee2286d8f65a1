//! The kernels of this crate, for building ahead and for launching.

use anabranch_hip_jit::{DeviceStruct as _, Header, KernelSpec, KernelUnit, PRELUDE};
use anabranch_shmem::device_api::{BarrierWorkspace, DEVICE_HEADERS as SHMEM_HEADERS};

use crate::DataType;
use crate::args::{
    EngineReduceArgs, FingerprintArgs, GatherManyArgs, LinkPort, LinkState, LinkStep, MoveArgs, NetworkArgs,
    PipesArgs, Place, ReduceArgs, UnevenArgs,
};
use crate::device_api::DEVICE_HEADERS;

const HEADERS: &[&[Header]] = &[PRELUDE, SHMEM_HEADERS, DEVICE_HEADERS];

/// The entry points, by what they do.
pub mod entry {
    /// Bytes, in packets.
    pub const MOVE_PACKETS: &str = "anabranch_ccl_move_packets";
    /// Bytes, through the staging.
    pub const MOVE_STAGED: &str = "anabranch_ccl_move_staged";
    /// Bytes, straight to the outputs.
    pub const MOVE_DIRECT: &str = "anabranch_ccl_move_direct";
    /// As the three before, with counts that differ.
    pub const UNEVEN_PACKETS: &str = "anabranch_ccl_move_uneven_packets";
    /// ... through the staging.
    pub const UNEVEN_STAGED: &str = "anabranch_ccl_move_uneven_staged";
    /// ... straight to the outputs.
    pub const UNEVEN_DIRECT: &str = "anabranch_ccl_move_uneven_direct";
    /// All members meet.
    pub const BARRIER: &str = "anabranch_ccl_barrier";
    /// Many tensors gathered, in packets.
    pub const GATHER_MANY_PACKETS: &str = "anabranch_ccl_gather_many_packets";
    /// ... through the staging.
    pub const GATHER_MANY_STAGED: &str = "anabranch_ccl_gather_many_staged";
    /// ... straight to the outputs.
    pub const GATHER_MANY_DIRECT: &str = "anabranch_ccl_gather_many_direct";
    /// Messages between pairs of members.
    pub const PIPES: &str = "anabranch_ccl_pipes";
    /// A broadcast in two hops.
    pub const TWO_HOP: &str = "anabranch_ccl_two_hop";
    /// Bytes, from neighbour to neighbour.
    pub const RING_MOVE: &str = "anabranch_ccl_ring_move";
    /// Sums, from neighbour to neighbour.
    pub const RING_REDUCE: &str = "anabranch_ccl_ring_reduce";
    /// Every member reduces everything, from packets.
    pub const ONE_SHOT: &str = "anabranch_ccl_one_shot";
    /// Every member reduces a part and sends it round, in packets.
    pub const TWO_SHOT: &str = "anabranch_ccl_two_shot";
    /// Every member reduces a part and keeps it, from packets.
    pub const SCATTER_PACKETS: &str = "anabranch_ccl_scatter_packets";
    /// Every member reads its part from all inputs.
    pub const PULL: &str = "anabranch_ccl_pull";
    /// Every member writes parts to their owners' staging.
    pub const PUSH: &str = "anabranch_ccl_push";
    /// Every member meets the others and reduces what copy engines have brought to its staging.
    pub const ENGINE_REDUCE: &str = "anabranch_ccl_engine_reduce";
    /// Bytes, across machines.
    pub const NETWORK_MOVE: &str = "anabranch_ccl_network_move";
    /// Sums, across machines.
    pub const NETWORK_REDUCE: &str = "anabranch_ccl_network_reduce";
    /// Compares calls before they move data.
    pub const FINGERPRINT: &str = "anabranch_ccl_fingerprint";
}

/// Moves bytes of any type.
pub static MOVE: KernelUnit = KernelUnit {
    name: "ccl_move",
    source: include_str!("../kernels/move.hip"),
    headers: HEADERS,
    entries: &[
        entry::BARRIER,
        entry::MOVE_PACKETS,
        entry::UNEVEN_PACKETS,
        entry::MOVE_STAGED,
        entry::UNEVEN_STAGED,
        entry::MOVE_DIRECT,
        entry::UNEVEN_DIRECT,
    ],
    layouts: &[MoveArgs::c_declaration, UnevenArgs::c_declaration],
};

/// Gathers many tensors of any types.
pub static GATHER_MANY: KernelUnit = KernelUnit {
    name: "ccl_gather_many",
    source: include_str!("../kernels/gather_many.hip"),
    headers: HEADERS,
    entries: &[entry::GATHER_MANY_PACKETS, entry::GATHER_MANY_STAGED, entry::GATHER_MANY_DIRECT],
    layouts: &[GatherManyArgs::c_declaration],
};

/// Sends and receives.
pub static PIPES: KernelUnit = KernelUnit {
    name: "ccl_pipes",
    source: include_str!("../kernels/pipes.hip"),
    headers: HEADERS,
    entries: &[entry::PIPES],
    layouts: &[PipesArgs::c_declaration],
};

/// Reduces small messages of one type.
pub static PACKET_REDUCE: KernelUnit = KernelUnit {
    name: "ccl_packet_reduce",
    source: include_str!("../kernels/packet_reduce.hip"),
    headers: HEADERS,
    entries: &[entry::ONE_SHOT, entry::TWO_SHOT, entry::SCATTER_PACKETS],
    layouts: &[ReduceArgs::c_declaration],
};

/// Reduces large messages of one type.
pub static BULK_REDUCE: KernelUnit = KernelUnit {
    name: "ccl_bulk_reduce",
    source: include_str!("../kernels/bulk_reduce.hip"),
    headers: HEADERS,
    entries: &[entry::PULL, entry::PUSH, entry::ENGINE_REDUCE],
    layouts: &[ReduceArgs::c_declaration, EngineReduceArgs::c_declaration],
};

/// Broadcasts in two hops.
pub static TWO_HOP: KernelUnit = KernelUnit {
    name: "ccl_two_hop",
    source: include_str!("../kernels/two_hop.hip"),
    headers: HEADERS,
    entries: &[entry::TWO_HOP],
    layouts: &[MoveArgs::c_declaration],
};

/// Moves bytes of any type from neighbour to neighbour.
pub static RING: KernelUnit = KernelUnit {
    name: "ccl_ring",
    source: include_str!("../kernels/ring.hip"),
    headers: HEADERS,
    entries: &[entry::RING_MOVE],
    layouts: &[MoveArgs::c_declaration],
};

/// Reduces messages of one type from neighbour to neighbour.
pub static RING_REDUCE: KernelUnit = KernelUnit {
    name: "ccl_ring_reduce",
    source: include_str!("../kernels/ring_reduce.hip"),
    headers: HEADERS,
    entries: &[entry::RING_REDUCE],
    layouts: &[ReduceArgs::c_declaration],
};

/// Compares the members' calls.
pub static FINGERPRINT: KernelUnit = KernelUnit {
    name: "ccl_fingerprint",
    source: include_str!("../kernels/fingerprint.hip"),
    headers: HEADERS,
    entries: &[entry::FINGERPRINT],
    // `lane.h` names places, which these arguments have none of.
    layouts: &[Place::c_declaration, FingerprintArgs::c_declaration],
};

/// `shmem/shmem.h` names workspaces, and `ccl/links.h` counters, steps and ports, which these arguments have as words.
const NETWORK_LAYOUTS: &[fn() -> String] = &[
    BarrierWorkspace::c_declaration,
    LinkState::c_declaration,
    LinkStep::c_declaration,
    LinkPort::c_declaration,
    NetworkArgs::c_declaration,
];

/// Moves bytes of any type across machines.
pub static NETWORK_MOVE: KernelUnit = KernelUnit {
    name: "ccl_network_move",
    source: include_str!("../kernels/network_move.hip"),
    headers: HEADERS,
    entries: &[entry::NETWORK_MOVE],
    layouts: NETWORK_LAYOUTS,
};

/// Reduces messages of one type across machines.
pub static NETWORK_REDUCE: KernelUnit = KernelUnit {
    name: "ccl_network_reduce",
    source: include_str!("../kernels/network_reduce.hip"),
    headers: HEADERS,
    entries: &[entry::NETWORK_REDUCE],
    layouts: NETWORK_LAYOUTS,
};

/// The units of single collectives; [`GATHER_MANY`] and [`PIPES`] are the others.
pub static UNITS: [&KernelUnit; 9] = [
    &MOVE,
    &TWO_HOP,
    &RING,
    &PACKET_REDUCE,
    &BULK_REDUCE,
    &RING_REDUCE,
    &NETWORK_MOVE,
    &NETWORK_REDUCE,
    &FINGERPRINT,
];

/// The kernels that move bytes.
pub fn move_bytes() -> KernelSpec {
    KernelSpec::new(&MOVE)
}

/// The kernel that compares calls.
pub fn fingerprint() -> KernelSpec {
    KernelSpec::new(&FINGERPRINT)
}

/// The kernels that gather many tensors.
pub fn gather_many() -> KernelSpec {
    KernelSpec::new(&GATHER_MANY)
}

/// The kernel that sends and receives.
pub fn pipes() -> KernelSpec {
    KernelSpec::new(&PIPES)
}

/// The kernel that broadcasts in two hops.
pub fn two_hop() -> KernelSpec {
    KernelSpec::new(&TWO_HOP)
}

/// The kernel that moves bytes from neighbour to neighbour.
pub fn ring() -> KernelSpec {
    KernelSpec::new(&RING)
}

/// The kernel that reduces messages of a type from neighbour to neighbour.
pub fn ring_reduce(element: DataType) -> KernelSpec {
    KernelSpec::new(&RING_REDUCE).with("CCL_ELEMENT", element.device_name())
}

/// The kernels that reduce small messages of a type.
pub fn packet_reduce(element: DataType) -> KernelSpec {
    KernelSpec::new(&PACKET_REDUCE).with("CCL_ELEMENT", element.device_name())
}

/// The kernels that reduce large messages of a type.
pub fn bulk_reduce(element: DataType) -> KernelSpec {
    KernelSpec::new(&BULK_REDUCE).with("CCL_ELEMENT", element.device_name())
}

/// The kernel that moves bytes across machines. A world's own spec of the unit ([`anabranch_shmem::World::kernel`]) says besides how it is
/// reached.
pub fn network_move() -> KernelSpec {
    KernelSpec::new(&NETWORK_MOVE)
}

/// The kernel that reduces messages of a type across machines; likewise.
pub fn network_reduce(element: DataType) -> KernelSpec {
    KernelSpec::new(&NETWORK_REDUCE).with("CCL_ELEMENT", element.device_name())
}

/// Every kernel of this crate in every variant: what a prebuild compiles.
pub fn kernels() -> Vec<KernelSpec> {
    let of_type = |element| {
        [packet_reduce(element), bulk_reduce(element), ring_reduce(element), network_reduce(element)]
    };
    let reduce = DataType::ALL.into_iter().flat_map(of_type);
    let bytes = [move_bytes(), two_hop(), ring(), gather_many(), pipes(), network_move(), fingerprint()];
    bytes.into_iter().chain(reduce).collect()
}
