//! The ranks of a run: their memory, their queues, and what they leave. One host thread works for all of them, as a rank beside
//! them without a fault.

use core::time::Duration;

use anabranch_hip::{
    Device, DeviceAddress, DeviceBuffer, DeviceOrdinal, HostBuffer, LaunchShape, Stream, with_causes,
};
use anabranch_hip_jit::DevicePointer;
use anabranch_hip_jit::control::{FaultRecord, WaitControl};
use anabranch_shmem::{OperationCode, TeamView};
use anabranch_transport_sdma::{DeviceQueue, Generation, Ring, SdmaQueue, SoftwareQueue};
use anabranch_weakmem::{Fault, SeededHost};
use bytemuck::{Pod, Zeroable as _};

use super::super::bench::WAVE;
use super::choice::{Choice, Link, Trouble};
use super::nics::{Known, Nic, connect};
use super::{Sdma, spec};
use crate::Protocol;
use crate::kernels::{ENGINES, EnginesArgs};

/// The group's number in fault records.
const GROUP: u64 = 5;
/// How long a wait may take, in virtual time: far longer than any run in which nothing goes wrong.
const BUDGET_NS: u64 = 1_000_000_000;
/// How long a new queue's engine may take, in virtual time.
const PATIENCE: Duration = Duration::from_secs(1);
/// `FAULT_COMPLETE` in `anabranch/wait.h`.
const COMPLETE: u64 = 2;

/// What a rank left behind.
#[derive(Clone, Debug, Default)]
pub(super) struct Left {
    /// The fault that its kernel reported.
    pub(super) record: Option<FaultRecord>,
    /// `[groups]`.
    pub(super) statuses: Vec<u64>,
    /// `[size][groups]`.
    pub(super) received: Vec<u64>,
    /// `[rounds][size][groups][words]`.
    pub(super) log: Vec<u64>,
    /// Peers whose engines have stopped, and why.
    pub(super) stopped: Vec<(u32, String)>,
}

/// What a rank has. What comes first is dropped first: engines stop before the memory goes that they write.
struct Rank {
    nic: Option<Nic>,
    queues: Vec<DeviceQueue>,
    table: Option<DeviceBuffer>,
    stream: Stream,
    heap: DeviceBuffer,
    bases: DeviceBuffer,
    control: DeviceBuffer,
    own: DeviceBuffer,
    record: HostBuffer,
    device: Device,
}

/// Where a rank's words are in its own memory, and in its heap, in bytes.
struct Places {
    pulled: u64,
    log: u64,
    received: u64,
    statuses: u64,
    own: usize,
    outbox: u64,
    arrived: u64,
    consumed: u64,
    heap: usize,
}

/// Text of what should not happen.
pub(super) fn text(error: impl core::error::Error) -> String {
    with_causes(&error)
}

fn read<T: Pod>(buffer: &DeviceBuffer, offset: u64, count: usize) -> Result<Vec<T>, String> {
    let mut values = vec![T::zeroed(); count];
    buffer.copy_to_host(offset as usize, bytemuck::cast_slice_mut(&mut values)).map_err(text)?;
    Ok(values)
}

fn at<T>(buffer: &DeviceBuffer, offset: u64) -> DevicePointer<T> {
    DevicePointer::new(buffer.address().offset(offset))
}

impl Sdma {
    fn places(&self, groups: u32) -> Places {
        let rows = u64::from(self.case.ranks * groups) * 8;
        let all = rows * u64::from(self.case.tokens);
        let received = 2 * all + all * u64::from(self.case.rounds);
        let statuses = received + rows;
        Places {
            pulled: all,
            log: 2 * all,
            received,
            statuses,
            own: (statuses + u64::from(groups) * 8) as usize,
            outbox: all,
            arrived: 2 * all,
            consumed: 2 * all + rows,
            heap: (2 * all + 2 * rows) as usize,
        }
    }

