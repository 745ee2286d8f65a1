//! Ranks without a world: heaps, peer tables and control words made by hand, so that a test can look at every byte of
//! every heap and take a peer's base away.
#![expect(
    clippy::disallowed_methods,
    reason = "tests of real threads and processes run on the machine's time"
)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_conformance::shmem::draw;
use anabranch_hip::{Device, DeviceAddress, DeviceBuffer, DeviceOrdinal, HostBuffer, LaunchShape, Stream};
use anabranch_hip_host::{HostConfig, HostMachine};
use anabranch_hip_jit::control::{FaultRecord, WaitControl};
use anabranch_hip_jit::{
    DevicePointer, DeviceStruct, Jit, JitConfig, Kernel, KernelSpec, KernelUnit, ToolSearch,
};
use anabranch_ranks::GlobalRank;
use anabranch_shmem::TeamView;
use anabranch_softnic::{Adversary, SoftNicConfig, SoftNics};
use anabranch_transport::{
    Audience, HostIdentity, PeerInfo, PeerMemory, ProcessIdentity, Region, Transport as _,
};
use anabranch_transport_rdma::{LocalRange, NicDriver, OpenNic as _, RdmaConfig, RdmaQueue, RdmaTransport};
use anabranch_transport_sdma::{DeviceQueue, Generation, Ring, SdmaQueue, SoftwareConfig, SoftwareQueue};
use bytemuck::Zeroable as _;

/// The widths of a wave that the host runtime offers.
pub(crate) const WAVES: [u32; 4] = [1, 4, 32, 64];
/// The operation's code in fault records.
pub(crate) const OPERATION: u32 = 0x1234;
pub(crate) const GROUP: u64 = 77;
/// What a test that does not mean to expire lets a kernel run.
const PLENTY: Duration = Duration::from_secs(60);

/// A pipeline with one cache for all tests, so that each kernel is compiled once.
pub(crate) fn jit() -> Jit {
    let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    Jit::new(JitConfig::new(cache), tools())
}

pub(crate) fn tools() -> ToolSearch {
    let path = ["/usr/local/bin", "/usr/bin", "/bin"].map(PathBuf::from).into();
    ToolSearch { path, ..ToolSearch::default() }
}

/// The queues of a rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EngineSetup {
    /// To each peer.
    pub(crate) queues: u32,
    pub(crate) ring_bytes: u64,
    pub(crate) most_copy_bytes: u32,
    pub(crate) software: SoftwareConfig,
}

impl Default for EngineSetup {
    fn default() -> Self {
        let software = SoftwareConfig { stride: 48, steps: 3, seed: 7, ..SoftwareConfig::default() };
        Self { queues: 2, ring_bytes: 256, most_copy_bytes: 96, software }
    }
}

impl EngineSetup {
    fn start(&self, device: &Device, heaps: &[u64]) -> Vec<DeviceQueue> {
        let generation = Generation::of_target("gfx942").unwrap();
        let ring = Ring::new(self.ring_bytes).unwrap();
        let one = |index: u64| {
            let heap = DeviceAddress(heaps[(index / u64::from(self.queues)) as usize]);
            let engines = device.runtime().engines(device.ordinal()).unwrap();
            let software = SoftwareConfig { seed: self.software.seed + index, ..self.software };
            let queue = SoftwareQueue::start(device, engines, ring, generation, software).unwrap();
            let most = self.most_copy_bytes;
            DeviceQueue::new(device, Box::new(queue), generation, most, heap, PLENTY).unwrap()
        };
        (0..heaps.len() as u64 * u64::from(self.queues)).map(one).collect()
    }
}

/// The NIC of a rank.
#[derive(Clone, Debug)]
pub(crate) struct NicSetup {
    pub(crate) config: RdmaConfig,
    pub(crate) soft: SoftNicConfig,
}

