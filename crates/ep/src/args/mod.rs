//! The argument structs of the kernels, declared once for host and device.

use anabranch_hip_jit::{DevicePointer, device_struct};
use anabranch_shmem::TeamView;

mod engine;
mod expert_major;
mod nodes;
mod routing;
mod weights;

pub use engine::{CombineEngineArgs, DispatchEngineArgs};
pub use expert_major::{
    DispatchExpertsArgs, ExpertContractArgs, ExpertCountArgs, ExpertExpandArgs, ExpertRowSource,
    ExpertSumArgs, ReceivedView, UnpackArgs,
};
#[cfg(feature = "rdma")]
pub use nodes::NodesView;
pub use nodes::{CombineNodesArgs, DispatchNodesArgs};
pub use routing::{DispatchReplayArgs, RoutingHead, SaveRoutingArgs, SavedRouting};
pub use weights::{FillWeightsArgs, LateWeightsArgs};

device_struct! {
    /// The ranks of each expert.
    pub struct PlacementView {
        /// `[experts + 1]`: the first entry of each expert in `owners`; null where experts are placed evenly.
        pub starts: DevicePointer<u32>,
        /// The ranks of each expert; null where experts are placed evenly.
        pub owners: DevicePointer<u32>,
        /// Experts of the group.
        pub experts: u32,
        /// Ranks of the group.
        pub ranks: u32,
    }
}

impl PlacementView {
    /// Experts placed evenly.
    pub const fn even(experts: u32, ranks: u32) -> Self {
        Self { starts: DevicePointer::NULL, owners: DevicePointer::NULL, experts, ranks }
    }
}

device_struct! {
    /// The mask entry of one rank, in this rank's own device memory. Starts at zero.
    pub struct RankMask {
        /// 1: the rank is masked.
        pub masked: u64,
        /// Epoch of the operation whose wait masked it.
        pub epoch: u64,
        /// Duration of that wait.
        pub waited_ns: u64,
        /// Number of waits that ended without its flag; the first wrote the record.
        pub claimed: u32,
        /// The operation's code; 0: it was masked by hand.
        pub operation: u32,
        /// The phase of the operation.
        pub phase: u32,
        /// The slot of the operation.
        pub slot: u32,
    }
}

device_struct! {
    /// The mask as a kernel of one slot uses it. Null and zero in a plan without one.
    pub struct MaskView {
        /// `[ranks]`.
        pub ranks: DevicePointer<RankMask>,
        /// `[ranks]`: whether the slot's last combine includes each rank: twice the combine's epoch, plus 1 for an included rank.
        pub settled: DevicePointer<u64>,
        /// How long a wait for a rank lasts before it masks the rank.
        pub patience_ns: u64,
        /// The slot's number.
        pub slot: u32,
        /// Not used.
        pub reserved: u32,
    }
}

impl MaskView {
    /// For a plan without masks.
    pub const NONE: Self = Self {
        ranks: DevicePointer::NULL,
        settled: DevicePointer::NULL,
        patience_ns: 0,
        slot: 0,
        reserved: 0,
    };
}

device_struct! {
    /// A slot's words in this rank's own device memory. All start at zero but `invalid_first`, which starts at all ones.
    pub struct SlotState {
        /// Epoch of the last dispatch that completed.
        pub dispatch_epoch: u64,
        /// Epoch of the last combine that completed.
        pub combine_epoch: u64,
        /// The first invalid expert id: `{token:26, k:6, id:32}`, or all ones.
        pub invalid_first: u64,
        /// Invalid expert ids seen since the words were last read.
        pub invalid_count: u32,
        /// Blocks of the running dispatch that have written all their rows.
        pub dispatch_arrived: u32,
        /// Blocks of the running combine that have pushed all their rows, or of the kernel before it that have stored their late weights.
        pub combine_arrived: u32,
        /// Copies that the last dispatch dropped because they did not fit at their destinations.
        pub dropped_count: u32,
        /// Blocks of the running count that have added their share.
        pub count_arrived: u32,
        /// Tokens of the last dispatch, in plans with device token counts.
        pub token_count: u32,
        /// Dispatches with a device token count above its bound, since the word was last read.
        pub excess_count: u32,
        /// The first such count.
        pub excess_given: u32,
        /// Its bound.
        pub excess_allowed: u32,
        /// Copies that the last dispatch left out because their destinations are masked.
        pub masked_count: u32,
    }
}

