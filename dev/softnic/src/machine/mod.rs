//! A NIC: its queue pairs, and what goes to and from others.

mod placing;
mod queue_pair;
mod requester;
mod responder;
#[cfg(test)]
mod written;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use anabranch_ranks::GlobalRank;

use crate::config::SoftNicConfig;
use crate::fabric::{Event, Fabric, NicNumber};
use crate::keys::Keys;
use crate::memory::NicMemory;
use crate::random::Random;
use crate::register::Register;

pub(crate) use queue_pair::{PeerQueue, QueuePair};

/// An immediate value that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Immediate {
    /// From whom.
    pub peer: GlobalRank,
    /// By which of the queue pairs to that peer.
    pub channel: u32,
    /// The value, in host byte order.
    pub value: u32,
}

/// What a NIC has done for requests of its rank that are complete, by peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Writes, with and without an immediate value.
    pub writes: u64,
    /// Payload bytes of them.
    pub written_bytes: u64,
    /// Reads.
    pub reads: u64,
    /// Payload bytes of them.
    pub read_bytes: u64,
    /// Atomic operations.
    pub atomics: u64,
}

/// Events of the fabric that one turn looks at, so that a peer which sends without end does not block the others.
const EVENTS: usize = 1024;

/// What all queue pairs of a NIC share while they take a turn.
pub(crate) struct Context<'a> {
    pub(crate) memory: &'a dyn NicMemory,
    pub(crate) keys: &'a Keys,
    pub(crate) fabric: &'a mut dyn Fabric,
    pub(crate) config: &'a SoftNicConfig,
    pub(crate) now: Duration,
    pub(crate) random: &'a mut Random,
    pub(crate) gone: &'a BTreeSet<NicNumber>,
    pub(crate) immediates: &'a mut VecDeque<Immediate>,
    pub(crate) traffic: &'a mut BTreeMap<GlobalRank, Traffic>,
    /// Requests that were fetched.
    pub(crate) requests: &'a mut u64,
}

/// Everything of a NIC that moves.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) queues: BTreeMap<u32, QueuePair>,
    /// The doorbell register, where queue pairs share one.
    pub(crate) register: Option<Register>,
    /// None when the NIC has died or was closed.
    pub(crate) fabric: Option<Box<dyn Fabric>>,
    memory: Arc<dyn NicMemory>,
    keys: Arc<Keys>,
    config: SoftNicConfig,
    random: Random,
    gone: BTreeSet<NicNumber>,
    pub(crate) immediates: VecDeque<Immediate>,
    pub(crate) traffic: BTreeMap<GlobalRank, Traffic>,
    requests: u64,
}

impl Machine {
    pub(crate) fn new(
        fabric: Box<dyn Fabric>,
        memory: Arc<dyn NicMemory>,
        keys: Arc<Keys>,
        config: SoftNicConfig,
    ) -> Self {
        let seed = config.adversary.map_or(0, |adversary| adversary.seed);
        Self {
            random: Random::new(seed, fabric.number().0),
            queues: BTreeMap::new(),
            register: None,
            fabric: Some(fabric),
            memory,
            keys,
            config,
            gone: BTreeSet::new(),
            immediates: VecDeque::new(),
            traffic: BTreeMap::new(),
            requests: 0,
        }
    }

