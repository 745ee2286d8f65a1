//! The rows of collectives in two hops.

use super::table::{File, HeldBy};
use HeldBy::Mutants;

pub(super) const FILES: &[File] = &[File {
    file: "ccl/kernels/two_hop.hip",
    rows: &[
        ("two_hop", "meet_first", Mutants(&["TWO_HOP_NO_FIRST_MEETING"])),
        (
            "two_hop",
            "meet",
            Mutants(&["TWO_HOP_NO_MEETING", "TWO_HOP_RELAYED_NO_MEETING", "TWO_HOP_SAME_HALF"]),
        ),
        ("two_hop", "meet", Mutants(&["TWO_HOP_NO_LAST_MEETING"])),
    ],
}];
