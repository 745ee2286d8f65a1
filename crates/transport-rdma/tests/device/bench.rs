//! Queues made by hand in the memory of a device of the host runtime, and a kernel that puts requests into them.

use std::path::PathBuf;
use std::time::Duration;

use anabranch_hip::{Device, DeviceBuffer, DeviceOrdinal, HostBuffer, LaunchShape, Stream};
use anabranch_hip_host::{HostConfig, HostMachine};
use anabranch_hip_jit::control::{FaultRecord, WaitControl};
use anabranch_hip_jit::{DevicePointer, Jit, JitConfig, KernelSpec, ToolSearch};
use anabranch_transport_rdma::{Atomics, Provider, ROUTE_NIC, RdmaQueue, RdmaRange, ReadOrder};
use bytemuck::Zeroable as _;

pub(crate) use crate::device::asked::*;

/// Posts and waits for its own request (`requests.hip`).
pub(crate) const POST_AND_WAIT: u32 = 1;

pub(crate) const QUEUE_NUMBER: u32 = 0x0a_bcde;
pub(crate) const REMOTE_KEY: u32 = 0x1122_3344;
pub(crate) const LOCAL_KEY: u32 = 0x5566_7788;
pub(crate) const RESULTS_KEY: u32 = 0x99aa_bbcc;
pub(crate) const PEER: u32 = 3;

pub(crate) fn tools() -> ToolSearch {
    let path = ["/usr/local/bin", "/usr/bin", "/bin"].map(PathBuf::from).into();
    ToolSearch { path, ..ToolSearch::default() }
}

