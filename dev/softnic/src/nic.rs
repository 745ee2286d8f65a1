//! A NIC in software as a driver of the transport.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anabranch_clock::{Driver, Moment};
use anabranch_hip::{Actor, Device, DeviceAddress, Step};
use anabranch_ranks::GlobalRank;
use anabranch_transport::Region;
use anabranch_transport_rdma::{
    Atomics, NicDriver, NicError, NicLimits, NicQueue, Provider, QueueSpec, QueueWords, RdmaConfig,
    ReadOrder, Registered,
};

use crate::config::SoftNicConfig;
use crate::endpoint::Endpoint;
use crate::fabric::{Address, Fabric, NicNumber};
use crate::keys::Keys;
use crate::machine::{Immediate, Machine, PeerQueue, QueuePair, Traffic};
use crate::memory::NicMemory;
use crate::place::{Place, QueueMemory};
use crate::register::{self, Register};
use crate::ring;
use crate::syndrome::Syndrome;

/// Bytes of a packet, as kernels are told: what providers count packet numbers by.
const PATH_MTU: u32 = 4096;

/// A NIC in software that serves one rank: a [`NicDriver`].
///
/// On the runtime that is made of CPU threads it runs under the machine's scheduler, so that seeds decide about it too; on GPUs it has
/// a thread of its own. Dropping it and all of its queue pairs ends it: peers find it gone.
#[derive(Debug)]
pub struct SoftNic {
    nic: Arc<Nic>,
}

/// What a NIC's queue pairs keep alive.
#[derive(Debug)]
struct Nic {
    shared: Arc<Shared>,
    place: Place,
    memory: Arc<dyn NicMemory>,
    keys: Arc<Keys>,
    config: SoftNicConfig,
    number: NicNumber,
    fabric: &'static str,
    address: Address,
    made: AtomicU32,
    /// The doorbell register that queue pairs share, if they do.
    register: Option<QueueMemory>,
}

/// What the NIC shares with the thread that steps it.
pub(crate) struct Shared {
    machine: Mutex<Machine>,
    clock: Option<Arc<dyn Driver>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time, by the clock that decides for the rank.
    fn now(&self) -> Duration {
        self.clock.as_ref().map_or_else(|| Moment::now().since_origin(), |driver| driver.now())
    }

    /// Answers what peers have asked for and the NIC has taken, before it goes that this takes: peers may wait for nothing else of
    /// this rank's.
    fn answer_all(&self, has_answered: impl Fn(&Machine) -> bool) {
        for _ in 0..LAST_STEPS {
            let now = self.now();
            let mut machine = self.lock();
            machine.step(now);
            if has_answered(&machine) {
                return;
            }
        }
    }

    /// One turn of the NIC.
    pub(crate) fn step(&self) -> Step {
        let now = self.now();
        let mut machine = self.lock();
        if machine.fabric.is_none() {
            return Step::Finished;
        }
        if machine.step(now) { Step::Progress } else { Step::Waiting }
    }
}

/// A NIC, as something that runs a little at a time.
struct Runner(Arc<Shared>);

impl Actor for Runner {
    fn step(&mut self) -> Step {
        self.0.step()
    }
}

impl SoftNic {
    /// Opens a NIC for the rank that uses this device. Not collective.
    ///
    /// # Errors
    /// [`NicError::Limit`] for a configuration that cannot be, [`NicError::NoNic`] for a provider whose entries it cannot read, and
    /// what starting it takes.
    pub fn open(device: &Device, fabric: Box<dyn Fabric>, config: SoftNicConfig) -> Result<Self, NicError> {
        config.check()?;
        if config.provider == Provider::Posted {
            let reasons = format!("the NIC in software does not read entries of {}", config.provider);
            return Err(NicError::NoNic { reasons });
        }
        if config.read_order == ReadOrder::Dumped && config.provider != Provider::Mlx5 {
            let reasons =
                format!("entries of {} have no DUMP, by which reads would be ordered", config.provider);
            return Err(NicError::NoNic { reasons });
        }
        let (number, kind, address) = (fabric.number(), fabric.kind(), Address(fabric.address()));
        let keys = Arc::new(Keys::default());
        let place = Place::of(device, config.placement)?;
        let memory = place.memory();
        let mut machine = Machine::new(fabric, Arc::clone(&memory), Arc::clone(&keys), config.clone());
        let register = config.shared_doorbell.then(|| place.allocate_bytes(register::BYTES)).transpose()?;
        machine.register =
            register.as_ref().map(|register| Register::new(register.base().0, config.provider));
        let clock = device.runtime().driver();
        let shared = Arc::new(Shared { machine: Mutex::new(machine), clock });
        place.start(&shared)?;
        let made = AtomicU32::new(0);
        let nic = Nic { shared, place, memory, keys, config, number, fabric: kind, address, made, register };
        Ok(Self { nic: Arc::new(nic) })
    }

