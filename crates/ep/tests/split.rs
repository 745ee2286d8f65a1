//! Dispatch and combine in halves: other work between them, plans that interleave, graphs, ranks that do all in one.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use anabranch_ep::reference::ReferenceExpert;
use anabranch_ep::{
    CombineSent, DispatchSent, Dispatched, EpConfig, Error, ExpertOutput, ExpertParallel, Mode,
};
use anabranch_hip::Stream;
use anabranch_shmem::World;
use common::{
    Case, Uploaded, all_well, depart, judge_dropped, judge_output, judge_rows, on_ranks, oracle, run_expert,
    window_bytes, work, world_config,
};

/// A plan for a case, with its expert and one operation's buffers.
struct Rank {
    case: Case,
    ep: ExpertParallel,
    expert: ReferenceExpert,
    uploaded: Uploaded,
    staging: anabranch_hip::DeviceBuffer,
}

impl Rank {
    fn new(world: &World, case: &Case) -> Result<Self, Error> {
        let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
        let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
        let uploaded = Uploaded::new(world.device(), &case.config, &case.input(ep.rank().get(), 0));
        let staging = world.device().allocate(window_bytes(&ep))?;
        Ok(Self { case: case.clone(), ep, expert, uploaded, staging })
    }

    fn refill(&mut self, number: u64) -> Result<(), Error> {
        self.uploaded.refill(&self.case.input(self.ep.rank().get(), number));
        Ok(self.uploaded.output.fill(0xee)?)
    }

    fn send(&self, stream: &Stream) -> Result<DispatchSent, Error> {
        self.ep.dispatch_send(stream, &self.uploaded.tokens(&self.case.config))
    }

    fn offer(&self, stream: &Stream, dispatched: Dispatched) -> Result<CombineSent, Error> {
        let experts = run_expert(&self.expert, stream, &dispatched, &self.case, &self.staging)?;
        self.ep.combine_send(stream, experts, dispatched)
    }

    fn sum(&self, stream: &Stream, sent: CombineSent) -> Result<(), Error> {
        assert_eq!(sent.tokens() as usize, self.uploaded.count);
        self.ep.combine_recv(stream, sent, self.uploaded.output())
    }

    /// Everything in one kernel each.
    fn whole(&self, stream: &Stream) -> Result<(), Error> {
        let dispatched = self.ep.dispatch(stream, &self.uploaded.tokens(&self.case.config))?;
        let experts = run_expert(&self.expert, stream, &dispatched, &self.case, &self.staging)?;
        self.ep.combine(stream, experts, dispatched, self.uploaded.output())
    }

    fn judge(&self, number: u64) {
        let inputs = self.case.inputs(number);
        let output = self.uploaded.read_output(&self.case.config);
        judge_output(&oracle(&self.case, &inputs), self.ep.rank(), &output);
    }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (wave, mode) in [(1, Mode::Slotted), (4, Mode::Compact), (32, Mode::Slotted), (64, Mode::Compact)] {
        let mut case = Case::new(4, wave);
        case.config = case.config.mode(mode).max_recv(if wave > 4 { 45 } else { 0 });
        case.staged = wave % 32 == 0;
        cases.push(case);
    }
    cases
}

