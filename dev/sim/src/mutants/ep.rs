//! The rows of dispatch and combine.

use super::table::{File, HeldBy};
use HeldBy::{Mutants, NotNeeded, OtherMemory, Test};

const LOCAL: HeldBy = OtherMemory(
    "Orders the clearing of the fault word before its setting, in local memory; seen only when a wait fails before thread 0 \
     has taken its first step. Needs a poisoned world in the midst of a launch.",
);
const INVALID: HeldBy = NotNeeded(
    "Counts masked ids for the host, which looks when the kernel is over; atomic, as blocks count at once.",
);

const RECORD: HeldBy = NotNeeded(
    "The first block writes the record for the host, which reads it when the kernel is over; atomic, as several blocks may mask a rank at once.",
);
const ZEROS: HeldBy = NotNeeded(
    "After a fault: every block that saw it writes the same zeros, at once, so they are atomics. They are read when the kernel is over.",
);

/// What dispatch and combine give to engines, on worlds whose engines are slow, stall, or have tiny rings.
const COUNTED: HeldBy =
    Test("crates/ep/tests/expert_major.rs: the oracle compares the counts of local experts");

const BY_ENGINE: HeldBy = Test(
    "crates/ep/tests/engine.rs::mutants_are_caught: the mutants of its own, and every row against the oracle",
);
/// Flags after copies of streams.
const BEHIND_COPIES: HeldBy = Test(
    "crates/ep/tests/engine.rs: routes by mapping, every row against the oracle; the kernel is after the join",
);
const LINED_UP: HeldBy = Test(
    "crates/ep/tests/contiguous.rs: rows at their places, which every wave takes from the starts of all experts",
);
const TOGETHER: HeldBy = NotNeeded(
    "Brings the first wave together after what its first lane did alone, for the calls of the whole wave that follow; what they send is \
     ordered by themselves.",
);
const BEFORE_ENGINES: HeldBy = OtherMemory(
    "Rows in the window were written by earlier kernels, whose end releases them on the machine as it is. On GPUs with several \
     caches the end of a kernel may leave them there, which an engine does not look at.",
);

