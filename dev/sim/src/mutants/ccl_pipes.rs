//! The rows of ccl's sends and receives, and of many tensors gathered.

use super::table::{File, HeldBy};
use HeldBy::{Mutants, NotNeeded};

pub(super) const FILES: &[File] = &[
    File {
        file: "ccl/kernels/gather_many.hip",
        rows: &[
            ("gather_packets", "end_epoch", Mutants(&["PACKETS_NO_BARRIER"])),
            ("gather_staged", "meet", Mutants(&["STAGED_NO_MEETING", "STAGING_ONE_HALF"])),
            ("gather_direct", "meet_first", Mutants(&["DIRECT_NO_FIRST_MEETING"])),
            ("gather_direct", "meet", Mutants(&["DIRECT_NO_LAST_MEETING", "DIRECT_LAST_AS_FIRST"])),
        ],
    },
    File {
        file: "ccl/kernels/pipes.hip",
        rows: &[
            ("next_pick", "wait_for", Mutants(&["NO_WAIT", "PIPE_CREDIT_LOOSE"])),
            ("next_pick", "flag_load", Mutants(&["PIPE_CREDIT_LOOSE", "EPOCH_LOOSE", "NO_WAIT"])),
            (
                "next_pick",
                "flag_load",
                NotNeeded("For the report of a wait that failed: the counter as it was seen last."),
            ),
            ("next_pick", "fence_acquire_system", Mutants(&["PIPE_NO_ACQUIRE", "PIPE_NO_BARRIER"])),
            (
                "move_chunk",
                "block_release_system",
                Mutants(&["PIPE_UNRELEASED", "PIPE_FLAG_FIRST", "PIPE_CONSUMED_UNREAD"]),
            ),
            ("move_chunk", "flag_store", Mutants(&["PIPE_FLAG_FIRST", "PIPE_CONSUMED_UNREAD"])),
        ],
    },
];
