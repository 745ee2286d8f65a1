//! Arguments of dispatch and combine whose ranks are on several nodes.

use anabranch_hip_jit::{DevicePointer, device_struct};
use anabranch_shmem::TeamView;

use super::{DispatchArgs, MaskView, SlotState};

device_struct! {
    /// The nodes of all ranks and the relays, in this rank's own device memory.
    pub struct NodesView {
        /// `[ranks]`: the node of each rank.
        pub node_of: DevicePointer<u32>,
        /// `[count]`: the relay of this rank on each node; not read for its own node.
        pub relays: DevicePointer<u32>,
        /// `[count]`: the index of this rank's part in their relay windows.
        pub places: DevicePointer<u32>,
        /// `[source_count]`: the ranks whose relay this rank is, in the order of their parts of the relay window.
        pub sources: DevicePointer<u32>,
        /// `[ranks]`: the rank of this node that flags the rows of each rank: its relay here, or, for ranks of this node, itself.
        pub reporters: DevicePointer<u32>,
        /// Nodes.
        pub count: u32,
        /// This rank's.
        pub node: u32,
        /// Ranks for which this one forwards.
        pub source_count: u32,
        /// Zero.
        pub reserved: u32,
    }
}

device_struct! {
    /// Arguments of the kernels of a dispatch across nodes. Offsets are bytes from the heap's start, equal on all ranks.
    pub struct DispatchNodesArgs {
        /// As for a dispatch. `row_stride` is not 0.
        pub dispatch: DispatchArgs,
        /// The nodes.
        pub nodes: NodesView,
        /// Rows for other nodes, in this rank's heap; written. Direct, `[ranks][row_stride][row_bytes]`; by node,
        /// `[nodes][max_tokens][row_bytes]`.
        pub staged_rows: DevicePointer<u8>,
        /// Their meta records.
        pub staged_meta: DevicePointer<u8>,
        /// `[nodes]`: tokens for each node; written and read by one kernel only. Null where rows go direct, like the next one.
        pub relayed: DevicePointer<u32>,
        /// `[source_count][ranks]`: rows of each source for each rank of this node; as above.
        pub forwarded: DevicePointer<u32>,
        /// Relay window of rows, `[places][max_tokens][row_bytes]`.
        pub relay_rows_offset: u64,
        /// Relay window of meta records.
        pub relay_meta_offset: u64,
        /// Flag words of the relay window, one a source rank, `flag_stride` bytes apart.
        pub relay_flags_offset: u64,
        /// Tokens of a part of the relay window.
        pub max_tokens: u32,
        /// Zero.
        pub reserved: u32,
    }
}

device_struct! {
    /// Arguments of the kernels of a combine across nodes.
    pub struct CombineNodesArgs {
        /// The group.
        pub team: TeamView,
        /// The nodes.
        pub nodes: NodesView,
        /// The experts' output if it is in another buffer of the window's shape; else null.
        pub rows: DevicePointer<u8>,
        /// Rows received from each rank, `[ranks]`.
        pub counts: DevicePointer<u32>,
        /// `[token_count][row_bytes]`; written; null in a send.
        pub output: DevicePointer<u8>,
        /// The dispatch's map.
        pub send_map: DevicePointer<u64>,
        /// The slot's words.
        pub state: DevicePointer<SlotState>,
        /// Combine window `[ranks][row_stride][row_bytes]`, bytes from the heap's start.
        pub rows_offset: u64,
        /// Return window for rows from other nodes, of the same shape.
        pub returned_offset: u64,
        /// Flag words, `flag_stride` bytes apart.
        pub flags_offset: u64,
        /// Tokens of the dispatch; 0 for a release.
        pub token_count: u32,
        /// Entries of the send map per token.
        pub fan_out: u32,
        /// Bytes of a row in the combine type, a multiple of 16.
        pub row_bytes: u32,
        /// Rows a source owns in the windows.
        pub row_stride: u32,
        /// Segments of a row, one per wave.
        pub segments: u32,
        /// Bytes between two flag words.
        pub flag_stride: u32,
        /// The operation's code in fault records.
        pub operation: u32,
        /// 1 for a release: no rows are sent.
        pub releases: u32,
        /// For a plan without masks.
        pub mask: MaskView,
    }
}
