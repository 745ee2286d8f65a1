//! Kernels that move bytes between two heaps and nothing more: what a benchmark or a diagnosis of links runs.
//!
//! Offsets are bytes from the start of the heap, equal on all ranks.

use anabranch_hip_jit::{DevicePointer, PRELUDE, device_struct, kernel_unit};

use crate::route::TeamView;

device_struct! {
    /// Arguments of the copy, fill and check kernels.
    pub struct P2pCopyArgs {
        /// The team.
        pub team: TeamView,
        /// Units that `anabranch_p2p_check` found wrong; added to.
        pub wrong: DevicePointer<u64>,
        /// Where what is sent to each rank lies.
        pub outgoing: u64,
        /// Where what comes from each rank lies.
        pub incoming: u64,
        /// Bytes between the areas of two ranks.
        pub stride: u64,
        /// Bytes for each rank, a multiple of 16.
        pub bytes: u64,
        /// The first step of the run: rank r serves the ranks r + `first_step` and on.
        pub first_step: u32,
        /// Steps of the run.
        pub peers: u32,
        /// Whether bytes are pushed; else they are pulled.
        pub pushed: u32,
        /// A number for the words of the run.
        pub seed: u32,
    }
}

device_struct! {
    /// Arguments of `anabranch_p2p_ping`. One block; 16 bytes of local memory.
    pub struct P2pPingArgs {
        /// The team.
        pub team: TeamView,
        /// Rounds of all launches before; the kernel adds its own.
        pub base: DevicePointer<u64>,
        /// Units of a verifying launch that were wrong; added to.
        pub wrong: DevicePointer<u64>,
        /// One flag word for each rank, zero before the first launch.
        pub flags_offset: u64,
        /// Where the payload is sent from.
        pub outgoing: u64,
        /// Where the payload comes to.
        pub incoming: u64,
        /// Bytes of the payload, a multiple of 16, at most 32 for each thread; 0 sends the flag alone.
        pub bytes: u64,
        /// Bytes between two flag words.
        pub flag_stride: u32,
        /// The other rank.
        pub peer: u32,
        /// Whether this rank sends first.
        pub first: u32,
        /// How often a payload goes to and fro.
        pub rounds: u32,
        /// The operation's number in fault records.
        pub operation: u32,
        /// Whether payloads name their round and are compared.
        pub verify: u32,
    }
}

kernel_unit! {
    /// Copies by stores and loads, and the ping.
    pub static P2P_UNIT: "bench_p2p", include_str!("../kernels/p2p.hip"), &[PRELUDE];
    /// The sender stores into its peers.
    pub const STORE: Kernel<P2pCopyArgs> = "anabranch_p2p_store";
    /// The receiver loads from its peers.
    pub const LOAD: Kernel<P2pCopyArgs> = "anabranch_p2p_load";
    /// Fills the outgoing areas with words that depend on sender, receiver and seed.
    pub const FILL: Kernel<P2pCopyArgs> = "anabranch_p2p_fill";
    /// Counts the 16-byte units that differ from what the senders filled in.
    pub const CHECK: Kernel<P2pCopyArgs> = "anabranch_p2p_check";
    /// Sends a payload and a flag to and fro between two ranks.
    pub const PING: Kernel<P2pPingArgs> = "anabranch_p2p_ping";
}