    /// Sets all ranks up, runs their kernels at the same time, and reads what they leave. On a thread that the machine knows.
    pub(super) fn life(
        &self,
        machine: &SeededHost,
        choice: &Choice,
    ) -> Result<Vec<Result<Left, String>>, String> {
        let groups = self.groups(choice.scope);
        let places = self.places(groups);
        let ranks = self.ranks(machine, choice, &places)?;
        if let Some(Trouble::Dead { rank, after }) = choice.trouble {
            let run = machine.run();
            let before = run.primitives.get(rank as usize).copied().unwrap_or(0);
            machine.add_fault(Fault::Kill { rank, at: before + after });
        }
        let mut ends = Vec::new();
        for (me, rank) in (0..).zip(&ranks) {
            let launched = self.launch(me, rank, choice, &places, groups);
            ends.push(launched);
        }
        for (rank, end) in ranks.iter().zip(&mut ends) {
            if end.is_ok() {
                *end = rank.stream.synchronize().map_err(text);
            }
        }
        let left = ranks.iter().zip(ends).map(|(rank, end)| {
            end?;
            self.left(rank, choice, &places, groups)
        });
        Ok(left.collect())
    }

    /// Memory first, of all ranks, then the queues, which reach all of it.
    fn ranks(&self, machine: &SeededHost, choice: &Choice, places: &Places) -> Result<Vec<Rank>, String> {
        let runtime = machine.runtime();
        let devices: Result<Vec<Device>, _> =
            (0..self.case.ranks).map(|rank| runtime.device(DeviceOrdinal(rank))).collect();
        let devices = devices.map_err(text)?;
        let mut ranks = Vec::new();
        for device in &devices {
            for peer in &devices {
                device.enable_peer_access(peer).map_err(text)?;
            }
            ranks.push(Rank::new(device, self.case.ranks, places).map_err(text)?);
        }
        if self.case.protocol == Protocol::Rdma {
            return self.with_nics(&devices, ranks, choice);
        }
        let mut heaps: Vec<DeviceAddress> = ranks.iter().map(|rank| rank.heap.address()).collect();
        for me in 0..self.case.ranks {
            let queues = self.queues(&devices, me, &heaps, choice)?;
            let rank = &mut ranks[me as usize];
            let each = choice.queues as usize;
            let views: Vec<SdmaQueue> =
                (0..).zip(&queues).map(|(index, queue)| queue.view(index / each as u32)).collect();
            let bytes: &[u8] = bytemuck::cast_slice(&views);
            let mut table = rank.device.allocate(bytes.len()).map_err(text)?;
            table.copy_from_host(0, bytes).map_err(text)?;
            (rank.queues, rank.table) = (queues, Some(table));
        }
        let gone = match choice.trouble {
            Some(Trouble::Gone { from, to }) => {
                let gone = devices[to as usize].allocate_uncached(places.heap).map_err(text)?;
                heaps[to as usize] = gone.address();
                Some(from)
            }
            _ => None,
        };
        let real: Vec<DeviceAddress> = ranks.iter().map(|rank| rank.heap.address()).collect();
        for (me, rank) in (0..).zip(&mut ranks) {
            let believed = if gone == Some(me) { &heaps } else { &real };
            let bases: Vec<u64> = believed.iter().map(|address| address.0).collect();
            rank.bases.copy_from_host(0, bytemuck::cast_slice(&bases)).map_err(text)?;
        }
        Ok(ranks)
    }

    /// Ranks that map only their own memory.
    fn with_nics(
        &self,
        devices: &[Device],
        mut ranks: Vec<Rank>,
        choice: &Choice,
    ) -> Result<Vec<Rank>, String> {
        let known = |rank: &Rank| Known {
            heap: rank.heap.address(),
            heap_bytes: rank.heap.len() as u64,
            own: rank.own.address(),
            own_bytes: rank.own.len() as u64,
        };
        let nics = connect(devices, &ranks.iter().map(known).collect::<Vec<_>>(), choice)?;
        for ((rank, nic), me) in ranks.iter_mut().zip(nics).zip(0..) {
            let heap = rank.heap.address().0;
            let bases: Vec<u64> =
                (0..self.case.ranks).map(|peer| if peer == me { heap } else { 0 }).collect();
            rank.bases.copy_from_host(0, bytemuck::cast_slice(&bases)).map_err(text)?;
            rank.nic = Some(nic);
        }
        Ok(ranks)
    }

    fn queues(
        &self,
        devices: &[Device],
        from: u32,
        heaps: &[DeviceAddress],
        choice: &Choice,
    ) -> Result<Vec<DeviceQueue>, String> {
        let device = &devices[from as usize];
        let engines = device.runtime().engines(device.ordinal()).ok_or("the machine runs no engines")?;
        let generation = Generation::of_target("gfx942").ok_or("no generation of gfx942")?;
        let ring = Ring::new(choice.ring_bytes).map_err(text)?;
        let links =
            (0..self.case.ranks).flat_map(|to| (0..choice.queues).map(move |index| Link { from, to, index }));
        let start = |link: Link| {
            let software = choice.software(link, self.case.ranks);
            let engine = SoftwareQueue::start(device, engines.clone(), ring, generation, software)?;
            let source = heaps[link.to as usize];
            DeviceQueue::new(device, Box::new(engine), generation, choice.most_copy_bytes, source, PATIENCE)
        };
        links.map(|link| start(link).map_err(text)).collect()
    }

