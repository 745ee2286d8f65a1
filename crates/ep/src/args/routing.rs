//! The structs of a saved routing, and of the kernels that save it and dispatch with it.

use anabranch_hip_jit::{DevicePointer, device_struct};
use anabranch_shmem::TeamView;

use super::{DispatchArgs, SlotState};

device_struct! {
    /// The single words of a saved routing.
    pub struct RoutingHead {
        /// The identity of the saved dispatch, `{epoch : 26, slot : 6}`: the same on all ranks that saved that dispatch.
        pub identity: u32,
        /// Copies of this rank's tokens that were dropped.
        pub dropped: u32,
        /// Tokens of this rank; all ones while the routing is empty.
        pub tokens: u32,
        /// Not used.
        pub reserved: u32,
    }
}

device_struct! {
    /// A saved routing, in this rank's own device memory.
    pub struct SavedRouting {
        /// Its single words.
        pub head: DevicePointer<RoutingHead>,
        /// `[ranks]`: copies sent to each rank.
        pub sent: DevicePointer<u32>,
        /// `[ranks]`: rows that came from each rank.
        pub counts: DevicePointer<u32>,
        /// `[max_tokens][fan_out]`: the send map of the dispatch.
        pub send_map: DevicePointer<u64>,
        /// `[max_tokens][top_k]`: expert ids, -1 for invalid ones; undefined where no copy was sent.
        pub ids: DevicePointer<i32>,
        /// `[max_tokens][top_k]`; undefined where no copy was sent.
        pub weights: DevicePointer<f32>,
    }
}

device_struct! {
    /// Arguments of `anabranch_ep_save_routing`.
    pub struct SaveRoutingArgs {
        /// The group.
        pub team: TeamView,
        /// The routing; written.
        pub saved: SavedRouting,
        /// The dispatch's map, `[max_tokens][fan_out]`.
        pub send_map: DevicePointer<u64>,
        /// `[ranks]`: copies for each rank, including dropped ones.
        pub routed: DevicePointer<u32>,
        /// `[ranks]`: capacity for this rank's rows at each rank; read when `row_stride` is 0.
        pub capacity: DevicePointer<u32>,
        /// `[ranks]`: rows that came from each rank.
        pub counts: DevicePointer<u32>,
        /// The slot's words.
        pub state: DevicePointer<SlotState>,
        /// Meta window `[rows][meta_bytes]`, bytes from the heap's start.
        pub meta_offset: u64,
        /// Tokens of the dispatch.
        pub token_count: u32,
        /// Rows per source in the windows; 0: the rows of a source follow the rows of the ranks before it.
        pub row_stride: u32,
        /// Experts per token.
        pub top_k: u32,
        /// Most ranks a token can go to.
        pub fan_out: u32,
        /// Bytes between two meta records.
        pub meta_bytes: u32,
        /// The slot's number in the plan.
        pub slot: u32,
    }
}

device_struct! {
    /// Arguments of `anabranch_ep_dispatch_replay`.
    pub struct DispatchReplayArgs {
        /// As for a dispatch. The ids are the saved ones, and so are the weights unless the call has others; `bases` and the placement
        /// are not read, `capacity` is written.
        pub dispatch: DispatchArgs,
        /// The routing.
        pub saved: SavedRouting,
    }
}
