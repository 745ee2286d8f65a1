//! The rows of NICs' queues that kernels write.

use super::table::{File, HeldBy};
use HeldBy::{CodeCheck, Mutants, NotNeeded, OtherMemory, Test};

const BESIDE_A_NIC: HeldBy = Test(
    "crates/transport-rdma/tests/device/together.rs: many lanes, and mutants with each mistake, beside a NIC",
);
const STORES: HeldBy = CodeCheck(
    "crates/transport-rdma/tests/device/code.rs: what is stored and released, in its order, and mutants without each release",
);
const RINGS: HeldBy = CodeCheck(
    "crates/transport-rdma/tests/device/code.rs: lanes ring one by one, and a mutant that rings in one instruction",
);
const A_REGISTER: HeldBy = Test(
    "dev/softnic/tests/device/registers.rs: queues with one register in software, and a mutant that loses stores to it",
);
const IN_TURN: HeldBy = CodeCheck(
    "crates/transport-rdma/tests/device/code.rs: stored in the loop that waits for it, and a mutant that stores behind the loop",
);
const COMPLETIONS: HeldBy = Test(
    "crates/transport-rdma/tests/device/together.rs: nobody goes on without a completion, and failures are told with their syndrome",
);
/// The other parts of a completion, behind the one that says that it is there.
const REST_OF_A_COMPLETION: HeldBy = OtherMemory(
    "A NIC writes a completion in one piece; a GPU that loads a later part before an earlier one would tell. The acquire orders them.",
);
const FOR_THE_RECORD: HeldBy = NotNeeded("What a fault record says; nothing depends on it.");

const BY_NICS: HeldBy = Test(
    "crates/shmem/tests/device_api/nics.rs: the conformance cases by NICs in software with an adversary",
);
const OF_STREAMS: HeldBy =
    Test("crates/shmem/tests/nics.rs: copies and signals in the order of a stream, compared byte by byte");

const OF_JOINS: HeldBy = Test(
    "crates/shmem/tests/nics.rs: worlds are joined where nothing orders what reads bring to the device, and a wrong word is found",
);

