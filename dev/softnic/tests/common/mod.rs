//! What the tests share: ranks with NICs on a machine of CPU threads, and a thread of the host that posts as a kernel would.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of this")]

pub mod encode;

use std::sync::Arc;
use std::time::Duration;

use anabranch_clock::{Moment, sleep};
use anabranch_hip::{Device, DeviceBuffer, DeviceOrdinal, EngineMemory};
use anabranch_hip_host::{HostConfig, HostMachine};
use anabranch_ranks::GlobalRank;
use anabranch_softnic::{Fabric, InProcess, Listen, SoftNic, SoftNicConfig, StreamPort, Syndrome};
use anabranch_transport::Region;
use anabranch_transport_rdma::{NicDriver, NicQueue, QueueSpec, QueueWords, Registered};

use encode::{Control, Range};

/// Real time that nothing here takes.
pub const LIMIT: Duration = Duration::from_secs(30);
pub const HEAP: usize = 1 << 20;

/// How the NICs of a test reach each other.
#[derive(Clone, Debug)]
pub enum Way {
    InProcess(InProcess),
    Sockets(Listen),
}

impl Way {
    pub fn in_process() -> Self {
        Self::InProcess(InProcess::new())
    }

    pub fn port(&self) -> Box<dyn Fabric> {
        match self {
            Self::InProcess(fabric) => Box::new(fabric.join()),
            Self::Sockets(listen) => Box::new(StreamPort::open(listen).unwrap()),
        }
    }
}

/// A rank's device, memory and NIC.
pub struct Rank {
    pub device: Device,
    pub memory: Arc<dyn EngineMemory>,
    pub nic: SoftNic,
    pub heap: DeviceBuffer,
    pub keys: Arc<dyn Registered>,
}

pub fn machine(devices: u32) -> Arc<HostMachine> {
    HostMachine::new(HostConfig { devices, workers: 2.try_into().ok(), ..HostConfig::default() }).unwrap()
}

impl Rank {
    pub fn new(machine: &Arc<HostMachine>, ordinal: u32, way: &Way, config: SoftNicConfig) -> Self {
        let device = machine.runtime().device(DeviceOrdinal(ordinal)).unwrap();
        let memory = device.runtime().engines(DeviceOrdinal(ordinal)).unwrap().memory;
        let nic = SoftNic::open(&device, way.port(), config).unwrap();
        let mut heap = device.allocate(HEAP).unwrap();
        heap.fill(0).unwrap();
        let keys = nic.register(Region { address: heap.address().0, bytes: HEAP as u64 }).unwrap();
        Self { device, memory, nic, heap, keys }
    }

    pub fn at(&self, offset: u64) -> u64 {
        self.heap.address().0 + offset
    }

    /// A range of the heap as entries of this rank name it.
    pub fn local(&self, offset: u64, bytes: u32) -> Range {
        (self.at(offset), bytes, self.keys.local_key())
    }

    /// A place of the heap as entries of peers name it.
    pub fn remote(&self, offset: u64) -> (u64, u32) {
        (self.at(offset), self.keys.remote_key())
    }

    pub fn store(&self, offset: u64, bytes: &[u8]) {
        self.memory.write(self.at(offset), bytes).unwrap();
    }

    pub fn load(&self, offset: u64, bytes: usize) -> Vec<u8> {
        let mut found = vec![0; bytes];
        self.memory.read(self.at(offset), &mut found).unwrap();
        found
    }

    pub fn load_64(&self, offset: u64) -> u64 {
        self.memory.load_64(self.at(offset)).unwrap()
    }

    pub fn queue(&self, peer: u32, channel: u32, entries: u32) -> Arc<dyn NicQueue> {
        self.nic.create_queue(QueueSpec { peer: GlobalRank::new(peer), channel, entries }).unwrap()
    }
}

/// Ranks on one machine, each connected to each by one queue pair.
pub struct World {
    pub ranks: Vec<Rank>,
    /// By rank, then by peer; none to itself.
    pub posters: Vec<Vec<Option<Poster>>>,
    pub machine: Arc<HostMachine>,
}

impl World {
    pub fn new(size: u32, way: &Way, entries: u32, config: &SoftNicConfig) -> Self {
        Self::with(size, way, entries, &vec![config.clone(); size as usize])
    }

    pub fn with(size: u32, way: &Way, entries: u32, configs: &[SoftNicConfig]) -> Self {
        let machine = machine(size);
        let ranks: Vec<_> =
            (0..size).map(|rank| Rank::new(&machine, rank, way, configs[rank as usize].clone())).collect();
        let queue =
            |rank: u32, peer: u32| (rank != peer).then(|| ranks[rank as usize].queue(peer, 0, entries));
        let queues: Vec<Vec<_>> =
            (0..size).map(|rank| (0..size).map(|peer| queue(rank, peer)).collect()).collect();
        for (rank, of_rank) in queues.iter().enumerate() {
            for (peer, queue) in of_rank.iter().enumerate() {
                if let (Some(queue), Some(other)) = (queue, &queues[peer][rank]) {
                    queue.connect(GlobalRank::new(peer as u32), &other.endpoint()).unwrap();
                }
            }
        }
        let posters = queues
            .into_iter()
            .zip(&ranks)
            .map(|(of_rank, rank)| {
                of_rank.into_iter().map(|queue| queue.map(|queue| Poster::new(queue, rank))).collect()
            })
            .collect();
        Self { ranks, posters, machine }
    }