impl NicSetup {
    /// Small rings and messages; with an adversary where there is a seed for it.
    pub(crate) fn new(queues: u32, seed: Option<u64>) -> Self {
        let config = RdmaConfig {
            queues,
            entries: RdmaConfig::LEAST_ENTRIES,
            patience: PLENTY,
            ..RdmaConfig::default()
        };
        let adversary = seed.map(Adversary::new);
        let soft = SoftNicConfig {
            frame_bytes: 64,
            window: 4,
            steps: 3,
            most_message_bytes: 96,
            adversary,
            ..SoftNicConfig::default()
        };
        Self { config, soft }
    }
}

fn peer_info(rank: u32) -> PeerInfo {
    PeerInfo {
        rank: GlobalRank::new(rank),
        host: HostIdentity(format!("machine {rank}")),
        nics_of: HostIdentity(format!("machine {rank}")),
        process: ProcessIdentity { pid: 1, nonce: 1 },
        runtime: "host".to_owned(),
        instance: 1,
        device: rank,
        pci: String::new(),
        arch: String::new(),
    }
}

struct Rank {
    /// Peers by NIC, and their memory.
    opened: Vec<Box<dyn PeerMemory>>,
    rdma: Option<RdmaTransport>,
    nics: Option<DeviceBuffer>,
    /// To each rank, by copy engines; stopped before the heaps that they copy go.
    queues: Vec<DeviceQueue>,
    table: Option<DeviceBuffer>,
    stream: Stream,
    heap: DeviceBuffer,
    bases: DeviceBuffer,
    control: DeviceBuffer,
    record: HostBuffer,
    device: Device,
}

/// `size` ranks, each on a device of one machine.
pub(crate) struct Ranks {
    all: Vec<Rank>,
    jit: Jit,
    pub(crate) wave: u32,
    /// What each heap was filled with last.
    pub(crate) initial: Vec<Vec<u8>>,
}

impl Ranks {
    pub(crate) fn new(size: u32, wave: u32, heap_bytes: usize) -> Self {
        let config = HostConfig { devices: size, wave_width: wave, ..HostConfig::default() };
        let runtime = HostMachine::new(config).unwrap().runtime();
        let device = |ordinal| runtime.device(DeviceOrdinal(ordinal)).unwrap();
        let ranks: Vec<_> = (0..size)
            .map(|ordinal| {
                let device = device(ordinal);
                Rank {
                    opened: Vec::new(),
                    rdma: None,
                    nics: None,
                    queues: Vec::new(),
                    table: None,
                    stream: device.create_stream().unwrap(),
                    heap: device.allocate_uncached(heap_bytes).unwrap(),
                    bases: device.allocate(size as usize * 8).unwrap(),
                    control: device.allocate(size_of::<WaitControl>()).unwrap(),
                    record: device.allocate_host(size_of::<FaultRecord>()).unwrap(),
                    device,
                }
            })
            .collect();
        let mut state = 1;
        let initial = (0..size).map(|_| (0..heap_bytes).map(|_| draw(&mut state) as u8).collect()).collect();
        let mut made = Self { all: ranks, jit: jit(), wave, initial };
        let bases: Vec<u64> = made.all.iter().map(|rank| rank.heap.address().0).collect();
        for rank in 0..size {
            made.set_bases(rank, &bases);
        }
        made.set_budget(PLENTY);
        made.fill();
        made
    }

    /// Ranks that reach each other, and themselves, by `queues` queues of engines in software each.
    pub(crate) fn with_engines(size: u32, wave: u32, heap_bytes: usize, engines: &EngineSetup) -> Self {
        let mut ranks = Self::new(size, wave, heap_bytes);
        for rank in 0..ranks.all.len() {
            for peer in 0..ranks.all.len() {
                let peer = ranks.all[peer].device.clone();
                ranks.all[rank].device.enable_peer_access(&peer).unwrap();
            }
            let queues = engines.start(&ranks.all[rank].device, &ranks.bases());
            let views: Vec<SdmaQueue> =
                queues.iter().zip(0..).map(|(queue, index)| queue.view(index / engines.queues)).collect();
            let table = ranks.buffer(rank as u32, &views);
            ranks.all[rank].queues = queues;
            ranks.all[rank].table = Some(table);
        }
        ranks
    }