pub(super) const FILES: &[File] = &[
    File {
        file: "transport-rdma/device/rdma/bnxt.h",
        rows: &[
            (
                "Bnxt::look",
                "fence_acquire_system",
                OtherMemory(
                    "A GPU that loads the count before `completed` would take an old count for a new one: it is told by few bits.",
                ),
            ),
            ("Bnxt::look", "flag_load", COMPLETIONS),
            ("Bnxt::look", "fence_acquire_system", REST_OF_A_COMPLETION),
            ("Bnxt::look", "flag_load", COMPLETIONS),
        ],
    },
    File {
        file: "transport-rdma/device/rdma/doorbell.h",
        rows: &[
            ("store_doorbell", "fetch_add_system", A_REGISTER),
            ("store_doorbell", "flag_store", A_REGISTER),
            ("store_doorbell", "flag_store", RINGS),
        ],
    },
    File {
        file: "transport-rdma/device/rdma/ionic.h",
        rows: &[
            ("Ionic::mark", "flag_store", STORES),
            ("Ionic::look", "flag_load", COMPLETIONS),
            ("Ionic::look", "fence_acquire_system", REST_OF_A_COMPLETION),
            ("Ionic::look", "flag_load", COMPLETIONS),
        ],
    },
    File {
        file: "transport-rdma/device/rdma/mlx5.h",
        rows: &[
            ("Mlx5::record", "fence_release_system", STORES),
            ("Mlx5::look", "flag_load", COMPLETIONS),
            ("Mlx5::look", "fence_acquire_system", REST_OF_A_COMPLETION),
            ("Mlx5::look", "flag_load", COMPLETIONS),
        ],
    },
    File {
        file: "transport-rdma/device/rdma/posted.h",
        rows: &[
            ("Posted::mark", "flag_store", STORES),
            ("Posted::look", "flag_load", COMPLETIONS),
            ("Posted::look", "flag_load", COMPLETIONS),
        ],
    },
    File {
        file: "transport-rdma/device/rdma/queue.h",
        rows: &[
            ("look", "flag_load", BESIDE_A_NIC),
            ("look", "compare_swap_system", BESIDE_A_NIC),
            ("is_done", "flag_load", BESIDE_A_NIC),
            ("post_one", "wait_for", BESIDE_A_NIC),
            (
                "post_one",
                "flag_load",
                NotNeeded("The room that is taken: the exchange behind it fails where it is an old one."),
            ),
            ("post_one", "flag_load", BESIDE_A_NIC),
            ("post_one", "compare_swap_system", BESIDE_A_NIC),
            ("post_one", "compare_swap_system", BESIDE_A_NIC),
            ("post_one", "fence_release_system", STORES),
            ("post_one", "fence_release_system", STORES),
            ("post_one", "flag_load", BESIDE_A_NIC),
            ("post_one", "fence_release_system", STORES),
            ("post_one", "flag_store", IN_TURN),
            (
                "post_one",
                "fence_acquire_system",
                CodeCheck(
                    "crates/transport-rdma/tests/device/code.rs: a fetch acquires behind its completion",
                ),
            ),
            ("post_one", "flag_load", BESIDE_A_NIC),
            (
                "post_one",
                "fence_release_system",
                OtherMemory(
                    "A load that a later store may overtake would read another lane's value from the slot.",
                ),
            ),
            ("post_one", "flag_store", BESIDE_A_NIC),
            ("post_one", "flag_load", FOR_THE_RECORD),
            ("post_one", "flag_load", FOR_THE_RECORD),
            (
                "post",
                "flag_load",
                NotNeeded("The end of a request that is nothing: any that is done will do."),
            ),
            ("wait_done", "wait_for", BESIDE_A_NIC),
            ("wait_done", "flag_load", FOR_THE_RECORD),
            (
                "wait_done",
                "fence_acquire_system",
                OtherMemory(
                    "For NVIDIA GPUs alone: the machine that NICs are searched on has none of their polls.",
                ),
            ),
            (
                "quiet",
                "flag_load",
                NotNeeded("Says which of positions alike in 40 bits is meant; an old one does, too."),
            ),
            ("quiet", "wait_done", BESIDE_A_NIC),
            ("quiet", "flag_load", BESIDE_A_NIC),
        ],
    },
    File {
        file: "transport-rdma/device/rdma/view.h",
        rows: &[(
            "find_key",
            "fence_acquire_system",
            CodeCheck(
                "crates/transport-rdma/tests/device/code.rs: a key is taken of a place that is looked at again, and a mutant that does not",
            ),
        )],
    },
    File {
        file: "shmem/device/shmem/nic.h",
        rows: &[
            ("by_nic", "release_for_leader", Mutants(&["BY_NIC_UNRELEASED"])),
            ("by_nic", "post", Mutants(&["NIC_SIGNAL_FIRST", "BY_NIC_UNRELEASED"])),
            ("by_nic", "post", Mutants(&["NIC_SIGNAL_FIRST"])),
            ("by_nic", "wait_done", BY_NICS),
            ("by_nic", "acquire_after_wait", Mutants(&["BY_NIC_NO_ACQUIRE"])),
            ("by_nic", "barrier", super::sdma::BEHIND_BROADCAST),
            ("put_value_by_nic", "post", BY_NICS),
        ],
    },
    File {
        file: "shmem/device/shmem/nic_atomics.h",
        rows: &[("fetch_by_nic", "wait_for", BY_NICS), ("change_by_nic", "post", BY_NICS)],
    },
    File {
        file: "shmem/kernels/nic_team.hip",
        rows: &[
            ("anabranch_nic_copies", "release_for_leader", OF_STREAMS),
            ("anabranch_nic_copies", "post", OF_STREAMS),
            ("anabranch_nic_copies", "acquire_after_wait", OF_STREAMS),
            ("anabranch_nic_probe", "post", OF_JOINS),
        ],
    },
];