    /// What it has done for its rank's requests that are complete, by peer.
    pub fn traffic(&self) -> BTreeMap<GlobalRank, Traffic> {
        self.nic.shared.lock().traffic.clone()
    }

    /// Takes the immediate values that came, in the order in which they came.
    pub fn take_immediates(&self) -> Vec<Immediate> {
        self.nic.shared.lock().immediates.drain(..).collect()
    }
}

impl NicDriver for SoftNic {
    fn provider(&self) -> Provider {
        self.nic.config.provider
    }

    fn describe(&self) -> String {
        let Nic { number, fabric, config, .. } = self.nic.as_ref();
        format!("a NIC in software ({number}, entries of {}, {fabric})", config.provider)
    }

    fn limits(&self) -> NicLimits {
        NicLimits {
            most_message_bytes: self.nic.config.most_message_bytes,
            inline_bytes: match self.provider() {
                // The third slot of an entry.
                Provider::Bnxt => self.nic.config.inline_bytes.min(16),
                _ => self.nic.config.inline_bytes,
            },
            // Those with masks are mlx5's own.
            atomics: match self.provider() {
                _ if !self.nic.config.atomics => Atomics::None,
                Provider::Mlx5 => Atomics::Masked,
                _ => Atomics::Standard,
            },
        }
    }

    fn read_order(&self) -> ReadOrder {
        self.nic.config.read_order
    }

    fn takes_immediates(&self) -> bool {
        true
    }

    fn register(&self, region: Region) -> Result<Arc<dyn Registered>, NicError> {
        let Region { address, bytes } = region;
        let end = address.checked_add(bytes);
        if bytes == 0 || end.is_none() {
            let allowed = "1 and more, below the end of addresses".to_owned();
            return Err(NicError::Limit {
                what: "bytes to register",
                given: bytes,
                allowed,
                nic: self.describe(),
            });
        }
        for at in [address, address + (bytes - 1)] {
            self.nic.memory.read(at, &mut [0]).map_err(|cause| NicError::Call {
                call: "register",
                nic: self.describe(),
                cause: cause.to_string(),
            })?;
        }
        // Only where it matters: this asks the runtime.
        let of_host = self.read_order() != ReadOrder::Ordered
            && !self.nic.place.device().is_device_memory(DeviceAddress(address))?;
        Ok(Arc::new(self.nic.keys.register(region, of_host)))
    }

    fn create_queue(&self, spec: QueueSpec) -> Result<Arc<dyn NicQueue>, NicError> {
        let most = match self.provider() {
            Provider::Bnxt => RdmaConfig::MOST_ENTRIES_OF_BNXT,
            _ => RdmaConfig::MOST_ENTRIES,
        };
        let range = RdmaConfig::LEAST_ENTRIES..=most;
        if !range.contains(&spec.entries) || !spec.entries.is_power_of_two() {
            let allowed = format!("powers of two from {} to {}", range.start(), range.end());
            let given = spec.entries.into();
            return Err(NicError::Limit { what: "entries of a queue", given, allowed, nic: self.describe() });
        }
        let nic = Arc::clone(&self.nic);
        // Not equal on two NICs of a fabric, nor what a slot or a rank could be taken for.
        let made = nic.made.fetch_add(1, Ordering::Relaxed);
        let number = ((nic.number.0 as u32 & 0xff) << 16 | 0x0100).wrapping_add(made) & 0x00ff_ffff;
        let queue_memory = nic.place.allocate(spec.entries)?;
        let words = queue_memory.words(nic.config.provider, spec.entries, number, PATH_MTU);
        let memory = nic.memory.as_ref();
        let failed =
            |cause: String| NicError::Call { call: "create a queue pair", nic: self.describe(), cause };
        let ring = ring::start(nic.config.provider, memory, words, nic.config.inline_bytes)
            .map_err(|cause| failed(cause.to_string()))?
            .ok_or_else(|| failed("its entries are not a NIC's".to_owned()))?;
        let mut machine = nic.shared.lock();
        if nic.register.is_some() {
            let register = machine.register.as_mut();
            let register = register.ok_or_else(|| failed("the doorbell register is gone".to_owned()))?;
            let too_many = |given| NicError::Limit {
                what: "entries of all queues that share a doorbell register",
                given,
                allowed: format!("up to {}", SoftNicConfig::REGISTER_PLACES),
                nic: self.describe(),
            };
            register.add(number, words.doorbell.0, spec.entries).map_err(too_many)?;
        }
        machine.queues.insert(number, QueuePair::new(number, spec, ring));
        drop(machine);
        let shared = nic.register.as_ref().map(QueueMemory::base);
        let words = QueueWords { doorbell: shared.unwrap_or(words.doorbell), ..words };
        Ok(Arc::new(SoftQueue { nic, spec, words, _memory: queue_memory }))
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        self.shared.answer_all(Machine::has_answered);
        let fabric = self.shared.lock().fabric.take();
        drop(fabric);
        self.place.end();
    }
}