impl SlotState {
    /// The state before the first use: the first epoch is 1, and there is no invalid id.
    pub fn fresh() -> Self {
        Self { invalid_first: u64::MAX, ..bytemuck::Zeroable::zeroed() }
    }
}

device_struct! {
    /// Arguments of `anabranch_ep_count`. Offsets are bytes from the heap's start, equal on all ranks.
    pub struct CountArgs {
        /// The group.
        pub team: TeamView,
        /// The ranks of each expert.
        pub placement: PlacementView,
        /// `[token_count][top_k]`, of 64 bits with `EP_WIDE_IDS`.
        pub ids: DevicePointer<i32>,
        /// `[ranks]`: zero between launches.
        pub tally: DevicePointer<u32>,
        /// `[ranks]`: first row of this rank at each rank; written.
        pub bases: DevicePointer<u32>,
        /// `[ranks]`: capacity for this rank's rows at each rank; written.
        pub capacity: DevicePointer<u32>,
        /// The slot's words.
        pub state: DevicePointer<SlotState>,
        /// Counts matrix `[ranks][matrix_stride]`, a row of 8-byte words for each source.
        pub matrix_offset: u64,
        /// Tokens of this call.
        pub token_count: u32,
        /// Experts per token.
        pub top_k: u32,
        /// Experts of the group.
        pub experts: u32,
        /// Rows of each window.
        pub rows: u32,
        /// Bytes between two rows of the matrix.
        pub matrix_stride: u32,
        /// The operation's code in fault records.
        pub operation: u32,
        /// The number of tokens, at most `token_count`; null: `token_count`. Kernels without EP_DEVICE_COUNT do not read it.
        pub device_count: DevicePointer<u32>,
    }
}

device_struct! {
    /// Arguments of `anabranch_ep_dispatch`. Offsets are bytes from the heap's start, equal on all ranks.
    pub struct DispatchArgs {
        /// The group.
        pub team: TeamView,
        /// The ranks of each expert.
        pub placement: PlacementView,
        /// `[token_count][row_bytes]`, 16-byte aligned.
        pub tokens: DevicePointer<u8>,
        /// `[token_count][top_k]`, of 64 bits with `EP_WIDE_IDS`.
        pub ids: DevicePointer<i32>,
        /// `[token_count][top_k]`, or null: zeros are sent.
        pub weights: DevicePointer<f32>,
        /// `[token_count][scale_bytes]`, 4-byte aligned; not read when `scale_bytes` is 0.
        pub scales: DevicePointer<u8>,
        /// `[max_tokens][fan_out]`: the send map, the copies of each token ascending by rank, `{rank + 1 : 32, row : 32}` or 0; bit 31
        /// is set when the copy was dropped; written.
        pub send_map: DevicePointer<u64>,
        /// `[ranks]`: copies for each rank, including dropped ones; written and read by this kernel, and read by later ones on the slot.
        pub routed: DevicePointer<u32>,
        /// `[ranks]`: first row of this rank at each rank; read when `row_stride` is 0.
        pub bases: DevicePointer<u32>,
        /// `[ranks]`: capacity for this rank's rows at each rank; read when `row_stride` is 0.
        pub capacity: DevicePointer<u32>,
        /// `[ranks]`: rows received from each rank; written.
        pub counts: DevicePointer<u32>,
        /// `[ranks + 1]`: running sum of `counts`; written.
        pub offsets: DevicePointer<u32>,
        /// The slot's words.
        pub state: DevicePointer<SlotState>,
        /// Row window `[rows][row_bytes]`.
        pub rows_offset: u64,
        /// Meta window `[rows][meta_bytes]`.
        pub meta_offset: u64,
        /// Flag words, `flag_stride` bytes apart.
        pub flags_offset: u64,
        /// Tokens of this call.
        pub token_count: u32,
        /// Rows per source in the windows; 0: the rows of a source follow the rows of the ranks before it.
        pub row_stride: u32,
        /// Experts per token.
        pub top_k: u32,
        /// Experts of the group.
        pub experts: u32,
        /// Most ranks a token can go to: the smaller of `top_k` and the ranks.
        pub fan_out: u32,
        /// Bytes of a row, a multiple of 16.
        pub row_bytes: u32,
        /// Bytes between two meta records, a multiple of 16.
        pub meta_bytes: u32,
        /// Bytes of a token's scales, a multiple of 4.
        pub scale_bytes: u32,
        /// Blocks that share a run of tokens.
        pub parts: u32,
        /// Segments of a block's part of a row.
        pub segments: u32,
        /// Bytes between two flag words.
        pub flag_stride: u32,
        /// The operation's code in fault records.
        pub operation: u32,
        /// As in the count; in the compact mode, the number that the count stored in the state.
        pub device_count: DevicePointer<u32>,
        /// The masked ranks.
        pub mask: MaskView,
    }
}

