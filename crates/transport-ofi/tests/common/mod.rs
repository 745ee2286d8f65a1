//! A rank with libfabric as its NIC, and what its kernels do: entries of posted queues.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of this")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anabranch_clock::{Moment, sleep};
use anabranch_hip::{Device, DeviceAddress, DeviceBuffer, DeviceOrdinal};
use anabranch_hip_host::{HostConfig, HostMachine};
use anabranch_ranks::GlobalRank;
use anabranch_transport::Region;
use anabranch_transport_ofi::{OfiDriver, OfiNics, Reach};
use anabranch_transport_rdma::{
    NicDriver, NicError, NicQueue, PostedOpcode, PostedRequest, QueueSpec, RdmaConfig, Registered,
};
use bytemuck::Zeroable as _;

/// Whether libfabric is installed; says so where a test is skipped for it.
pub fn is_installed() -> bool {
    let found = OfiNics::new(Some("tcp".to_owned())).survey(&["=lo".to_owned()]);
    if let Err(error) = &found
        && error.to_string().contains("package is libfabric1")
    {
        println!("skipped: {error}");
        return false;
    }
    true
}

/// Runs an ignored test of this binary in a process of its own, as `shm` wants to know from the beginning whether it may use CMA.
pub fn run_again(test: &str, cma_is_off: Option<&str>) {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--nocapture", "--exact", test]).env_remove("FI_SHM_DISABLE_CMA");
    command.envs(cma_is_off.map(|value| ("FI_SHM_DISABLE_CMA", value)));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

/// Whether [`run_again`] started this process. Elsewhere the tests for it pass without work.
pub fn is_own_process() -> bool {
    std::env::args().any(|argument| argument == "--exact")
}

/// How long a test waits for what has to come.
pub const LIMIT: Duration = Duration::from_secs(60);

/// The configuration of tests: an interface that every machine has, where the provider has interfaces.
pub fn config(provider: &str) -> RdmaConfig {
    let nics = if provider == "shm" { Vec::new() } else { vec!["=lo".to_owned()] };
    RdmaConfig { nics, ..RdmaConfig::default() }
}

/// A rank.
pub struct Rank {
    pub registered: Arc<dyn Registered>,
    pub driver: OfiDriver,
    pub heap: DeviceBuffer,
    pub device: Device,
    _machine: Arc<HostMachine>,
}

impl Rank {
    /// With a heap of that many bytes.
    pub fn new(provider: &str, bytes: usize) -> Self {
        Self::open(provider, bytes, &config(provider)).unwrap()
    }

    pub fn open(provider: &str, bytes: usize, config: &RdmaConfig) -> Result<Self, NicError> {
        let machine = HostMachine::new(HostConfig::default()).unwrap();
        let device = machine.runtime().device(DeviceOrdinal(0)).unwrap();
        let driver = OfiDriver::open(&device, Some(provider), config, Reach::ThisMachine)?;
        let mut heap = device.allocate_uncached(bytes).unwrap();
        heap.fill(0).unwrap();
        let region = Region { address: heap.address().0, bytes: bytes as u64 };
        let registered = driver.register(region)?;
        Ok(Self { registered, driver, heap, device, _machine: machine })
    }

    pub fn at(&self, offset: u64) -> u64 {
        self.heap.address().0 + offset
    }

    pub fn poster(&self, peer: u32, channel: u32, entries: u32) -> Poster {
        let spec = QueueSpec { peer: GlobalRank::new(peer), channel, entries };
        Poster { queue: self.driver.create_queue(spec).unwrap(), next: 0 }
    }

    /// What peers need to reach the heap.
    pub fn heap(&self) -> (u64, u32) {
        (self.at(0), self.registered.remote_key())
    }

    pub fn store(&self, offset: u64, bytes: &[u8]) {
        assert!(offset as usize + bytes.len() <= self.heap.len());
        let to = DeviceAddress(self.at(offset)).as_ptr().cast::<u8>();
        // SAFETY: within the heap, which is memory of this process; the test orders it behind what the NIC does.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    pub fn load(&self, offset: u64, bytes: usize) -> Vec<u8> {
        assert!(offset as usize + bytes <= self.heap.len());
        let from = DeviceAddress(self.at(offset)).as_ptr().cast::<u8>();
        let mut read = vec![0; bytes];
        // SAFETY: as above.
        unsafe { core::ptr::copy_nonoverlapping(from, read.as_mut_ptr(), bytes) };
        read
    }

    pub fn load_64(&self, offset: u64) -> u64 {
        word(self.heap.address().offset(offset)).load(Ordering::Acquire)
    }
}

/// A word that kernels of the machine of threads would use.
fn word<'a>(address: DeviceAddress) -> &'a AtomicU64 {
    // SAFETY: a word of a heap or of a queue, aligned, which tests keep as long as they use it.
    unsafe { AtomicU64::from_ptr(address.as_ptr().cast()) }
}

/// What kernels do with a queue.
pub struct Poster {
    pub queue: Arc<dyn NicQueue>,
    next: u64,
}

impl Poster {
    /// Writes an entry, without waiting for anything but room.
    pub fn post(&mut self, request: PostedRequest) {
        let words = self.queue.words();
        let entries = u64::from(words.entries);
        wait_for("room", || self.complete() + entries > self.next || self.failure().is_some());
        let filled: [u64; 8] = bytemuck::cast(request);
        let slot = words.ring.offset(self.next % entries * 64);
        for (index, value) in filled.iter().enumerate().skip(1) {
            word(slot.offset(index as u64 * 8)).store(*value, Ordering::Relaxed);
        }
        self.next += 1;
        word(slot).store(self.next, Ordering::Release);
        word(words.doorbell).store(self.next, Ordering::Release);
    }

    pub fn complete(&self) -> u64 {
        word(self.queue.words().completions).load(Ordering::Acquire)
    }

    /// The position and the status of what failed.
    pub fn failure(&self) -> Option<(u64, u64)> {
        let told = word(self.queue.words().completions.offset(8)).load(Ordering::Acquire);
        (told != 0).then(|| (told >> 8, (told & 0xff) - 1))
    }

    /// Until all is complete.
    pub fn quiet(&self) {
        wait_for("completion", || {
            assert_eq!(self.failure(), None, "{:?}", self.queue.stopped());
            self.complete() == self.next
        });
    }

    /// Until it has stopped: why.
    pub fn stopped(&self) -> String {
        wait_for("the failure", || self.failure().is_some());
        self.queue.stopped().unwrap()
    }
}

pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let until = Moment::now().after(LIMIT);
    while !done() {
        assert!(!until.remaining().is_zero(), "{what} does not come");
        sleep(Duration::from_micros(20));
    }
}

