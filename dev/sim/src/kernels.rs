//! The kernels that only searches run: what stands around operations, and uses of the device API.

use anabranch_hip_jit::{
    DevicePointer, DeviceStruct as _, KernelSpec, KernelUnit, PRELUDE, device_struct, kernel_unit,
};
use anabranch_shmem::TeamView;
use anabranch_shmem::device_api::{BarrierWorkspace, DEVICE_HEADERS};

device_struct! {
    /// Arguments of the kernels around operations in the order of a stream.
    pub struct AroundArgs {
        /// The team.
        pub team: TeamView,
        /// Offset of the words in the heap.
        pub data: u64,
        /// What is written, and what must be found.
        pub value: u64,
        /// How many words were wrong; added to.
        pub wrong: DevicePointer<u32>,
        /// Into whose heap `anabranch_sim_push` writes.
        pub peer: u32,
        /// Zero.
        pub reserved: u32,
    }
}

device_struct! {
    /// Arguments of `anabranch_sim_messages`.
    pub struct MessagesArgs {
        /// The team.
        pub team: TeamView,
        /// `[rounds][size][stride]`: what is sent to each rank.
        pub prepared: DevicePointer<u8>,
        /// `[rounds][size][stride]`: what came from each rank; written.
        pub log: DevicePointer<u8>,
        /// Each block's `Status`; written.
        pub statuses: DevicePointer<u32>,
        /// `[size][2][stride]`: where messages are put to.
        pub slots: u64,
        /// `[size]` signal words: messages that have come from each rank.
        pub arrived: u64,
        /// `[size]` signal words: messages that each rank has consumed.
        pub consumed: u64,
        /// Bytes of a message.
        pub bytes: u32,
        /// Bytes from one slot to the next.
        pub stride: u32,
        /// Messages a pair.
        pub rounds: u32,
        /// What comes between put and signal: 0 quiet, 1 fence for the peer, 2 fence for all.
        pub form: u32,
        /// 0 thread, 1 wave, 2 block.
        pub scope: u32,
        /// Whether signals add one; else they set the round.
        pub adds: u32,
        /// The operation's code in fault records.
        pub operation: u32,
        /// Zero.
        pub reserved: u32,
    }
}

device_struct! {
    /// Arguments of `anabranch_sim_gather`. Two blocks.
    pub struct GatherArgs {
        /// The team.
        pub team: TeamView,
        /// `[rounds][words]`: what is sent to every rank.
        pub prepared: DevicePointer<u64>,
        /// `[rounds][size][words]`: what was read; written.
        pub log: DevicePointer<u64>,
        /// The gathering block's `Status`; written.
        pub status: DevicePointer<u32>,
        /// `[rounds][size][words]`: where rows are put to.
        pub rows: u64,
        /// `[rounds][size]` signal words.
        pub flags: u64,
        /// Words of a row.
        pub words: u32,
        /// Rounds.
        pub rounds: u32,
        /// How everyone waits.
        pub form: u32,
        /// The operation's code in fault records.
        pub operation: u32,
    }
}

device_struct! {
    /// Arguments of `anabranch_sim_engines`. Rows of `[size][groups]` are of a peer and a group of the grid.
    pub struct EnginesArgs {
        /// The team.
        pub team: TeamView,
        /// `[size][groups][words]`: what is put.
        pub staging: DevicePointer<u64>,
        /// `[size][groups][words]`: what was pulled.
        pub pulled: DevicePointer<u64>,
        /// `[rounds][size][groups][words]`: what came from each rank; written.
        pub log: DevicePointer<u64>,
        /// `[size][groups]`: the last round that came; written.
        pub received: DevicePointer<u64>,
        /// `[groups]`: each group's `Status`; written.
        pub statuses: DevicePointer<u64>,
        /// `[size][groups][words]` in the heap: where messages are put to.
        pub slots: u64,
        /// `[size][groups][words]` in the heap: where messages are pulled from.
        pub outbox: u64,
        /// `[size][groups]` signal words: messages that have come.
        pub arrived: u64,
        /// `[size][groups]` signal words: messages that the peer has consumed.
        pub consumed: u64,
        /// Words of a message.
        pub words: u32,
        /// Messages a row.
        pub rounds: u32,
        /// Groups of the grid.
        pub groups: u32,
        /// How messages go; `EnginesMode` in the kernel.
        pub mode: u32,
        /// 0 thread, 1 wave, 2 block.
        pub scope: u32,
        /// Whether signals add one; else they set the round.
        pub adds: u32,
        /// The operation's code in fault records.
        pub operation: u32,
        /// Zero.
        pub reserved: u32,
    }
}

device_struct! {
    /// Arguments of `anabranch_sim_copy`.
    pub struct CopyArgs {
        /// Where to.
        pub to: DevicePointer<u64>,
        /// Where from.
        pub from: DevicePointer<u64>,
        /// How many.
        pub words: u32,
        /// Zero.
        pub reserved: u32,
    }
}

device_struct! {
    /// Arguments of `anabranch_sim_copy_bytes`.
    pub struct CopyBytesArgs {
        /// Where to.
        pub to: DevicePointer<u8>,
        /// Where from.
        pub from: DevicePointer<u8>,
        /// How many.
        pub bytes: u64,
    }
}

/// Writes and reads buffers before and behind collectives.
pub static COPY: KernelUnit = KernelUnit {
    name: "sim_copy",
    source: include_str!("../kernels/copy.hip"),
    headers: &[PRELUDE],
    entries: &["anabranch_sim_copy", "anabranch_sim_copy_bytes"],
    layouts: &[CopyArgs::c_declaration, CopyBytesArgs::c_declaration],
};

/// Writes and reads around operations in the order of a stream.
pub static AROUND: KernelUnit = KernelUnit {
    name: "sim_around",
    source: include_str!("../kernels/around.hip"),
    headers: &[PRELUDE],
    entries: &["anabranch_sim_write", "anabranch_sim_read", "anabranch_sim_push", "anabranch_sim_look"],
    layouts: &[TeamView::c_declaration, AroundArgs::c_declaration],
};

/// Messages over slots that are used again; parameter `SIM_PUT_SIGNAL`.
pub static MESSAGES: KernelUnit = KernelUnit {
    name: "sim_messages",
    source: include_str!("../kernels/messages.hip"),
    headers: &[PRELUDE, DEVICE_HEADERS],
    entries: &["anabranch_sim_messages"],
    layouts: &[BarrierWorkspace::c_declaration, MessagesArgs::c_declaration],
};

/// Messages by `put_signal`, or by put and signal with what orders them in between.
pub fn messages(put_signal: bool) -> KernelSpec {
    KernelSpec::new(&MESSAGES).with("SIM_PUT_SIGNAL", put_signal)
}

/// Rows of all ranks, behind waits for several words.
pub static GATHER: KernelUnit = KernelUnit {
    name: "sim_gather",
    source: include_str!("../kernels/gather.hip"),
    headers: &[PRELUDE, DEVICE_HEADERS],
    entries: &["anabranch_sim_gather"],
    layouts: &[BarrierWorkspace::c_declaration, GatherArgs::c_declaration],
};

kernel_unit! {
    /// Messages by copy engines whose queues kernels write.
    pub static ENGINES_UNIT: "sim_engines", include_str!("../kernels/engines.hip"), &[PRELUDE, DEVICE_HEADERS], layouts [BarrierWorkspace];
    /// Every group of a grid exchanges messages with all peers; block of at most 64 threads.
    pub const ENGINES: Kernel<EnginesArgs> = "anabranch_sim_engines";
}
