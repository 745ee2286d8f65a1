//! Fault records of the device code in words.

use anabranch_ranks::GlobalRank;

use crate::device as nic;
use crate::provider::Provider;

/// `Opcode::WRITE_IMMEDIATE` of `rdma/operation.h`.
const WRITE_IMMEDIATE: u64 = 1;
/// ... and `READ`.
const READ: u64 = 2;
/// All of them, by their numbers.
const OPCODES: [&str; 10] = [
    "write",
    "write with an immediate value",
    "read",
    "write of a value",
    "fetch-and-add",
    "compare-and-swap",
    "swap",
    "fetch-and-and",
    "fetch-and-or",
    "fetch-and-xor",
];

/// What a fault record of the phases in [`crate::device`] means.
pub(super) fn fault_words(
    phase: u32,
    peer: GlobalRank,
    expected: u64,
    seen: u64,
    provider: Option<Provider>,
) -> Option<String> {
    Some(match phase {
        nic::PHASE_NIC_POST => format!(
            "a queue pair to {peer} does not go on: no room or turn at position {expected} within the deadline, it has come to {seen}"
        ),
        nic::PHASE_NIC_DONE => format!(
            "a queue pair to {peer} does not go on: position {expected} was not done within the deadline, the last one done is {seen}"
        ),
        nic::PHASE_NIC_ERROR => {
            let words = crate::syndrome_words(provider?, seen);
            format!("the NIC reports for the request at position {expected} to {peer}: {words}")
        }
        nic::PHASE_NIC_UNREGISTERED => format!(
            "{seen} bytes at {expected:#x} of this rank, to be copied to or from {peer}, are neither in the heap nor registered (World::register_local)"
        ),
        nic::PHASE_NIC_UNSUPPORTED if expected == WRITE_IMMEDIATE => {
            format!("the NIC of {peer} takes no write of {seen} bytes with an immediate value")
        }
        nic::PHASE_NIC_UNSUPPORTED if expected == READ => format!(
            "a read of {seen} bytes of {peer} is refused: nothing orders what the NIC brings before its completion"
        ),
        nic::PHASE_NIC_UNSUPPORTED => {
            // A word of no operation that there is: no number is believed.
            let bits = seen.saturating_mul(8);
            let name = usize::try_from(expected).ok().and_then(|number| OPCODES.get(number));
            let name = name.map_or_else(String::new, |name| format!(" ({name})"));
            format!(
                "operation {expected}{name} on a word of {bits} bits of {peer} is not one that the NIC has, or that brings a value in order"
            )
        }
        nic::PHASE_NIC_OUT_OF_RANGE => {
            format!("{seen} bytes at {expected:#x} are beyond the heap of {peer}, or off a word's boundary")
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_phase_has_words() {
        let phases = [
            nic::PHASE_NIC_POST,
            nic::PHASE_NIC_DONE,
            nic::PHASE_NIC_ERROR,
            nic::PHASE_NIC_UNREGISTERED,
            nic::PHASE_NIC_UNSUPPORTED,
            nic::PHASE_NIC_OUT_OF_RANGE,
        ];
        for (phase, number) in phases.into_iter().flat_map(|phase| [(phase, 0), (phase, u64::MAX)]) {
            let words = fault_words(phase, GlobalRank::new(3), number, number, Some(Provider::Mlx5)).unwrap();
            assert!(words.contains("rank 3"), "{words}");
        }
        let words = fault_words(nic::PHASE_NIC_UNSUPPORTED, GlobalRank::new(3), 7, 4, None).unwrap();
        assert!(words.contains("a word of 32 bits"), "{words}");
        let number = nic::PHASE_NIC_UNSUPPORTED;
        let words = fault_words(number, GlobalRank::new(3), WRITE_IMMEDIATE, 4096, None).unwrap();
        assert!(words.contains("rank 3 takes no write of 4096 bytes with an immediate value"), "{words}");
    }
}
