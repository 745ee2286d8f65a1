//! Dispatch and combine captured into graphs and replayed, judged bit by bit after every replay.

use crate::common::{
    Case, Uploaded, all_well, depart, judge_output, land, oracle, round, work, world_config,
};
use anabranch_conformance::ep::reference::ReferenceExpert;
use anabranch_ep::{DataType, DispatchCast, Error, ExpertOutput, ExpertParallel, Fp8Format, Mode};
use anabranch_hip::{GraphExec, Stream};
use anabranch_shmem::World;

/// A captured sequence of operations with the buffers that it reads and writes.
struct Captured {
    operations: Vec<Uploaded>,
    graph: GraphExec,
}

/// The number of the input of one operation of one replay.
fn input_number(replay: u64, operation: usize) -> u64 {
    replay * 10 + operation as u64
}

impl Captured {
    fn new(
        ep: &ExpertParallel,
        expert: &ReferenceExpert,
        stream: &Stream,
        case: &Case,
        operations: usize,
    ) -> Result<Self, Error> {
        let input = case.input(ep.rank().get(), 0);
        let device = stream.device();
        let operations: Vec<_> =
            (0..operations).map(|_| Uploaded::new(device, &case.config, &input)).collect();
        stream.begin_capture()?;
        for uploaded in &operations {
            let dispatched = ep.dispatch(stream, &uploaded.tokens(&case.config))?;
            work(expert, stream, &dispatched)?;
            ep.combine(stream, ExpertOutput::InWindow, dispatched, uploaded.output())?;
        }
        Ok(Self { operations, graph: stream.end_capture()?.instantiate()? })
    }

    /// Writes the inputs of a replay into the captured buffers. The stream must have been waited for.
    fn refill(&mut self, ep: &ExpertParallel, case: &Case, replay: u64) -> Result<(), Error> {
        for (operation, uploaded) in self.operations.iter_mut().enumerate() {
            let number = input_number(replay, operation);
            uploaded.refill(&case.varied(number).input(ep.rank().get(), number));
            uploaded.output.fill(0xee)?;
        }
        Ok(())
    }

    fn launch(&self, stream: &Stream) -> Result<(), Error> {
        // SAFETY: buffers, plan and world live until the stream was waited for.
        Ok(unsafe { self.graph.launch(stream) }?)
    }

    fn judge(&self, ep: &ExpertParallel, case: &Case, replay: u64) {
        for (operation, uploaded) in self.operations.iter().enumerate() {
            let number = input_number(replay, operation);
            let case = case.varied(number);
            let inputs = case.sent(&case.inputs(number));
            judge_output(&oracle(&case, &inputs), ep.rank(), &uploaded.read_output(&case.config));
        }
    }

    fn replay(
        &mut self,
        ep: &ExpertParallel,
        stream: &Stream,
        world: &World,
        case: &Case,
        replay: u64,
    ) -> Result<(), Error> {
        self.refill(ep, case, replay)?;
        self.launch(stream)?;
        world.synchronize(stream)?;
        self.judge(ep, case, replay);
        Ok(())
    }
}

/// What every test begins with.
fn on_plans(
    case: &Case,
    test: impl Fn(&World, &ExpertParallel, &ReferenceExpert, &Stream) -> Result<(), Error> + Sync,
) {
    all_well(case.on_ranks(&world_config(), |world| {
        let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
        let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
        let stream = world.device().create_stream()?;
        test(world, &ep, &expert, &stream)?;
        // The graphs' slots are not the plan's to wait for.
        world.synchronize(&stream).map_err(Error::from)
    }));
}

#[test]
#[ignore = "extended"]
fn fifty_replays_with_new_tokens_and_routings() {
    for (wave, mode) in [(1, Mode::Slotted), (32, Mode::Slotted), (1, Mode::Compact), (32, Mode::Compact)] {
        let mut case = Case::new(4, wave);
        // Some rows find no room.
        case.config = case.config.mode(mode).max_recv(if wave == 1 { 30 } else { 0 });
        on_plans(&case, |world, ep, expert, stream| {
            let mut captured = Captured::new(ep, expert, stream, &case, 1)?;
            (0..50).try_for_each(|replay| captured.replay(ep, stream, world, &case, replay))
        });
    }
}