    /// Ranks that reach each other by NICs in software, and map only their own memory.
    pub(crate) fn with_nics(size: u32, wave: u32, heap_bytes: usize, setup: &NicSetup) -> Self {
        Self::with_drivers(size, wave, heap_bytes, setup, |driver| driver)
    }

    /// The same, by what `changed` makes of their drivers.
    pub(crate) fn with_drivers(
        size: u32,
        wave: u32,
        heap_bytes: usize,
        setup: &NicSetup,
        changed: impl Fn(Arc<dyn NicDriver>) -> Arc<dyn NicDriver>,
    ) -> Self {
        let mut ranks = Self::new(size, wave, heap_bytes);
        let opener = SoftNics::in_process(setup.soft.clone());
        let mut offers = Vec::new();
        for (rank, number) in ranks.all.iter_mut().zip(0..) {
            let driver = opener.open(&rank.device, &peer_info(number), &[], &setup.config).map(&changed);
            let (device, config) = (rank.device.clone(), setup.config.clone());
            let rdma = RdmaTransport::new(device, peer_info(number), size, driver, config);
            let region = Region { address: rank.heap.address().0, bytes: heap_bytes as u64 };
            offers.push(rdma.export(region, Audience::ThisHost).unwrap());
            rank.rdma = Some(rdma);
        }
        for rank in 0..size {
            let own = &mut ranks.all[rank as usize];
            let rdma = own.rdma.as_ref().unwrap();
            let open = |(offer, peer): (&Vec<u8>, u32)| rdma.open(&peer_info(peer), offer, 8).unwrap();
            own.opened = offers.iter().zip(0..).map(open).collect();
            let views: Vec<RdmaQueue> =
                (0..size).flat_map(|peer| rdma.queues(GlobalRank::new(peer), peer)).collect();
            let table = ranks.buffer(rank, &views);
            let own = &mut ranks.all[rank as usize];
            own.nics = Some(table);
            let heap = own.heap.address().0;
            let bases: Vec<u64> = (0..size).map(|peer| if peer == rank { heap } else { 0 }).collect();
            ranks.set_bases(rank, &bases);
        }
        ranks
    }

    /// Makes a buffer of each rank known to its NIC, where there is one.
    pub(crate) fn registered(&self, buffers: &[DeviceBuffer]) -> Vec<LocalRange> {
        let with_nic =
            self.all.iter().zip(buffers).filter_map(|(rank, buffer)| Some((rank.rdma.as_ref()?, buffer)));
        let region =
            |buffer: &DeviceBuffer| Region { address: buffer.address().0, bytes: buffer.len() as u64 };
        with_nic.map(|(rdma, buffer)| rdma.register_local(region(buffer)).unwrap()).collect()
    }

    /// Why queue pairs of a rank have stopped.
    pub(crate) fn stopped_nics(&self, rank: u32) -> Vec<String> {
        let peers = (0..self.size()).map(GlobalRank::new);
        let rdma = self.all[rank as usize].rdma.iter();
        rdma.flat_map(|rdma| peers.clone().flat_map(|peer| rdma.describe_queues(peer)))
            .filter_map(|(_, stopped)| stopped)
            .collect()
    }

    /// Positions that each queue pair of a rank to a peer has given to requests.
    pub(crate) fn posted(&self, rank: u32, peer: u32) -> Vec<u64> {
        let own = &self.all[rank as usize];
        let queues = own.rdma.as_ref().unwrap().queues(GlobalRank::new(peer), peer);
        let read = |queue: &RdmaQueue| {
            let mut word = [0; 8];
            // SAFETY: the queue pair's word, which stays while the transport does.
            unsafe { own.device.read_memory(queue.reserved.address(), &mut word) }.unwrap();
            u64::from_le_bytes(word)
        };
        queues.iter().map(read).collect()
    }