    fn launch(
        &self,
        me: u32,
        rank: &Rank,
        choice: &Choice,
        places: &Places,
        groups: u32,
    ) -> Result<(), String> {
        let team = TeamView {
            size: self.case.ranks,
            rank: me,
            group: GROUP,
            peer_bases: at(&rank.bases, 0),
            control: at(&rank.control, 0),
            queues: rank.table.as_ref().map_or(DevicePointer::NULL, |table| at(table, 0)),
            nics: rank.nic.as_ref().map_or(DevicePointer::NULL, |nic| at(&nic.table, 0)),
            queues_per_peer: if rank.table.is_some() { choice.queues } else { 0 },
            nics_per_peer: if rank.nic.is_some() { choice.queues } else { 0 },
        };
        let args = EnginesArgs {
            team,
            staging: at(&rank.own, 0),
            pulled: at(&rank.own, places.pulled),
            log: at(&rank.own, places.log),
            received: at(&rank.own, places.received),
            statuses: at(&rank.own, places.statuses),
            slots: 0,
            outbox: places.outbox,
            arrived: places.arrived,
            consumed: places.consumed,
            words: self.case.tokens,
            rounds: self.case.rounds,
            groups,
            mode: choice.mode,
            scope: choice.scope,
            adds: choice.adds,
            operation: OperationCode::SIGNAL_WAIT.0,
            reserved: 0,
        };
        let unit = self.jit.load(&rank.device, &spec(&self.case)).map_err(text)?;
        let kernel = unit.get(ENGINES).map_err(text)?;
        let (grid_blocks, block_threads) = (self.case.blocks, self.case.waves * WAVE);
        let shape = LaunchShape { grid_blocks, block_threads, local_bytes: 0 };
        // SAFETY: the rank holds all memory that the arguments name, but for what is gone on purpose, which
        // only engines touch, and these look whether it is there.
        unsafe { kernel.launch(shape, &rank.stream, &args) }.map_err(text)
    }

    fn left(&self, rank: &Rank, choice: &Choice, places: &Places, groups: u32) -> Result<Left, String> {
        let mut record = FaultRecord::zeroed();
        rank.record.read(0, bytemuck::bytes_of_mut(&mut record)).map_err(text)?;
        let rows = (self.case.ranks * groups) as usize;
        let messages = rows * (self.case.tokens * self.case.rounds) as usize;
        let stopped = (0..).zip(&rank.queues).filter_map(|(index, queue)| {
            let why = queue.engine().stopped()?;
            Some((index / choice.queues, why))
        });
        Ok(Left {
            record: (record.state == COMPLETE).then_some(record),
            statuses: read(&rank.own, places.statuses, groups as usize)?,
            received: read(&rank.own, places.received, rows)?,
            log: read(&rank.own, places.log, messages)?,
            stopped: match &rank.nic {
                Some(nic) => nic.stopped(self.case.ranks),
                None => stopped.collect(),
            },
        })
    }
}

impl Rank {
    fn new(device: &Device, ranks: u32, places: &Places) -> anabranch_hip::Result<Self> {
        let mut heap = device.allocate_uncached(places.heap)?;
        heap.fill(0)?;
        let mut own = device.allocate(places.own)?;
        own.fill(0)?;
        let record = device.allocate_host(size_of::<FaultRecord>())?;
        record.write(0, &[0; size_of::<FaultRecord>()])?;
        let words = WaitControl {
            budget_ns: BUDGET_NS,
            fault: DevicePointer::new(record.device_address()),
            ..WaitControl::zeroed()
        };
        let mut control = device.allocate(size_of::<WaitControl>())?;
        control.copy_from_host(0, bytemuck::bytes_of(&words))?;
        Ok(Self {
            nic: None,
            queues: Vec::new(),
            table: None,
            stream: device.create_stream()?,
            heap,
            bases: device.allocate(ranks as usize * size_of::<u64>())?,
            control,
            own,
            record,
            device: device.clone(),
        })
    }
}