pub(super) const FILES: &[File] = &[
    File {
        file: "ep/kernels/count.hip",
        rows: &[
            ("tally_share", "block_barrier", Mutants(&["TALLY_UNCOUNTED"])),
            ("tally_share", "fetch_add_device", Mutants(&["TALLY_TORN"])),
            ("exchange_words", "swap_system", Mutants(&["TALLY_NOT_TAKEN"])),
            ("exchange_words", "block_barrier", Mutants(&["TALLY_UNREAD"])),
            ("exchange_words", "flag_store", Mutants(&["COUNT_TWO_WORDS"])),
            ("exchange_words", "wait_until", Mutants(&["COUNT_UNWAITED"])),
            ("exchange_words", "block_barrier", Mutants(&["COUNT_NO_BARRIER"])),
            ("count_and_exchange", "arrive_is_last", Mutants(&["TALLY_TOLD_EARLY"])),
        ],
    },
    File {
        file: "ep/device/ep/dispatch_send.h",
        rows: &[("flag_counts", "flag_store", Mutants(&["TWO_FLAGS", "FLAG_BEFORE_DATA", "NO_RELEASE"]))],
    },
    File {
        file: "ep/device/ep/dispatch_grid.h",
        rows: &[
            ("await_counts", "block_barrier", LOCAL),
            ("await_counts", "acquire_after_wait", Mutants(&["DISPATCH_NO_ACQUIRE"])),
            ("await_counts", "block_barrier", Mutants(&["DISPATCH_NO_BARRIER", "EXCHANGE_EARLY_RETURN"])),
            ("write_share", "block_barrier", Mutants(&["ROUTE_UNCOUNTED"])),
            ("write_share", "block_barrier", Mutants(&["ROUTE_UNREAD", "NUMBERS_UNCOUNTED"])),
            ("write_share", "block_barrier", Mutants(&["ROUTE_OVERWRITTEN"])),
            (
                "write_rows",
                "arrive_is_last",
                Mutants(&[
                    "COUNT_BEFORE_RELEASE",
                    "FLAG_BEFORE_DATA",
                    "COUNTER_NOT_RESET",
                    "COUNTER_RESET_EARLY",
                    "TOTALS_UNRELEASED",
                ]),
            ),
        ],
    },
    File {
        file: "ep/device/ep/engine.h",
        rows: &[
            ("post_payloads", "post", BY_ENGINE),
            ("post_payloads", "post", BY_ENGINE),
            ("wait_posted", "wait_done", BY_ENGINE),
        ],
    },
    File {
        file: "ep/kernels/dispatch_engine.hip",
        rows: &[
            ("flag_others", "block_release_system", BEHIND_COPIES),
            ("flag_others", "flag_store", BEHIND_COPIES),
        ],
    },
    File {
        file: "ep/kernels/combine_engine.hip",
        rows: &[
            ("post_rows", "block_release_system", BEFORE_ENGINES),
            ("flag_others", "block_release_system", BEHIND_COPIES),
            ("flag_others", "flag_store", BEHIND_COPIES),
        ],
    },
    File {
        file: "ep/kernels/dispatch_nodes.hip",
        rows: &[
            ("flag_counts", "flag_store", Mutants(&["FLAG_BEFORE_DATA", "NO_RELEASE"])),
            ("flag_counts", "wave_barrier", TOGETHER),
        ],
    },
    File {
        file: "ep/kernels/dispatch_relay.hip",
        rows: &[
            ("wait_for_source", "acquire_after_wait", Mutants(&["NODES_RELAY_NO_ACQUIRE"])),
            ("flag_forwarded", "flag_store", Mutants(&["NODES_FORWARD_FLAG_FIRST"])),
            ("relay", "arrive_is_last", Mutants(&["NODES_FORWARD_FLAG_FIRST"])),
        ],
    },
    File {
        file: "ep/kernels/combine_nodes.hip",
        rows: &[
            ("flag_rows", "flag_store", Mutants(&["COMBINE_UNRELEASED", "NODES_STAGE_UNCOUNTED"])),
            ("flag_rows", "wave_barrier", TOGETHER),
            ("send_rows", "arrive_is_last", Mutants(&["NODES_STAGE_UNCOUNTED"])),
            ("send_rows", "block_release_system", Mutants(&["COMBINE_UNRELEASED"])),
        ],
    },
    File {
        file: "ep/kernels/dispatch_replay.hip",
        rows: &[
            ("flag_replay", "flag_store", Mutants(&["REPLAY_FLAG_FIRST"])),
            ("send_replay", "block_barrier", Mutants(&["REPLAY_UNREAD"])),
            ("send_replay", "block_barrier", Mutants(&["REPLAY_OVERWRITTEN"])),
            ("send_replay", "arrive_is_last", Mutants(&["REPLAY_FLAG_FIRST"])),
            ("receive_replay", "block_barrier", LOCAL),
            ("receive_replay", "wait_until", Mutants(&["REPLAY_UNWAITED"])),
            ("receive_replay", "acquire_after_wait", Mutants(&["REPLAY_NO_ACQUIRE"])),
            ("receive_replay", "block_barrier", Mutants(&["REPLAY_NO_BARRIER"])),
        ],
    },
    File {
        file: "ep/device/ep/dispatch_nothing.h",
        rows: &[
            ("report_nothing", "swap_system", ZEROS),
            ("report_nothing", "swap_system", ZEROS),
            ("report_nothing", "swap_system", ZEROS),
            ("report_nothing", "swap_system", ZEROS),
        ],
    },
    File {
        file: "ep/device/ep/dispatch_rows.h",
        rows: &[
            ("route_tile", "fetch_add_device", INVALID),
            ("route_tile", "fetch_min_device", INVALID),
            ("route_tile", "wave_barrier", Mutants(&["ROUTE_ROW_SHARED"])),
            ("route_tile", "wave_barrier", Mutants(&["ROUTE_ROW_STALE"])),
        ],
    },
    File {
        file: "ep/device/ep/mask.h",
        rows: &[
            ("is_masked", "flag_load", Mutants(&["MASK_NOT_SET"])),
            ("mask_rank", "fetch_add_device", RECORD),
            ("mask_rank", "flag_store", Mutants(&["MASK_NOT_SET"])),
            ("await_flag", "wait_until", Mutants(&["NO_WAIT", "EPOCH_LOOSE"])),
            // Where no rank is masked.
            (
                "await_rank",
                "wait_until",
                Mutants(&["NO_WAIT", "EPOCH_LOOSE", "COMBINE_WAITS_FOR_ITSELF", "LATE_WEIGHTS_STALE"]),
            ),
            ("await_rank", "wait_for", Mutants(&["EPOCH_LOOSE"])),
            ("await_rank", "flag_load_for_wait", Mutants(&["EPOCH_LOOSE"])),
            ("first_found", "flag_load", Mutants(&["MASK_UNSETTLED"])),
            ("first_found", "compare_swap_system", Mutants(&["MASK_UNSETTLED"])),
        ],
    },
    File {
        file: "ep/kernels/expert_count.hip",
        rows: &[
            ("anabranch_ep_expert_count", "block_barrier", COUNTED),
            ("anabranch_ep_expert_count", "block_barrier", COUNTED),
        ],
    },
    File {
        file: "ep/kernels/expert_expand.hip",
        rows: &[
            ("place_pairs", "wave_barrier", Mutants(&["EXPAND_NEXT_OVERWRITTEN"])),
            ("expand_received", "block_barrier", Mutants(&["EXPAND_UNCOUNTED"])),
            ("expand_received", "block_barrier", Mutants(&["EXPAND_UNSUMMED"])),
            ("expand_received", "block_barrier", Mutants(&["EXPAND_UNPLACED"])),
            ("expand_received", "block_barrier", Mutants(&["EXPAND_OVERWRITTEN"])),
            ("expand_received", "block_barrier", Mutants(&["EXPAND_TILE_UNREAD"])),
            ("anabranch_ep_expert_expand", "block_barrier", Mutants(&["EXPAND_UNCLEARED"])),
        ],
    },
    File {
        file: "ep/device/ep/pair_numbers.h",
        rows: &[
            ("number_pairs", "wave_barrier", Mutants(&["NUMBERS_NEXT_OVERWRITTEN"])),
            ("number_pairs", "wave_barrier", Mutants(&["NUMBERS_NEXT_UNMOVED"])),
        ],
    },
    File {
        file: "ep/device/ep/expand_numbered.h",
        rows: &[
            ("copy_share", "wave_barrier", Mutants(&["EXPERTS_SLOTS_OVERWRITTEN"])),
            ("copy_share", "wave_barrier", Mutants(&["EXPERTS_SLOTS_UNWRITTEN"])),
            ("expand_numbered", "block_barrier", Mutants(&["EXPERTS_TOTALS_UNSUMMED"])),
            ("expand_numbered", "block_barrier", LINED_UP),
        ],
    },
    File {
        file: "ep/device/ep/combine_flags.h",
        rows: &[
            ("flag_all", "flag_store", Mutants(&["COMBINE_FLAG_FIRST", "EPOCH_LOOSE"])),
            ("wait_for_rows", "block_barrier", LOCAL),
            ("wait_for_rows", "acquire_after_wait", Mutants(&["COMBINE_NO_ACQUIRE"])),
            ("wait_for_rows", "block_barrier", Mutants(&["COMBINE_NO_BARRIER"])),
        ],
    },
    File {
        file: "ep/kernels/late_weights.hip",
        rows: &[
            ("flag_weights", "flag_store", Mutants(&["LATE_WEIGHTS_FLAGGED_EARLY"])),
            ("await_weights", "acquire_after_wait", Mutants(&["LATE_WEIGHTS_NO_ACQUIRE"])),
            ("anabranch_ep_late_weights", "arrive_is_last", Mutants(&["LATE_WEIGHTS_UNCOUNTED"])),
        ],
    },
    File {
        file: "ep/kernels/combine.hip",
        rows: &[("offer_rows", "offer_earlier_work", Mutants(&["COMBINE_UNRELEASED"]))],
    },
    File {
        file: "ep/kernels/combine_push.hip",
        rows: &[(
            "push_and_flag",
            "arrive_is_last",
            Mutants(&["COUNT_BEFORE_RELEASE", "FLAG_BEFORE_DATA", "COMBINE_FLAG_FIRST", "COUNTER_NOT_RESET"]),
        )],
    },
];
