//! Where a NIC in software runs, and where its queues lie.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anabranch_hip::{Device, DeviceAddress, DeviceBuffer, HostBuffer, SoftwareEngines, Step};
use anabranch_transport_rdma::{NicError, Provider, QueueWords};

use crate::config::Placement;
use crate::decode::bnxt;
use crate::device_memory::DeviceMemory;
use crate::memory::{HostRuntimeMemory, NicMemory};
use crate::nic::{Shared, actor};

/// Where a NIC runs.
#[derive(Debug)]
pub(crate) enum Place {
    /// Under the scheduler of the runtime that is made of CPU threads.
    Runtime { device: Device, engines: SoftwareEngines },
    /// On a thread of its own.
    Thread { device: Device, memory: Arc<DeviceMemory>, thread: Mutex<Option<JoinHandle<()>>> },
}

/// The memory of a queue pair: completions, doorbell record and doorbell each on a line of their own, then the ring.
#[derive(Debug)]
pub(crate) struct QueueMemory {
    base: DeviceAddress,
    _kept: Kept,
}

#[derive(Debug)]
#[expect(dead_code, reason = "what is kept is not looked at")]
enum Kept {
    Device(DeviceBuffer),
    Host(Arc<HostBuffer>),
}

const LINE: u64 = 128;
const COMPLETIONS: u64 = 0;
const DOORBELL_RECORD: u64 = LINE;
const DOORBELL: u64 = 2 * LINE;
const RING: u64 = 4096;
/// The longest entry. The table of sequence numbers lies behind the ring.
const BLOCK: u64 = 64;

/// Looks without anything to do that only offer the core to others, and the rest behind each further one.
const YIELDS: u32 = 200;
const REST: Duration = Duration::from_micros(20);

impl Place {
    pub(crate) fn of(device: &Device, placement: Placement) -> Result<Self, NicError> {
        let engines = device.runtime().engines(device.ordinal());
        if let (Some(engines), Placement::Fitting) = (engines, placement) {
            return Ok(Self::Runtime { device: device.clone(), engines });
        }
        if device.runtime().driver().is_some() {
            let reasons = "a NIC with a thread of its own cannot follow the machine's seed".to_owned();
            return Err(NicError::NoNic { reasons });
        }
        let memory = Arc::new(DeviceMemory::new(device)?);
        Ok(Self::Thread { device: device.clone(), memory, thread: Mutex::default() })
    }

    pub(crate) fn device(&self) -> &Device {
        match self {
            Self::Runtime { device, .. } | Self::Thread { device, .. } => device,
        }
    }

    /// The memory that the NIC sees.
    pub(crate) fn memory(&self) -> Arc<dyn NicMemory> {
        match self {
            Self::Runtime { engines, .. } => Arc::new(HostRuntimeMemory(Arc::clone(&engines.memory))),
            Self::Thread { memory, .. } => Arc::<DeviceMemory>::clone(memory),
        }
    }

    pub(crate) fn start(&self, shared: &Arc<Shared>) -> Result<(), NicError> {
        match self {
            Self::Runtime { engines, .. } => engines.starter.start(actor(shared)),
            Self::Thread { thread, .. } => {
                let shared = Arc::clone(shared);
                let started =
                    std::thread::Builder::new().name("softnic".to_owned()).spawn(move || run(&shared));
                let failed = |source| NicError::System { what: "start the NIC's thread".to_owned(), source };
                let started = started.map_err(failed)?;
                *thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(started);
            }
        }
        Ok(())
    }

    pub(crate) fn allocate(&self, entries: u32) -> Result<QueueMemory, NicError> {
        let table = u64::from(bnxt::sequence_rows(entries)) * bnxt::SEQUENCE_BYTES;
        self.allocate_bytes(RING + u64::from(entries) * BLOCK + table)
    }

    /// Zeros that kernels and the NIC reach.
    pub(crate) fn allocate_bytes(&self, bytes: u64) -> Result<QueueMemory, NicError> {
        let bytes = bytes as usize;
        match self {
            Self::Runtime { device, .. } => {
                let mut kept = device.allocate_uncached(bytes)?;
                kept.fill(0)?;
                Ok(QueueMemory { base: kept.address(), _kept: Kept::Device(kept) })
            }
            Self::Thread { device, memory, .. } => {
                let kept = Arc::new(device.allocate_host(bytes)?);
                kept.write(0, &vec![0; bytes])?;
                memory.open_window(&kept);
                Ok(QueueMemory { base: kept.device_address(), _kept: Kept::Host(kept) })
            }
        }
    }

    /// Something has changed that the NIC may not notice by itself.
    pub(crate) fn wake(&self) {
        match self {
            Self::Runtime { engines, .. } => engines.starter.wake(),
            // It looks again and again.
            Self::Thread { .. } => {}
        }
    }

    /// The NIC has ended: nothing of it runs when this returns, or nothing that touches memory.
    pub(crate) fn end(&self) {
        self.wake();
        if let Self::Thread { thread, .. } = self {
            let thread = thread.lock().unwrap_or_else(PoisonError::into_inner).take();
            if thread.is_some_and(|thread| thread.join().is_err()) {
                tracing::warn!("the thread of a NIC in software panicked");
            }
        }
    }
}

fn run(shared: &Shared) {
    let mut idle = 0u32;
    loop {
        match shared.step() {
            Step::Finished => return,
            Step::Progress => idle = 0,
            Step::Waiting if idle < YIELDS => {
                idle += 1;
                std::thread::yield_now();
            }
            Step::Waiting => anabranch_clock::sleep(REST),
        }
    }
}

impl QueueMemory {
    pub(crate) fn base(&self) -> DeviceAddress {
        self.base
    }

    pub(crate) fn words(&self, provider: Provider, entries: u32, number: u32, path_mtu: u32) -> QueueWords {
        let at = |offset| self.base.offset(offset);
        let has = |wanted, offset| if provider == wanted { at(offset) } else { DeviceAddress::NULL };
        QueueWords {
            ring: at(RING),
            entries,
            completions: at(COMPLETIONS),
            doorbell_record: has(Provider::Mlx5, DOORBELL_RECORD),
            doorbell: at(DOORBELL),
            sequence_table: has(Provider::Bnxt, RING + u64::from(entries) * BLOCK),
            number,
            path_mtu,
            // `IONIC_DBELL_QID` of the Linux driver's `ionic_if.h`.
            doorbell_value: if provider == Provider::Ionic { u64::from(number) << 24 } else { 0 },
        }
    }
}
