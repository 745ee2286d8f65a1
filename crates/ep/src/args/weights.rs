//! The structs of the kernels that fill the windows of weights.

use anabranch_hip_jit::{DevicePointer, device_struct};

use anabranch_shmem::TeamView;

use super::{MaskView, ReceivedView, SlotState};

device_struct! {
    /// Arguments of `anabranch_ep_fill_weights`.
    pub struct FillWeightsArgs {
        /// The dispatch; of it the meta window, offsets and stride are read.
        pub received: ReceivedView,
        /// `[rows][top_k]`; written.
        pub window: DevicePointer<f32>,
    }
}

device_struct! {
    /// Arguments of `anabranch_ep_late_weights`. Offsets are bytes from the heap's start, equal on all ranks.
    pub struct LateWeightsArgs {
        /// The group.
        pub team: TeamView,
        /// `[token_count][top_k]` f32 as words.
        pub weights: DevicePointer<u32>,
        /// The dispatch's map.
        pub send_map: DevicePointer<u64>,
        /// The slot's words.
        pub state: DevicePointer<SlotState>,
        /// The late window, `[rows][top_k]` f32.
        pub window_offset: u64,
        /// Flag words, each an epoch, `flag_stride` bytes apart.
        pub flags_offset: u64,
        /// Tokens of the dispatch.
        pub token_count: u32,
        /// Entries of the send map per token.
        pub fan_out: u32,
        /// Experts per token.
        pub top_k: u32,
        /// Bytes between two flag words.
        pub flag_stride: u32,
        /// The operation's code in fault records.
        pub operation: u32,
        /// Not used.
        pub reserved: u32,
        /// The masked ranks.
        pub mask: MaskView,
    }
}