pub(crate) fn jit_with(tools: ToolSearch) -> Jit {
    Jit::new(JitConfig::new(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kernels")), tools)
}

pub(crate) fn spec(provider: Provider, atomics: Atomics) -> KernelSpec {
    KernelSpec::new(&UNIT).with("RDMA_PROVIDER", provider.number()).with("RDMA_ATOMICS", atomics.number())
}

/// Which queue a test wants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) provider: Provider,
    pub(crate) atomics: Atomics,
    pub(crate) queues: u32,
    pub(crate) entries: u32,
    pub(crate) most_message_bytes: u32,
    /// Where all positions begin; `bnxt_re`: with the next packet's number above it.
    pub(crate) first: u64,
    pub(crate) doorbell_value: u64,
    pub(crate) wave: u32,
    /// The peer takes immediate values.
    pub(crate) immediates: bool,
    pub(crate) read_order: ReadOrder,
}

impl Setup {
    pub(crate) fn new(provider: Provider) -> Self {
        Self {
            provider,
            atomics: Atomics::Masked,
            queues: 1,
            entries: 64,
            most_message_bytes: 1 << 30,
            first: 0,
            doorbell_value: 0,
            wave: 1,
            immediates: true,
            read_order: ReadOrder::Ordered,
        }
    }

    /// Where positions begin.
    pub(crate) fn position(&self) -> u64 {
        if self.provider == Provider::Bnxt { self.first & ((1 << 40) - 1) } else { self.first }
    }
}

/// The memory of a queue.
pub(crate) struct QueueMemory {
    pub(crate) ring: DeviceBuffer,
    /// Completions (64 bytes), doorbell record (8, at 64), doorbell (8, at 72).
    pub(crate) words: DeviceBuffer,
    /// Reserved, committed, completed.
    pub(crate) positions: DeviceBuffer,
    pub(crate) results: DeviceBuffer,
    pub(crate) sequences: DeviceBuffer,
}

pub(crate) struct Bench {
    pub(crate) setup: Setup,
    pub(crate) views: Vec<RdmaQueue>,
    pub(crate) queues: Vec<QueueMemory>,
    /// What requests read and write here.
    pub(crate) local: DeviceBuffer,
    /// And at the "peer".
    pub(crate) remote: DeviceBuffer,
    table: DeviceBuffer,
    _ranges: DeviceBuffer,
    control: DeviceBuffer,
    record: HostBuffer,
    stream: Stream,
    pub(crate) device: Device,
    jit: Jit,
}

pub(crate) const MEMORY: usize = 64 << 10;

impl Bench {
    pub(crate) fn new(setup: Setup) -> Self {
        let host = HostConfig {
            devices: 1,
            wave_width: setup.wave,
            memory_bytes: 64 << 20,
            ..HostConfig::default()
        };
        let device = HostMachine::new(host).unwrap().runtime().device(DeviceOrdinal(0)).unwrap();
        let filled = |bytes: usize, byte: u8| {
            let mut buffer = device.allocate_uncached(bytes).unwrap();
            buffer.copy_from_host(0, &vec![byte; bytes]).unwrap();
            buffer
        };
        let (local, remote) = (filled(MEMORY, 0), filled(MEMORY, 0));
        // The range that requests use is the second.
        let range = |address, bytes, key| RdmaRange { address, bytes, key, reserved: 0 };
        let ranges = [range(64, 64, 1), range(local.address().0, MEMORY as u64, LOCAL_KEY)];
        let mut range_table = filled(size_of_val(&ranges), 0);
        range_table.copy_from_host(0, bytemuck::cast_slice(&ranges)).unwrap();
        let entries = setup.entries;
        let queues: Vec<QueueMemory> = (0..setup.queues)
            .map(|_| {
                let mut positions = filled(24, 0);
                let position = setup.position();
                positions
                    .copy_from_host(0, bytemuck::cast_slice(&[setup.first, position, position]))
                    .unwrap();
                let mut words = filled(80, if setup.provider == Provider::Mlx5 { 0xff } else { 0 });
                if setup.provider == Provider::Ionic {
                    // As many messages as have been.
                    words.copy_from_host(4, &(position as u32 & 0xff_ffff).to_be_bytes()).unwrap();
                }
                QueueMemory {
                    ring: filled(entries as usize * 64, 0xee),
                    words,
                    positions,
                    results: filled(RdmaQueue::results_bytes(entries) as usize, 0),
                    sequences: filled(entries as usize * 2 * 8, 0),
                }
            })
            .collect();
        let view = |queue: &QueueMemory| {
            let at = |buffer: &DeviceBuffer, offset| {
                DevicePointer::new(anabranch_hip::DeviceAddress(buffer.address().0 + offset))
            };
            RdmaQueue {
                ring: DevicePointer::new(queue.ring.address()),
                completions: at(&queue.words, 0),
                doorbell_record: at(&queue.words, 64).cast(),
                doorbell: at(&queue.words, 72),
                sequence_table: at(&queue.sequences, 0),
                reserved: at(&queue.positions, 0),
                committed: at(&queue.positions, 8),
                completed: at(&queue.positions, 16),
                results: at(&queue.results, 0),
                ranges: DevicePointer::new(range_table.address()),
                remote_base: remote.address().0,
                remote_bytes: MEMORY as u64,
                doorbell_value: setup.doorbell_value,
                entries,
                number: QUEUE_NUMBER,
                remote_key: REMOTE_KEY,
                results_key: RESULTS_KEY,
                range_count: ranges.len() as u32,
                most_message_bytes: setup.most_message_bytes,
                path_mtu: 1024,
                route: ROUTE_NIC,
                peer: PEER,
                immediates: u32::from(setup.immediates),
                read_order: setup.read_order.number(),
                reserved_word: 0,
            }
        };
        let views: Vec<_> = queues.iter().map(view).collect();
        let mut table = filled(size_of_val(&views[..]), 0);
        table.copy_from_host(0, bytemuck::cast_slice(&views)).unwrap();
        let mut bench = Self {
            setup,
            views,
            queues,
            local,
            remote,
            table,
            _ranges: range_table,
            control: filled(size_of::<WaitControl>(), 0),
            record: device.allocate_host(size_of::<FaultRecord>()).unwrap(),
            stream: device.create_stream().unwrap(),
            device,
            jit: jit_with(tools()),
        };
        bench.set_budget(Duration::from_secs(60));
        bench
    }

    pub(crate) fn set_budget(&mut self, budget: Duration) {
        self.record.write(0, &[0; size_of::<FaultRecord>()]).unwrap();
        let control = WaitControl {
            budget_ns: budget.as_nanos() as u64,
            fault: DevicePointer::new(self.record.device_address()),
            ..WaitControl::zeroed()
        };
        self.control.copy_from_host(0, bytemuck::bytes_of(&control)).unwrap();
    }

    pub(crate) fn spec(&self) -> KernelSpec {
        spec(self.setup.provider, self.setup.atomics)
    }

    /// Runs the requests, `each` of them by one lane, on lanes in blocks of `threads`.
    pub(crate) fn run(
        &self,
        spec: &KernelSpec,
        requests: &[AskedRequest],
        each: u64,
        threads: u32,
    ) -> Vec<Outcome> {
        let lanes = (requests.len() as u64).div_ceil(each) as u32;
        let mut asked = self.device.allocate(size_of_val(requests)).unwrap();
        asked.copy_from_host(0, bytemuck::cast_slice(requests)).unwrap();
        let mut outcomes = vec![Outcome { status: 9, end: 0, old: 0 }; requests.len()];
        let mut buffer = self.device.allocate(size_of_val(&outcomes[..])).unwrap();
        buffer.copy_from_host(0, bytemuck::cast_slice(&outcomes)).unwrap();
        let arguments = RequestsArgs {
            queues: DevicePointer::new(self.table.address()),
            requests: DevicePointer::new(asked.address()),
            outcomes: DevicePointer::new(buffer.address()),
            control: DevicePointer::new(self.control.address()),
            count: requests.len() as u64,
            each,
        };
        let unit = self.jit.load(&self.device, spec).unwrap();
        let kernel = unit.get(REQUESTS).unwrap();
        let shape =
            LaunchShape { grid_blocks: lanes.div_ceil(threads), block_threads: threads, local_bytes: 0 };
        // SAFETY: the buffers in its arguments live until the stream is idle, below.
        unsafe { kernel.launch(shape, &self.stream, &arguments) }.unwrap();
        self.stream.synchronize().unwrap();
        buffer.copy_to_host(0, bytemuck::cast_slice_mut(&mut outcomes)).unwrap();
        outcomes
    }

    pub(crate) fn fault(&self) -> Option<FaultRecord> {
        let mut record = FaultRecord::zeroed();
        self.record.read(0, bytemuck::bytes_of_mut(&mut record)).unwrap();
        (record.state == 2).then_some(record)
    }

    /// A request between the two memories, waiting for nothing.
    pub(crate) fn ask(&self, opcode: u32, local: u64, remote: u64, bytes: u64) -> AskedRequest {
        AskedRequest {
            local: self.local.address().0.wrapping_add(local),
            remote: self.remote.address().0.wrapping_add(remote),
            bytes,
            opcode,
            ..AskedRequest::zeroed()
        }
    }

    /// An operation on a word of the peer's.
    pub(crate) fn word(
        &self,
        opcode: u32,
        remote: u64,
        word_bytes: u32,
        value: u64,
        compare: u64,
    ) -> AskedRequest {
        AskedRequest { value, compare, word_bytes, how: FETCH, ..self.ask(opcode, 0, remote, 0) }
    }
}

/// What the buffer holds.
pub(crate) fn read<T: bytemuck::Pod>(buffer: &DeviceBuffer) -> Vec<T> {
    let mut values = vec![T::zeroed(); buffer.len() / size_of::<T>()];
    buffer.copy_to_host(0, bytemuck::cast_slice_mut(&mut values)).unwrap();
    values
}
