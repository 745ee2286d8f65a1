//! Kernels that put the device functions to the test, cases for them, and what memory has to hold behind them; used by the tests of
//! `anabranch-shmem` and by `anabranch bench shmem`.
//!
//! Offsets are bytes from the start of the heap, equal on all ranks. `scope` is 0 for thread, 1 for wave, 2 for block.

use anabranch_hip_jit::{
    DevicePointer, Header, KernelSpec, KernelUnit, PRELUDE, device_headers, device_struct, kernel_unit,
};

mod atomics;
mod copies;
mod messages;

pub use atomics::{AtomicCase, AtomicKind, AtomicRun, AtomicWays, WrongOldValues};
pub use copies::{Copies, CopyKind, Places, SIZES, after};
pub use messages::{MessageBuffers, MessageMode, MessageRun};

use anabranch_shmem::TeamView;
use anabranch_shmem::device_api::{BarrierWorkspace, DEVICE_HEADERS};

device_struct! {
    /// One copy, or one value.
    pub struct CopyCase {
        /// The object at the peer.
        pub remote: u64,
        /// The object in the own heap.
        pub local: u64,
        /// How many bytes; 1, 2, 4 or 8 for a value.
        pub bytes: u64,
        /// The signal word at the peer.
        pub signal: u64,
        /// The signal's value, or the value that is put.
        pub value: u64,
        /// The peer, as a rank of the group.
        pub peer: u32,
        /// 0 sets the signal, 1 adds to it.
        pub signal_op: u32,
    }
}

device_struct! {
    /// Arguments of `anabranch_shmem_conformance_copy`. Any grid.
    pub struct CopyArgs {
        /// The team.
        pub team: TeamView,
        /// `[case_count]`.
        pub cases: DevicePointer<CopyCase>,
        /// `[case_count]`: each case's `Status`; written.
        pub statuses: DevicePointer<u32>,
        /// How many cases.
        pub case_count: u32,
        /// Which operation: 0 put, 1 put_nbi, 2 get, 3 get_nbi, 4 put_signal, 5 put_signal_nbi, 6 p, 7 g.
        pub kind: u32,
        /// The scope; not looked at for values.
        pub scope: u32,
        /// The operation's code in fault records.
        pub operation: u32,
    }
}

device_struct! {
    /// Arguments of `anabranch_shmem_conformance_message`. Two blocks a rank of the team.
    pub struct MessageArgs {
        /// The team.
        pub team: TeamView,
        /// `[rounds][size][stride]`: what is sent to each rank.
        pub prepared: DevicePointer<u8>,
        /// `[size][stride]`: where messages are put from.
        pub staging: DevicePointer<u8>,
        /// `[rounds][size][stride]`: what came from each rank; written.
        pub log: DevicePointer<u8>,
        /// `[2 * size]`: each block's `Status`; written.
        pub statuses: DevicePointer<u32>,
        /// `[size][stride]`: where messages are put to.
        pub slots: u64,
        /// `[size]` signal words: messages that have come from each rank.
        pub arrived: u64,
        /// `[size]` signal words: messages that each rank has consumed.
        pub consumed: u64,
        /// Bytes of a message.
        pub bytes: u32,
        /// Bytes from one message's place to the next.
        pub stride: u32,
        /// Messages a pair.
        pub rounds: u32,
        /// 0: put, quiet, signal. 1: put_signal. 2: put_signal_nbi. 3: put, fence, signal (thread scope).
        pub mode: u32,
        /// The scope.
        pub scope: u32,
        /// 0 sets the signal to the round, 1 adds one.
        pub signal_op: u32,
        /// The operation's code in fault records.
        pub operation: u32,
        /// Zero.
        pub reserved: u32,
    }
}

device_struct! {
    /// One comparison of `anabranch_shmem_conformance_compare`.
    pub struct CompareCase {
        /// The signal word.
        pub word: u64,
        /// What it is compared with.
        pub value: u64,
        /// 0 EQ, 1 NE, 2 GT, 3 GE, 4 LT, 5 LE.
        pub compare: u32,
        /// Zero.
        pub reserved: u32,
    }
}

device_struct! {
    /// Arguments of the three kernels of [`WAIT_UNIT`]; each reads a part.
    pub struct WaitArgs {
        /// The team.
        pub team: TeamView,
        /// compare: `[count]`.
        pub cases: DevicePointer<CompareCase>,
        /// compare: `[count][threads]`; several: `[rounds + size][threads]`, status and index; expiry: `[2][threads]`,
        /// statuses. Written.
        pub results: DevicePointer<u32>,
        /// several, expiry: signal words.
        pub words: u64,
        /// expiry: what is waited for.
        pub value: u64,
        /// compare: cases; expiry: words.
        pub count: u32,
        /// several: rounds of wait_all.
        pub rounds: u32,
        /// expiry: 0 signal_wait, 1 wait_all, 2 wait_any.
        pub kind: u32,
        /// The scope.
        pub scope: u32,
        /// expiry: who should have signalled.
        pub peer: u32,
        /// The operation's code in fault records.
        pub operation: u32,
    }
}

