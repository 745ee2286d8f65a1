//! Routings that are kept: other tokens go the same way, bit by bit as the oracle says, whatever else goes on.

use crate::common::{
    Case, Input, Uploaded, all_well, depart, failure, judge_dropped, judge_output, judge_rows, judge_weights,
    land, on_ranks, oracle, run_expert, window_bytes, work, world_config,
};
use anabranch_conformance::ep::reference::ReferenceExpert;
use anabranch_ep::{
    DataType, DeviceSlice, Dispatched, Error, ExpertOutput, ExpertParallel, Mode, ReplayedTokens, Routing,
};
use anabranch_hip::{DeviceBuffer, Stream};
use anabranch_shmem::World;

mod random;

/// A plan for a case on one rank, with its expert and what combine may read.
struct Rank<'a> {
    world: &'a World,
    case: Case,
    ep: ExpertParallel,
    expert: ReferenceExpert,
    stream: Stream,
    staging: DeviceBuffer,
}

fn on_case(case: &Case, test: impl Fn(&Rank<'_>) -> Result<(), Error> + Sync) {
    all_well(case.on_ranks(&world_config(), |world| {
        let rank = Rank::new(world, case)?;
        test(&rank)?;
        Ok(world.synchronize(&rank.stream)?)
    }));
}

/// The tokens of round `payload` with the routing of round `kept`; and, where `weights` says so, with its weights.
fn mixed(case: &Case, kept: u64, payload: u64, weights: Weights) -> Vec<Input> {
    let routed = case.varied(kept).inputs(kept);
    let sent = case.varied(payload).inputs(payload);
    let both = routed.into_iter().zip(sent);
    both.map(|(routed, sent)| Input {
        ids: routed.ids,
        weights: if weights == Weights::Kept { routed.weights } else { sent.weights },
        tokens: sent.tokens,
        scales: sent.scales,
    })
    .collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weights {
    Kept,
    New,
}

impl Weights {
    fn of(number: u64) -> Self {
        if number.is_multiple_of(2) { Self::Kept } else { Self::New }
    }
}

impl<'a> Rank<'a> {
    fn new(world: &'a World, case: &Case) -> Result<Self, Error> {
        let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
        let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
        let stream = world.device().create_stream()?;
        let staging = world.device().allocate(window_bytes(&ep))?;
        Ok(Self { world, case: case.clone(), ep, expert, stream, staging })
    }

    fn upload(&self, number: u64) -> Uploaded {
        let input = self.case.varied(number).input(self.ep.rank().get(), number);
        Uploaded::new(self.world.device(), &self.case.config, &input)
    }

    /// Dispatches round `number`, keeps its routing after the loss of the caller's buffers, and combines.
    fn keep(&self, number: u64) -> Result<Routing, Error> {
        let mut uploaded = self.upload(number);
        let mut dispatched = self.ep.dispatch(&self.stream, &uploaded.tokens(&self.case.config))?;
        self.world.synchronize(&self.stream)?;
        uploaded.ids.fill(0x77)?;
        uploaded.weights.fill(0x77)?;
        let routing = self.ep.routing(&self.stream, &mut dispatched)?;
        assert_eq!(routing.tokens(), Some(uploaded.count as u32));
        assert_eq!(routing.bytes(), self.ep.plan().routing_bytes());
        self.finish(dispatched, &uploaded)?;
        self.world.synchronize(&self.stream)?;
        let inputs = self.case.varied(number).inputs(number);
        judge_output(&oracle(&self.case, &inputs), self.ep.rank(), &uploaded.read_output(&self.case.config));
        Ok(routing)
    }

    fn replayed(&self, uploaded: &Uploaded, weights: Weights) -> ReplayedTokens {
        let tokens = uploaded.tokens(&self.case.config);
        ReplayedTokens {
            data_type: tokens.data_type,
            rows: tokens.rows,
            weights: tokens.weights.filter(|_| weights == Weights::New),
            scales: tokens.scales,
        }
    }

    fn again(&self, routing: &Routing, uploaded: &Uploaded, weights: Weights) -> Result<Dispatched, Error> {
        self.ep.dispatch_with(&self.stream, routing, &self.replayed(uploaded, weights))
    }

    /// Experts and combine.
    fn finish(&self, dispatched: Dispatched, uploaded: &Uploaded) -> Result<(), Error> {
        let experts = run_expert(&self.expert, &self.stream, &dispatched, &self.case, &self.staging)?;
        self.ep.combine(&self.stream, experts, dispatched, uploaded.combine_output(&self.case.config))
    }

    fn judge(&self, inputs: &[Input], uploaded: &Uploaded) {
        let (oracle, config) = (oracle(&self.case, inputs), &self.case.config);
        judge_output(&oracle, self.ep.rank(), &uploaded.read_output(config));
        if config.combine_weights {
            judge_weights(&oracle, self.ep.rank(), &uploaded.read_weights(config));
        }
    }

    /// One dispatch with what was kept of round `kept`, and everything judged.
    fn replay(&self, routing: &Routing, kept: u64, payload: u64) -> Result<(), Error> {
        let weights = Weights::of(payload);
        let uploaded = self.upload(payload);
        let dispatched = self.again(routing, &uploaded, weights)?;
        assert_eq!(dispatched.tokens() as usize, uploaded.count);
        self.world.synchronize(&self.stream)?;
        let inputs = mixed(&self.case, kept, payload, weights);
        let oracle = oracle(&self.case, &inputs);
        judge_rows(&oracle, self.ep.rank(), self.world.device(), &self.ep, &dispatched);
        judge_dropped(&oracle, self.world.device(), &self.ep, &self.stream, &dispatched)?;
        self.finish(dispatched, &uploaded)?;
        self.world.synchronize(&self.stream)?;
        self.judge(&inputs, &uploaded);
        Ok(())
    }
}

#[test]
fn replays_among_other_dispatches_on_other_slots() {
    for (wave, mode) in [(1, Mode::Slotted), (4, Mode::Compact)] {
        let mut case = Case::new(4, wave);
        case.config = case.config.mode(mode).slots(3).max_recv(70);
        on_case(&case, |rank| {
            let Rank { ep, expert, stream, world, .. } = rank;
            let routing = rank.keep(5)?;
            for number in 0..12 {
                // Slots of other numbers than the one that was kept from, in every order.
                let held = depart(ep, stream, &case, number)?;
                let weights = Weights::of(number);
                let uploaded = rank.upload(number + 40);
                let replayed = rank.again(&routing, &uploaded, weights)?;
                let other = depart(ep, stream, &case, number + 80)?;
                work(expert, stream, &held.dispatched)?;
                work(expert, stream, &other.dispatched)?;
                let mut landed = vec![land(ep, stream, held)?];
                if number % 2 == 0 {
                    landed.push(land(ep, stream, other)?);
                    rank.finish(replayed, &uploaded)?;
                } else {
                    rank.finish(replayed, &uploaded)?;
                    landed.push(land(ep, stream, other)?);
                }
                world.synchronize(stream)?;
                rank.judge(&mixed(&case, 5, number + 40, weights), &uploaded);
                for landed in &landed {
                    landed.judge(ep.rank());
                }
            }
            Ok(())
        });
    }
}

#[test]
fn no_call_blocks_the_host() {
    for mode in [Mode::Slotted, Mode::Compact] {
        let mut case = Case::new(4, 1);
        case.config = case.config.mode(mode);
        on_case(&case, |rank| {
            let Rank { ep, expert, stream, world, .. } = rank;
            let side = world.device().create_stream()?;
            let mut routing = ep.allocate_routing()?;
            assert_eq!(routing.tokens(), None);
            let mut done = Vec::new();
            for number in [5, 6, 9, 10] {
                let uploaded = rank.upload(number);
                let mut dispatched = ep.dispatch(stream, &uploaded.tokens(&case.config))?;
                work(expert, stream, &dispatched)?;
                // Over what the dispatches of the round before read, on another stream; then combined on the first.
                let worked = world.device().create_event()?;
                stream.record(&worked)?;
                side.wait_event(&worked)?;
                ep.save_routing(&side, &mut dispatched, &mut routing)?;
                ep.combine(stream, ExpertOutput::InWindow, dispatched, uploaded.output())?;
                done.push((case.varied(number).inputs(number), uploaded));
                for payload in [number + 50, number + 71] {
                    let weights = Weights::of(payload);
                    let uploaded = rank.upload(payload);
                    let dispatched = rank.again(&routing, &uploaded, weights)?;
                    work(expert, stream, &dispatched)?;
                    ep.combine(stream, ExpertOutput::InWindow, dispatched, uploaded.output())?;
                    done.push((mixed(&case, number, payload, weights), uploaded));
                }
            }
            // Dropped while dispatches read it.
            drop(routing);
            world.synchronize(stream)?;
            for (inputs, uploaded) in &done {
                rank.judge(inputs, uploaded);
            }
            Ok(())
        });
    }
}

#[test]
fn replay_can_be_saved_or_released() {
    for mode in [Mode::Slotted, Mode::Compact] {
        let mut case = Case::new(3, 1);
        case.config = case.config.mode(mode).max_recv(23).slots(2).id_type(DataType::I64);
        on_case(&case, |rank| {
            let first = rank.keep(5)?;
            let held = depart(&rank.ep, &rank.stream, &case, 1)?;
            // On the other slot, with other weights.
            let uploaded = rank.upload(31);
            let mut dispatched = rank.again(&first, &uploaded, Weights::New)?;
            let second = rank.ep.routing(&rank.stream, &mut dispatched)?;
            rank.ep.release(&rank.stream, dispatched)?;
            rank.world.synchronize(&rank.stream)?;
            rank.ep.release(&rank.stream, held.dispatched)?;
            drop(first);
            let uploaded = rank.upload(44);
            let dispatched = rank.again(&second, &uploaded, Weights::Kept)?;
            rank.finish(dispatched, &uploaded)?;
            rank.world.synchronize(&rank.stream)?;
            let mut inputs = mixed(&case, 5, 44, Weights::Kept);
            for (input, weighted) in inputs.iter_mut().zip(mixed(&case, 5, 31, Weights::New)) {
                input.weights = weighted.weights;
            }
            rank.judge(&inputs, &uploaded);
            Ok(())
        });
    }
}

#[test]
fn replayed_graphs_with_changing_payload() {
    for (wave, mode) in [(1, Mode::Slotted), (32, Mode::Compact)] {
        let mut case = Case::new(4, wave);
        case.config = case.config.mode(mode).max_recv(if wave == 1 { 30 } else { 0 });
        on_case(&case, |rank| {
            let Rank { ep, stream, world, .. } = rank;
            let routing = rank.keep(6)?;
            let mut uploaded = rank.upload(0);
            stream.begin_capture()?;
            let dispatched = rank.again(&routing, &uploaded, Weights::New)?;
            rank.finish(dispatched, &uploaded)?;
            let graph = stream.end_capture()?.instantiate()?;
            for replay in 0..50 {
                let input = case.varied(replay).input(ep.rank().get(), replay);
                uploaded.refill(&input);
                uploaded.output.fill(0xee)?;
                // SAFETY: buffers, routing, plan and world live until the stream was waited for.
                unsafe { graph.launch(stream)? };
                world.synchronize(stream)?;
                rank.judge(&mixed(&case, 6, replay, Weights::New), &uploaded);
            }
            Ok(())
        });
    }
}

#[test]
fn graph_saves_the_routing_of_each_replay() {
    for (wave, mode) in [(1, Mode::Compact), (4, Mode::Slotted)] {
        let mut case = Case::new(4, wave);
        case.config = case.config.mode(mode).slots(2).max_recv(41);
        on_case(&case, |rank| {
            let Rank { ep, stream, world, .. } = rank;
            let mut routing = ep.allocate_routing()?;
            let (mut forward, mut backward) = (rank.upload(0), rank.upload(1));
            stream.begin_capture()?;
            let mut dispatched = ep.dispatch(stream, &forward.tokens(&case.config))?;
            let refused = ep.routing(stream, &mut dispatched).err();
            assert!(matches!(refused, Some(Error::CallOrder { .. })), "{refused:?}");
            ep.save_routing(stream, &mut dispatched, &mut routing)?;
            rank.finish(dispatched, &forward)?;
            // In one graph with the dispatch, or in one of its own.
            let mut graphs = Vec::new();
            if wave == 4 {
                graphs.push(stream.end_capture()?.instantiate()?);
                stream.begin_capture()?;
            }
            let dispatched = rank.again(&routing, &backward, Weights::Kept)?;
            rank.finish(dispatched, &backward)?;
            graphs.push(stream.end_capture()?.instantiate()?);
            let me = ep.rank().get();
            for replay in 0..40 {
                let payload = replay + 100;
                forward.refill(&case.varied(replay).input(me, replay));
                backward.refill(&case.varied(payload).input(me, payload));
                for graph in &graphs {
                    // SAFETY: as above.
                    unsafe { graph.launch(stream)? };
                }
                world.synchronize(stream)?;
                rank.judge(&case.varied(replay).inputs(replay), &forward);
                rank.judge(&mixed(&case, replay, payload, Weights::Kept), &backward);
            }
            Ok(())
        });
    }
}

#[test]
fn a_copy_of_a_routing_in_the_callers_memory_is_a_routing() {
    let case = Case::new(3, 4);
    on_case(&case, |rank| {
        let Rank { ep, stream, world, .. } = rank;
        let bytes = ep.plan().routing_bytes() as usize;
        let (saved, mut copy) = (world.device().allocate(bytes)?, world.device().allocate(bytes)?);
        let (mut memory, uploaded) = (vec![0; bytes], rank.upload(5));
        // SAFETY: the memory outlives the work, and has a routing where `tokens` are given.
        let at = |memory: &DeviceBuffer, tokens| unsafe { ep.routing_in(DeviceSlice::of(memory), tokens) };
        let mut dispatched = ep.dispatch(stream, &uploaded.tokens(&case.config))?;
        ep.save_routing(stream, &mut dispatched, &mut at(&saved, None)?)?;
        rank.finish(dispatched, &uploaded)?;
        world.synchronize(stream)?;
        saved.copy_to_host(0, &mut memory)?;
        copy.copy_from_host(0, &memory)?;
        rank.replay(&at(&copy, Some(uploaded.count as u32))?, 5, 21)
    });
}

/// A capture keeps nothing before it is replayed, and the host knows no better than the capture.
#[test]
fn a_routing_of_a_graph_that_has_not_run_is_a_fault() {
    let case = Case::new(2, 4);
    let results = on_ranks(2, 4, &world_config(), |world| {
        let rank = Rank::new(world, &case)?;
        let mut routing = rank.ep.allocate_routing()?;
        let uploaded = rank.upload(0);
        rank.stream.begin_capture()?;
        let mut dispatched = rank.ep.dispatch(&rank.stream, &uploaded.tokens(&case.config))?;
        rank.ep.save_routing(&rank.stream, &mut dispatched, &mut routing)?;
        rank.ep.release(&rank.stream, dispatched)?;
        let _graph = rank.stream.end_capture()?;
        let again = rank.again(&routing, &uploaded, Weights::New)?;
        rank.finish(again, &uploaded)?;
        Ok(world.synchronize(&rank.stream)?)
    });
    let texts: Vec<_> = results.iter().map(failure).collect();
    let says = |text: &String| text.contains("another number of tokens by now, or none): the dispatch is of");
    assert!(texts.iter().any(says), "{texts:#?}");
}

/// All ranks fail, and at least one says that a peer has another routing.
fn differs(case: &Case, dispatch: impl Fn(&Rank<'_>, &[Routing; 2]) -> Result<Dispatched, Error> + Sync) {
    let mut config = world_config();
    config.operation_deadline = std::time::Duration::from_secs(3);
    let results = case.on_ranks(&config, |world| {
        let rank = Rank::new(world, case)?;
        let routings = [rank.keep(5)?, rank.keep(5)?];
        drop(dispatch(&rank, &routings)?);
        world.synchronize(&rank.stream)?;
        Ok(())
    });
    let texts: Vec<_> = results.iter().map(failure).collect();
    assert!(
        texts.iter().any(|text| text.contains(
            "dispatches with another routing, or without one: its flag, or the routing named beside it, is"
        )),
        "{texts:#?}"
    );
}

#[test]
fn another_routing_at_a_peer_is_a_fault() {
    for mode in [Mode::Slotted, Mode::Compact] {
        let mut case = Case::new(3, 1);
        case.config = case.config.mode(mode);
        // Of another dispatch, although of the same ids: no counts differ.
        differs(&case, |rank, routings| {
            let uploaded = rank.upload(7);
            let which = usize::from(rank.ep.rank().get() == 1);
            let dispatched = rank.again(&routings[which], &uploaded, Weights::Kept);
            rank.world.synchronize(&rank.stream)?;
            dispatched
        });
    }
    // A peer that dispatches without the saved routing, to rows of its own.
    let mut case = Case::new(3, 1);
    case.config = case.config.mode(Mode::Slotted);
    differs(&case, |rank, routings| {
        let uploaded = rank.upload(if rank.ep.rank().get() == 2 { 5 } else { 7 });
        let dispatched = if rank.ep.rank().get() == 2 {
            rank.ep.dispatch(&rank.stream, &uploaded.tokens(&case.config))
        } else {
            rank.again(&routings[0], &uploaded, Weights::Kept)
        };
        rank.world.synchronize(&rank.stream)?;
        dispatched
    });
}

#[test]
fn wrong_arguments_are_refused_before_a_launch() {
    let mut case = Case::new(2, 1);
    case.config = case.config.slots(2).scale_bytes(4);
    on_case(&case, |rank| {
        let other = Rank::new(rank.world, &case)?;
        let routing = rank.keep(5)?;
        let uploaded = rank.upload(6);
        let tokens = rank.replayed(&uploaded, Weights::Kept);
        let (ep, stream) = (&rank.ep, &rank.stream);
        let foreign = other.ep.dispatch_with(stream, &routing, &tokens).err();
        assert!(matches!(foreign, Some(Error::ForeignHandle)), "{foreign:?}");
        let nothing = ep.dispatch_with(stream, &ep.allocate_routing()?, &tokens).err();
        assert!(matches!(nothing, Some(Error::CallOrder { .. })), "{nothing:?}");
        let typed = ReplayedTokens { data_type: DataType::F32, ..tokens };
        let refused = ep.dispatch_with(stream, &routing, &typed).err();
        assert!(matches!(refused, Some(Error::Argument { .. })), "{refused:?}");
        let bare = ReplayedTokens { scales: None, ..tokens };
        let refused = ep.dispatch_with(stream, &routing, &bare).err();
        assert!(matches!(refused, Some(Error::Argument { .. })) || uploaded.count == 0, "{refused:?}");
        if uploaded.count > 0 {
            // SAFETY: nothing is launched with it.
            let short = unsafe { DeviceSlice::from_raw(tokens.rows.address(), 16) };
            let refused = ep.dispatch_with(stream, &routing, &ReplayedTokens { rows: short, ..tokens }).err();
            assert!(matches!(refused, Some(Error::Shape { .. })), "{refused:?}");
        }
        // A dispatch of another plan is not kept.
        let mut flight = depart(&other.ep, stream, &case, 3)?;
        let mut mine = ep.allocate_routing()?;
        let refused = ep.save_routing(stream, &mut flight.dispatched, &mut mine).err();
        assert!(matches!(refused, Some(Error::ForeignHandle)), "{refused:?}");
        let refused = other.ep.save_routing(stream, &mut flight.dispatched, &mut mine).err();
        assert!(matches!(refused, Some(Error::ForeignHandle)), "{refused:?}");
        other.ep.release(stream, flight.dispatched)?;
        // No slot was lost by any of it.
        let held = [depart(ep, stream, &case, 1)?, depart(ep, stream, &case, 2)?];
        let refused = ep.dispatch_with(stream, &routing, &tokens).err();
        assert!(matches!(refused, Some(Error::SlotsBusy { slots: 2 })), "{refused:?}");
        rank.world.synchronize(stream)?;
        for held in held {
            ep.release(stream, held.dispatched)?;
        }
        rank.replay(&routing, 5, 8)
    });
}
