//! What kernels know about a group.

use anabranch_hip_jit::control::WaitControl;
use anabranch_hip_jit::{DevicePointer, device_struct};

use super::transports::{RdmaQueue, SdmaQueue};

device_struct! {
    /// What a kernel knows about its group. Passed by value inside argument structs; a kernel sees group ranks only.
    pub struct TeamView {
        /// Members.
        pub size: u32,
        /// This rank's place in the group.
        pub rank: u32,
        /// The group's number, for fault records.
        pub group: u64,
        /// Where each member's heap starts as this rank sees it, in group order, its own included. Null for a member that
        /// is not mapped here.
        pub peer_bases: DevicePointer<u64>,
        /// The world's words for bounded waits.
        pub control: DevicePointer<WaitControl>,
        /// The queues of copy engines by which members are reached: `queues_per_peer` for each, in group order. Null where there
        /// are none.
        pub queues: DevicePointer<SdmaQueue>,
        /// The queue pairs by which members are reached: `nics_per_peer` for each, in group order. Null where there are none.
        pub nics: DevicePointer<RdmaQueue>,
        /// Entries for each member in `queues`; 0 without a table.
        pub queues_per_peer: u32,
        /// Entries for each member in `nics`; 0 without a table.
        pub nics_per_peer: u32,
    }
}
