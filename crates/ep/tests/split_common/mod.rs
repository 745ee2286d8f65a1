//! Operations in halves, judged by the oracle.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]

use anabranch_conformance::ep::reference::ReferenceExpert;
use anabranch_ep::{CombineSent, DispatchSent, Dispatched, Error, ExpertParallel};
use anabranch_hip::Stream;
use anabranch_shmem::World;

use crate::common::{self, Case, Uploaded, judge_output, oracle, run_expert, window_bytes};

/// A plan for a case, with its expert and one operation's buffers.
pub struct Rank {
    pub case: Case,
    pub ep: ExpertParallel,
    pub expert: ReferenceExpert,
    pub uploaded: Uploaded,
    pub staging: anabranch_hip::DeviceBuffer,
}

impl Rank {
    pub fn new(world: &World, case: &Case) -> Result<Self, Error> {
        let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
        let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
        let uploaded = Uploaded::new(world.device(), &case.config, &case.input(ep.rank().get(), 0));
        let staging = world.device().allocate(window_bytes(&ep))?;
        Ok(Self { case: case.clone(), ep, expert, uploaded, staging })
    }

    pub fn refill(&mut self, number: u64) -> Result<(), Error> {
        self.uploaded.refill(&self.case.input(self.ep.rank().get(), number));
        Ok(self.uploaded.output.fill(0xee)?)
    }

    pub fn send(&self, stream: &Stream) -> Result<DispatchSent, Error> {
        self.ep.dispatch_send(stream, &self.uploaded.tokens(&self.case.config))
    }

    pub fn offer(&self, stream: &Stream, dispatched: Dispatched) -> Result<CombineSent, Error> {
        let experts = run_expert(&self.expert, stream, &dispatched, &self.case, &self.staging)?;
        self.ep.combine_send(stream, experts, dispatched)
    }

    pub fn sum(&self, stream: &Stream, sent: CombineSent) -> Result<(), Error> {
        assert_eq!(sent.tokens() as usize, self.uploaded.count);
        self.ep.combine_recv(stream, sent, self.uploaded.output())
    }

    /// Everything in one kernel each.
    pub fn whole(&self, stream: &Stream) -> Result<(), Error> {
        let dispatched = self.ep.dispatch(stream, &self.uploaded.tokens(&self.case.config))?;
        let experts = run_expert(&self.expert, stream, &dispatched, &self.case, &self.staging)?;
        self.ep.combine(stream, experts, dispatched, self.uploaded.output())
    }

    pub fn judge(&self, number: u64) {
        let inputs = self.case.inputs(number);
        let output = self.uploaded.read_output(&self.case.config);
        judge_output(&oracle(&self.case, &inputs), self.ep.rank(), &output);
    }
}

/// Work of the stream that the halves have nothing to do with: bytes that go round.
pub fn other_work(
    stream: &Stream,
    device: &anabranch_hip::Device,
) -> Result<[anabranch_hip::DeviceBuffer; 2], Error> {
    let buffers = [common::upload(device, &[7; 4096]), common::upload(device, &[0; 4096])];
    for (from, to) in [(0, 1), (1, 0)] {
        // SAFETY: both hold the bytes, and the caller keeps them until the stream was waited for.
        unsafe { stream.copy_async(buffers[to].address(), buffers[from].address(), 4096)? };
    }
    Ok(buffers)
}

/// One operation of each of two plans; the send and receive of one are between the send and receive of the other.
pub fn interleaved(one: &Rank, two: &Rank, stream: &Stream, side: &Stream) -> Result<(), Error> {
    let first = one.send(stream)?;
    let second = two.send(side)?;
    let first = one.ep.dispatch_recv(stream, first)?;
    let first = one.offer(stream, first)?;
    let second = two.ep.dispatch_recv(side, second)?;
    let second = two.offer(side, second)?;
    one.sum(stream, first)?;
    two.sum(side, second)
}
