//! The device API's rows, and those of the kernels in `shmem` and of the searches' own.

use super::table::{File, HeldBy};
use HeldBy::{Mutants, NotNeeded, Test};

/// The old value is the whole result, and nothing is read behind it.
const TORN: HeldBy = Mutants(&["TORN_ATOMIC"]);
/// The acquire of a wait whose data a later kernel reads.
const FOR_LATER: HeldBy = Mutants(&["NO_ACQUIRE_AFTER_WAIT", "ACQUIRE_AT_DEVICE_SCOPE"]);
const BARE_PING: HeldBy = Test(
    "crates/cli/tests/bench.rs: a flag behind which nothing is read; the ping under seeds judges where it ends",
);
/// A fence orders what is sent, and lets nothing be read; what it waits for are engines and NICs, which the acquire is not for.
const FENCED: HeldBy = NotNeeded("Behind a fence nothing is read that it waited for.");
const IN_TURNS: HeldBy = Test(
    "crates/shmem/tests/device_api/nics.rs: hands turns from block to block, so that meetings of changing blocks can be looked at",
);
const COUNTS_WRONG: HeldBy = NotNeeded("Counts mistakes for the host, which looks when the kernel is over.");

pub(super) const FILES: &[File] = &[
    File {
        file: "shmem/device/shmem/scope.h",
        rows: &[
            ("Thread::release_for_leader", "fence_release_system", Mutants(&["THREAD_SIGNAL_UNRELEASED"])),
            (
                "Thread::release_for_all",
                "fence_release_system",
                Mutants(&["THREAD_QUIET_UNRELEASED", "QUIET_AT_DEVICE_SCOPE"]),
            ),
            ("Wave::release_for_leader", "fence_release_system", Mutants(&["WAVE_SIGNAL_UNRELEASED"])),
            ("Wave::release_for_leader", "wave_barrier", Mutants(&["WAVE_SIGNAL_NO_BARRIER"])),
            // NVIDIA's form, in the cumulative profile, here and below.
            ("Wave::release_for_leader", "wave_barrier", Mutants(&["WAVE_SIGNAL_NO_BARRIER"])),
            ("Wave::release_for_leader", "fence_release_system", Mutants(&["WAVE_SIGNAL_UNRELEASED"])),
            (
                "Wave::fence_for_all",
                "fence_release_system",
                Mutants(&["WAVE_QUIET_UNRELEASED", "QUIET_AT_DEVICE_SCOPE"]),
            ),
            ("Wave::release_for_all", "fence_for_all", Mutants(&["WAVE_QUIET_UNRELEASED"])),
            ("Wave::release_for_all", "wave_barrier", Mutants(&["WAVE_QUIET_NO_BARRIER"])),
            ("Wave::release_for_all", "wave_barrier", Mutants(&["WAVE_QUIET_NO_BARRIER"])),
            ("Wave::release_for_all", "fence_for_all", Mutants(&["WAVE_QUIET_UNRELEASED"])),
            (
                "Block::release_for_leader",
                "block_release_system",
                Mutants(&["NO_RELEASE", "RELEASE_BY_ONE_THREAD", "RELEASE_AT_DEVICE_SCOPE"]),
            ),
            (
                "Block::fence_for_first",
                "fence_release_system",
                Mutants(&["BLOCK_QUIET_UNRELEASED", "QUIET_AT_DEVICE_SCOPE"]),
            ),
            (
                "Block::release_for_first",
                "fence_for_first",
                Mutants(&["BLOCK_QUIET_UNRELEASED", "BLOCK_QUIET_BY_ONE_THREAD"]),
            ),
            ("Block::release_for_first", "block_barrier", Mutants(&["BLOCK_QUIET_NO_BARRIER"])),
            ("Block::release_for_first", "block_barrier", Mutants(&["BLOCK_QUIET_NO_BARRIER"])),
            (
                "Block::release_for_first",
                "fence_for_first",
                Mutants(&["BLOCK_QUIET_UNRELEASED", "BLOCK_QUIET_BY_ONE_THREAD"]),
            ),
            ("Block::release_for_all", "release_for_first", Mutants(&["BLOCK_QUIET_UNRELEASED"])),
        ],
    },
    File {
        file: "shmem/device/shmem/order.h",
        rows: &[
            ("drain", "acquire_after_wait", Mutants(&["DRAIN_NO_ACQUIRE"])),
            ("drain", "barrier", super::sdma::BEHIND_BROADCAST),
            ("finish", "acquire_after_wait", FENCED),
            ("fence", "release_for_leader", Mutants(&["FENCE_ONE_NOTHING"])),
            ("fence", "release_for_leader", Mutants(&["FENCE_ALL_NOTHING"])),
            ("quiet", "release_for_all", Mutants(&["QUIET_NOTHING"])),
            ("quiet", "drain", Mutants(&["QUIET_NOTHING", "DRAIN_NO_ACQUIRE"])),
            // For one peer, by copy engines.
            ("quiet", "release_for_all", Mutants(&["QUIET_NOTHING"])),
            ("quiet", "drain", Mutants(&["QUIET_NOTHING", "DRAIN_NO_ACQUIRE"])),
        ],
    },
    File {
        file: "shmem/device/shmem/signal.h",
        rows: &[
            ("signal_word", "flag_store", Mutants(&["SIGNAL_BEFORE_DATA", "COMPARE_LOOSE", "COMPARE_EQUAL"])),
            ("signal_word", "fetch_add_system", TORN),
            ("signal_by_queue", "by_queue", Mutants(&["SDMA_SIGNAL_FIRST", "BY_QUEUE_UNRELEASED"])),
            ("signal_by_nic", "by_nic", Mutants(&["NIC_SIGNAL_FIRST", "BY_NIC_UNRELEASED"])),
            (
                "put_signal_nbi",
                "release_for_leader",
                Mutants(&["PUT_SIGNAL_UNRELEASED", "SIGNAL_BEFORE_DATA"]),
            ),
            ("signal_test", "flag_load", Mutants(&["COMPARE_LOOSE"])),
            ("signal_test", "fence_acquire_system", Mutants(&["SIGNAL_TEST_NO_ACQUIRE"])),
        ],
    },
    File {
        file: "shmem/kernels/clock.hip",
        rows: &[
            (
                "anabranch_shmem_clock",
                "fence_release_system",
                Test("tests/trace.rs: waits lie where the calls are"),
            ),
            ("anabranch_shmem_clock", "flag_store", Test("tests/trace.rs: waits lie where the calls are")),
        ],
    },
    File {
        file: "shmem/device/shmem/wait.h",
        rows: &[
            ("signal_wait", "wait_until", Mutants(&["NO_WAIT", "COMPARE_LOOSE", "COMPARE_EQUAL"])),
            ("signal_wait", "acquire_after_wait", Mutants(&["SIGNAL_WAIT_NO_ACQUIRE"])),
            ("signal_wait", "barrier", Mutants(&["SIGNAL_WAIT_NO_BARRIER"])),
            ("wait_all", "wait_until", Mutants(&["NO_WAIT", "COMPARE_LOOSE"])),
            ("wait_all", "acquire_after_wait", Mutants(&["WAIT_ALL_NO_ACQUIRE"])),
            ("wait_all", "wave_barrier", Mutants(&["WAIT_ALL_NO_BARRIER"])),
            ("wait_any", "flag_load", Mutants(&["COMPARE_LOOSE"])),
            (
                "wait_any",
                "flag_load",
                NotNeeded(
                    "The budget: the host writes it before the launch and nobody during it, so any load finds it.",
                ),
            ),
            ("wait_any", "fence_acquire_system", Mutants(&["WAIT_ANY_NO_ACQUIRE"])),
            ("wait_any", "wave_barrier", Mutants(&["WAIT_ANY_NO_BARRIER"])),
        ],
    },
    File {
        file: "shmem/device/shmem/barrier.h",
        rows: &[
            ("store_epoch", "flag_store", Mutants(&["TEAM_SYNC_FLAG_FIRST", "TEAM_SYNC_EPOCH_NOT_KEPT"])),
            (
                "team_sync",
                "release_for_first",
                Mutants(&["TEAM_SYNC_UNRELEASED", "TEAM_SYNC_FLAG_FIRST", "BLOCK_QUIET_BY_ONE_THREAD"]),
            ),
            (
                "team_sync",
                "wait_until",
                Mutants(&["NO_WAIT", "EPOCH_LOOSE", "EPOCH_EQUAL", "TEAM_SYNC_EARLY_RETURN"]),
            ),
            (
                "team_sync",
                "fence_acquire_system",
                Mutants(&["TEAM_SYNC_NO_ACQUIRE", "TEAM_SYNC_ACQUIRE_AT_DEVICE_SCOPE"]),
            ),
        ],
    },
    File {
        file: "shmem/device/shmem/atomics.h",
        rows: &[
            ("AtomicWord<4>::load", "fetch_or_system", TORN),
            (
                "AtomicWord<8>::load",
                "flag_load",
                NotNeeded(
                    "A look at one word, relaxed by contract; compare and swap that starts from an old value tries again.",
                ),
            ),
            ("add_word", "fetch_add_system", TORN),
            ("atomic_fetch_and", "fetch_and_system", TORN),
            ("atomic_fetch_or", "fetch_or_system", TORN),
            ("atomic_fetch_xor", "fetch_xor_system", TORN),
            ("atomic_swap", "swap_system", TORN),
            ("atomic_compare_swap", "compare_swap_system", TORN),
        ],
    },
    File {
        file: "shmem/kernels/team_barrier.hip",
        rows: &[
            ("meet", "fence_release_system", Mutants(&["MEET_UNRELEASED"])),
            ("meet", "flag_store", Mutants(&["MEET_EPOCH_NOT_KEPT", "EPOCH_LOOSE", "EPOCH_EQUAL"])),
            ("meet", "wait_until", Mutants(&["NO_WAIT", "EPOCH_LOOSE", "EPOCH_EQUAL"])),
            ("meet", "acquire_after_wait", FOR_LATER),
            ("meet", "block_barrier", Mutants(&["MEET_NO_BARRIER", "MEET_EARLY_RETURN"])),
            ("anabranch_team_barrier", "meet", Mutants(&["MEET_NO_BARRIER", "MEET_EPOCH_NOT_KEPT"])),
            ("anabranch_team_signal", "fence_release_system", Mutants(&["STREAM_SIGNAL_UNRELEASED"])),
            ("anabranch_team_signal", "flag_store", Mutants(&["EPOCH_LOOSE", "EPOCH_EQUAL"])),
            ("anabranch_team_signal", "fetch_add_system", Mutants(&["STREAM_ADD_IS_SET", "TORN_ATOMIC"])),
            ("anabranch_team_signal_wait", "wait_until", Mutants(&["NO_WAIT", "EPOCH_LOOSE", "EPOCH_EQUAL"])),
            ("anabranch_team_signal_wait", "acquire_after_wait", FOR_LATER),
        ],
    },
    File {
        file: "shmem/kernels/p2p.hip",
        rows: &[
            ("anabranch_p2p_check", "fetch_add_device", COUNTS_WRONG),
            (
                "send_payload",
                "block_release_system",
                Mutants(&[
                    "PING_FLAG_FIRST",
                    "NO_RELEASE",
                    "RELEASE_BY_ONE_THREAD",
                    "RELEASE_AT_DEVICE_SCOPE",
                ]),
            ),
            ("send_payload", "flag_store", Mutants(&["PING_FLAG_FIRST"])),
            ("await_payload", "wait_until", Mutants(&["NO_WAIT", "EPOCH_LOOSE"])),
            ("await_payload", "acquire_after_wait", Mutants(&["NO_ACQUIRE_AFTER_WAIT"])),
            ("await_payload", "block_barrier", Mutants(&["PING_NO_BARRIER"])),
            ("check_payload", "fetch_add_device", COUNTS_WRONG),
            ("ping", "flag_store", BARE_PING),
            ("ping", "wait_until", BARE_PING),
            ("ping", "flag_store", BARE_PING),
            (
                "ping",
                "block_barrier",
                NotNeeded(
                    "All threads have read the base behind a broadcast, and thread 0 alone knows of a bare ping's fault.",
                ),
            ),
        ],
    },
    File {
        file: "conformance/kernels/shmem_barrier.hip",
        rows: &[
            ("sync_in_turns", "flag_load", IN_TURNS),
            ("sync_in_turns", "fence_acquire_device", IN_TURNS),
            ("sync_in_turns", "block_barrier", IN_TURNS),
            ("sync_in_turns", "fence_release_device", IN_TURNS),
        ],
    },
    File {
        file: "conformance/kernels/shmem_wait.hip",
        rows: &[(
            "wait_several",
            "flag_load",
            Test("crates/shmem/tests/device_api/wait.rs: it is what that test looks at"),
        )],
    },
    File {
        file: "sim/kernels/around.hip",
        rows: &[
            ("anabranch_sim_read", "fetch_add_device", COUNTS_WRONG),
            ("anabranch_sim_look", "fetch_add_device", COUNTS_WRONG),
        ],
    },
    File {
        file: "sim/kernels/gather.hip",
        rows: &[(
            "test_each",
            "flag_load",
            NotNeeded(
                "The budget: the host writes it before the launch and nobody during it, so any load finds it.",
            ),
        )],
    },
];