/// Bytes that differ by their seed and their place.
pub fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ seed.wrapping_mul(97)) as u8).collect()
}

/// A request from a heap to a peer's, by offsets.
#[derive(Clone, Copy)]
pub struct Between {
    pub local: (u64, u32),
    pub remote: (u64, u32),
}

impl Between {
    fn request(&self, opcode: PostedOpcode, local: u64, remote: u64, bytes: u32) -> PostedRequest {
        PostedRequest {
            opcode: opcode as u32,
            local: self.local.0 + local,
            remote: self.remote.0 + remote,
            bytes,
            local_key: self.local.1,
            remote_key: self.remote.1,
            ..PostedRequest::zeroed()
        }
    }

    pub fn write(&self, local: u64, remote: u64, bytes: u32) -> PostedRequest {
        self.request(PostedOpcode::Write, local, remote, bytes)
    }

    pub fn read(&self, local: u64, remote: u64, bytes: u32) -> PostedRequest {
        self.request(PostedOpcode::Read, local, remote, bytes)
    }

    pub fn value(&self, value: u64, remote: u64, bytes: u32) -> PostedRequest {
        PostedRequest { value, ..self.request(PostedOpcode::WriteValue, 0, remote, bytes) }
    }

    pub fn add(&self, value: u64, local: u64, remote: u64) -> PostedRequest {
        PostedRequest { value, ..self.request(PostedOpcode::FetchAdd, local, remote, 8) }
    }

    pub fn swap(&self, compare: u64, value: u64, local: u64, remote: u64) -> PostedRequest {
        PostedRequest { value, compare, ..self.request(PostedOpcode::CompareSwap, local, remote, 8) }
    }
}
