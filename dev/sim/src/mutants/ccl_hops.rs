//! The rows of broadcasts in two hops, and of reductions to a root.

use super::table::{File, HeldBy};
use HeldBy::Mutants;

pub(super) const FILES: &[File] = &[
    File {
        file: "ccl/kernels/two_hop.hip",
        rows: &[
            ("two_hop", "meet_first", Mutants(&["TWO_HOP_NO_FIRST_MEETING"])),
            (
                "two_hop",
                "meet",
                Mutants(&["TWO_HOP_NO_MEETING", "TWO_HOP_SAME_HALF", "TWO_HOP_NO_LAST_MEETING"]),
            ),
        ],
    },
    File {
        file: "ccl/kernels/push_to_root.hip",
        rows: &[(
            "push_to_root",
            "meet",
            Mutants(&["TO_ROOT_NO_MEETING", "TO_ROOT_SAME_HALF", "TO_ROOT_NO_LAST_MEETING"]),
        )],
    },
];