/// Turns that a NIC takes at most when it, or one of its queue pairs, ends.
const LAST_STEPS: u32 = 1000;

/// A queue pair of a [`SoftNic`].
#[derive(Debug)]
struct SoftQueue {
    nic: Arc<Nic>,
    spec: QueueSpec,
    words: QueueWords,
    /// Freed behind the queue pair.
    _memory: QueueMemory,
}

impl SoftQueue {
    fn own_endpoint(&self) -> Endpoint {
        let Nic { config, fabric, number, address, .. } = self.nic.as_ref();
        Endpoint::new(
            config.provider,
            fabric,
            number.0,
            address.clone(),
            self.words.number,
            self.spec.channel,
        )
    }
}

impl NicQueue for SoftQueue {
    fn endpoint(&self) -> Vec<u8> {
        self.own_endpoint().to_bytes()
    }

    fn connect(&self, peer: GlobalRank, endpoint: &[u8]) -> Result<(), NicError> {
        let theirs = self.own_endpoint().of_peer(peer, endpoint)?;
        let refused = |problem: String| NicError::Endpoint { peer, driver: self.describe(), problem };
        if peer != self.spec.peer {
            return Err(refused(format!("this queue pair is for {}", self.spec.peer)));
        }
        let mut machine = self.nic.shared.lock();
        let nic = NicNumber(theirs.nic);
        let Machine { queues, fabric, .. } = &mut *machine;
        let Some(queue) = queues.get_mut(&self.words.number) else {
            return Err(refused("this queue pair is no more".to_owned()));
        };
        if let Some(connected) = queue.peer {
            return Err(refused(format!("this queue pair is connected to {} already", connected.nic)));
        }
        let Some(fabric) = fabric else { return Err(refused("this NIC has ended".to_owned())) };
        fabric.open(nic, &theirs.address.0)?;
        queue.connect(PeerQueue { rank: peer, nic, number: theirs.number });
        drop(machine);
        self.nic.place.wake();
        Ok(())
    }

    fn words(&self) -> QueueWords {
        self.words
    }

    fn describe(&self) -> String {
        let QueueSpec { peer, channel, .. } = self.spec;
        format!("queue pair {:#x} of {} to {peer}, channel {channel}", self.words.number, self.nic.number)
    }

    fn stopped(&self) -> Option<String> {
        let machine = self.nic.shared.lock();
        if machine.fabric.is_none() {
            return Some("the NIC has died".to_owned());
        }
        machine.queues.get(&self.words.number)?.stopped.as_ref().map(ToString::to_string)
    }

    fn is_consequence(&self) -> bool {
        let machine = self.nic.shared.lock();
        let stopped = machine.queues.get(&self.words.number).and_then(|queue| queue.stopped.as_ref());
        stopped.is_some_and(|stopped| stopped.syndrome() == Syndrome::Flushed)
    }
}

impl Drop for SoftQueue {
    fn drop(&mut self) {
        let number = self.words.number;
        self.nic.shared.answer_all(|machine| machine.queues.get(&number).is_none_or(QueuePair::has_answered));
        // A turn that has begun ends before the memory goes that it may write.
        let mut machine = self.nic.shared.lock();
        let queue = machine.queues.remove(&number);
        if let Some(register) = &mut machine.register {
            register.remove(number);
        }
        drop(machine);
        drop(queue);
    }
}

/// The actor of a NIC.
pub(crate) fn actor(shared: &Arc<Shared>) -> Box<dyn Actor> {
    Box::new(Runner(Arc::clone(shared)))
}
