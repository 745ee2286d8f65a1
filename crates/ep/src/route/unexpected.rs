//! What kernels find in flags that waiting does not cure, in words.

use anabranch_hip_jit::control::FaultRecord;
use anabranch_shmem::{ExpiredWait, ExplainFault, OperationCode};

use super::context::{COMBINE, COUNT, DISPATCH};

/// Explains the faults of a plan's kernels other than expired waits.
#[derive(Debug)]
pub(crate) struct UnexpectedFlags;

impl ExplainFault for UnexpectedFlags {
    fn explain(&self, record: &FaultRecord, wait: &ExpiredWait) -> Option<String> {
        let ExpiredWait { rank, peer, epoch, expected, seen, call, .. } = wait;
        // Numbers of the phases are those of the names in `context.rs`.
        let found = match (OperationCode(record.operation), record.phase) {
            // The low halves of flags are those of epochs.
            (DISPATCH, 2 | 6) | (COUNT | COMBINE, 2) => {
                format!(
                    "the flag of {peer} is of epoch {}, and this is epoch {}",
                    *seen as u32, *epoch as u32
                )
            }
            (COMBINE, 5) => format!("the flag of {peer} is of epoch {seen}, and this is epoch {epoch}"),
            (DISPATCH, 3) => {
                format!(
                    "{peer} dispatches with another routing, or without one: its flag, or the routing named beside it, is {seen:#x}, not \
                     {expected:#x}"
                )
            }
            (DISPATCH, 4) => {
                return Some(format!(
                    "the dispatch is of {expected} tokens, and the saved routing of {seen}; the routing was overwritten, or it was \
                     captured and its graph not replayed"
                ));
            }
            (DISPATCH, 7) => format!(
                "{peer} dispatches without experts' rows, and {rank} with them; all members call `dispatch` of a layout, or none"
            ),
            (COMBINE, 3) => {
                format!("{peer} {}, and {rank} expects that it {}", way(*seen), way(*expected))
            }
            _ => return None,
        };
        let call = call.as_ref().map(|call| format!("; {rank} was in {call}")).unwrap_or_default();
        Some(format!("{found}; the members made calls that do not belong together{call}"))
    }
}

/// `CombineWay` of `ep/combine_flags.h`, from the high half of a flag, as the rest of a sentence that begins with the rank.
fn way(flag: u64) -> &'static str {
    match flag >> 32 {
        0 => "has its rows pulled",
        1 => "pushes its rows",
        2 => "sends its rows by copy engine",
        3 => "releases the operation",
        _ => "combines in no known way",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use anabranch_hip_jit::bytemuck::Zeroable as _;
    use anabranch_ranks::GlobalRank;

    use super::*;

    fn explained(operation: OperationCode, phase: u32, expected: u64, seen: u64) -> Option<String> {
        let record = FaultRecord { operation: operation.0, phase, ..FaultRecord::zeroed() };
        let wait = ExpiredWait {
            rank: GlobalRank::new(3),
            operation: String::new(),
            phase: String::new(),
            epoch: 1 << 32 | 7,
            peer: GlobalRank::new(2),
            expected,
            seen,
            waited: Duration::ZERO,
            call: Some("launch 5 of expert parallelism 1, dispatch".to_owned()),
            doing: None,
        };
        UnexpectedFlags.explain(&record, &wait)
    }

    #[test]
    fn each_phase_that_is_no_wait_is_explained() {
        let calls = "; the members made calls that do not belong together; rank 3 was in launch 5 of expert parallelism 1, dispatch";
        let low = format!("the flag of rank 2 is of epoch 8, and this is epoch 7{calls}");
        for (operation, phase) in [(DISPATCH, 2), (DISPATCH, 6), (COUNT, 2), (COMBINE, 2)] {
            assert_eq!(explained(operation, phase, 7, 15 << 32 | 8).as_ref(), Some(&low));
        }
        let whole = format!("the flag of rank 2 is of epoch 4294967304, and this is epoch 4294967303{calls}");
        assert_eq!(explained(COMBINE, 5, 0, 1 << 32 | 8), Some(whole));
        let ways = format!(
            "rank 2 sends its rows by copy engine, and rank 3 expects that it pushes its rows{calls}"
        );
        assert_eq!(explained(COMBINE, 3, 1 << 32 | 7, 2 << 32 | 7), Some(ways));
        assert!(explained(DISPATCH, 3, 7, 8).is_some_and(|text| text.contains("another routing")));
        assert!(explained(DISPATCH, 7, 7, 7).is_some_and(|text| text.contains("without experts' rows")));
        assert!(explained(DISPATCH, 4, 17, 0).is_some_and(|text| text.contains("is of 17 tokens")));
        for (operation, phase) in [(DISPATCH, 1), (DISPATCH, 5), (COUNT, 1), (COMBINE, 1), (COMBINE, 4)] {
            assert_eq!(explained(operation, phase, 7, 6), None, "an expired wait");
        }
    }
}
