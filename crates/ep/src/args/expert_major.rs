//! The argument structs of the expert-major kernels, declared once for host and device.

use anabranch_hip_jit::{DevicePointer, device_struct};

use super::{DispatchArgs, PlacementView};

device_struct! {
    /// The received rows of a dispatch, for the kernels of the expert-major layout.
    pub struct ReceivedView {
        /// The ranks of each expert.
        pub placement: PlacementView,
        /// `[experts]`: the number of each expert among this rank's, all ones for the others; null where experts are placed evenly.
        pub local_numbers: DevicePointer<u32>,
        /// The row window.
        pub rows: DevicePointer<u8>,
        /// The meta window.
        pub meta: DevicePointer<u8>,
        /// `[ranks + 1]`: running sum of the rows from each rank.
        pub offsets: DevicePointer<u32>,
        /// Ranks of the group.
        pub ranks: u32,
        /// Rows a source owns in the windows; 0 where a source's rows begin at its offset.
        pub row_stride: u32,
        /// Experts per token.
        pub top_k: u32,
        /// Bytes between two meta records, a multiple of 16.
        pub meta_bytes: u32,
        /// The first expert of this rank, where experts are placed evenly.
        pub first_expert: u32,
        /// Experts of this rank.
        pub local_experts: u32,
        /// This rank in the group.
        pub rank: u32,
        /// Not used.
        pub reserved: u32,
    }
}

device_struct! {
    /// The source of a row of the expert-major layout.
    pub struct ExpertRowSource {
        /// The received row, as an index into the dispatch's windows; all ones in a row of padding.
        pub row: u32,
        /// The rank that sent it; all ones in a row of padding.
        pub source_rank: u32,
        /// The token's number on that rank; all ones in a row of padding.
        pub source_token: u32,
        /// The index k of the expert in the token's ids; all ones in a row of padding.
        pub k: u32,
        /// The dispatched weight of the pair; 0 in a row of padding.
        pub weight: f32,
    }
}

device_struct! {
    /// Arguments of `anabranch_ep_expert_count`.
    pub struct ExpertCountArgs {
        /// The dispatch.
        pub received: ReceivedView,
        /// `[blocks][local_experts]`: pairs of each run of rows; written for the runs that there are.
        pub run_counts: DevicePointer<u32>,
    }
}

device_struct! {
    /// Arguments of `anabranch_ep_expert_sum`.
    pub struct ExpertSumArgs {
        /// `[count_blocks][local_experts]`: pairs of each run of rows.
        pub run_counts: DevicePointer<u32>,
        /// The dispatch's `[ranks + 1]` offsets.
        pub offsets: DevicePointer<u32>,
        /// `[local_experts]`; written.
        pub output: DevicePointer<u32>,
        /// Ranks of the group.
        pub ranks: u32,
        /// Experts of this rank.
        pub local_experts: u32,
        /// Blocks of the launch that counted.
        pub count_blocks: u32,
        /// Not used.
        pub reserved: u32,
    }
}