#[test]
fn replays_of_a_dispatch_that_casts() {
    let mut case = Case::new(3, 32);
    case.config.hidden = 256;
    let config = case.config.dispatch_type(DataType::F8E4m3);
    case.config = config.dispatch_cast(DispatchCast::Fp8Block(Fp8Format::E4m3fn));
    on_plans(&case, |world, ep, expert, stream| {
        let mut captured = Captured::new(ep, expert, stream, &case, 1)?;
        (0..20).try_for_each(|replay| captured.replay(ep, stream, world, &case, replay))
    });
}

#[test]
fn several_operations_in_one_graph() {
    for (operations, slots) in [(2, 1), (3, 1), (3, 2)] {
        let mut case = Case::new(3, 4);
        case.config = case.config.slots(slots);
        on_plans(&case, |world, ep, expert, stream| {
            let mut captured = Captured::new(ep, expert, stream, &case, operations)?;
            (0..15).try_for_each(|replay| captured.replay(ep, stream, world, &case, replay))
        });
    }
}

#[test]
fn consecutive_replays_need_no_wait() {
    for mode in [Mode::Slotted, Mode::Compact] {
        let mut case = Case::new(4, 1);
        case.config = case.config.mode(mode);
        on_plans(&case, |world, ep, expert, stream| {
            let mut captured = Captured::new(ep, expert, stream, &case, 2)?;
            captured.refill(ep, &case, 7)?;
            for _ in 0..40 {
                captured.launch(stream)?;
            }
            world.synchronize(stream)?;
            captured.judge(ep, &case, 7);
            Ok(())
        });
    }
}

#[test]
fn eager_and_replayed_operations_alternate() {
    for slots in [1, 2] {
        let mut case = Case::new(4, 1);
        case.config = case.config.slots(slots);
        on_plans(&case, |world, ep, expert, stream| {
            round(ep, expert, stream, world, &case, 0)?;
            let mut captured = Captured::new(ep, expert, stream, &case, 1)?;
            for number in 0..20 {
                captured.replay(ep, stream, world, &case, number)?;
                if number % 3 != 1 {
                    round(ep, expert, stream, world, &case.varied(number), number)?;
                }
            }
            // Without a wait between them.
            captured.refill(ep, &case, 3)?;
            captured.launch(stream)?;
            let eager = depart(ep, stream, &case, 5)?;
            work(expert, stream, &eager.dispatched)?;
            let eager = land(ep, stream, eager)?;
            captured.launch(stream)?;
            world.synchronize(stream)?;
            captured.judge(ep, &case, 3);
            eager.judge(ep.rank());
            Ok(())
        });
    }
}

#[test]
fn two_graphs_on_two_slots() {
    let mut case = Case::new(4, 1);
    case.config = case.config.slots(2);
    let mut other = case.clone();
    other.tokens = vec![3, 40, 0, 29];
    on_plans(&case, |world, ep, expert, stream| {
        let mut first = Captured::new(ep, expert, stream, &case, 1)?;
        // The first slot is held while the second graph is captured, so that it gets the second.
        let held = depart(ep, stream, &case, 1)?;
        let mut second = Captured::new(ep, expert, stream, &other, 2)?;
        work(expert, stream, &held.dispatched)?;
        let held = land(ep, stream, held)?;
        world.synchronize(stream)?;
        held.judge(ep.rank());
        for replay in 0..10 {
            first.replay(ep, stream, world, &case, replay)?;
            second.replay(ep, stream, world, &other, replay + 100)?;
        }
        // Both at once, in other orders on other ranks.
        let side = world.device().create_stream()?;
        for replay in 0..10 {
            first.refill(ep, &case, replay)?;
            second.refill(ep, &other, replay)?;
            if (u64::from(ep.rank().get()) + replay).is_multiple_of(2) {
                first.launch(stream)?;
                second.launch(&side)?;
            } else {
                second.launch(&side)?;
                first.launch(stream)?;
            }
            world.synchronize(stream)?;
            world.synchronize(&side)?;
            first.judge(ep, &case, replay);
            second.judge(ep, &other, replay);
        }
        Ok(())
    });
}

#[test]
fn capture_on_another_stream_than_the_eager_operations() {
    let case = Case::new(2, 1);
    on_plans(&case, |world, ep, expert, stream| {
        round(ep, expert, stream, world, &case, 0)?;
        let side = world.device().create_stream()?;
        let mut captured = Captured::new(ep, expert, &side, &case, 1)?;
        for number in 0..5 {
            captured.replay(ep, &side, world, &case, number)?;
            round(ep, expert, stream, world, &case, number)?;
        }
        Ok(())
    });
}
