//! The rows of ccl's sends and receives, and of many tensors gathered.

use super::table::{File, HeldBy};
use HeldBy::{NotNeeded, Test, Twins};

const AS_IN_MOVE: HeldBy = Test(
    "crates/ccl/tests/gather_many.rs: meets where move.hip does, whose meetings have twins that are searched",
);

pub(super) const FILES: &[File] = &[
    File {
        file: "ccl/kernels/gather_many.hip",
        rows: &[
            ("gather_staged", "meet", AS_IN_MOVE),
            ("gather_direct", "meet", AS_IN_MOVE),
            ("gather_direct", "meet", AS_IN_MOVE),
        ],
    },
    File {
        file: "ccl/kernels/pipes.hip",
        rows: &[
            ("next_pick", "wait_for", Twins(&["NO_WAIT", "PIPE_CREDIT_LOOSE"])),
            ("next_pick", "flag_load", Twins(&["PIPE_CREDIT_LOOSE", "EPOCH_LOOSE", "NO_WAIT"])),
            (
                "next_pick",
                "flag_load",
                NotNeeded("For the report of a wait that failed: the counter as it was seen last."),
            ),
            ("next_pick", "fence_acquire_system", Twins(&["PIPE_NO_ACQUIRE", "PIPE_NO_BARRIER"])),
            (
                "move_chunk",
                "block_release_system",
                Twins(&["PIPE_UNRELEASED", "PIPE_FLAG_FIRST", "PIPE_CONSUMED_UNREAD"]),
            ),
            ("move_chunk", "flag_store", Twins(&["PIPE_FLAG_FIRST", "PIPE_CONSUMED_UNREAD"])),
        ],
    },
];
