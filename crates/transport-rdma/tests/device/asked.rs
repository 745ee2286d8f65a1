//! What `requests.hip` takes and gives, on the host's side: for tests beside a NIC by hand, and beside NICs in software.

use anabranch_hip_jit::control::WaitControl;
use anabranch_hip_jit::{DevicePointer, PRELUDE, device_struct, kernel_unit};
use anabranch_transport_rdma::{DEVICE_HEADERS, PostedRequest, RdmaQueue, RdmaRange};

device_struct! {
    /// A request, and how it is waited for.
    pub struct AskedRequest {
        pub local: u64,
        pub remote: u64,
        pub bytes: u64,
        pub value: u64,
        pub compare: u64,
        pub opcode: u32,
        pub word_bytes: u32,
        pub immediate: u32,
        pub fenced: u32,
        pub queue: u32,
        pub how: u32,
    }
}

device_struct! {
    /// What came of it.
    pub struct Outcome {
        pub status: u64,
        pub end: u64,
        pub old: u64,
    }
}

device_struct! {
    pub struct RequestsArgs {
        pub queues: DevicePointer<RdmaQueue>,
        pub requests: DevicePointer<AskedRequest>,
        pub outcomes: DevicePointer<Outcome>,
        pub control: DevicePointer<WaitControl>,
        pub count: u64,
        pub each: u64,
    }
}

kernel_unit! {
    pub(crate) static UNIT: "rdma_requests", include_str!("requests.hip"), &[PRELUDE, DEVICE_HEADERS],
        layouts [RdmaQueue, RdmaRange, PostedRequest];
    pub(crate) const REQUESTS: Kernel<RequestsArgs> = "rdma_requests";
}

/// `rdma::Opcode`.
pub(crate) const WRITE: u32 = 0;
pub(crate) const WRITE_IMMEDIATE: u32 = 1;
pub(crate) const READ: u32 = 2;
pub(crate) const WRITE_VALUE: u32 = 3;
pub(crate) const FETCH_ADD: u32 = 4;
pub(crate) const COMPARE_SWAP: u32 = 5;
pub(crate) const SWAP: u32 = 6;
pub(crate) const FETCH_AND: u32 = 7;
pub(crate) const FETCH_OR: u32 = 8;
pub(crate) const FETCH_XOR: u32 = 9;

/// How a request is waited for (`requests.hip`).
pub(crate) const POST: u32 = 0;
pub(crate) const POST_AND_QUIET: u32 = 2;
pub(crate) const FETCH: u32 = 3;
