//! The rows of collectives.

use super::table::{File, HeldBy};
use HeldBy::{Mutants, NotNeeded, Test};

/// A meeting and what it is made of. That it is one, and not half of one, is held where the meeting itself is.
const MEETING: &[&str] = &["MEET_LOOSE", "MEET_FLAG_FIRST", "MEET_NO_BARRIER_AFTER"];

/// That a block learns of the fault of one of its threads.
const FAULT: HeldBy = Test(
    "dev/sim/src/scenarios/ccl/tests.rs: behind a fault nobody writes into the memory of a member that has not come",
);

pub(super) const FILES: &[File] = &[
    File {
        file: "ccl/device/ccl/channel.h",
        rows: &[
            ("channel_open", "flag_load", super::prelude::ABORT_WORD),
            ("channel_open", "block_barrier", Mutants(&["CHANNEL_OPENED_UNREAD"])),
        ],
    },
    File {
        file: "ccl/device/ccl/meet.h",
        rows: &[
            (
                "exchange_flags",
                "flag_store",
                Mutants(&["MEET_FLAG_FIRST", "CHANNEL_MEETS_NOT_KEPT", "MEET_LOOSE", "VALUE_ONE_PLACE"]),
            ),
            ("exchange_flags", "wait_until", Mutants(&["NO_WAIT", "MEET_LOOSE", "MEETS_EQUAL"])),
            (
                "exchange_flags",
                "acquire_after_wait",
                Mutants(&["MEET_NO_ACQUIRE", "ACQUIRE_AT_DEVICE_SCOPE"]),
            ),
            ("exchange_flags", "block_barrier", Mutants(&["MEET_NO_BARRIER_AFTER"])),
            ("exchange_flags", "channel_look", FAULT),
            (
                "meet",
                "release_for_first",
                Mutants(&[
                    "MEET_FLAG_FIRST",
                    "BLOCK_QUIET_UNRELEASED",
                    "BLOCK_QUIET_BY_ONE_THREAD",
                    "BLOCK_QUIET_NO_BARRIER",
                    "QUIET_AT_DEVICE_SCOPE",
                ]),
            ),
            ("meet_first", "offer_earlier_work", Mutants(&["MEET_FIRST_OFFERS_NOTHING"])),
            ("meet_with_values", "meet", Mutants(MEETING)),
        ],
    },
    File {
        file: "ccl/device/ccl/packets.h",
        rows: &[
            ("clear_packets", "packet_store", Mutants(&["PACKETS_NOT_CLEARED"])),
            ("next_epoch", "meet", Mutants(&["PACKETS_CLEARED_UNMET"])),
            ("end_epoch", "block_barrier", Mutants(&["PACKETS_NO_BARRIER"])),
            (
                "end_epoch",
                "channel_look",
                NotNeeded(
                    "Ends the loop over epochs early. Without it every wait that is left fails at once, as the world is poisoned, \
                     and what is still sent are packets as before, for members that wait for them.",
                ),
            ),
            ("send", "packet_store", Mutants(&["PACKETS_ONE_BUFFER", "CHANNEL_EPOCH_NOT_KEPT"])),
            ("receive_packets", "packet_load", Mutants(&["PACKET_HALF_LOOKED_AT"])),
            (
                "receive_packets",
                "wait_for",
                Mutants(&["NO_WAIT", "PACKET_HALF_LOOKED_AT", "CHANNEL_EPOCH_NOT_KEPT"]),
            ),
        ],
    },
    File {
        file: "ccl/kernels/move.hip",
        rows: &[
            ("move_packets", "end_epoch", Mutants(&["PACKETS_NO_BARRIER"])),
            // Tells how long the longest message is; what the steps write has meetings of its own.
            ("move_staged", "meet_with_values", Mutants(&["VALUE_ONE_PLACE", "MEET_LOOSE"])),
            ("move_staged", "meet", Mutants(&["STAGED_NO_MEETING", "STAGING_ONE_HALF"])),
            ("move_direct", "meet_with_values", Mutants(&["DIRECT_NO_FIRST_MEETING", "VALUE_ONE_PLACE"])),
            ("move_direct", "meet_first", Mutants(&["DIRECT_NO_FIRST_MEETING"])),
            ("move_direct", "meet", Mutants(&["DIRECT_NO_LAST_MEETING", "DIRECT_LAST_AS_FIRST"])),
            ("anabranch_ccl_barrier", "meet", Mutants(MEETING)),
        ],
    },
    File {
        file: "ccl/kernels/packet_reduce.hip",
        rows: &[
            ("one_shot", "end_epoch", Mutants(&["PACKETS_NO_BARRIER"])),
            ("two_shot", "end_epoch", Mutants(&["PACKETS_NO_BARRIER"])),
            ("scatter_packets", "end_epoch", Mutants(&["PACKETS_NO_BARRIER"])),
        ],
    },
    File {
        file: "ccl/device/ccl/row_norm.h",
        rows: &[
            ("sum_of_squares", "block_barrier", Mutants(&["NORM_SQUARES_UNREAD"])),
            ("finish_row", "block_barrier", Mutants(&["NORM_CODES_EARLY"])),
        ],
    },
    File {
        file: "ccl/kernels/reduce_norm.hip",
        rows: &[
            ("one_shot_row", "end_epoch", Mutants(&["PACKETS_NO_BARRIER"])),
            ("two_shot_row", "end_epoch", Mutants(&["PACKETS_NO_BARRIER"])),
            ("norm_rows", "block_barrier", Mutants(&["NORM_ROW_OVERWRITTEN"])),
            ("anabranch_ccl_rms_norm", "block_barrier", Mutants(&["NORM_ROW_OVERWRITTEN"])),
            (
                "anabranch_ccl_rms_norm",
                "block_barrier",
                NotNeeded(
                    "Before the squares are added. A thread adds those of the units that it kept itself, as long as the threads of a \
                     block divide the number of partial sums, which every communicator's do.",
                ),
            ),
        ],
    },
    File {
        file: "ccl/kernels/bulk_reduce.hip",
        rows: &[
            (
                "scatter_step",
                "meet",
                NotNeeded(
                    "Keeps members at one peer each, for the links' sake. What is read has a meeting of its own behind it.",
                ),
            ),
            ("scatter_step", "meet", Mutants(&["PUSH_NO_MEETING"])),
            ("pull", "meet_first", Mutants(&["PULL_NO_FIRST_MEETING"])),
            ("pull", "meet", Mutants(&["PULL_NO_LAST_MEETING"])),
            ("push", "meet", Mutants(&["PUSH_NO_MEETING", "STAGING_ONE_HALF"])),
            ("push", "meet", Mutants(&["RELAYED_NO_MEETING", "RELAYED_SAME_HALF"])),
            ("push", "meet", Mutants(&["PUSH_NO_LAST_MEETING"])),
            ("reduce_brought", "meet", Mutants(&["ENGINE_NO_MEETING"])),
            ("reduce_brought", "meet", Mutants(&["ENGINE_NO_MEETING_BEHIND"])),
        ],
    },
];
