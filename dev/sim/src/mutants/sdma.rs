//! The rows of copy engines' queues that kernels write, and of what the device API does with them.

use super::table::{File, HeldBy};
use HeldBy::{Mutants, NotNeeded, OtherMemory, Test};

const PEER_COPIES: HeldBy =
    Test("crates/shmem/tests/peer_copies.rs: copies in the order of a stream, compared byte by byte");

pub(super) const FILES: &[File] = &[
    File {
        file: "transport-sdma/device/sdma/queue.h",
        rows: &[
            ("post_piece", "wait_for", Mutants(&["SDMA_RING_OVERRUN", "SDMA_OUT_OF_TURN"])),
            (
                "post_piece",
                "flag_load",
                NotNeeded(
                    "The position that room is taken from: the exchange behind it fails where it is an old one.",
                ),
            ),
            ("post_piece", "flag_load", Mutants(&["SDMA_RING_OVERRUN"])),
            ("post_piece", "compare_swap_system", Mutants(&["TORN_ATOMIC"])),
            ("post_piece", "fence_release_system", Mutants(&["SDMA_WORDS_UNRELEASED"])),
            ("post_piece", "flag_load", Mutants(&["SDMA_OUT_OF_TURN"])),
            ("post_piece", "flag_store", Mutants(&["SDMA_WORDS_UNRELEASED", "SDMA_POINTER_UNRELEASED"])),
            ("post_piece", "fence_release_system", Mutants(&["SDMA_POINTER_UNRELEASED"])),
            ("post_piece", "flag_store", Mutants(&["SDMA_POINTER_UNRELEASED", "SDMA_DOORBELL_UNRELEASED"])),
            ("post_piece", "fence_release_system", Mutants(&["SDMA_DOORBELL_UNRELEASED"])),
            ("post_piece", "flag_store", Mutants(&["SDMA_OUT_OF_TURN", "SDMA_DOORBELL_UNRELEASED"])),
            (
                "post_piece",
                "flag_load",
                NotNeeded("What the fault record says of a turn that did not come; nothing depends on it."),
            ),
            (
                "post",
                "flag_load",
                NotNeeded(
                    "The end of an operation that is nothing: whoever waits for one tells, and is something.",
                ),
            ),
            ("wait_done", "wait_until", Mutants(&["SDMA_DONE_UNWAITED"])),
            ("quiet", "flag_load", Mutants(&["SDMA_QUIET_WHEN_READ"])),
            (
                "quiet",
                "flag_load",
                NotNeeded("Spares a fence where everything is done; an old value only asks for one more."),
            ),
            ("quiet", "post", Mutants(&["SDMA_QUIET_WHEN_READ"])),
            ("quiet", "wait_done", Mutants(&["SDMA_DONE_UNWAITED", "SDMA_QUIET_WHEN_READ"])),
        ],
    },
    File {
        file: "shmem/device/shmem/engine.h",
        rows: &[
            ("by_queue", "release_for_leader", Mutants(&["BY_QUEUE_UNRELEASED"])),
            ("by_queue", "post", Mutants(&["SDMA_SIGNAL_FIRST", "SDMA_WORDS_UNRELEASED"])),
            ("by_queue", "wait_done", Mutants(&["SDMA_DONE_UNWAITED"])),
            ("by_queue", "acquire_after_wait", Mutants(&["BY_QUEUE_NO_ACQUIRE"])),
            ("by_queue", "barrier", BEHIND_BROADCAST),
        ],
    },
    File {
        file: "shmem/device/shmem/put_get.h",
        rows: &[
            ("copy_by_route", "by_queue", Mutants(&["BY_QUEUE_UNRELEASED", "BY_QUEUE_NO_ACQUIRE"])),
            ("copy_by_route", "by_nic", Mutants(&["BY_NIC_UNRELEASED", "BY_NIC_NO_ACQUIRE"])),
        ],
    },
    File {
        file: "shmem/kernels/engine_copies.hip",
        rows: &[
            ("anabranch_engine_copies", "release_for_leader", PEER_COPIES),
            ("anabranch_engine_copies", "post", PEER_COPIES),
            ("anabranch_engine_copies", "acquire_after_wait", PEER_COPIES),
        ],
    },
];

/// What an engine's leader has seen to be done, before the other lanes of a wave read it.
pub(super) const BEHIND_BROADCAST: HeldBy = OtherMemory(
    "A block's broadcast has barriers of its own. A wave's orders no memory, but the machine acquires for a whole wave at once; the \
     checker, which goes by lane, does not run on machines with engines.",
);
