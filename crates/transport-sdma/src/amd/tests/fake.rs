//! A thunk in memory that counts what it gave, and fails where it is told to.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::amd::driver::QueueToken;
use crate::amd::error::{AmdError, AmdResult};
use crate::amd::thunk::{Allocation, KfdVersion, Thunk, ThunkQueue};
use crate::amd::topology::Gpu;

/// A step that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    Version,
    Node,
    Allocate,
    Map,
    Create,
    Reaches,
    Destroy,
    Unmap,
    Free,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    memory: BTreeMap<u64, (u64, bool)>,
    /// Engine and ring of each queue.
    queues: BTreeMap<u64, (u32, u64)>,
    failing: BTreeMap<Step, u32>,
    calls: Vec<Step>,
    bad_doorbell: bool,
}

#[derive(Debug)]
pub(super) struct FakeThunk {
    state: Arc<Mutex<State>>,
    version: KfdVersion,
    per_engine: usize,
    host_only: bool,
}

/// What happens behind the thunk, for a test to look at and to meddle with.
#[derive(Clone, Debug)]
pub(super) struct Behind(Arc<Mutex<State>>);

impl FakeThunk {
    pub(super) fn new(per_engine: usize) -> (Self, Behind) {
        let state = Arc::new(Mutex::new(State { next: 0x7000_0000, ..State::default() }));
        let thunk = Self {
            state: Arc::clone(&state),
            version: KfdVersion { major: 1, minor: 17 },
            per_engine,
            host_only: false,
        };
        (thunk, Behind(state))
    }

    pub(super) fn of_version(mut self, major: u32, minor: u32) -> Self {
        self.version = KfdVersion { major, minor };
        self
    }

    pub(super) fn host_only(mut self) -> Self {
        self.host_only = true;
        self
    }

    fn step(&self, step: Step) -> AmdResult<MutexGuard<'_, State>> {
        let mut state = self.state.lock().unwrap();
        state.calls.push(step);
        if let Some(left) = state.failing.get_mut(&step) {
            if *left == 0 {
                return Err(AmdError::Call { call: "fake", place: format!("{step:?}"), code: 1 });
            }
            *left -= 1;
        }
        Ok(state)
    }
}

impl Behind {
    /// From now on the step fails, after it has worked `times` times.
    pub(super) fn fail(&self, step: Step, times: u32) {
        self.0.lock().unwrap().failing.insert(step, times);
    }

    pub(super) fn heal(&self) {
        self.0.lock().unwrap().failing.clear();
    }

    pub(super) fn return_a_bad_doorbell(&self) {
        self.0.lock().unwrap().bad_doorbell = true;
    }

    /// Allocations and queues that are there.
    pub(super) fn held(&self) -> (usize, usize) {
        let state = self.0.lock().unwrap();
        (state.memory.len(), state.queues.len())
    }

    /// The steps since the last time this was asked.
    pub(super) fn calls(&self) -> Vec<Step> {
        std::mem::take(&mut self.0.lock().unwrap().calls)
    }
}

impl Thunk for FakeThunk {
    fn origin(&self) -> &'static str {
        "a fake thunk"
    }

    fn version(&self) -> AmdResult<KfdVersion> {
        drop(self.step(Step::Version)?);
        Ok(self.version)
    }

    fn node(&self, gpu: &Gpu) -> AmdResult<u32> {
        drop(self.step(Step::Node)?);
        Ok(gpu.node - 1)
    }

    fn allocate(&self, _: u32, bytes: u64) -> AmdResult<Allocation> {
        let mut state = self.step(Step::Allocate)?;
        let address = state.next;
        state.next += bytes;
        state.memory.insert(address, (bytes, false));
        Ok(Allocation { address, bytes })
    }

    fn map(&self, memory: &Allocation) -> AmdResult<()> {
        let mut state = self.step(Step::Map)?;
        let entry = state.memory.get_mut(&memory.address).unwrap();
        assert_eq!(*entry, (memory.bytes, false), "mapped once");
        entry.1 = true;
        Ok(())
    }

    fn create_queue(&self, node: u32, engine: u32, ring: &Allocation) -> AmdResult<ThunkQueue> {
        let mut state = self.step(Step::Create)?;
        assert_eq!(state.memory[&ring.address], (ring.bytes, true), "the ring is mapped");
        if state.queues.values().filter(|queue| queue.0 == engine).count() >= self.per_engine {
            return Err(AmdError::QueueRefused { call: "fake", node, engine, code: 6 });
        }
        let base = state.next;
        state.next += 4096;
        state.queues.insert(base, (engine, ring.address));
        let doorbell = if state.bad_doorbell { base + 4 } else { base + 64 };
        Ok(ThunkQueue {
            token: QueueToken::new(base),
            doorbell,
            write_pointer: base + 8,
            read_pointer: base + 16,
        })
    }

    fn reaches(&self, _: u64) -> AmdResult<bool> {
        drop(self.step(Step::Reaches)?);
        Ok(!self.host_only)
    }

    fn destroy_queue(&self, queue: &QueueToken) -> AmdResult<()> {
        let mut state = self.step(Step::Destroy)?;
        let (_, ring) = state.queues.remove(&queue.value()).expect("a queue is destroyed once");
        assert!(state.memory.contains_key(&ring), "the ring is there as long as its queue");
        Ok(())
    }

    fn unmap(&self, memory: &Allocation) -> AmdResult<()> {
        let mut state = self.step(Step::Unmap)?;
        assert!(state.queues.values().all(|queue| queue.1 != memory.address), "a queue uses the ring");
        let entry = state.memory.get_mut(&memory.address).unwrap();
        assert!(entry.1, "unmapped once");
        entry.1 = false;
        Ok(())
    }

    fn free(&self, memory: Allocation) -> AmdResult<()> {
        let mut state = self.step(Step::Free)?;
        let (bytes, mapped) = state.memory.remove(&memory.address).expect("freed once");
        assert_eq!((bytes, mapped), (memory.bytes, false));
        Ok(())
    }
}
