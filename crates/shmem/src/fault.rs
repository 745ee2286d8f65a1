//! The first cause of a world's failure, and the names by which kernels report theirs.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anabranch_bootstrap::LossKind;
use anabranch_ranks::GlobalRank;

/// Why a world is unusable. Kept for good; every later call returns it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A peer left or died while the world was in use.
    #[error("{rank} {kind} ({detail}); the world cannot be used any more")]
    PeerLost {
        /// Who.
        rank: GlobalRank,
        /// How.
        kind: LossKind,
        /// What was seen.
        detail: String,
    },
    /// A kernel waited for a peer longer than the operation deadline.
    #[error(
        "{rank} waited {waited:?} for {peer} in {operation} ({phase}), epoch {epoch}: expected {expected:#x}, saw {seen:#x}; \
         the deadline is deadline.operation, and the world cannot be used any more"
    )]
    DeadlineExpired {
        /// The rank that waited.
        rank: GlobalRank,
        /// The operation's name.
        operation: String,
        /// The phase's name.
        phase: String,
        /// The epoch of the operation.
        epoch: u64,
        /// Who was waited for.
        peer: GlobalRank,
        /// The word waited for.
        expected: u64,
        /// The word last read.
        seen: u64,
        /// How long the kernel had been running.
        waited: Duration,
    },
    /// A collective call of the host did not come to its end.
    #[error("{step} did not come to its end: {detail}; the world cannot be used any more")]
    CollectiveFailed {
        /// What was being agreed on.
        step: String,
        /// What the rendezvous said.
        detail: String,
        /// Ranks that had not come, if that is what it said.
        missing: Vec<GlobalRank>,
    },
    /// The user, or a crate above, gave the world up.
    #[error("{rank} gave the world up: {reason}")]
    Poisoned {
        /// Who gave it up.
        rank: GlobalRank,
        /// Why.
        reason: String,
    },
}

/// Number of an operation in fault records. Each crate takes a range of its own: shmem 0x100 to 0x1ff, ccl 0x200 to
/// 0x2ff, ep 0x300 to 0x3ff; users from 0x1000 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationCode(pub u32);

impl OperationCode {
    /// The barrier of a team.
    pub const TEAM_BARRIER: Self = Self(0x100);
    /// The wait for a signal word.
    pub const SIGNAL_WAIT: Self = Self(0x101);
}

/// Names for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationName {
    /// The operation: `ep dispatch`.
    pub name: &'static str,
    /// Its phases, by number.
    pub phases: &'static [&'static str],
}

#[derive(Debug)]
pub(crate) struct OperationNames {
    names: Mutex<HashMap<OperationCode, OperationName>>,
}

impl Default for OperationNames {
    fn default() -> Self {
        let names = HashMap::from([
            (OperationCode::TEAM_BARRIER, OperationName { name: "team barrier", phases: &["arrival"] }),
            (OperationCode::SIGNAL_WAIT, OperationName { name: "signal wait", phases: &["signal"] }),
        ]);
        Self { names: Mutex::new(names) }
    }
}

impl OperationNames {
    pub(crate) fn insert(&self, code: OperationCode, name: OperationName) {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).insert(code, name);
    }

    /// Names of the operation and its phase; the numbers where nobody gave names.
    pub(crate) fn look_up(&self, code: OperationCode, phase: u32) -> (String, String) {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let known = names.get(&code);
        let operation =
            known.map_or_else(|| format!("operation {:#x}", code.0), |known| known.name.to_owned());
        let phase = known
            .and_then(|known| known.phases.get(phase as usize))
            .copied()
            // Waits inside the device functions have numbers of their own, whatever the operation of the kernel.
            .or_else(|| crate::device_api::phase_name(phase))
            .map_or_else(|| format!("phase {phase}"), str::to_owned);
        (operation, phase)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_have_names_or_numbers() {
        let names = OperationNames::default();
        names.insert(OperationCode(0x300), OperationName { name: "ep dispatch", phases: &["counts"] });
        assert_eq!(names.look_up(OperationCode(0x300), 0), ("ep dispatch".into(), "counts".into()));
        assert_eq!(names.look_up(OperationCode(0x300), 7), ("ep dispatch".into(), "phase 7".into()));
        assert_eq!(names.look_up(OperationCode(0x9), 1), ("operation 0x9".into(), "phase 1".into()));
    }
}
