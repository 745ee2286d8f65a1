//! The names by which kernels report faults, and who puts these into words.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError, Weak};

use anabranch_hip_jit::control::FaultRecord;

use crate::error::ExpiredWait;

/// Number of an operation in fault records. Each crate has its range: shmem 0x100 to 0x1ff, ccl 0x200 to
/// 0x2ff, ep 0x300 to 0x3ff; users from 0x1000 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationCode(pub u32);

impl OperationCode {
    /// Whether it is one of the numbers for users.
    pub(crate) const fn is_users(self) -> bool {
        self.0 >= 0x1000
    }

    /// The barrier of a team.
    pub const TEAM_BARRIER: Self = Self(0x100);
    /// The wait for a signal word.
    pub const SIGNAL_WAIT: Self = Self(0x101);
    /// A barrier of streams ([`crate::StreamBarrier`]).
    pub const STREAM_BARRIER: Self = Self(0x103);
    /// A copy by engines in stream order.
    pub const ENGINE_COPY: Self = Self(0x102);
    /// A copy by NIC in stream order.
    pub const NIC_COPY: Self = Self(0x104);
    /// A signal by NIC in stream order.
    pub const NIC_SIGNAL: Self = Self(0x105);
    /// The first read of a peer's memory by NIC.
    pub const NIC_PROBE: Self = Self(0x106);
    /// The completion of what was put by NIC, before memory goes.
    pub const NIC_DRAIN: Self = Self(0x107);
}

/// Names for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationName {
    /// The operation: `ep dispatch`.
    pub name: &'static str,
    /// Its phases, by number.
    pub phases: &'static [&'static str],
}

/// Describes what a kernel reported other than an expired wait (`report_fault` in `anabranch/wait.h`). Given to
/// [`World::explain_faults`](crate::World::explain_faults).
pub trait ExplainFault: fmt::Debug + Send + Sync {
    /// What is wrong, as a clause without a full stop; `None` for an expired wait, and for what another explainer knows. `wait` has the
    /// record with the ranks of the world and the call. Called on the host once the kernel has written the record, perhaps while it
    /// drains; may read device memory, must not call the world.
    fn explain(&self, record: &FaultRecord, wait: &ExpiredWait) -> Option<String>;
}

/// Who explains the records of an operation, as long as they live.
#[derive(Debug, Default)]
pub(crate) struct Explainers {
    known: Mutex<Vec<(OperationCode, Weak<dyn ExplainFault>)>>,
}

impl Explainers {
    pub(crate) fn insert(&self, code: OperationCode, explainer: Weak<dyn ExplainFault>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(_, old)| old.strong_count() > 0);
        known.push((code, explainer));
    }

    /// The first explanation. No lock is held while explainers are at work.
    pub(crate) fn explain(&self, record: &FaultRecord, wait: &ExpiredWait) -> Option<String> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let of_operation = known.into_iter().filter(|(code, _)| code.0 == record.operation);
        of_operation
            .filter_map(|(_, explainer)| explainer.upgrade())
            .find_map(|one| one.explain(record, wait))
    }
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
            (OperationCode::STREAM_BARRIER, OperationName { name: "stream barrier", phases: &["arrival"] }),
            (OperationCode::ENGINE_COPY, OperationName { name: "copy by engines", phases: &[] }),
            (OperationCode::NIC_COPY, OperationName { name: "copy by NIC", phases: &[] }),
            (OperationCode::NIC_SIGNAL, OperationName { name: "signal by NIC", phases: &[] }),
            (OperationCode::NIC_DRAIN, OperationName { name: "completion of puts by NIC", phases: &[] }),
            (OperationCode::NIC_PROBE, OperationName { name: "first read by NIC", phases: &[] }),
        ]);
        Self { names: Mutex::new(names) }
    }
}

/// An operation without a name.
fn unnamed(code: OperationCode) -> String {
    let whose = if code.is_users() { " of the user" } else { "" };
    format!("operation {:#x}{whose}", code.0)
}

impl OperationNames {
    pub(crate) fn insert(&self, code: OperationCode, name: OperationName) {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).insert(code, name);
    }

    /// Names of the operation and its phase; the numbers where it has none.
    pub(crate) fn look_up(&self, code: OperationCode, phase: u32) -> (String, String) {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let known = names.get(&code);
        let operation = known.map_or_else(|| unnamed(code), |known| known.name.to_owned());
        let phase = known
            .and_then(|known| known.phases.get(phase as usize))
            .copied()
            // Waits inside the device functions have separate numbers, whatever the operation of the kernel.
            .or_else(|| crate::device_api::phase_name(phase))
            .map_or_else(|| format!("phase {phase}"), str::to_owned);
        (operation, phase)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use std::time::Duration;

    use anabranch_ranks::GlobalRank;
    use bytemuck::Zeroable as _;

    use super::*;

    #[derive(Debug)]
    struct Says(u32);
    impl ExplainFault for Says {
        fn explain(&self, record: &FaultRecord, _wait: &ExpiredWait) -> Option<String> {
            (record.phase == self.0).then(|| format!("phase {}", self.0))
        }
    }

    #[test]
    fn the_first_explainer_alive_that_knows_explains() {
        let explainers = Explainers::default();
        let [one, two, three]: [Arc<dyn ExplainFault>; 3] =
            [Arc::new(Says(1)), Arc::new(Says(2)), Arc::new(Says(3))];
        explainers.insert(OperationCode(7), Arc::downgrade(&one));
        explainers.insert(OperationCode(7), Arc::downgrade(&two));
        explainers.insert(OperationCode(8), Arc::downgrade(&three));
        let wait = ExpiredWait {
            rank: GlobalRank::new(0),
            operation: String::new(),
            phase: String::new(),
            epoch: 0,
            peer: GlobalRank::new(1),
            expected: 0,
            seen: 0,
            waited: Duration::ZERO,
            call: None,
            doing: None,
        };
        let explain = |operation, phase| {
            explainers.explain(&FaultRecord { operation, phase, ..FaultRecord::zeroed() }, &wait)
        };
        assert_eq!(explain(7, 2), Some("phase 2".into()));
        assert_eq!(explain(7, 3), None, "another operation's");
        drop(two);
        assert_eq!(explain(7, 2), None, "it is gone");
    }

    #[test]
    fn operations_have_names_or_numbers() {
        let names = OperationNames::default();
        names.insert(OperationCode(0x300), OperationName { name: "ep dispatch", phases: &["counts"] });
        assert_eq!(names.look_up(OperationCode(0x300), 0), ("ep dispatch".into(), "counts".into()));
        assert_eq!(names.look_up(OperationCode(0x300), 7), ("ep dispatch".into(), "phase 7".into()));
        assert_eq!(names.look_up(OperationCode(0x9), 1), ("operation 0x9".into(), "phase 1".into()));
        let users = names.look_up(OperationCode(0x1000), 1);
        assert_eq!(users, ("operation 0x1000 of the user".into(), "phase 1".into()));
    }
}