/// Work of the stream that the halves have nothing to do with: bytes that go round.
fn other_work(
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

#[test]
fn halves_with_other_work_between_are_the_whole() {
    for case in cases() {
        all_well(on_ranks(case.ranks, case.wave, &world_config(), |world| {
            let mut rank = Rank::new(world, &case)?;
            let stream = world.device().create_stream()?;
            for number in 0..4 {
                rank.refill(number)?;
                let mut kept = Vec::new();
                let sent = rank.send(&stream)?;
                assert_eq!(sent.tokens() as usize, rank.uploaded.count);
                kept.push(other_work(&stream, world.device())?);
                // The tokens are on their way, and their buffer is free, in stream order.
                let rows = &rank.uploaded.rows;
                let zeros = common::upload(world.device(), &vec![0; rows.len()]);
                // SAFETY: both live until the stream was waited for.
                unsafe { stream.copy_async(rows.address(), zeros.address(), rows.len())? };
                let dispatched = rank.ep.dispatch_recv(&stream, sent)?;
                world.synchronize(&stream)?;
                let inputs = case.inputs(number);
                let oracle = oracle(&case, &inputs);
                judge_rows(&oracle, rank.ep.rank(), world.device(), &rank.ep, &dispatched);
                judge_dropped(&oracle, world.device(), &rank.ep, &stream, &dispatched)?;
                let sent = rank.offer(&stream, dispatched)?;
                kept.push(other_work(&stream, world.device())?);
                rank.sum(&stream, sent)?;
                world.synchronize(&stream)?;
                rank.judge(number);
                for buffer in kept.iter().flatten() {
                    let mut bytes = [0; 4096];
                    buffer.copy_to_host(0, &mut bytes)?;
                    assert!(bytes.iter().all(|byte| *byte == 7));
                }
            }
            Ok(())
        }));
    }
}

#[test]
fn ranks_may_differ_in_which_they_use() {
    for case in cases() {
        all_well(on_ranks(case.ranks, case.wave, &world_config(), |world| {
            let mut rank = Rank::new(world, &case)?;
            let stream = world.device().create_stream()?;
            for number in 0..6 {
                rank.refill(number)?;
                if (number + u64::from(world.rank().get())).is_multiple_of(2) {
                    rank.whole(&stream)?;
                } else {
                    let sent = rank.send(&stream)?;
                    let dispatched = rank.ep.dispatch_recv(&stream, sent)?;
                    let sent = rank.offer(&stream, dispatched)?;
                    rank.sum(&stream, sent)?;
                }
                world.synchronize(&stream)?;
                rank.judge(number);
            }
            Ok(())
        }));
    }
}

/// One operation of each of two plans, the halves of one between those of the other.
fn interleaved(one: &Rank, two: &Rank, stream: &Stream, side: &Stream) -> Result<(), Error> {
    let first = one.send(stream)?;
    let second = two.send(side)?;
    let first = one.ep.dispatch_recv(stream, first)?;
    let first = one.offer(stream, first)?;
    let second = two.ep.dispatch_recv(side, second)?;
    let second = two.offer(side, second)?;
    one.sum(stream, first)?;
    two.sum(side, second)
}

#[test]
fn two_plans_interleave() {
    for (wave, modes) in [(1, [Mode::Slotted, Mode::Compact]), (4, [Mode::Compact, Mode::Compact])] {
        let mut cases = [Case::new(3, wave), Case::new(3, wave)];
        for (case, mode) in cases.iter_mut().zip(modes) {
            case.config = case.config.clone().mode(mode).slots(2);
        }
        cases[1].tokens = vec![2, 40, 11];
        all_well(on_ranks(3, wave, &world_config(), |world| {
            let [mut one, mut two] = [Rank::new(world, &cases[0])?, Rank::new(world, &cases[1])?];
            let streams = [world.device().create_stream()?, world.device().create_stream()?];
            for number in 0..10 {
                one.refill(number)?;
                two.refill(number + 50)?;
                // On one stream, on two, and the second plan's first.
                match number % 3 {
                    0 => interleaved(&one, &two, &streams[0], &streams[0])?,
                    1 => interleaved(&one, &two, &streams[0], &streams[1])?,
                    _ => interleaved(&two, &one, &streams[1], &streams[0])?,
                }
                world.synchronize(&streams[0])?;
                world.synchronize(&streams[1])?;
                one.judge(number);
                two.judge(number + 50);
            }
            Ok(())
        }));
    }
}

#[test]
fn as_many_are_in_flight_as_there_are_slots() {
    let mut case = Case::new(3, 1);
    case.config = case.config.slots(2);
    all_well(on_ranks(3, 1, &world_config(), |world| {
        let rank = Rank::new(world, &case)?;
        let stream = world.device().create_stream()?;
        let sent = [rank.send(&stream)?, rank.send(&stream)?];
        let refused = depart(&rank.ep, &stream, &case, 1).err();
        assert!(matches!(refused, Some(Error::SlotsBusy { slots: 2 })), "{refused:?}");
        for sent in sent {
            let dispatched = rank.ep.dispatch_recv(&stream, sent)?;
            let sent = rank.offer(&stream, dispatched)?;
            // Not before it was received.
            let other = Rank::new(world, &case)?;
            rank.sum(&stream, sent)?;
            // A half of another plan is refused.
            let foreign = other.send(&stream)?;
            let refused = rank.ep.dispatch_recv(&stream, foreign).err();
            assert!(matches!(refused, Some(Error::ForeignHandle)), "{refused:?}");
            world.synchronize(&stream)?;
            rank.judge(0);
        }
        Ok(())
    }));
}

#[test]
fn a_thousand_replays_of_interleaved_halves_with_new_inputs() {
    for mode in [Mode::Slotted, Mode::Compact] {
        let mut cases = [Case::new(2, 1), Case::new(2, 1)];
        for (case, tokens) in cases.iter_mut().zip([vec![6, 3], vec![1, 5]]) {
            case.config = EpConfig::new(16, 5, 2, 6).mode(mode).max_recv(7);
            case.tokens = tokens;
        }
        all_well(on_ranks(2, 1, &world_config(), |world| {
            let [mut one, mut two] = [Rank::new(world, &cases[0])?, Rank::new(world, &cases[1])?];
            let stream = world.device().create_stream()?;
            stream.begin_capture()?;
            interleaved(&one, &two, &stream, &stream)?;
            let graph = stream.end_capture()?.instantiate()?;
            for replay in 0..1000 {
                one.refill(replay)?;
                two.refill(replay + 5000)?;
                // SAFETY: buffers, plans and world live until the stream was waited for.
                unsafe { graph.launch(&stream)? };
                world.synchronize(&stream)?;
                one.judge(replay);
                two.judge(replay + 5000);
            }
            Ok(())
        }));
    }
}

#[test]
fn halves_on_several_streams_keep_their_order() {
    let mut case = Case::new(4, 1);
    case.config = case.config.slots(2);
    all_well(on_ranks(4, 1, &world_config(), |world| {
        let mut rank = Rank::new(world, &case)?;
        let streams = [world.device().create_stream()?, world.device().create_stream()?];
        for number in 0..8 {
            rank.refill(number)?;
            let sent = rank.send(&streams[0])?;
            let dispatched = rank.ep.dispatch_recv(&streams[1], sent)?;
            work(&rank.expert, &streams[1], &dispatched)?;
            let sent = rank.ep.combine_send(&streams[1], ExpertOutput::InWindow, dispatched)?;
            rank.sum(&streams[0], sent)?;
            world.synchronize(&streams[0])?;
            rank.judge(number);
        }
        Ok(())
    }));
}
