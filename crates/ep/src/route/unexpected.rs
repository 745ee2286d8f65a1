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
            (DISPATCH, 2 | 6) | (COUNT | COMBINE, 2) => {
                let later = *seen as u32; // the low half is the epoch
                format!("the flag of {peer} is of epoch {later}, and this is epoch {epoch}")
            }
            (COMBINE, 5) => format!("the flag of {peer} is of epoch {seen}, and this is epoch {epoch}"),
            (DISPATCH, 3) => {
                format!(
                    "{peer} dispatches with another routing, or without one: its flag is {seen:#x}, not {expected:#x}"
                )
            }
            (DISPATCH, 4) => {
                return Some(format!(
                    "the dispatch is of {expected} tokens, and the saved routing of {seen}; the routing was overwritten, or it was \
                     captured and its graph not replayed"
                ));
            }
            (COMBINE, 3) => {
                format!("{peer} {} its rows, and {rank} expects one that {} them", way(*seen), way(*expected))
            }
            _ => return None,
        };
        let call = call.as_ref().map(|call| format!("; {rank} was in {call}")).unwrap_or_default();
        Some(format!("{found}; the members made calls that do not belong together{call}"))
    }
}

/// `CombineWay` of `ep/combine_flags.h`, from the high half of a flag.
fn way(flag: u64) -> &'static str {
    match flag >> 32 {
        0 => "has others pull",
        1 => "pushes",
        2 => "sends by copy engine",
        3 => "releases",
        _ => "combines in no known way",
    }
}
