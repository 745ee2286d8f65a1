//! Arguments of dispatch and combine whose rows are moved by copy engines.

use anabranch_hip_jit::{DevicePointer, device_struct};
use anabranch_shmem::TeamView;

use super::{DispatchArgs, MaskView, SlotState};

device_struct! {
    /// Arguments of `anabranch_ep_dispatch_engine_send`, `_flag` and `_recv`.
    pub struct DispatchEngineArgs {
        /// As for a dispatch. `row_stride` is not 0.
        pub dispatch: DispatchArgs,
        /// `[ranks][row_stride][row_bytes]`: rows for each rank; written.
        pub staged_rows: DevicePointer<u8>,
        /// `[ranks][row_stride][meta_bytes]`: their meta records; written.
        pub staged_meta: DevicePointer<u8>,
        /// `[ranks]`: in each rank's queue, the position after the packets of the last send.
        pub posted: DevicePointer<u64>,
        /// The slot's number in the plan.
        pub slot: u32,
        /// Zero.
        pub reserved: u32,
    }
}

device_struct! {
    /// Arguments of `anabranch_ep_combine_engine_send`, `_flag` and `_recv`.
    pub struct CombineEngineArgs {
        /// The group.
        pub team: TeamView,
        /// The experts' output for the received rows, `[ranks][row_stride][row_bytes]`; null in the receive.
        pub rows: DevicePointer<u8>,
        /// Rows received from each rank, `[ranks]`.
        pub counts: DevicePointer<u32>,
        /// `[token_count][row_bytes]`; written; null in the send.
        pub output: DevicePointer<u8>,
        /// The dispatch's map.
        pub send_map: DevicePointer<u64>,
        /// The slot's words.
        pub state: DevicePointer<SlotState>,
        /// As for a dispatch.
        pub posted: DevicePointer<u64>,
        /// Return window `[ranks][row_stride][row_bytes]`, bytes from the heap's start.
        pub rows_offset: u64,
        /// Flag words, `flag_stride` bytes apart.
        pub flags_offset: u64,
        /// Tokens of the dispatch.
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
        /// The slot's number in the plan.
        pub slot: u32,
        /// For a plan without masks.
        pub mask: MaskView,
    }
}