    /// The unit, compiled for how these ranks reach each other.
    pub(crate) fn spec(&self, unit: &'static KernelUnit) -> KernelSpec {
        if let Some((provider, atomics)) = self.all[0].rdma.as_ref().and_then(RdmaTransport::format) {
            return KernelSpec::new(unit)
                .with("SHMEM_NIC", 1)
                .with("RDMA_PROVIDER", provider.number())
                .with("RDMA_ATOMICS", atomics.number());
        }
        let engines = self.all.iter().any(|rank| rank.table.is_some());
        if engines { KernelSpec::new(unit).with("SHMEM_ENGINES", 1) } else { KernelSpec::new(unit) }
    }

    /// Why engines of a rank have stopped.
    pub(crate) fn stopped(&self, rank: u32) -> Vec<String> {
        self.all[rank as usize].queues.iter().filter_map(|queue| queue.engine().stopped()).collect()
    }

    /// Whether ranks reach each other by NIC.
    pub(crate) fn have_nics(&self) -> bool {
        self.all.iter().any(|rank| rank.rdma.is_some())
    }

    pub(crate) fn size(&self) -> u32 {
        self.all.len() as u32
    }

    pub(crate) fn bases(&self) -> Vec<u64> {
        self.all.iter().map(|rank| rank.heap.address().0).collect()
    }

    /// Replaces the peer table that one rank sees.
    pub(crate) fn set_bases(&mut self, rank: u32, bases: &[u64]) {
        self.all[rank as usize].bases.copy_from_host(0, bytemuck::cast_slice(bases)).unwrap();
    }

    /// Sets the budget, and takes faults back.
    pub(crate) fn set_budget(&mut self, budget: Duration) {
        for rank in &mut self.all {
            rank.record.write(0, &[0; size_of::<FaultRecord>()]).unwrap();
            let control = WaitControl {
                budget_ns: budget.as_nanos() as u64,
                fault: DevicePointer::new(rank.record.device_address()),
                ..WaitControl::zeroed()
            };
            rank.control.copy_from_host(0, bytemuck::bytes_of(&control)).unwrap();
        }
    }

    /// Puts every heap back to its first contents.
    pub(crate) fn fill(&mut self) {
        for (rank, initial) in self.all.iter_mut().zip(&self.initial) {
            rank.heap.copy_from_host(0, initial).unwrap();
        }
    }

    /// Sets bytes of one heap, in the contents that the oracle starts from too.
    pub(crate) fn poke(&mut self, rank: u32, offset: u64, bytes: &[u8]) {
        let at = offset as usize;
        self.initial[rank as usize][at..at + bytes.len()].copy_from_slice(bytes);
        self.all[rank as usize].heap.copy_from_host(at, bytes).unwrap();
    }

    pub(crate) fn heap(&self, rank: u32) -> Vec<u8> {
        read(&self.all[rank as usize].heap)
    }

    /// Device memory of one rank with these contents.
    pub(crate) fn buffer<T: bytemuck::Pod>(&self, rank: u32, contents: &[T]) -> DeviceBuffer {
        let bytes = bytemuck::cast_slice(contents);
        let mut buffer = self.all[rank as usize].device.allocate(bytes.len()).unwrap();
        buffer.copy_from_host(0, bytes).unwrap();
        buffer
    }

    /// Zeroed device memory for each rank.
    pub(crate) fn buffers(&self, bytes: usize) -> Vec<DeviceBuffer> {
        (0..self.size()).map(|rank| self.buffer(rank, &vec![0u8; bytes])).collect()
    }