    pub fn poster(&mut self, rank: usize, peer: usize) -> &mut Poster {
        self.posters[rank][peer].as_mut().unwrap()
    }
}

/// Posts to one queue pair, as a kernel would.
pub struct Poster {
    pub queue: Arc<dyn NicQueue>,
    pub words: QueueWords,
    pub memory: Arc<dyn EngineMemory>,
    /// The position behind what was written, and behind what is known to be complete.
    pub posted: u64,
    pub done: u64,
    /// How the last entry begins.
    last: [u8; 8],
}

impl Poster {
    pub fn new(queue: Arc<dyn NicQueue>, rank: &Rank) -> Self {
        let (words, memory) = (queue.words(), Arc::clone(&rank.memory));
        Self { queue, words, memory, posted: 0, done: 0, last: [0; 8] }
    }

    pub fn control(&self) -> Control {
        Control::new(self.posted, self.words.number)
    }

    /// Writes an entry into the ring.
    pub fn put(&mut self, entry: &[u8]) {
        self.last.copy_from_slice(&entry[..8]);
        for block in entry.chunks(64) {
            let slot = self.posted & u64::from(self.words.entries - 1);
            self.memory.write(self.words.ring.0 + slot * 64, block).unwrap();
            self.posted += 1;
        }
    }

    /// Tells of what was put: the record, then the doorbell.
    pub fn ring(&self) {
        self.record(&u32::from(self.posted as u16).to_be_bytes());
        self.doorbell(self.last);
    }

    pub fn record(&self, bytes: &[u8]) {
        self.memory.write(self.words.doorbell_record.0 + 4, bytes).unwrap();
    }

    pub fn doorbell(&self, bytes: [u8; 8]) {
        self.memory.store_64(self.words.doorbell.0, u64::from_ne_bytes(bytes)).unwrap();
    }

    /// An entry that is made for its place, and told of.
    pub fn post(&mut self, entry: impl FnOnce(&Control) -> Vec<u8>) {
        let entry = entry(&self.control());
        while self.posted + (entry.len() / 64) as u64 - self.done > u64::from(self.words.entries) {
            self.progress().unwrap();
        }
        self.put(&entry);
        self.ring();
    }

    /// The completion as it stands: the index, or how an entry failed.
    pub fn completion(&self) -> Result<Option<u16>, Syndrome> {
        let mut cqe = [0; 64];
        self.memory.read(self.words.completions.0 + 56, &mut cqe[56..]).unwrap();
        self.memory.read(self.words.completions.0, &mut cqe[..56]).unwrap();
        match cqe[63] >> 4 {
            15 => Ok(None),
            0 => Ok(Some(u16::from_be_bytes([cqe[60], cqe[61]]))),
            13 => Err(Syndrome::of(cqe[55]).unwrap()),
            other => panic!("a completion with opcode {other}"),
        }
    }

    /// Waits for a completion that says more than is known.
    pub fn progress(&mut self) -> Result<(), Syndrome> {
        let until = Moment::now().after(LIMIT);
        loop {
            if let Some(index) = self.completion()? {
                let ahead = index.wrapping_add(1).wrapping_sub(self.done as u16);
                // The index is of an entry's first block; its others are behind it.
                if ahead > 0 && ahead < 0x8000 {
                    self.done += u64::from(ahead);
                    return Ok(());
                }
            }
            assert!(
                !until.remaining().is_zero(),
                "{}: no completion: {:?}",
                self.queue.describe(),
                self.queue.stopped()
            );
            sleep(Duration::from_micros(20));
        }
    }

    /// Waits until everything is complete; the last entry has one block.
    pub fn quiet(&mut self) -> Result<(), Syndrome> {
        while self.done < self.posted {
            self.progress()?;
        }
        Ok(())
    }

    /// Waits until the queue pair has stopped, and gives why.
    pub fn stopped(&self) -> String {
        let until = Moment::now().after(LIMIT);
        loop {
            if let Some(why) = self.queue.stopped() {
                return why;
            }
            assert!(!until.remaining().is_zero(), "the queue pair did not stop");
            sleep(Duration::from_micros(50));
        }
    }
}

/// Bytes that differ from place to place and from seed to seed.
pub fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64)
        .map(|at| (seed.wrapping_mul(31).wrapping_add(at.wrapping_mul(131)) >> 3) as u8)
        .collect()
}
