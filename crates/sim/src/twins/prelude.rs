//! The prelude's rows.

use super::table::{File, HeldBy};
use HeldBy::{NotNeeded, OtherMemory, Test, Twins};

/// What only a cumulative memory can tell: the lines of NVIDIA's form are not compiled into the seeded build as it is.
const NVIDIA: HeldBy = OtherMemory(
    "NVIDIA's form, where a fence is cumulative over what the barrier ordered before it; the seeded build has AMD's, in which \
     every wave releases. Needs the prelude's other form under a cumulative memory.",
);
const ABORT_WORD: HeldBy =
    Test("crates/ep/tests/killed.rs, crates/shmem/tests/threads.rs: a world that is poisoned ends its waits");

pub(super) const FILES: &[File] = &[
    File {
        file: "hip-jit/device/anabranch/publish.h",
        rows: &[
            (
                "block_release_system",
                "fence_release_system",
                Twins(&["NO_RELEASE", "RELEASE_BY_ONE_THREAD", "RELEASE_AT_DEVICE_SCOPE"]),
            ),
            ("block_release_system", "block_barrier", Twins(&["NO_BARRIER_IN_RELEASE"])),
            ("block_release_system", "block_barrier", NVIDIA),
            ("block_release_system", "fence_release_system", NVIDIA),
            ("arrive_is_last", "block_release_system", Twins(&["COUNT_BEFORE_RELEASE"])),
            ("arrive_is_last", "block_barrier", NVIDIA),
            ("arrive_is_last", "fence_release_system", NVIDIA),
            (
                "arrive_is_last",
                "fence_release_device",
                OtherMemory(
                    "Thread 0's read-modify-write carries the other waves' releases only if a fence of thread 0 stands behind the \
                     barrier: release fences synchronise through atomics of their own thread. On the machine each wave has \
                     released at system scope before, and an atomic is seen by all at once. Needs a happens-before check; on \
                     NVIDIA it is the only release of the block.",
                ),
            ),
            (
                "arrive_is_last",
                "fetch_add_device",
                Twins(&["FLAG_BEFORE_DATA", "TORN_ATOMIC", "COUNTER_NOT_RESET", "COUNTER_RESET_EARLY"]),
            ),
            ("arrive_is_last", "fence_acquire_device", Twins(&["NO_ACQUIRE_BETWEEN_BLOCKS"])),
            (
                "arrive_is_last",
                "fence_release_system",
                OtherMemory(
                    "Carries to the peers what the last block acquired from the others. On the machine every wave has already \
                     released its own stores at system scope. Needs a happens-before check or a cumulative memory.",
                ),
            ),
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
            ("wait_until", "flag_load_for_wait", Twins(&["NO_WAIT", "EPOCH_LOOSE", "EPOCH_EQUAL"])),
            (
                "wait_until",
                "flag_load",
                Test("crates/cli/tests/bench.rs: the ping without payload, behind which nothing is read"),
            ),
            (
                "wait_until",
                "flag_load",
                NotNeeded(
                    "The budget: the host writes it before the launch and nobody during it, so any load finds it.",
                ),
            ),
            (
                "acquire_after_wait",
                "fence_acquire_system",
                Twins(&["NO_ACQUIRE_AFTER_WAIT", "ACQUIRE_AT_DEVICE_SCOPE"]),
            ),
        ],
    },
];