    pub(crate) fn team(&self, rank: u32) -> TeamView {
        let own = &self.all[rank as usize];
        TeamView {
            size: self.size(),
            rank,
            group: GROUP,
            peer_bases: DevicePointer::new(own.bases.address()),
            control: DevicePointer::new(own.control.address()),
            queues: own
                .table
                .as_ref()
                .map_or(DevicePointer::NULL, |table| DevicePointer::new(table.address())),
            queues_per_peer: own.queues.len() as u32 / self.size(),
            nics: own.nics.as_ref().map_or(DevicePointer::NULL, |table| DevicePointer::new(table.address())),
            nics_per_peer: own.rdma.as_ref().map_or(0, RdmaTransport::queues_per_peer),
        }
    }

    pub(crate) fn fault(&self, rank: u32) -> Option<FaultRecord> {
        let mut record = FaultRecord::zeroed();
        self.all[rank as usize].record.read(0, bytemuck::bytes_of_mut(&mut record)).unwrap();
        (record.state == 2).then_some(record)
    }

    /// Runs the kernel on the ranks for which there are arguments, all at the same time, and waits.
    ///
    /// Addresses in the arguments have to stay valid until then: they are of buffers that the caller holds.
    pub(crate) fn run<A: DeviceStruct>(
        &self,
        spec: &KernelSpec,
        kernel: Kernel<A>,
        grid: u32,
        threads: u32,
        arguments: impl Fn(u32) -> Option<A>,
    ) -> Duration {
        let units: Vec<_> = self.all.iter().map(|rank| self.jit.load(&rank.device, spec).unwrap()).collect();
        let shape = LaunchShape { grid_blocks: grid, block_threads: threads, local_bytes: 0 };
        let start = Instant::now();
        for (index, (rank, unit)) in self.all.iter().zip(&units).enumerate() {
            let Some(arguments) = arguments(index as u32) else { continue };
            // SAFETY: buffers outlive the wait below, by the callers of `run`.
            unsafe { unit.get(kernel).unwrap().launch(shape, &rank.stream, &arguments) }.unwrap();
        }
        while self.all.iter().any(|rank| !rank.stream.is_idle().unwrap()) {
            assert!(start.elapsed() < Duration::from_secs(90), "{kernel:?} does not end");
            std::thread::sleep(Duration::from_micros(100));
        }
        start.elapsed()
    }

    /// Runs, and no rank may have reported a fault.
    pub(crate) fn run_well<A: DeviceStruct>(
        &self,
        spec: &KernelSpec,
        kernel: Kernel<A>,
        grid: u32,
        threads: u32,
        arguments: impl Fn(u32) -> Option<A>,
    ) {
        self.run(spec, kernel, grid, threads, arguments);
        for rank in 0..self.size() {
            assert_eq!(self.fault(rank).map(|record| (record.phase, record.peer)), None, "rank {rank}");
        }
    }

    /// The first byte in which a heap is not what it should be.
    pub(crate) fn compare(&self, expected: &[Vec<u8>]) -> Result<(), String> {
        for (rank, expected) in expected.iter().enumerate() {
            let found = self.heap(rank as u32);
            if found != *expected {
                let at = found.iter().zip(expected).position(|(a, b)| a != b).unwrap();
                let (is, should) = (found[at], expected[at]);
                return Err(format!("heap of rank {rank}, byte {at}: {is:#04x}, should be {should:#04x}"));
            }
        }
        Ok(())
    }

    /// Two waves, or eight lanes where waves are narrow.
    pub(crate) fn block_threads(&self) -> u32 {
        (2 * self.wave).max(8)
    }
}

/// What the buffer holds.
pub(crate) fn read<T: bytemuck::Pod>(buffer: &DeviceBuffer) -> Vec<T> {
    let mut values = vec![T::zeroed(); buffer.len() / size_of::<T>()];
    buffer.copy_to_host(0, bytemuck::cast_slice_mut(&mut values)).unwrap();
    values
}

pub(crate) fn pointer<T>(buffer: &DeviceBuffer) -> DevicePointer<T> {
    DevicePointer::new(buffer.address())
}

pub(crate) fn pointer_at<T>(buffer: &DeviceBuffer, offset: u64) -> DevicePointer<T> {
    DevicePointer::new(DeviceAddress(buffer.address().0 + offset))
}
