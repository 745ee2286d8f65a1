//! The rows of collectives in two hops and round the ring.

use super::table::{File, HeldBy};
use HeldBy::{Mutants, Test};

pub(super) const FILES: &[File] = &[
    File {
        file: "ccl/kernels/two_hop.hip",
        rows: &[
            ("two_hop", "meet", Mutants(&["TWO_HOP_NO_FIRST_MEETING"])),
            (
                "two_hop",
                "meet",
                Mutants(&["TWO_HOP_NO_MEETING", "TWO_HOP_RELAYED_NO_MEETING", "TWO_HOP_SAME_HALF"]),
            ),
            ("two_hop", "meet", Mutants(&["TWO_HOP_NO_LAST_MEETING"])),
        ],
    },
    File {
        file: "ccl/device/ccl/ring.h",
        rows: &[
            ("ring_open", "meet", Mutants(&["RING_NO_MEETING"])),
            ("ring_wait", "wait_until", Mutants(&["NO_WAIT", "EPOCH_LOOSE", "RING_COUNT_NOT_KEPT"])),
            ("ring_wait", "wait_until", Mutants(&["RING_CREDIT_LOOSE", "EPOCH_LOOSE", "NO_WAIT"])),
            ("ring_wait", "acquire_after_wait", Mutants(&["RING_NO_ACQUIRE"])),
            ("ring_tell_taken", "flag_store", Mutants(&["RING_CONSUMED_UNREAD"])),
            ("ring_tell_given", "flag_store", Mutants(&["RING_FLAG_FIRST"])),
            ("ring_step", "block_barrier", Mutants(&["RING_NO_BARRIER"])),
            (
                "ring_step",
                "lane_look",
                Test(
                    "crates/sim/src/scenarios/ccl/tests.rs: behind a fault nobody writes into the memory of a member that has not come",
                ),
            ),
            (
                "ring_step",
                "block_release_system",
                Mutants(&["RING_UNRELEASED", "RING_FLAG_FIRST", "RING_CONSUMED_UNREAD"]),
            ),
        ],
    },
];
