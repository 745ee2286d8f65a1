//! The rows of collectives across machines.

use super::table::{File, HeldBy};
use HeldBy::Mutants;

pub(super) const FILES: &[File] = &[
    File {
        file: "ccl/device/ccl/links.h",
        rows: &[
            (
                "ready_port",
                "wait_until",
                Mutants(&[
                    "CCL_NETWORK_CREDIT_LOOSE",
                    "CCL_NETWORK_COUNT_NOT_KEPT",
                    "NO_WAIT",
                    "EPOCH_LOOSE",
                ]),
            ),
            (
                "count_inside",
                "flag_store",
                Mutants(&["CCL_NETWORK_FLAG_FIRST", "CCL_NETWORK_CONSUMED_UNREAD"]),
            ),
        ],
    },
    File {
        file: "ccl/device/ccl/network.h",
        rows: &[
            ("do_step", "acquire_after_wait", Mutants(&["CCL_NETWORK_NO_ACQUIRE"])),
            ("do_step", "block_barrier", Mutants(&["CCL_NETWORK_NO_BARRIER"])),
            (
                "do_step",
                "release_for_first",
                Mutants(&["CCL_NETWORK_UNRELEASED", "CCL_NETWORK_FLAG_FIRST", "CCL_NETWORK_CONSUMED_UNREAD"]),
            ),
            ("do_step", "block_barrier", Mutants(&["CCL_NETWORK_STEP_UNFINISHED"])),
        ],
    },
];
