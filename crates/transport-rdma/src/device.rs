//! The headers `rdma/*.h`: what kernels do with queue pairs. Everything there lies in the namespace `rdma`; the documentation of each
//! function is in its header.
//!
//! A unit that uses them lists [`DEVICE_HEADERS`] after [`anabranch_hip_jit::PRELUDE`], includes `rdma/rdma.h`, has
//! [`RdmaQueue`](crate::RdmaQueue), [`RdmaRange`](crate::RdmaRange) and [`PostedRequest`](crate::PostedRequest) among its layouts, and
//! is compiled with `RDMA_PROVIDER` ([`Provider::number`](crate::Provider::number)) and `RDMA_ATOMICS`
//! ([`Atomics::number`](crate::Atomics::number)).

use anabranch_hip_jit::Header;

/// The headers `rdma/*.h`, for kernels that put requests into queues of NICs.
pub const DEVICE_HEADERS: &[Header] = &[
    Header { name: "rdma/bnxt.h", text: include_str!("../device/rdma/bnxt.h") },
    Header { name: "rdma/doorbell.h", text: include_str!("../device/rdma/doorbell.h") },
    Header { name: "rdma/ionic.h", text: include_str!("../device/rdma/ionic.h") },
    Header { name: "rdma/mlx5.h", text: include_str!("../device/rdma/mlx5.h") },
    Header { name: "rdma/operation.h", text: include_str!("../device/rdma/operation.h") },
    Header { name: "rdma/posted.h", text: include_str!("../device/rdma/posted.h") },
    Header { name: "rdma/provider.h", text: include_str!("../device/rdma/provider.h") },
    Header { name: "rdma/queue.h", text: include_str!("../device/rdma/queue.h") },
    Header { name: "rdma/rdma.h", text: include_str!("../device/rdma/rdma.h") },
    Header { name: "rdma/view.h", text: include_str!("../device/rdma/view.h") },
];

/// Room in a NIC's queue, a producer's turn in it, or a fetched value.
pub const PHASE_NIC_POST: u32 = 0x5501;
/// The completion of requests.
pub const PHASE_NIC_DONE: u32 = 0x5502;
/// The queue pair has failed: `expected` of the fault record is the position of the entry (`bnxt_re` and ionic: how far completions were
/// known), `seen` of mlx5 vendor syndrome << 8 | syndrome, else the status as the provider numbers it (posted: the verbs status). A
/// status that says that an entry was flushed (mlx5: syndrome 5) means that one before it has failed, whose own completion was
/// overwritten before a kernel saw it: what the queue's driver says ([`crate::NicQueue::stopped`]) may know more.
pub const PHASE_NIC_ERROR: u32 = 0x5503;
/// A local range (`expected`, of `seen` bytes) that is not registered.
pub const PHASE_NIC_UNREGISTERED: u32 = 0x5504;
/// An operation (`expected`) on a word or value of `seen` bytes that the NIC does not have, or a write of as many with an immediate value
/// that the peer's does not take.
pub const PHASE_NIC_UNSUPPORTED: u32 = 0x5505;
/// A remote range (`expected`, of `seen` bytes) beyond the peer's heap, or a word or value off the boundary of its size.
pub const PHASE_NIC_OUT_OF_RANGE: u32 = 0x5506;

/// The name of a phase that these headers put into fault records.
pub const fn phase_name(phase: u32) -> Option<&'static str> {
    Some(match phase {
        PHASE_NIC_POST => "room in a queue of a NIC",
        PHASE_NIC_DONE => "completion by a NIC",
        PHASE_NIC_ERROR => "failed queue pair of a NIC",
        PHASE_NIC_UNREGISTERED => "memory not registered with the NIC",
        PHASE_NIC_UNSUPPORTED => "operation that the NIC does not have",
        PHASE_NIC_OUT_OF_RANGE => "beyond the peer's memory",
        _ => return None,
    })
}
