//! The kernels of plans whose ranks are on several nodes. They use the device functions of the heap: a world's
//! [`kernel`](anabranch_shmem::World::kernel) says how those are compiled there.

use anabranch_hip_jit::{DeviceStruct as _, Header, KernelSpec, KernelUnit, PRELUDE};
use anabranch_shmem::device_api::DEVICE_HEADERS;

use super::{
    CODEC_HEADERS, COMBINE_HEADERS, DISPATCH_HEADERS, FLAG_HEADERS, HEADERS, MASK_HEADERS, TOKEN_HEADERS,
    cast_of, of_element,
};
use crate::args::{CombineArgs, CombineNodesArgs, DispatchArgs, DispatchNodesArgs, NodesView};
use crate::cast::DispatchCast;
use crate::data_type::DataType;
use crate::plan::TILE;

const NODE_HEADERS: &[Header] = &[Header { name: "ep/nodes.h", text: include_str!("../../kernels/nodes.h") }];

/// Dispatch across nodes; parameters `EP_NODES`, `EP_RELAY` where tokens go once to each node, and those of
/// [`DISPATCH`](super::DISPATCH) but `EP_MASK`.
pub static DISPATCH_NODES: KernelUnit = KernelUnit {
    name: "ep_dispatch_nodes",
    source: include_str!("../../kernels/dispatch_nodes.hip"),
    headers: &[
        PRELUDE,
        HEADERS,
        TOKEN_HEADERS,
        MASK_HEADERS,
        DISPATCH_HEADERS,
        CODEC_HEADERS,
        NODE_HEADERS,
        DEVICE_HEADERS,
    ],
    entries: &[
        "anabranch_ep_dispatch_nodes",
        "anabranch_ep_dispatch_nodes_send",
        "anabranch_ep_dispatch_nodes_recv",
        "anabranch_ep_dispatch_nodes_drain",
    ],
    layouts: waiting_layouts![DispatchArgs, NodesView, DispatchNodesArgs],
};

/// The second half of a dispatch by node; parameters `EP_NODES`, `EP_FORWARD` and `EP_TILE`.
pub static DISPATCH_RELAY: KernelUnit = KernelUnit {
    name: "ep_dispatch_relay",
    source: include_str!("../../kernels/dispatch_relay.hip"),
    headers: &[PRELUDE, HEADERS, TOKEN_HEADERS, MASK_HEADERS, DISPATCH_HEADERS, CODEC_HEADERS, NODE_HEADERS],
    entries: &["anabranch_ep_dispatch_relay"],
    layouts: waiting_layouts![DispatchArgs, NodesView, DispatchNodesArgs],
};

/// Combine across nodes; parameters `EP_NODES`, and those of [`COMBINE`](super::COMBINE) but `EP_MASK` and `EP_COMBINE_WEIGHTS`.
pub static COMBINE_NODES: KernelUnit = KernelUnit {
    name: "ep_combine_nodes",
    source: include_str!("../../kernels/combine_nodes.hip"),
    headers: &[
        PRELUDE,
        HEADERS,
        TOKEN_HEADERS,
        MASK_HEADERS,
        FLAG_HEADERS,
        COMBINE_HEADERS,
        NODE_HEADERS,
        DEVICE_HEADERS,
    ],
    entries: &[
        "anabranch_ep_combine_nodes",
        "anabranch_ep_combine_nodes_send",
        "anabranch_ep_combine_nodes_recv",
    ],
    layouts: waiting_layouts![CombineArgs, NodesView, CombineNodesArgs],
};

/// The dispatch across nodes, of rows as they are or cast; `spec` is of [`DISPATCH_NODES`].
#[must_use]
pub fn dispatch_nodes(spec: KernelSpec, from: DataType, cast: DispatchCast, by_node: bool) -> KernelSpec {
    let spec = cast_of(for_nodes(spec), from, cast);
    if by_node { spec.with("EP_RELAY", 1) } else { spec }
}

/// The kernel that forwards; `spec` is of [`DISPATCH_RELAY`].
#[must_use]
pub fn dispatch_relay(spec: KernelSpec) -> KernelSpec {
    for_nodes(spec).with("EP_FORWARD", 1)
}

/// The combine across nodes, of rows of a type; `spec` is of [`COMBINE_NODES`].
#[must_use]
pub fn combine_nodes(spec: KernelSpec, element: DataType) -> KernelSpec {
    of_element(for_nodes(spec), element)
}

fn for_nodes(spec: KernelSpec) -> KernelSpec {
    spec.with("EP_TILE", TILE).with("EP_NODES", 1)
}
