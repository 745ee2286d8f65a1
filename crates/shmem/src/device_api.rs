//! The symmetric heap inside kernels: the headers that kernels include, and the kernels that test them.
//!
//! A unit that uses them lists [`DEVICE_HEADERS`] after [`anabranch_hip_jit::PRELUDE`], includes `shmem/shmem.h`, and has
//! [`TeamView`](crate::TeamView) and [`BarrierWorkspace`] among its layouts (as fields of its argument struct, or by
//! themselves). Everything there lies in the namespace `shmem`. The documentation of each operation is in its header.
//!
//! # Operations and scopes
//!
//! Over P2P, over copy engines whose queues kernels write, and by NIC; the names are [`Operation`]'s. A scope is who calls together, with
//! equal arguments. Over copy engines that the host alone drives (NVIDIA's), kernels have no put, get, put_signal and signal.
//!
//! | operation | thread | wave | block | device function |
//! |---|---|---|---|---|
//! | `put`, `put_nbi`, `get`, `get_nbi` | x | x | x | `put<Scope>(grid, context, target, source, count, peer)` |
//! | `p`, `g` | x | | | `p(grid, context, target, value, peer)` |
//! | `put_signal`, `put_signal_nbi` | x | x | x | `put_signal<Scope>(.., word, value, SignalOp, peer)` |
//! | `signal` | x | x | x | `signal<Scope>(grid, context, word, value, SignalOp, peer)` |
//! | `signal_wait` | x | x | x | `signal_wait<Scope>(grid, context, word, Compare, value, from)` |
//! | several words | | x | x | `wait_all<Scope>`, `wait_any<Scope>` |
//! | `signal_test` | x | | | `signal_test(grid, context, word, Compare, value)` |
//! | `atomic_*` | x | | | `atomic_add(grid, context, word, value, peer)`; u32, u64, i32, i64 |
//! | `fence` | x | | | `fence(grid, context, peer)`, `fence(grid, context)` |
//! | `quiet` | x | x | x | `quiet<Scope>(grid, context)`, `quiet<Scope>(grid, context, peer)` |
//! | `team_sync`, `team_barrier` | | | x | `team_barrier(grid, context, workspace)` |
//!
//! # Faults
//!
//! Waits have the world's budget, counted from `make_context`. A peer that is not mapped is never stored to: the operation
//! answers `Status::UNREACHABLE` and reports a fault. The phases of these reports are named by [`phase_name`].
//!
//! # Parameters of a unit
//!
//! `SHMEM_ENGINES` = 1 where copies to some peer go through copy engines, and `SHMEM_NIC` = 1 where some peer may be reached by NIC, with
//! `RDMA_PROVIDER` and `RDMA_ATOMICS`, which select the NIC whose entries are written; [`World::kernel`](crate::World::kernel) sets them. `SHMEM_DEBUG` = 1 adds checks of the caller's duties.

use anabranch_hip_jit::{DevicePointer, Header, device_struct};
use anabranch_transport::{Operation, Scope};

macro_rules! headers {
    ($($name:literal),* $(,)?) => {
        &[$(Header { name: concat!("shmem/", $name), text: include_str!(concat!("../device/shmem/", $name)) },)*]
    };
}

/// The headers `sdma/*.h`.
#[cfg(feature = "sdma")]
const ENGINES: &[Header] = anabranch_transport_sdma::DEVICE_HEADERS;
#[cfg(not(feature = "sdma"))]
const ENGINES: &[Header] = &[];
/// The headers `rdma/*.h`.
#[cfg(feature = "rdma")]
const NICS: &[Header] = anabranch_transport_rdma::DEVICE_HEADERS;
#[cfg(not(feature = "rdma"))]
const NICS: &[Header] = &[];

/// The headers `shmem/*.h`, those of the copy engines' queues, and those of NICs' queue pairs. They include the prelude, which a unit
/// lists too.
pub const DEVICE_HEADERS: &[Header] = &joined::<{ OWN.len() + ENGINES.len() + NICS.len() }>();

const fn joined<const COUNT: usize>() -> [Header; COUNT] {
    let mut all = [Header { name: "", text: "" }; COUNT];
    let mut at = 0;
    while at < COUNT {
        all[at] = if at < OWN.len() {
            OWN[at]
        } else if at < OWN.len() + ENGINES.len() {
            ENGINES[at - OWN.len()]
        } else {
            NICS[at - OWN.len() - ENGINES.len()]
        };
        at += 1;
    }
    all
}

const OWN: &[Header] = headers![
    "atomics.h",
    "barrier.h",
    "engine.h",
    "nic.h",
    "nic_atomics.h",
    "order.h",
    "put_get.h",
    "scope.h",
    "shmem.h",
    "signal.h",
    "types.h",
    "wait.h",
];

device_struct! {
    /// What the barriers of one team need; passed by value inside argument structs. One workspace serves one sequence of
    /// barriers; a kernel with two sequences that may overlap has two.
    pub struct BarrierWorkspace {
        /// Offset in the heap of one 64-bit flag for each member, zero before the first barrier. The same on all members.
        pub flags: u64,
        /// This rank's own epoch, in device memory, zero before the first barrier.
        pub epoch: DevicePointer<u64>,
    }
}

