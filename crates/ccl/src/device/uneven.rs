//! Argument structs of calls with different counts.

use anabranch_hip_jit::device_struct;

use crate::device::args::{MOST_UNEVEN, MoveArgs, ReduceArgs};

device_struct! {
    /// The bytes exchanged with one member, with different counts. Offsets are from the start of the buffers.
    pub struct MoveEntry {
        /// Offset of the bytes for the member in the input.
        pub send_offset: u64,
        /// Bytes sent to the member.
        pub send_bytes: u64,
        /// Offset of the bytes from the member in the output.
        pub receive_offset: u64,
        /// Bytes received from the member.
        pub receive_bytes: u64,
    }
}

device_struct! {
    /// Arguments of the kernels for different counts.
    pub struct UnevenArgs {
        /// Communicator, buffers and `most_bytes`; other fields are unused.
        pub even: MoveArgs,
        /// The bytes exchanged with each member.
        pub entries: [MoveEntry; MOST_UNEVEN],
    }
}

device_struct! {
    /// The part of one member in the inputs of a reduce_scatter with different counts.
    pub struct ReducePart {
        /// Its offset.
        pub start: u64,
        /// Its bytes.
        pub bytes: u64,
    }
}

device_struct! {
    /// Arguments of the kernels of a reduce_scatter with different counts. All members know all parts.
    pub struct UnevenReduceArgs {
        /// The call. `count`, `part_units`, `part_bytes` and what follows from them are those of the longest part.
        pub reduce: ReduceArgs,
        /// The part of each member.
        pub parts: [ReducePart; MOST_UNEVEN],
    }
}
