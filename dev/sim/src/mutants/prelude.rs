//! The prelude's rows.

use super::table::{File, HeldBy};
use HeldBy::{Mutants, NotNeeded, OtherMemory, Test};

pub(super) const ABORT_WORD: HeldBy =
    Test("crates/ep/tests/killed.rs, crates/shmem/tests/threads.rs: a world that is poisoned ends its waits");

const NOTES: HeldBy = OtherMemory(
    "Puts a note before its number. Only the host reads notes, and the machine runs no host beside kernels. What is read is held by \
     tests/trace.rs: waits that take as long as a rank is late, in whole notes.",
);

pub(super) const FILES: &[File] = &[
    File {
        file: "hip-jit/device/anabranch/publish.h",
        rows: &[
            (
                "block_release_system",
                "fence_release_system",
                Mutants(&["NO_RELEASE", "RELEASE_BY_ONE_THREAD", "RELEASE_AT_DEVICE_SCOPE"]),
            ),
            ("block_release_system", "block_barrier", Mutants(&["NO_BARRIER_IN_RELEASE"])),
            // NVIDIA's form, in the cumulative profile.
            (
                "block_release_system",
                "block_barrier",
                Mutants(&["NO_BARRIER_IN_RELEASE", "RELEASE_BEFORE_BARRIER"]),
            ),
            (
                "block_release_system",
                "fence_release_system",
                Mutants(&["NO_RELEASE", "RELEASE_AT_DEVICE_SCOPE", "RELEASE_BEFORE_BARRIER"]),
            ),
            (
                "offer_earlier_work",
                "block_release_system",
                NotNeeded(
                    "AMD's, as HIP may end a kernel without a release at system scope. A launch of the machine ends with one, and \
                     flags of the next carry it. NVIDIA's form has no fence, and COMBINE_UNRELEASED where it is left out.",
                ),
            ),
            // AMD has each wave's own release before the count, and needs this of thread 0 by the language's rules alone: release
            // fences synchronise through atomics of their own thread. NVIDIA has no other.
            (
                "last_release_system",
                "fence_release_system",
                Mutants(&["LAST_DOES_NOT_RELEASE", "NO_RELEASE", "RELEASE_AT_DEVICE_SCOPE"]),
            ),
            ("arrive_is_last", "block_release_system", Mutants(&["COUNT_BEFORE_RELEASE"])),
            ("arrive_is_last", "block_barrier", Mutants(&["COUNT_BEFORE_RELEASE"])),
            // Of a grid of one block, on NVIDIA.
            ("arrive_is_last", "last_release_system", Mutants(&["LAST_DOES_NOT_RELEASE", "NO_RELEASE"])),
            // As the last block's release: AMD by the language's rules, NVIDIA has no other.
            ("arrive_is_last", "fence_release_device", Mutants(&["NO_RELEASE_BEFORE_COUNT"])),
            (
                "arrive_is_last",
                "fetch_add_device",
                Mutants(&["FLAG_BEFORE_DATA", "TORN_ATOMIC", "COUNTER_NOT_RESET", "COUNTER_RESET_EARLY"]),
            ),
            ("arrive_is_last", "fence_acquire_device", Mutants(&["NO_ACQUIRE_BETWEEN_BLOCKS"])),
            ("arrive_is_last", "last_release_system", Mutants(&["LAST_DOES_NOT_RELEASE"])),
        ],
    },
    File {
        file: "hip-jit/device/anabranch/wait.h",
        rows: &[
            ("is_poisoned", "flag_load", ABORT_WORD),
            (
                "report_fault",
                "fetch_add_device",
                Test("crates/ep/tests/killed.rs: the first fault has the record, later ones only poison"),
            ),
            (
                "report_fault",
                "fence_release_system",
                OtherMemory(
                    "Puts the record before its state. Only the host reads the record, and the machine runs no host beside \
                     kernels. Needs a host thread under the seeds.",
                ),
            ),
            (
                "report_fault",
                "flag_store",
                Test("crates/shmem/tests/threads.rs: every fault that the host reports is a complete record"),
            ),
            ("report_fault", "flag_store", ABORT_WORD),
            ("NotedWait::polled", "flag_load", NOTES),
            ("note_wait", "fetch_add_device", NOTES),
            ("note_wait", "flag_store", NOTES),
            ("note_wait", "fence_release_system", NOTES),
            ("note_wait", "fence_release_system", NOTES),
            ("note_wait", "flag_store", NOTES),
            (
                "wait_for",
                "flag_load",
                NotNeeded(
                    "The budget: the host writes it before the launch and nobody during it, so any load finds it.",
                ),
            ),
            ("wait_until", "wait_for", Mutants(&["NO_WAIT"])),
            (
                "wait_until",
                "flag_load_for_wait",
                Mutants(&["NO_WAIT", "EPOCH_LOOSE", "EPOCH_EQUAL", "NO_ACQUIRE_AFTER_WAIT"]),
            ),
            (
                "wait_until",
                "flag_load",
                Test("crates/cli/tests/bench.rs: the ping without payload, behind which nothing is read"),
            ),
            (
                "acquire_after_wait",
                "fence_acquire_system",
                Mutants(&["NO_ACQUIRE_AFTER_WAIT", "ACQUIRE_AT_DEVICE_SCOPE"]),
            ),
        ],
    },
];