device_struct! {
    /// Arguments of `anabranch_ep_combine`.
    pub struct CombineArgs {
        /// The group.
        pub team: TeamView,
        /// `[token_count][row_bytes]`; written.
        pub output: DevicePointer<u8>,
        /// The dispatch's map.
        pub send_map: DevicePointer<u64>,
        /// The slot's words.
        pub state: DevicePointer<SlotState>,
        /// Combine window `[rows][row_bytes]`.
        pub rows_offset: u64,
        /// Flag words, `flag_stride` bytes apart.
        pub flags_offset: u64,
        /// Tokens of the dispatch; 0 for a release.
        pub token_count: u32,
        /// Entries of the send map per token.
        pub fan_out: u32,
        /// Bytes of a row in the combine type, a multiple of 16.
        pub row_bytes: u32,
        /// Segments of a row, one per wave.
        pub segments: u32,
        /// Bytes between two flag words.
        pub flag_stride: u32,
        /// The operation's code in fault records.
        pub operation: u32,
        /// `[token_count][top_k]`; written where the plan has combined weights.
        pub weights: DevicePointer<f32>,
        /// Weight window `[rows][top_k]`, where the plan has one.
        pub weights_offset: u64,
        /// Experts per token.
        pub top_k: u32,
        /// Not used.
        pub reserved: u32,
        /// The masked ranks.
        pub mask: MaskView,
    }
}

device_struct! {
    /// Arguments of `anabranch_ep_combine_push`.
    pub struct CombinePushArgs {
        /// The group.
        pub team: TeamView,
        /// The experts' output for the received rows, `[ranks][row_stride][hidden]` elements, or `[rows][hidden]` where the
        /// stride is 0; 16-byte aligned.
        pub rows: DevicePointer<u8>,
        /// `[token_count][hidden]` elements; written.
        pub output: DevicePointer<u8>,
        /// The dispatch's map.
        pub send_map: DevicePointer<u64>,
        /// The dispatch's offsets, `[ranks + 1]`.
        pub offsets: DevicePointer<u32>,
        /// The slot's words.
        pub state: DevicePointer<SlotState>,
        /// Meta window: records of the received rows, laid out as `rows`, `meta_bytes` apart.
        pub meta_offset: u64,
        /// Push window `[fan_out][max_tokens][wire_bytes]`.
        pub push_offset: u64,
        /// Flag words, `flag_stride` bytes apart.
        pub flags_offset: u64,
        /// Tokens of the dispatch.
        pub token_count: u32,
        /// Tokens of a place in the push window.
        pub max_tokens: u32,
        /// Rows per source in the windows; 0: the rows of a source follow the rows of the ranks before it.
        pub row_stride: u32,
        /// Places of a token.
        pub fan_out: u32,
        /// Elements of a row.
        pub hidden: u32,
        /// Bytes of a row as it is pushed, a multiple of 16.
        pub wire_bytes: u32,
        /// Bytes between two meta records.
        pub meta_bytes: u32,
        /// Segments of a row in the sum, one per wave.
        pub segments: u32,
        /// Most segments of a row in the push.
        pub push_segments: u32,
        /// Bytes between two flag words.
        pub flag_stride: u32,
        /// The operation's code in fault records.
        pub operation: u32,
        /// Experts per token.
        pub top_k: u32,
        /// `[token_count][top_k]`; written where the plan has combined weights.
        pub weights: DevicePointer<f32>,
        /// Weight window `[rows][top_k]`, where the plan has one.
        pub weights_offset: u64,
        /// Window of pushed weights `[fan_out][max_tokens][top_k]`, where the plan has one.
        pub pushed_weights_offset: u64,
        /// The masked ranks.
        pub mask: MaskView,
    }
}