device_struct! {
    /// Arguments of `anabranch_shmem_conformance_atomics`.
    pub struct AtomicArgs {
        /// The team.
        pub team: TeamView,
        /// `[size][participants][rounds][3]`: old values; written.
        pub log: DevicePointer<u64>,
        /// The word, or where the words start.
        pub words: u64,
        /// What is added.
        pub value: u64,
        /// Threads of each rank that take part.
        pub participants: u32,
        /// Operations of a thread on each rank.
        pub rounds: u32,
        /// 0 add, 1 fetch_add, 2 or, 3 and, 4 xor, 5 fetch_or, fetch_xor and fetch_and, 6 swap, 7 compare_swap, 8 set and
        /// fetch, 9 signals that add.
        pub kind: u32,
        /// 4 or 8.
        pub element_bytes: u32,
        /// Whether the words are signed.
        pub is_signed: u32,
        /// The operation's code in fault records.
        pub operation: u32,
        /// To which members ([`AtomicWays`]): 1 those whose memory is mapped, 2 those by NIC, 3 all.
        pub ways: u32,
        /// Zero.
        pub reserved: u32,
    }
}

device_struct! {
    /// Arguments of `anabranch_shmem_conformance_barrier`. One block.
    pub struct BarrierArgs {
        /// The team.
        pub team: TeamView,
        /// The barrier's.
        pub workspace: BarrierWorkspace,
        /// `[first_round + rounds][size + 1][threads]`: what was read after each barrier; written.
        pub log: DevicePointer<u64>,
        /// `[threads]`: the last `Status`; written.
        pub statuses: DevicePointer<u32>,
        /// `[2][size + 1][threads]` words.
        pub slots: u64,
        /// How late a rank may come, nanoseconds.
        pub skew_ns: u64,
        /// Number of the first round.
        pub first_round: u32,
        /// Rounds.
        pub rounds: u32,
        /// 0 team_sync, 1 team_barrier; 2: team_sync alone, of each block in its turn, and nothing is logged.
        pub kind: u32,
        /// The operation's code in fault records.
        pub operation: u32,
    }
}

const HEADERS: &[&[Header]] = &[PRELUDE, DEVICE_HEADERS, device_headers!()];

kernel_unit! {
    /// Copies and single values.
    pub static COPY_UNIT: "conformance_copy", include_str!("../../kernels/shmem_copy.hip"), HEADERS, layouts [BarrierWorkspace, CopyCase];
    /// Runs the cases of one [`CopyKind`].
    pub const COPY: Kernel<CopyArgs> = "anabranch_shmem_conformance_copy";
}

kernel_unit! {
    /// Messages between all pairs.
    pub static MESSAGE_UNIT: "conformance_message", include_str!("../../kernels/shmem_message.hip"), HEADERS, layouts [BarrierWorkspace];
    /// Sends to and receives from all peers in one [`MessageMode`].
    pub const MESSAGE: Kernel<MessageArgs> = "anabranch_shmem_conformance_message";
}

kernel_unit! {
    /// Comparisons, several words, expiry.
    pub static WAIT_UNIT: "conformance_wait", include_str!("../../kernels/shmem_wait.hip"), HEADERS, layouts [BarrierWorkspace, CompareCase];
    /// Waits for a word by each comparison.
    pub const COMPARE: Kernel<WaitArgs> = "anabranch_shmem_conformance_compare";
    /// Waits for any, some and all of several words.
    pub const SEVERAL: Kernel<WaitArgs> = "anabranch_shmem_conformance_several";
    /// Waits for a word that no rank writes, until the budget is over.
    pub const EXPIRY: Kernel<WaitArgs> = "anabranch_shmem_conformance_expiry";
}

kernel_unit! {
    /// Contended atomics.
    pub static ATOMICS_UNIT: "conformance_atomics", include_str!("../../kernels/shmem_atomics.hip"), HEADERS, layouts [BarrierWorkspace];
    /// Threads of all ranks contend for the same words by one [`AtomicKind`].
    pub const ATOMICS: Kernel<AtomicArgs> = "anabranch_shmem_conformance_atomics";
}

kernel_unit! {
    /// Barriers back to back.
    pub static BARRIER_UNIT: "conformance_barrier", include_str!("../../kernels/shmem_barrier.hip"), HEADERS;
    /// Barriers of a team; logs what each thread reads from its peers between them.
    pub const BARRIER: Kernel<BarrierArgs> = "anabranch_shmem_conformance_barrier";
}

/// All of them.
pub static UNITS: [&KernelUnit; 5] = [&COPY_UNIT, &MESSAGE_UNIT, &WAIT_UNIT, &ATOMICS_UNIT, &BARRIER_UNIT];

/// The unit as it is.
pub fn spec(unit: &'static KernelUnit) -> KernelSpec {
    KernelSpec::new(unit)
}

/// Every kernel of the conformance tests: what a prebuild compiles.
pub fn kernels() -> Vec<KernelSpec> {
    let by_engines = UNITS.into_iter().map(|unit| KernelSpec::new(unit).with("SHMEM_ENGINES", 1));
    UNITS.into_iter().map(KernelSpec::new).chain(by_engines).collect()
}

/// The next number of a sequence that is the same in every run.
pub fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed(*state)
}

/// A number that depends on every bit of another; as in `conformance/shmem.h`.
pub fn mixed(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
