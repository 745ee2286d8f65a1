//! Dispatch, expand, experts, contract, combine: every step judged by the oracle, with nothing written around the buffers.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]

use anabranch_conformance::ep::oracle::{FactorExperts, Oracle};
use anabranch_conformance::ep::reference::ReferenceExpertMajor;
use anabranch_ep::expert_major::ExpertTable;
use anabranch_ep::{
    DeviceSlice, Dispatched, Error, ExpertMajor, ExpertMajorConfig, ExpertMajorRows, ExpertOutput,
    ExpertParallel,
};
use anabranch_hip::{Device, DeviceAddress, DeviceBuffer, Stream};
use anabranch_shmem::World;

use crate::common::{Case, Uploaded, all_well, judge_rows, oracle, world_config};

/// The canary of bytes that no kernel may write.
pub const CANARY: u8 = 0xc5;
/// Bytes of canaries on either side of a buffer.
const MARGIN: usize = 256;

/// A buffer between canaries, all of it canaries at first.
pub struct Guarded {
    pub buffer: DeviceBuffer,
    pub bytes: usize,
}

impl Guarded {
    pub fn new(device: &Device, bytes: usize) -> Self {
        let mut buffer = device.allocate(bytes + 2 * MARGIN).unwrap();
        buffer.fill(CANARY).unwrap();
        Self { buffer, bytes }
    }

    pub fn slice(&self) -> DeviceSlice {
        // SAFETY: the buffer outlives the stream's work in every test.
        unsafe { DeviceSlice::from_raw(self.buffer.address().offset(MARGIN as u64), self.bytes) }
    }

    pub fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.buffer.len()];
        self.buffer.copy_to_host(0, &mut bytes).unwrap();
        let (before, rest) = bytes.split_at(MARGIN);
        let (inside, after) = rest.split_at(self.bytes);
        assert!(before.iter().chain(after).all(|byte| *byte == CANARY), "written around a buffer");
        inside.to_vec()
    }
}

/// One rank's layout with its experts and the buffers around it.
pub struct Bench {
    pub layout: ExpertMajor,
    pub experts: ReferenceExpertMajor,
    pub output: Guarded,
    pub counts: Guarded,
    /// What the contract writes, where it is not the combine window.
    pub contracted: Option<Guarded>,
}

impl Bench {
    pub fn new(world: &World, ep: &ExpertParallel, config: ExpertMajorConfig) -> Result<Self, Error> {
        let layout = ExpertMajor::new(ep, config)?;
        assert!(layout.is_one_kernel(), "rounds take one step or two");
        let experts = ReferenceExpertMajor::new(world, &layout)?;
        let output = Guarded::new(world.device(), layout.plan().output_bytes() as usize);
        let counts = Guarded::new(world.device(), layout.plan().local_experts() as usize * 4);
        let bench = Self { layout, experts, output, counts, contracted: None };
        bench.paint(world.device());
        Ok(bench)
    }

    /// With a buffer that the contract writes and the combine pushes from.
    pub fn pushing(mut self, device: &Device) -> Self {
        self.contracted = Some(Guarded::new(device, self.layout.plan().contracted_bytes() as usize));
        self
    }

    /// Canaries everywhere in the layout's buffers.
    pub fn paint(&self, device: &Device) {
        write(device, self.layout.counts(), &vec![CANARY; self.layout.plan().bytes() as usize]);
    }

    /// Expand, experts, contract and counts; waits for nothing. Gives what the combine takes.
    pub fn work(&mut self, stream: &Stream, dispatched: &Dispatched) -> Result<ExpertOutput, Error> {
        self.layout.expand(stream, dispatched)?;
        self.run_experts(stream, dispatched)?;
        self.contract(stream, dispatched)
    }

    /// Experts and counts.
    pub fn run_experts(&self, stream: &Stream, dispatched: &Dispatched) -> Result<(), Error> {
        // SAFETY: the experts were made for this layout.
        unsafe { self.experts.run(stream, &self.layout, self.output.slice())? };
        self.layout.local_expert_counts(stream, dispatched, self.counts.slice())
    }

    /// The contract by itself.
    pub fn contract(&self, stream: &Stream, dispatched: &Dispatched) -> Result<ExpertOutput, Error> {
        let output = match &self.contracted {
            Some(buffer) => {
                self.layout.contract_into(stream, dispatched, self.output.slice(), buffer.slice())?
            }
            None => self.layout.contract(stream, dispatched, self.output.slice())?,
        };
        Ok(output)
    }

    /// Compares what the last expand and the last count wrote; gives the number of pairs dropped. The stream was waited for.
    pub fn judge(&self, oracle: &Oracle<'_>, ep: &ExpertParallel, device: &Device) -> u64 {
        let (me, plan) = (ep.rank(), self.layout.plan());
        let seen = ExpertMajorRows::read(device, &self.layout).unwrap();
        let (capacity, alignment) = (plan.capacity() as usize, plan.alignment() as usize);
        let delivery = oracle.expert_major(me, capacity, alignment).unwrap();
        if let Err(mismatch) = delivery.compare(&seen) {
            panic!("{me}: {mismatch}");
        }
        assert_eq!(seen.dropped(), delivery.dropped().count() as u64);
        let counts: Vec<u8> = (0..delivery.experts().len())
            .flat_map(|e| (delivery.pairs(e).len() as u32).to_ne_bytes())
            .collect();
        assert_eq!(self.counts.read(), counts, "{me}: local expert counts");
        self.output.read();
        seen.dropped()
    }