    /// Does a little of everything; true where something was done.
    pub(crate) fn step(&mut self, now: Duration) -> bool {
        let faults = &self.config.faults;
        if faults.dies_after.is_some_and(|after| self.requests >= after) && self.fabric.take().is_some() {
            tracing::warn!(requests = self.requests, "a NIC in software dies, as it was told to");
        }
        if faults.falls_silent_after.is_some_and(|after| self.requests >= after) {
            return false;
        }
        let Some(fabric) = self.fabric.as_deref_mut() else { return false };
        let mut did = false;
        for _ in 0..EVENTS {
            let Some(event) = fabric.poll() else { break };
            did = true;
            match event {
                Event::Gone { peer, why } => {
                    tracing::debug!(%peer, why, "a NIC is gone");
                    self.gone.insert(peer);
                }
                Event::Came { from, frame } => {
                    if let Some(queue) = self.queues.get_mut(&frame.target) {
                        queue.take(from, frame, self.config.window);
                    } else {
                        // Of a queue pair that is no more; its peer's patience ends.
                        tracing::debug!(%from, queue = frame.target, "a frame for no queue pair");
                    }
                }
            }
        }
        if let Some(register) = &mut self.register {
            match register.listen(self.memory.as_ref()) {
                Ok(heard) => did |= heard,
                // Its memory is freed after the last queue pair's, so no doorbell is rung any more.
                Err(gone) => {
                    tracing::warn!(%gone, "the doorbell register of a NIC in software");
                    self.register = None;
                }
            }
        }
        let mut context = Context {
            memory: self.memory.as_ref(),
            keys: &self.keys,
            fabric,
            config: &self.config,
            now,
            random: &mut self.random,
            gone: &self.gone,
            immediates: &mut self.immediates,
            traffic: &mut self.traffic,
            requests: &mut self.requests,
        };
        for queue in self.queues.values_mut() {
            for _ in 0..context.config.steps {
                if !queue.step(&mut context) {
                    break;
                }
                did = true;
            }
        }
        did
    }

    /// Whether the peers' requests that have come are all answered.
    pub(crate) fn has_answered(&self) -> bool {
        self.queues.values().all(QueuePair::has_answered)
    }
}

#[cfg(test)]
mod tests {
    use anabranch_hip::NoMemory;
    use anabranch_transport_rdma::NicError;

    use super::*;
    use crate::decode::AtomicOperation;
    use crate::fabric::{Body, Frame};

    /// Always has one more frame.
    #[derive(Debug)]
    struct Endless;

    impl Fabric for Endless {
        fn kind(&self) -> &'static str {
            "endless"
        }

        fn number(&self) -> NicNumber {
            NicNumber(1)
        }

        fn address(&self) -> String {
            String::new()
        }

        fn open(&mut self, _: NicNumber, _: &str) -> Result<(), NicError> {
            Ok(())
        }

        fn send(&mut self, _: NicNumber, _: Frame) {}

        fn is_full(&self, _: NicNumber) -> bool {
            false
        }

        fn poll(&mut self) -> Option<Event> {
            let frame = Frame { source: 1, target: 2, sequence: 0, body: Body::Placed };
            Some(Event::Came { from: NicNumber(2), frame })
        }
    }

    #[derive(Debug)]
    struct NoWhere;

    impl NicMemory for NoWhere {
        fn read(&self, address: u64, target: &mut [u8]) -> Result<(), NoMemory> {
            Err(NoMemory { address, bytes: target.len() as u64 })
        }

        fn write(&self, address: u64, source: &[u8]) -> Result<(), NoMemory> {
            Err(NoMemory { address, bytes: source.len() as u64 })
        }

        fn atomic(&self, address: u64, _: &AtomicOperation) -> Result<u64, NoMemory> {
            Err(NoMemory { address, bytes: 8 })
        }
    }

    #[test]
    fn a_turn_ends_although_frames_come_without_end() {
        let (memory, keys) = (Arc::new(NoWhere), Arc::new(Keys::default()));
        let mut machine = Machine::new(Box::new(Endless), memory, keys, SoftNicConfig::default());
        assert!(machine.step(Duration::ZERO));
    }

    #[test]
    fn a_register_that_is_gone_is_not_listened_to_again() {
        let (memory, keys) = (Arc::new(NoWhere), Arc::new(Keys::default()));
        let config = SoftNicConfig::default();
        let register = Register::new(4096, config.provider);
        let mut machine = Machine::new(Box::new(Endless), memory, keys, config);
        machine.register = Some(register);
        machine.step(Duration::ZERO);
        assert!(machine.register.is_none());
    }
}