impl BarrierWorkspace {
    /// Bytes of flags for a team of `size`.
    pub const fn flag_bytes(size: u32) -> u64 {
        size as u64 * 8
    }
}

/// A rank that is not in the group, or is not mapped.
pub(crate) const PHASE_UNREACHABLE: u32 = 0x5305;
/// A duty of the caller's that was not kept.
pub(crate) const PHASE_MISUSE: u32 = 0x5306;
/// A copy or signal that only the host may ask for.
pub(crate) const PHASE_UNSUPPORTED: u32 = 0x5307;
/// A word that others change before each try of a NIC's.
pub(crate) const PHASE_NIC_CONTENDED: u32 = 0x5308;
/// Room in a queue, or a producer's turn in it (`sdma/queue.h`).
pub const PHASE_POST: u32 = 0x5401;
/// The completion of packets.
pub const PHASE_DONE: u32 = 0x5402;

/// The name of a phase that the device functions put into fault records, whatever the operation of the kernel.
pub fn phase_name(phase: u32) -> Option<&'static str> {
    Some(match phase {
        0x5301 => "signal_wait",
        0x5302 => "wait_all",
        0x5303 => "wait_any",
        0x5304 => "team_sync",
        PHASE_UNREACHABLE => "peer not mapped",
        PHASE_MISUSE => "misuse",
        PHASE_UNSUPPORTED => "unsupported over this route",
        PHASE_NIC_CONTENDED => "word contended by NICs",
        PHASE_POST => "room in a queue of copy engines",
        PHASE_DONE => "completion by a copy engine",
        #[cfg(feature = "rdma")]
        _ => return anabranch_transport_rdma::device::phase_name(phase),
        #[cfg(not(feature = "rdma"))]
        _ => return None,
    })
}

/// Whether the device headers have an operation at a scope. A test compares this with the P2P transport's matrix.
pub fn has_operation(operation: Operation, scope: Scope) -> bool {
    match scope {
        Scope::Thread => !matches!(operation, Operation::TeamSync | Operation::TeamBarrier),
        Scope::Wave => is_grouped(operation),
        Scope::Block => {
            is_grouped(operation) || matches!(operation, Operation::TeamSync | Operation::TeamBarrier)
        }
        _ => false,
    }
}

fn is_grouped(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::Put
            | Operation::PutNbi
            | Operation::Get
            | Operation::GetNbi
            | Operation::PutSignal
            | Operation::PutSignalNbi
            | Operation::Signal
            | Operation::SignalWait
            | Operation::Quiet
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_testkit::lint::{LintRule, lint_source};

    #[test]
    fn every_header_is_listed_and_reached_from_the_umbrella() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/device/shmem");
        let mut files: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| format!("shmem/{}", entry.unwrap().file_name().into_string().unwrap()))
            .collect();
        files.sort();
        let names = DEVICE_HEADERS.iter().map(|header| header.name);
        let names: Vec<&str> = names.filter(|name| name.starts_with("shmem/")).collect();
        assert_eq!(files, names);
        let umbrella = DEVICE_HEADERS.iter().find(|header| header.name == "shmem/shmem.h").unwrap();
        for name in names.iter().filter(|name| **name != "shmem/shmem.h") {
            assert!(umbrella.text.contains(&format!("#include \"{name}\"")), "{name}");
        }
    }

    #[test]
    fn sources_pass_the_lints() {
        for header in DEVICE_HEADERS {
            let found: Vec<_> = lint_source(header.name, header.text)
                .into_iter()
                // The functions of this API have `atomic` in their names; their scope is in the primitive.
                .filter(|lint| !(lint.rule == LintRule::UnscopedAtomic && is_own_atomic(&lint.text)))
                .collect();
            assert!(found.is_empty(), "{}: {found:#?}", header.name);
        }
        let faulty = "static ANABRANCH_DEVICE void f(u32* p) { atomicAdd(p, 1u); }\n";
        let found = lint_source("faulty.h", faulty);
        assert!(found.iter().any(|lint| lint.rule == LintRule::UnscopedAtomic && !is_own_atomic(&lint.text)));
    }

    fn is_own_atomic(line: &str) -> bool {
        let foreign = ["__atomic_", "__hip_atomic_", "__sync_", "atomicAdd", "atomicCAS", "atomicExch"];
        line.contains("atomic_") && !foreign.iter().any(|word| line.contains(word))
    }

    #[test]
    #[cfg(all(feature = "sdma", feature = "rdma"))]
    fn phases_are_those_of_the_header() {
        let types = DEVICE_HEADERS.iter().find(|header| header.name == "shmem/types.h").unwrap().text;
        let phases: Vec<u32> =
            (0..=u32::from(u16::MAX)).filter(|phase| phase_name(*phase).is_some()).collect();
        let queue = DEVICE_HEADERS.iter().find(|header| header.name == "sdma/queue.h").unwrap().text;
        let nic = DEVICE_HEADERS.iter().find(|header| header.name == "rdma/view.h").unwrap().text;
        let listed = |text: &str| text.matches("\n    PHASE_").count();
        assert_eq!(phases.len(), listed(types) + listed(queue) + listed(nic));
        for phase in phases {
            let number = format!("= {phase:#06x},");
            assert!([types, queue, nic].iter().any(|text| text.contains(&number)), "{phase:#x}");
        }
    }
}