device_struct! {
    /// Arguments of `anabranch_ep_expert_expand`.
    pub struct ExpertExpandArgs {
        /// The dispatch.
        pub received: ReceivedView,
        /// `[places][row_bytes]`; written. There are `[local_experts][capacity]` places, or with EP_CONTIGUOUS `[capacity]`.
        pub rows: DevicePointer<u8>,
        /// Scales of the rows, in the form of `scale_layout`; written.
        pub scales: DevicePointer<u8>,
        /// `[local_experts]`: rows of each expert; written.
        pub counts: DevicePointer<u32>,
        /// `[local_experts]`: pairs of each expert, including dropped ones; written without EP_CONTIGUOUS.
        pub pairs: DevicePointer<u32>,
        /// `[local_experts][ranks + 1]`: first row of each source within each expert; written without EP_CONTIGUOUS.
        pub source_offsets: DevicePointer<u32>,
        /// `[places]`; written without EP_CONTIGUOUS.
        pub sources: DevicePointer<ExpertRowSource>,
        /// `[local_experts + 1]`: the first place of each expert; written with EP_CONTIGUOUS.
        pub starts: DevicePointer<u32>,
        /// `[places]`, or null: the dispatched weight of each row, 0 where there is none; written with EP_CONTIGUOUS.
        pub weights: DevicePointer<f32>,
        /// `[window rows][top_k]`: the slot map; written for the rows received.
        pub slot_map: DevicePointer<u32>,
        /// Bytes of a row, a multiple of 16.
        pub row_bytes: u32,
        /// Bytes of a row's scales, a multiple of 4.
        pub scale_bytes: u32,
        /// Places of an expert, a multiple of the alignment; with EP_CONTIGUOUS those of all experts.
        pub capacity: u32,
        /// Alignment of each expert's rows, in rows.
        pub alignment: u32,
        /// Rows that a block places at a time.
        pub tile_rows: u32,
        /// Number of the `ScaleLayout`.
        pub scale_layout: u32,
        /// Words from one column of scales to the next, at least `capacity`.
        pub scale_column: u32,
        /// With EP_CONTIGUOUS whether padding is filled with zeros; without, it always is.
        pub has_zeros: u32,
    }
}

device_struct! {
    /// Arguments of `anabranch_ep_expert_contract`.
    pub struct ExpertContractArgs {
        /// The dispatch.
        pub received: ReceivedView,
        /// The expand's `[window rows][top_k]` map.
        pub slot_map: DevicePointer<u32>,
        /// `[places][row_bytes]` of the combine type.
        pub experts: DevicePointer<u8>,
        /// `[places]` f32 as words; null for those of the received rows.
        pub weights: DevicePointer<u32>,
        /// The late window, `[window rows][top_k]` f32 as words; null for the dispatched weights.
        pub late: DevicePointer<u32>,
        /// `[window rows][row_bytes]`: the combine window, or a buffer of its shape; written for the rows received.
        pub output: DevicePointer<u8>,
        /// Bytes of a row in the combine type, a multiple of 16.
        pub row_bytes: u32,
        /// With EP_CONTIGUOUS the places of the layout: other entries of the map have no row.
        pub places: u32,
        /// With EP_CONTIGUOUS whether every weight is 1.
        pub is_unweighted: u32,
        /// Not used.
        pub reserved: u32,
    }
}

device_struct! {
    /// Arguments of `anabranch_ep_unpack`.
    pub struct UnpackArgs {
        /// The dispatch.
        pub received: ReceivedView,
        /// `[count][row_bytes]`, or null; written.
        pub rows: DevicePointer<u8>,
        /// `[count][scale_words]`, or null; written.
        pub scales: DevicePointer<u32>,
        /// `[count][top_k]` i64 as words, or null; written.
        pub ids: DevicePointer<u64>,
        /// `[count][top_k]` f32 as words, or null; written.
        pub weights: DevicePointer<u32>,
        /// Rows of the outputs.
        pub count: u32,
        /// Bytes of a row, a multiple of 16.
        pub row_bytes: u32,
        /// Words of a row's scales.
        pub scale_words: u32,
        /// Not used.
        pub reserved: u32,
    }
}

device_struct! {
    /// Arguments of `anabranch_ep_dispatch_experts` and `anabranch_ep_dispatch_numbered`.
    pub struct DispatchExpertsArgs {
        /// The dispatch.
        pub dispatch: DispatchArgs,
        /// The expand of its rows, whose offsets and `tile_rows` are not read.
        pub experts: ExpertExpandArgs,
        /// Window of totals: of each source, the number of its pairs of each expert here, a word an expert of the group.
        pub totals_offset: u64,
        /// Bytes of a source's totals.
        pub totals_stride: u32,
        /// The word of a meta record with the number of the first pair.
        pub numbers_word: u32,
        /// Experts of the group, counted once for each rank that has them.
        pub copies: u32,
        /// Not used.
        pub reserved: u32,
    }
}
