//! A transport whose queues are mailboxes: kernels post words (`device/parcel.h`), and a thread of the host, the courier, carries them to
//! the peers' heaps. It serves ranks of one process.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use anabranch::GlobalRank;
use anabranch::hip::{Device, DeviceAddress, DeviceBuffer, HostBuffer};
use anabranch::jit::Header;
use anabranch::transport::{
    Audience, Error, Explanation, Operation, Origin, PeerInfo, PeerMemory, Reach, Refusal, Region, Result,
    Scope, StoppedQueue, Support, Transport, TransportKind,
};

/// For units that post parcels.
pub const DEVICE_HEADERS: &[Header] =
    &[Header { name: "parcels/parcel.h", text: include_str!("../device/parcel.h") }];
const PHASE_FULL: u32 = 0x7001;
const SLOTS: u64 = 8;
const WORDS: usize = 2 + 2 * SLOTS as usize;

/// The transport of one rank. Clones are the same one: the world owns one, and the rank keeps another for [`Self::table`].
#[derive(Clone, Debug)]
pub struct Parcels(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    rank: GlobalRank,
    device: Device,
    mailboxes: Mutex<BTreeMap<GlobalRank, Arc<Mailbox>>>,
    has_ended: AtomicBool,
    courier: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Mailbox {
    words: HostBuffer,
    heap: Region,
    stopped: OnceLock<String>,
}

impl Parcels {
    pub fn new(rank: GlobalRank, device: Device) -> Self {
        let (mailboxes, has_ended, courier) = Default::default();
        Self(Arc::new(Inner { rank, device, mailboxes, has_ended, courier }))
    }

    /// For kernels of a joined world: the address of the mailbox of each rank, null for this one.
    pub fn table(&self, ranks: u32) -> anabranch::hip::Result<DeviceBuffer> {
        let mailboxes = self.0.mailboxes.lock().expect("no thread panics with the lock");
        let address = |rank| mailboxes.get(&rank).map_or(0, |mailbox| mailbox.words.device_address().0);
        let words: Vec<u8> =
            (0..ranks).map(GlobalRank::new).flat_map(|rank| address(rank).to_le_bytes()).collect();
        let mut table = self.0.device.allocate(words.len())?;
        table.copy_from_host(0, &words)?;
        Ok(table)
    }

    /// Stops the mailbox to a peer, as a failure of its link would.
    pub fn fail(&self, peer: GlobalRank) {
        let mailboxes = self.0.mailboxes.lock().expect("no thread panics with the lock");
        let _ = mailboxes[&peer].stopped.set("the link was cut".to_owned());
    }

    /// Carries what is posted until the transport is closed.
    fn start_courier(&self) {
        let mut courier = self.0.courier.lock().expect("no thread panics with the lock");
        let inner = Arc::clone(&self.0);
        courier.get_or_insert_with(|| {
            std::thread::spawn(move || {
                while !inner.has_ended.load(Ordering::Acquire) {
                    let mailboxes: Vec<_> = inner
                        .mailboxes
                        .lock()
                        .expect("no thread panics with the lock")
                        .values()
                        .cloned()
                        .collect();
                    let carried = mailboxes.iter().filter(|mailbox| mailbox.carry(&inner.device)).count();
                    if carried == 0 {
                        std::thread::sleep(Duration::from_micros(50));
                    }
                }
            })
        });
    }
}

impl Mailbox {
    fn new(device: &Device, heap: Region) -> anabranch::hip::Result<Self> {
        let words = device.allocate_host(WORDS * 8)?;
        words.write(0, &[0; WORDS * 8])?;
        Ok(Self { words, heap, stopped: OnceLock::new() })
    }

    /// Carries the next parcel, if there is one.
    fn carry(&self, device: &Device) -> bool {
        if self.stopped.get().is_some() {
            return false;
        }
        let word = |index: u64| self.words.atomic_u64(index as usize * 8).expect("the index is below WORDS");
        let carried = word(1).load(Ordering::Relaxed);
        // Acquires the slot's words.
        if word(0).load(Ordering::Acquire) == carried {
            return false;
        }
        let slot = 2 + carried % SLOTS * 2;
        let (offset, value) = (word(slot).load(Ordering::Relaxed), word(slot + 1).load(Ordering::Relaxed));
        let problem = if offset.checked_add(8).is_none_or(|end| end > self.heap.bytes) {
            Some(format!("a parcel for offset {offset:#x}, beyond the heap"))
        } else {
            let target = DeviceAddress(self.heap.address + offset);
            // SAFETY: the word lies in the peer's heap, which stays until the peer has left, behind this transport's end.
            let written = unsafe { device.write_memory(target, &value.to_le_bytes()) };
            written.err().map(|error| error.to_string())
        };
        match problem {
            None => word(1).store(carried + 1, Ordering::Release),
            Some(problem) => self.stopped.set(problem).unwrap_or_default(),
        }
        true
    }
}

impl Transport for Parcels {
    fn kind(&self) -> TransportKind {
        TransportKind::Rdma
    }

    /// The device functions of the heap know no mailbox: kernels use `device/parcel.h`.
    fn support(&self, _: Operation, _: Scope) -> Support {
        Support::Unsupported
    }

    fn reaches(&self, peer: &PeerInfo) -> Result<Reach, Refusal> {
        if peer.process.pid != std::process::id() {
            return Err(Refusal::Failed { cause: "parcels do not leave the process".to_owned() });
        }
        let origin = if peer.rank == self.0.rank { Origin::Own } else { Origin::Remote };
        Ok(Reach { origin, reason: "parcels, carried by a thread of the host".to_owned() })
    }

    fn export(&self, region: Region, _: Audience) -> Result<Vec<u8>> {
        Ok([region.address, region.bytes].iter().flat_map(|word| word.to_le_bytes()).collect())
    }

    fn open(&self, peer: &PeerInfo, offer: &[u8], bytes: u64) -> Result<Box<dyn PeerMemory>> {
        let malformed = |problem| Error::Offer { peer: peer.rank, kind: self.kind(), problem };
        let (address, length) = offer.split_first_chunk::<8>().ok_or(malformed("it has no address"))?;
        let length = <[u8; 8]>::try_from(length).map_err(|_| malformed("it has no length"))?;
        let heap = Region { address: u64::from_le_bytes(*address), bytes: u64::from_le_bytes(length) };
        if heap.bytes < bytes {
            return Err(malformed("fewer bytes than asked for"));
        }
        if peer.rank == self.0.rank {
            return Ok(Box::new(Opened { heap, origin: Origin::Own }));
        }
        let mut mailboxes = self.0.mailboxes.lock().expect("no thread panics with the lock");
        if !mailboxes.contains_key(&peer.rank) {
            let mailbox = Mailbox::new(&self.0.device, heap).map_err(|source| Error::Open {
                peer: peer.rank,
                kind: self.kind(),
                source: Box::new(source),
            })?;
            mailboxes.insert(peer.rank, Arc::new(mailbox));
        }
        drop(mailboxes);
        self.start_courier();
        Ok(Box::new(Opened { heap, origin: Origin::Remote }))
    }

    fn describe_queues(&self, peer: GlobalRank) -> Vec<(String, Option<String>)> {
        let mailboxes = self.0.mailboxes.lock().expect("no thread panics with the lock");
        let describe =
            |mailbox: &Arc<Mailbox>| (format!("the mailbox to {peer}"), mailbox.stopped.get().cloned());
        mailboxes.get(&peer).map(describe).into_iter().collect()
    }

    fn first_stopped(&self, is_left_out: &dyn Fn(GlobalRank) -> bool) -> Option<StoppedQueue> {
        let mailboxes = self.0.mailboxes.lock().expect("no thread panics with the lock");
        mailboxes.iter().filter(|(peer, _)| !is_left_out(**peer)).find_map(|(peer, mailbox)| {
            let words = format!("the mailbox to {peer} has stopped: {}", mailbox.stopped.get()?);
            Some(StoppedQueue { peer: *peer, words, is_consequence: false })
        })
    }

    fn explain(&self, phase: u32, peer: GlobalRank, expected: u64, seen: u64) -> Option<Explanation> {
        let words =
            format!("the mailbox to {peer} is full: {seen} parcels were carried, {expected} are needed");
        (phase == PHASE_FULL).then_some(Explanation { words, has_stopped: true })
    }

    fn close(&mut self) {
        self.0.has_ended.store(true, Ordering::Release);
        if let Some(courier) = self.0.courier.lock().expect("no thread panics with the lock").take() {
            courier.join().expect("the courier does not panic");
        }
    }
}

/// A peer's heap, at an address for the courier, or this rank's own.
#[derive(Debug)]
struct Opened {
    heap: Region,
    origin: Origin,
}

impl PeerMemory for Opened {
    fn address(&self) -> u64 {
        self.heap.address
    }

    fn bytes(&self) -> u64 {
        self.heap.bytes
    }

    fn origin(&self) -> Origin {
        self.origin
    }
}
