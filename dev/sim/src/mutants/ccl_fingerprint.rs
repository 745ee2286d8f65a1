//! The rows of the comparison of calls, and of channels that are watched.

use super::table::{File, HeldBy};
use HeldBy::{Mutants, NotNeeded};

const COUNT_IN: HeldBy = NotNeeded(
    "Counts the launches on a channel, for a report; atomic, as launches that overlap count at once. Without it no overlap is \
     reported: overlapping_launches_are_reported in crates/ccl/tests/fingerprint.rs.",
);

pub(super) const FILES: &[File] = &[
    File {
        file: "ccl/kernels/fingerprint.hip",
        rows: &[("compare", "meet", Mutants(&["FINGERPRINT_NOT_MET"]))],
    },
    File {
        file: "ccl/device/ccl/channel.h",
        rows: &[
            ("channel_open", "fetch_add_device", COUNT_IN),
            ("channel_close", "fetch_add_device", Mutants(&["CHANNEL_NOT_LEFT"])),
        ],
    },
];
