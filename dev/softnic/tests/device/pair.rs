//! Two ranks on one machine, with queue pairs between them that kernels use.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anabranch_clock::{Attached, attach};
use anabranch_hip::{Device, DeviceAddress, DeviceBuffer, DeviceOrdinal, HostBuffer, LaunchShape, Stream};
use anabranch_hip_host::{HostConfig, HostMachine};
use anabranch_hip_jit::control::{FaultRecord, WaitControl};
use anabranch_hip_jit::{DevicePointer, Jit, JitConfig, KernelSpec, ToolSearch};
use anabranch_ranks::GlobalRank;
use anabranch_softnic::{SoftNic, SoftNicConfig};
use anabranch_transport::Region;
use anabranch_transport_rdma::{NicDriver, NicQueue, QueueSpec, ROUTE_NIC, RdmaQueue, RdmaRange, Registered};
use anabranch_weakmem::{SeededHost, SeededSchedule};
use bytemuck::Zeroable as _;

use crate::common::Way;
pub use crate::device::asked::*;

pub const HEAP: usize = 256 << 10;

/// Which ranks a test wants.
#[derive(Clone, Debug)]
pub struct Setup {
    pub config: SoftNicConfig,
    pub queues: u32,
    pub entries: u32,
    pub wave: u32,
    pub budget: Duration,
    /// A seed decides what runs when.
    pub seed: Option<u64>,
}

impl Setup {
    pub fn new(config: SoftNicConfig) -> Self {
        Self { config, queues: 2, entries: 16, wave: 1, budget: Duration::from_secs(40), seed: None }
    }
}

/// What lanes keep of a queue pair: where fetched values go, and positions.
struct Own {
    results: DeviceBuffer,
    key: Arc<dyn Registered>,
    positions: DeviceBuffer,
}

/// One of them.
pub struct Side {
    pub nic: SoftNic,
    pub queues: Vec<Arc<dyn NicQueue>>,
    pub heap: DeviceBuffer,
    heap_key: Arc<dyn Registered>,
    own: Vec<Own>,
    table: Option<(DeviceBuffer, DeviceBuffer)>,
    control: DeviceBuffer,
    record: HostBuffer,
    stream: Stream,
    device: Device,
}

pub struct Pair {
    pub sides: [Side; 2],
    pub setup: Setup,
    jit: Jit,
    _attached: Option<Attached>,
    /// The machine, under a seed.
    pub seeded: Option<SeededHost>,
}

fn zeros(device: &Device, bytes: usize) -> DeviceBuffer {
    let mut buffer = device.allocate_uncached(bytes).unwrap();
    buffer.fill(0).unwrap();
    buffer
}

impl Side {
    fn new(machine: &Arc<HostMachine>, rank: u32, way: &Way, setup: &Setup) -> Self {
        let device = machine.runtime().device(DeviceOrdinal(rank)).unwrap();
        let nic = SoftNic::open(&device, way.port(), setup.config.clone()).unwrap();
        let heap = zeros(&device, HEAP);
        let heap_key = nic.register(Region { address: heap.address().0, bytes: HEAP as u64 }).unwrap();
        let make = |channel| {
            let spec = QueueSpec { peer: GlobalRank::new(1 - rank), channel, entries: setup.entries };
            nic.create_queue(spec).unwrap()
        };
        let queues: Vec<_> = (0..setup.queues).map(make).collect();
        let own = queues.iter().map(|_| {
            let bytes = RdmaQueue::results_bytes(setup.entries);
            let results = zeros(&device, bytes as usize);
            let key = nic.register(Region { address: results.address().0, bytes }).unwrap();
            Own { results, key, positions: zeros(&device, 24) }
        });
        let own = own.collect();
        let control = zeros(&device, size_of::<WaitControl>());
        let record = device.allocate_host(size_of::<FaultRecord>()).unwrap();
        let stream = device.create_stream().unwrap();
        let mut side =
            Self { nic, queues, heap, heap_key, own, table: None, control, record, stream, device };
        side.record.write(0, &[0; size_of::<FaultRecord>()]).unwrap();
        let control = WaitControl {
            budget_ns: setup.budget.as_nanos() as u64,
            fault: DevicePointer::new(side.record.device_address()),
            ..WaitControl::zeroed()
        };
        side.control.copy_from_host(0, bytemuck::bytes_of(&control)).unwrap();
        side
    }

