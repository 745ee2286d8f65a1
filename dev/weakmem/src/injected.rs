//! Injected faults: deaths and stalls of ranks at a count of their primitives, and calls that fail.

use anabranch_hip::HipError;

use super::fault::Fault;

/// How far each rank is, and the faults injected into it.
#[derive(Debug, Default)]
pub(crate) struct InjectedFaults {
    faults: Vec<Fault>,
    /// Of each rank: its primitives and its threads' HIP calls so far.
    pub(crate) primitives: Vec<u64>,
    pub(crate) calls: Vec<u64>,
    dead: Vec<bool>,
    /// The virtual time until which a rank stands still.
    pub(crate) stalled_until: Vec<u64>,
    /// Ranks that have died and whose devices do not know it yet.
    pub(crate) just_died: Vec<u32>,
    /// A fault was injected in this turn: the thread that runs gives way.
    pub(crate) injected_now: bool,
}

impl InjectedFaults {
    pub(crate) fn new(ranks: u32, faults: &[Fault]) -> Self {
        let ranks = ranks as usize;
        Self {
            faults: faults.to_vec(),
            primitives: vec![0; ranks],
            calls: vec![0; ranks],
            dead: vec![false; ranks],
            stalled_until: vec![0; ranks],
            just_died: Vec::new(),
            injected_now: false,
        }
    }

    pub(crate) fn add(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    /// Counts a primitive of a rank, at a time; false when the rank is dead and must not do it.
    pub(crate) fn count(&mut self, rank: u32, now_ns: u64) -> bool {
        let Some(count) = self.primitives.get_mut(rank as usize) else { return true };
        if self.dead[rank as usize] {
            return false;
        }
        let nth = *count;
        *count += 1;
        for fault in &self.faults {
            match *fault {
                Fault::Kill { rank: whom, at } if (whom, at) == (rank, nth) => {
                    self.dead[rank as usize] = true;
                    self.just_died.push(rank);
                    self.injected_now = true;
                }
                Fault::Stall { rank: whom, at, ns } if (whom, at) == (rank, nth) => {
                    let until = &mut self.stalled_until[rank as usize];
                    *until = (*until).max(now_ns.saturating_add(ns));
                    self.injected_now = true;
                }
                _ => {}
            }
        }
        !self.dead[rank as usize]
    }

    /// Counts a HIP call of a rank's thread; the code with which it is to fail.
    pub(crate) fn call(&mut self, rank: u32) -> Option<HipError> {
        let count = self.calls.get_mut(rank as usize)?;
        let nth = *count;
        *count += 1;
        self.faults.iter().find_map(|fault| match *fault {
            Fault::FailCall { rank: whom, nth: which, code } if (whom, which) == (rank, nth) => Some(code),
            _ => None,
        })
    }

    pub(crate) fn is_dead(&self, rank: u32) -> bool {
        self.dead.get(rank as usize).copied().unwrap_or(false)
    }

    pub(crate) fn is_stalled(&self, rank: u32, now_ns: u64) -> bool {
        self.stalled_until.get(rank as usize).is_some_and(|until| *until > now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_dies_before_the_primitive_that_is_named() {
        let mut injected = InjectedFaults::new(2, &[Fault::Kill { rank: 1, at: 2 }]);
        assert_eq!([0; 4].map(|_| injected.count(1, 0)), [true, true, false, false]);
        assert!(injected.count(0, 0) && injected.count(u32::MAX, 0));
        assert_eq!((injected.primitives.clone(), injected.just_died.clone()), (vec![1, 3], vec![1]));
    }

    #[test]
    fn a_stall_counts_from_its_primitive_and_a_call_fails_once() {
        let code = HipError::OUT_OF_MEMORY;
        let faults = [Fault::Stall { rank: 0, at: 0, ns: 50 }, Fault::FailCall { rank: 0, nth: 1, code }];
        let mut injected = InjectedFaults::new(1, &faults);
        assert!(injected.count(0, 100));
        assert!(injected.is_stalled(0, 149) && !injected.is_stalled(0, 150));
        assert_eq!([0; 3].map(|_| injected.call(0)), [None, Some(code), None]);
    }
}
