//! The nouns of the table, and what has no row.

use super::{ccl, ccl_fingerprint, ccl_hops, ccl_network, ccl_pipes, ep, prelude, rdma, sdma, shmem};
use crate::Protocol;

/// What a site does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A fence, or a function that is one: a meeting of all members, too.
    Fence,
    /// A store to a flag, or of data with its flag inside.
    FlagStore,
    /// A load of a flag, or of data with its flag inside, once.
    FlagLoad,
    /// A wait for a flag.
    Wait,
    /// A read-modify-write.
    Atomic,
    /// A barrier of a wave or a block, in a function that has another site.
    Barrier,
}

/// Why a site is what it is, and what fails when it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldBy {
    /// The mutants of these names, each of which searches catch ([`CAUGHT`](super::CAUGHT)).
    Mutants(&'static [&'static str]),
    /// A check of the generated code, by its name.
    CodeCheck(&'static str),
    /// A test of another kind, by its name.
    Test(&'static str),
    /// Needed, but not by the machine as it is: what is stronger there, and which memory would tell. Held by the argument
    /// until such a memory is run.
    OtherMemory(&'static str),
    /// Nothing depends on its order, or on itself: the argument from the memory model.
    NotNeeded(&'static str),
}

/// One fence, flag, wait, atomic or barrier of a device source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// The file below `crates`.
    pub file: &'static str,
    /// The function, with its struct.
    pub function: &'static str,
    /// What is called.
    pub call: &'static str,
    /// What it does.
    pub kind: Kind,
    /// What holds it.
    pub held_by: HeldBy,
}

/// The sites of one file: rows of function, call, and what holds it. Several rows of one function and call are in the order of
/// the source.
pub(super) struct File {
    pub(super) file: &'static str,
    pub(super) rows: &'static [(&'static str, &'static str, HeldBy)],
}

/// Every row.
pub fn sites() -> impl Iterator<Item = Site> {
    let files = prelude::FILES
        .iter()
        .chain(shmem::FILES)
        .chain(sdma::FILES)
        .chain(rdma::FILES)
        .chain(ep::FILES)
        .chain(ccl::FILES)
        .chain(ccl_fingerprint::FILES)
        .chain(ccl_hops::FILES)
        .chain(ccl_network::FILES)
        .chain(ccl_pipes::FILES);
    files.flat_map(|file| {
        file.rows.iter().map(|(function, call, held_by)| Site {
            file: file.file,
            function,
            call,
            kind: kind_of(call),
            held_by: *held_by,
        })
    })
}

fn kind_of(call: &str) -> Kind {
    match call {
        "flag_store" | "packet_store" => Kind::FlagStore,
        "flag_load" | "flag_load_for_wait" | "packet_load" | "channel_look" => Kind::FlagLoad,
        "wait_until" | "wait_for" | "wait_done" => Kind::Wait,
        "barrier" | "block_barrier" | "wave_barrier" | "end_epoch" => Kind::Barrier,
        _ if call.starts_with("fetch_") || call.contains("swap_") => Kind::Atomic,
        _ => Kind::Fence,
    }
}

/// Files that have no rows, and why.
pub const DEFINITIONS: &[(&str, &str)] = &[
    ("hip-jit/device/anabranch/memory.h", "names the targets' primitives"),
    (
        "hip-jit/device/anabranch/memory_instrumented.h",
        "the same for the seeded machine; crates/hip-jit/tests/seeded.rs",
    ),
    ("hip-jit/device/anabranch/target_amd.h", "is the primitives: check_disassembly, wave_releases"),
    ("hip-jit/device/anabranch/target_host.h", "is the primitives of ordinary host builds, which follow C++"),
    (
        "hip-jit/device/anabranch/target_nvidia.h",
        "is the primitives: each is one PTX instruction that says its order",
    ),
];

/// What is known of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// These protocols run it under seeds.
    In(&'static [Protocol]),
    /// A test of another kind runs it, named here; what it calls has rows.
    Test(&'static str),
    /// It tells no other block or rank anything through a flag: what it leaves is read by later kernels.
    Quiet,
    /// The same, and these protocols run it under seeds.
    QuietIn(&'static [Protocol]),
}

/// Engines are part of a whole machine: worlds of the tests have them.
const EP_ENGINE: Runs = Runs::Test("crates/ep/tests/engine.rs");

/// Every kernel of the embedded units.
pub const KERNELS: &[(&str, Runs)] = &[
    ("anabranch_bench_product", Runs::Quiet),
    ("anabranch_bench_stamp", Runs::Quiet),
    ("anabranch_ccl_barrier", MOVES_AND_ENGINE),
    ("anabranch_ccl_conformance_convert", Runs::Quiet),
    ("anabranch_ccl_conformance_reduce", Runs::Quiet),
    ("anabranch_ccl_engine_reduce", Runs::In(&[Protocol::CclEngine])),
    ("anabranch_ccl_fingerprint", Runs::In(&[Protocol::CclFingerprint])),
    ("anabranch_doctor_probe", Runs::Quiet),
    ("anabranch_ccl_gather_many_direct", GATHERS_MANY),
    ("anabranch_ccl_gather_many_packets", GATHERS_MANY),
    ("anabranch_ccl_gather_many_staged", GATHERS_MANY),
    ("anabranch_ccl_move_direct", MOVES),
    ("anabranch_ccl_move_packets", MOVES),
    ("anabranch_ccl_move_staged", MOVES_AND_ENGINE),
    ("anabranch_ccl_move_uneven_direct", MOVES),
    ("anabranch_ccl_move_uneven_packets", MOVES),
    ("anabranch_ccl_move_uneven_staged", MOVES),
    ("anabranch_ccl_network_move", NETWORK),
    ("anabranch_ccl_network_reduce", NETWORK),
    ("anabranch_ccl_one_shot", REDUCES_PACKETS),
    ("anabranch_ccl_pipes", Runs::In(&[Protocol::CclPipes])),
    ("anabranch_ccl_one_shot_norm", NORMS),
    ("anabranch_ccl_pull", REDUCES_BULK),
    (
        "anabranch_ccl_push",
        Runs::In(&[Protocol::Ccl, Protocol::CclBulk, Protocol::CclEngine, Protocol::CclNorm]),
    ),
    ("anabranch_ccl_push_to_root", HOPS),
    ("anabranch_ccl_rms_norm", Runs::QuietIn(&[Protocol::CclNorm])),
    ("anabranch_ccl_scatter_packets", REDUCES_PACKETS),
    ("anabranch_ccl_two_hop", HOPS),
    ("anabranch_ccl_two_shot", REDUCES_PACKETS),
    ("anabranch_ccl_two_shot_norm", NORMS),
    ("anabranch_ccl_uneven_push", REDUCES_BULK),
    ("anabranch_ccl_uneven_scatter_packets", REDUCES_PACKETS),
    ("anabranch_engine_copies", Runs::Test("crates/shmem/tests/peer_copies.rs")),
    ("anabranch_ep_combine", EP),
    ("anabranch_ep_combine_engine_flag", EP_ENGINE),
    ("anabranch_ep_combine_engine_recv", EP_ENGINE),
    ("anabranch_ep_combine_engine_send", EP_ENGINE),
    ("anabranch_ep_combine_nodes", NODES),
    ("anabranch_ep_combine_nodes_recv", NODES),
    ("anabranch_ep_combine_nodes_send", NODES),
    ("anabranch_ep_combine_push", EP),
    ("anabranch_ep_combine_push_recv", Runs::In(&[Protocol::EpSplit])),
    ("anabranch_ep_combine_push_send", Runs::In(&[Protocol::EpSplit])),
    ("anabranch_ep_combine_recv", Runs::In(&[Protocol::EpSplit])),
    ("anabranch_ep_combine_send", Runs::In(&[Protocol::EpSplit])),
    ("anabranch_ep_conformance_codec", Runs::Quiet),
    ("anabranch_ep_count", Runs::In(&[Protocol::EpCompact, Protocol::EpReplay])),
    ("anabranch_ep_dispatch", EP),
    ("anabranch_ep_dispatch_experts", Runs::In(&[Protocol::EpExperts])),
    ("anabranch_ep_dispatch_numbered", Runs::In(&[Protocol::EpExperts])),
    ("anabranch_ep_dispatch_replay", Runs::In(&[Protocol::EpReplay])),
    ("anabranch_ep_dispatch_engine_drain", EP_ENGINE),
    ("anabranch_ep_dispatch_engine_flag", EP_ENGINE),
    ("anabranch_ep_dispatch_engine_recv", EP_ENGINE),
    ("anabranch_ep_dispatch_engine_send", EP_ENGINE),
    ("anabranch_ep_dispatch_nodes", Runs::In(&[Protocol::EpNodes])),
    ("anabranch_ep_dispatch_nodes_drain", Runs::Test("crates/ep/tests/nodes.rs")),
    ("anabranch_ep_dispatch_nodes_recv", Runs::In(&[Protocol::EpNodes])),
    ("anabranch_ep_dispatch_nodes_send", NODES),
    ("anabranch_ep_dispatch_recv", Runs::In(&[Protocol::EpSplit])),
    ("anabranch_ep_dispatch_relay", Runs::In(&[Protocol::EpRelay])),
    ("anabranch_ep_dispatch_send", Runs::In(&[Protocol::EpSplit])),
    ("anabranch_ep_expert_contract", EXPERTS),
    ("anabranch_ep_expert_count", EXPERTS),
    ("anabranch_ep_expert_expand", EXPERTS),
    ("anabranch_ep_expert_sum", Runs::Quiet),
    ("anabranch_ep_fill_weights", Runs::Quiet),
    ("anabranch_ep_late_weights", Runs::In(&[Protocol::EpExperts])),
    ("anabranch_ep_unpack", Runs::Quiet),
    ("anabranch_ep_save_routing", Runs::In(&[Protocol::EpReplay])),
    ("anabranch_ep_reference_expert", Runs::Quiet),
    ("anabranch_ep_reference_expert_major", EXPERTS),
    ("anabranch_nic_copies", Runs::Test(NICS)),
    ("anabranch_nic_drain", Runs::Test(NICS)),
    ("anabranch_nic_probe", Runs::Test(NICS)),
    ("anabranch_nic_signal", Runs::Test(NICS)),
    ("anabranch_nic_team_barrier", Runs::Test(NICS)),
    ("anabranch_p2p_check", Runs::Test(P2P)),
    ("anabranch_p2p_fill", Runs::Quiet),
    ("anabranch_p2p_load", Runs::Quiet),
    ("anabranch_p2p_ping", Runs::In(&[Protocol::Ping])),
    ("anabranch_p2p_store", Runs::Quiet),
    ("anabranch_shmem_clock", Runs::Test("tests/trace.rs")),
    ("anabranch_shmem_conformance_atomics", Runs::In(&[Protocol::Atomics])),
    ("anabranch_shmem_conformance_barrier", Runs::In(&[Protocol::DeviceBarrier])),
    ("anabranch_shmem_conformance_compare", Runs::Test(API)),
    ("anabranch_shmem_conformance_copy", Runs::Test(API)),
    ("anabranch_shmem_conformance_expiry", Runs::Test(API)),
    ("anabranch_shmem_conformance_message", Runs::Test(API)),
    ("anabranch_shmem_conformance_several", Runs::Test(API)),
    ("anabranch_sim_copy", Runs::Quiet),
    ("anabranch_sim_copy_bytes", Runs::Quiet),
    ("anabranch_sim_engines", Runs::In(&[Protocol::Sdma, Protocol::Rdma])),
    ("anabranch_sim_gather", Runs::In(&[Protocol::Gather])),
    ("anabranch_sim_look", Runs::In(&[Protocol::StreamSignal])),
    ("anabranch_sim_messages", Runs::In(&[Protocol::PutSignal, Protocol::PutQuiet])),
    ("anabranch_sim_push", Runs::Quiet),
    ("anabranch_sim_read", Runs::In(&[Protocol::Barrier])),
    ("anabranch_sim_write", Runs::Quiet),
    ("anabranch_team_barrier", Runs::In(&[Protocol::Barrier])),
    ("anabranch_team_signal", Runs::In(&[Protocol::StreamSignal])),
    ("anabranch_team_signal_wait", Runs::In(&[Protocol::StreamSignal])),
];

const EP: Runs = Runs::In(&[
    Protocol::Ep,
    Protocol::EpCompact,
    Protocol::EpSplit,
    Protocol::EpMask,
    Protocol::EpExperts,
    Protocol::EpReplay,
]);
const NODES: Runs = Runs::In(&[Protocol::EpNodes, Protocol::EpRelay]);
const EXPERTS: Runs = Runs::QuietIn(&[Protocol::EpExperts]);
const MOVES_AND_ENGINE: Runs = Runs::In(&[Protocol::Ccl, Protocol::CclMove, Protocol::CclEngine]);
const MOVES: Runs = Runs::In(&[Protocol::Ccl, Protocol::CclMove]);
const GATHERS_MANY: Runs = Runs::In(&[Protocol::CclGatherMany]);
const REDUCES_PACKETS: Runs = Runs::In(&[Protocol::Ccl, Protocol::CclPackets]);
const REDUCES_BULK: Runs = Runs::In(&[Protocol::Ccl, Protocol::CclBulk]);
const NORMS: Runs = Runs::In(&[Protocol::CclNorm]);
const HOPS: Runs = Runs::In(&[Protocol::Ccl, Protocol::CclHops]);
const NETWORK: Runs = Runs::In(&[Protocol::CclNetwork]);
const NICS: &str = "crates/shmem/tests/nics.rs";
const P2P: &str = "crates/cli/tests/bench.rs";
const API: &str = "crates/shmem/tests/device_api";