    /// What its kernels know of the queue pairs to a peer with this heap.
    fn know(&mut self, rank: u32, peer: (DeviceAddress, u32)) {
        let range = RdmaRange {
            address: self.heap.address().0,
            bytes: HEAP as u64,
            key: self.heap_key.local_key(),
            reserved: 0,
        };
        let mut ranges = zeros(&self.device, size_of::<RdmaRange>());
        ranges.copy_from_host(0, bytemuck::bytes_of(&range)).unwrap();
        let limits = self.nic.limits();
        let view = |(queue, own): (&Arc<dyn NicQueue>, &Own)| {
            let words = queue.words();
            let position = |place: u64| DevicePointer::new(own.positions.address().offset(place * 8));
            RdmaQueue {
                ring: DevicePointer::new(words.ring),
                completions: DevicePointer::new(words.completions),
                doorbell_record: DevicePointer::new(words.doorbell_record),
                doorbell: DevicePointer::new(words.doorbell),
                sequence_table: DevicePointer::new(words.sequence_table),
                reserved: position(0),
                committed: position(1),
                completed: position(2),
                results: DevicePointer::new(own.results.address()),
                ranges: DevicePointer::new(ranges.address()),
                remote_base: peer.0.0,
                remote_bytes: HEAP as u64,
                doorbell_value: words.doorbell_value,
                entries: words.entries,
                number: words.number,
                remote_key: peer.1,
                results_key: own.key.local_key(),
                range_count: 1,
                most_message_bytes: limits.most_message_bytes,
                path_mtu: words.path_mtu,
                route: ROUTE_NIC,
                peer: 1 - rank,
                immediates: 1,
                read_order: self.nic.read_order().number(),
                reserved_word: 0,
            }
        };
        let views: Vec<_> = self.queues.iter().zip(&self.own).map(view).collect();
        let mut table = zeros(&self.device, size_of_val(&views[..]));
        table.copy_from_host(0, bytemuck::cast_slice(&views)).unwrap();
        self.table = Some((table, ranges));
    }

    pub fn fault(&self) -> Option<FaultRecord> {
        let mut record = FaultRecord::zeroed();
        self.record.read(0, bytemuck::bytes_of_mut(&mut record)).unwrap();
        (record.state == 2).then_some(record)
    }

    /// Why the queue pairs that stopped have.
    pub fn stopped(&self) -> Vec<String> {
        self.queues.iter().filter_map(|queue| queue.stopped()).collect()
    }

    pub fn load(&self, offset: usize, bytes: usize) -> Vec<u8> {
        let mut found = vec![0; bytes];
        self.heap.copy_to_host(offset, &mut found).unwrap();
        found
    }

    pub fn load_64(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.load(offset, 8).try_into().unwrap())
    }

    pub fn store(&mut self, offset: usize, bytes: &[u8]) {
        self.heap.copy_from_host(offset, bytes).unwrap();
    }
}

impl Pair {
    pub fn new(setup: Setup) -> Self {
        let host = HostConfig {
            devices: 2,
            wave_width: setup.wave,
            workers: 2.try_into().ok(),
            ..HostConfig::default()
        };
        let seeded = |seed| SeededHost::new(host.clone(), &SeededSchedule::new(seed)).unwrap();
        let seeded = setup.seed.map(seeded);
        let machine = match &seeded {
            Some(seeded) => Arc::<HostMachine>::clone(seeded),
            None => HostMachine::new(host).unwrap(),
        };
        // The seed decides from here on.
        let attached = machine.runtime().driver().map(|driver| {
            let seat = driver.seats(&[0])[0];
            attach(driver, seat)
        });
        let way = Way::in_process();
        let mut sides = [0, 1].map(|rank| Side::new(&machine, rank, &way, &setup));
        let known = [0, 1].map(|rank: usize| (sides[rank].heap.address(), sides[rank].heap_key.remote_key()));
        for rank in 0..2 {
            sides[rank].know(rank as u32, known[1 - rank]);
            for (queue, other) in sides[rank].queues.iter().zip(&sides[1 - rank].queues) {
                queue.connect(GlobalRank::new(1 - rank as u32), &other.endpoint()).unwrap();
            }
        }
        let path = ["/usr/local/bin", "/usr/bin", "/bin"].map(PathBuf::from).into();
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kernels");
        let jit = Jit::new(JitConfig::new(folder), ToolSearch { path, ..ToolSearch::default() });
        Self { sides, setup, jit, _attached: attached, seeded }
    }