    /// Nothing of a freshly painted layout was written but what the expand had to.
    pub fn judge_canaries(&self, device: &Device) {
        let (plan, dispatch) = (self.layout.plan(), self.layout.plan().dispatch_plan());
        let layout = plan.layout();
        let bytes = read(device, self.layout.counts(), plan.bytes() as usize);
        let seen = ExpertMajorRows::read(device, &self.layout).unwrap();
        let experts = plan.local_experts() as usize;
        // Whole tables, then of each expert's rows those after the padding.
        let tables = [
            (layout.counts, experts * 4, layout.pairs),
            (layout.pairs, experts * 4, layout.source_offsets),
            (layout.source_offsets, experts * (dispatch.ranks() as usize + 1) * 4, layout.sources),
        ];
        for (start, length, next) in tables {
            untouched(&bytes, start as usize + length, next as usize);
        }
        let capacity = plan.capacity() as usize;
        let record = |table: &ExpertTable| table.sources.len();
        for (start, width, next) in [
            (layout.sources, size_of::<anabranch_ep::expert_major::ExpertRowSource>(), layout.slot_map),
            (layout.scales, dispatch.config().scale_bytes as usize, layout.rows),
            (layout.rows, dispatch.row_bytes() as usize, layout.bytes),
        ] {
            for (expert, table) in seen.experts.iter().enumerate() {
                let first = start as usize + expert * capacity * width;
                untouched(&bytes, first + record(table) * width, first + capacity * width);
            }
            untouched(&bytes, start as usize + experts * capacity * width, next as usize);
        }
    }
}

fn untouched(bytes: &[u8], from: usize, to: usize) {
    let wrong = bytes[from..to].iter().position(|byte| *byte != CANARY);
    assert_eq!(wrong, None, "written between {from} and {to} of the layout");
}

pub fn write(device: &Device, address: DeviceAddress, bytes: &[u8]) {
    // SAFETY: callers name a range of a live buffer that no work in flight touches.
    unsafe { device.write_memory(address, bytes).unwrap() };
}

pub fn read(device: &Device, address: DeviceAddress, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    // SAFETY: as above.
    unsafe { device.read_memory(address, &mut bytes).unwrap() };
    bytes
}

/// One round on one rank, with a kernel of its own for expand in every other round, and for contract also on every other rank; gives the
/// number of pairs dropped.
pub fn round(
    ep: &ExpertParallel,
    bench: &mut Bench,
    stream: &Stream,
    world: &World,
    case: &Case,
    number: u64,
) -> Result<u64, Error> {
    let inputs = case.inputs(number);
    let (me, device) = (ep.rank(), world.device());
    let sent = case.sent(&inputs);
    let oracle = oracle(case, &sent);
    let uploaded = Uploaded::new(device, &case.config, &inputs[me.index()]);
    bench.paint(device);
    let in_one = number.is_multiple_of(2);
    let combines_in_one = (number + u64::from(me.get())).is_multiple_of(2);
    let dispatched = if in_one {
        bench.layout.dispatch(ep, stream, &uploaded.tokens(&case.config))?
    } else {
        ep.dispatch(stream, &uploaded.tokens(&case.config))?
    };
    world.synchronize(stream)?;
    judge_rows(&oracle, me, device, ep, &dispatched);
    let window = bench.layout.plan().contracted_bytes() as usize;
    let contracted_at =
        bench.contracted.as_ref().map_or(dispatched.combine_rows(), |buffer| buffer.slice().address());
    write(device, contracted_at, &vec![CANARY; window]);
    if !in_one {
        bench.layout.expand(stream, &dispatched)?;
    }
    bench.run_experts(stream, &dispatched)?;
    if combines_in_one && bench.contracted.is_none() {
        let experts = bench.output.slice();
        bench.layout.combine(ep, stream, experts, dispatched, uploaded.output())?;
    } else {
        let experts = bench.contract(stream, &dispatched)?;
        ep.combine(stream, experts, dispatched, uploaded.output())?;
    }
    world.synchronize(stream)?;
    let dropped = bench.judge(&oracle, ep, device);
    bench.judge_canaries(device);

    let capacity = bench.layout.plan().capacity() as usize;
    let contracted = oracle.contracted(capacity, FactorExperts).unwrap();
    let delivery = oracle.expert_major(me, capacity, 1).unwrap();
    let seen = match &bench.contracted {
        Some(buffer) => buffer.read(),
        None => read(device, contracted_at, window),
    };
    if let Err(mismatch) = delivery.compare_window(&seen, &contracted) {
        panic!("{me}: {mismatch}");
    }
    // Rows that were not received are not written.
    let row = ep.plan().combine_row_bytes() as usize;
    let received = oracle.dispatch(me).unwrap();
    let rows: std::collections::BTreeSet<usize> = received.rows().map(|row| row.index).collect();
    for (index, bytes) in seen.chunks_exact(row).enumerate().filter(|(index, _)| !rows.contains(index)) {
        assert!(bytes.iter().all(|byte| *byte == CANARY), "row {index} was not received, and written");
    }

    let output = uploaded.read_output(&case.config);
    if let Err(mismatch) = oracle.combine(me).unwrap().compare_output(&output, &contracted) {
        panic!("{me}: {mismatch}");
    }
    Ok(dropped)
}

/// Makes plan and layout and runs some rounds on all ranks; gives the number of pairs dropped.
pub fn run(case: &Case, config: ExpertMajorConfig, rounds: u64) -> u64 {
    let dropped = all_well(case.on_ranks(&world_config(), |world| {
        let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
        let bench = Bench::new(world, &ep, config)?;
        let mut bench = if case.staged { bench.pushing(world.device()) } else { bench };
        let stream = world.device().create_stream()?;
        (0..rounds).try_fold(0, |sum, number| Ok(sum + round(&ep, &mut bench, &stream, world, case, number)?))
    }));
    dropped.iter().sum()
}