    pub fn spec(&self) -> KernelSpec {
        let nic = &self.sides[0].nic;
        let spec = KernelSpec::new(&UNIT)
            .with("RDMA_PROVIDER", nic.provider().number())
            .with("RDMA_ATOMICS", nic.limits().atomics.number());
        if self.setup.config.shared_doorbell {
            return spec.with("RDMA_REGISTER", SoftNicConfig::REGISTER_PLACES);
        }
        spec
    }

    /// A request of a rank between its heap and its peer's, waiting for nothing.
    pub fn ask(&self, rank: usize, opcode: u32, local: u64, remote: u64, bytes: u64) -> AskedRequest {
        AskedRequest {
            local: self.sides[rank].heap.address().0 + local,
            remote: self.sides[1 - rank].heap.address().0 + remote,
            bytes,
            opcode,
            ..AskedRequest::zeroed()
        }
    }

    /// An operation on a word of the peer's.
    pub fn word(
        &self,
        rank: usize,
        opcode: u32,
        remote: u64,
        bytes: u32,
        value: u64,
        compare: u64,
    ) -> AskedRequest {
        AskedRequest { value, compare, word_bytes: bytes, how: FETCH, ..self.ask(rank, opcode, 0, remote, 0) }
    }

    /// Runs both ranks' requests at once, `each` of them by one lane, on lanes in blocks of `threads`.
    pub fn run(
        &self,
        spec: &KernelSpec,
        requests: [&[AskedRequest]; 2],
        each: u64,
        threads: u32,
    ) -> [Vec<Outcome>; 2] {
        let begun = [0, 1].map(|rank: usize| {
            let (side, requests) = (&self.sides[rank], requests[rank]);
            let lanes = (requests.len() as u64).div_ceil(each) as u32;
            let mut asked = side.device.allocate(size_of_val(requests)).unwrap();
            asked.copy_from_host(0, bytemuck::cast_slice(requests)).unwrap();
            let outcomes = zeros(&side.device, requests.len() * size_of::<Outcome>());
            let arguments = RequestsArgs {
                queues: DevicePointer::new(side.table.as_ref().unwrap().0.address()),
                requests: DevicePointer::new(asked.address()),
                outcomes: DevicePointer::new(outcomes.address()),
                control: DevicePointer::new(side.control.address()),
                count: requests.len() as u64,
                each,
            };
            let unit = self.jit.load(&side.device, spec).unwrap();
            let kernel = unit.get(REQUESTS).unwrap();
            let shape =
                LaunchShape { grid_blocks: lanes.div_ceil(threads), block_threads: threads, local_bytes: 0 };
            if lanes > 0 {
                #[expect(unsafe_code, reason = "kernel launch")]
                // SAFETY: the buffers in its arguments live until the stream is idle, below.
                unsafe { kernel.launch(shape, &side.stream, &arguments) }.unwrap();
            }
            (unit, asked, outcomes)
        });
        let mut found = begun.iter().zip(&self.sides).map(|((_, _, outcomes), side)| {
            side.stream.synchronize().unwrap();
            let mut values = vec![Outcome::zeroed(); outcomes.len() / size_of::<Outcome>()];
            outcomes.copy_to_host(0, bytemuck::cast_slice_mut(&mut values)).unwrap();
            values
        });
        [found.next().unwrap(), found.next().unwrap()]
    }

    /// The same, and all must be well.
    pub fn run_well(&self, requests: [&[AskedRequest]; 2], each: u64, threads: u32) -> [Vec<Outcome>; 2] {
        let outcomes = self.run(&self.spec(), requests, each, threads);
        for (side, outcomes) in self.sides.iter().zip(&outcomes) {
            let well = outcomes.iter().all(|outcome| outcome.status == 0);
            assert!(
                well && side.stopped().is_empty(),
                "{:?} {:?} {outcomes:?}",
                side.fault(),
                side.stopped()
            );
        }
        outcomes
    }
}
