//! Worker threads that are not the thread that made the world: they make plans, hand operations from one to another, and run
//! several plans at once, judged bit by bit.

use crate::expert_major_common;

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use crate::common::{
    Case, Uploaded, all_well, judge_output, judge_rows, on_ranks, oracle, round, run_expert, window_bytes,
    world_config,
};
use crate::expert_major_common::Bench;
use anabranch_conformance::ep::reference::{ReferenceExpert, ReferenceExpertMajor};
use anabranch_ep::{
    COMBINED_TYPES, CombineSent, CombineSource, DeviceSlice, DispatchSent, Dispatched, EpConfig, Error,
    ExpertMajor, ExpertMajorConfig, ExpertOutput, ExpertParallel, LocalExpertCounter, Mode, PlacementTable,
    Plan, ROW_TYPES, ReceivedRows, Tokens,
};
use anabranch_hip::{DeviceBuffer, Stream};
use anabranch_shmem::World;

/// What may be moved to another thread and used from several: checked by the compiler.
const fn is_shared<T: Send + Sync>() {}

const _: () = {
    is_shared::<World>();
    is_shared::<Stream>();
    is_shared::<ExpertParallel>();
    is_shared::<Dispatched>();
    is_shared::<DispatchSent>();
    is_shared::<CombineSent>();
    is_shared::<ExpertMajor>();
    is_shared::<LocalExpertCounter>();
    is_shared::<ReferenceExpert>();
    is_shared::<ReferenceExpertMajor>();
    is_shared::<(Plan, EpConfig, PlacementTable, ReceivedRows)>();
    is_shared::<(Tokens, DeviceSlice, ExpertOutput)>();
    is_shared::<Error>();
};

/// One operation on its way from worker to worker, with its buffers.
struct Operation<Stage> {
    number: u64,
    uploaded: Uploaded,
    staging: DeviceBuffer,
    stage: Stage,
}

impl<Stage> Operation<Stage> {
    fn next<Next>(
        self,
        step: impl FnOnce(Stage, &Uploaded, &DeviceBuffer) -> Result<Next, Error>,
    ) -> Result<Operation<Next>, Error> {
        let Self { number, uploaded, staging, stage } = self;
        let stage = step(stage, &uploaded, &staging)?;
        Ok(Operation { number, uploaded, staging, stage })
    }
}

/// What the workers of a rank share.
struct Shared<'a> {
    case: &'a Case,
    world: &'a World,
    ep: &'a ExpertParallel,
    expert: &'a ReferenceExpert,
    rounds: u64,
}

impl Shared<'_> {
    fn stream(&self) -> Result<Stream, Error> {
        Ok(self.world.device().create_stream()?)
    }

    /// Begins an operation whenever there is a permit, of which there are as many as slots.
    fn begin<Stage>(
        &self,
        permits: &Receiver<()>,
        next: &Sender<Operation<Stage>>,
        step: impl Fn(&Uploaded) -> Result<Stage, Error>,
    ) -> Result<(), Error> {
        for number in 0..self.rounds {
            permits.recv().unwrap();
            let input = self.case.varied(number).input(self.ep.rank().get(), number);
            let uploaded = Uploaded::new(self.world.device(), &self.case.config, &input);
            let staging = self.world.device().allocate(window_bytes(self.ep))?;
            let stage = step(&uploaded)?;
            next.send(Operation { number, uploaded, staging, stage }).unwrap();
        }
        Ok(())
    }

    /// Ends operations in their order, one for each that begins once all slots are taken: so it is on all ranks.
    fn end<Stage>(
        &self,
        operations: &Receiver<Operation<Stage>>,
        permits: &Sender<()>,
        step: impl Fn(Operation<Stage>) -> Result<(u64, Uploaded), Error>,
    ) -> Result<(), Error> {
        let mut flying = VecDeque::new();
        let mut left = self.rounds;
        while left > 0 {
            while flying.len() < (self.case.config.slots as usize).min(left as usize) {
                flying.push_back(operations.recv().unwrap());
            }
            let (number, uploaded) = step(flying.pop_front().unwrap())?;
            left -= 1;
            // The other end may be over.
            let _ = permits.send(());
            let case = self.case.varied(number);
            let inputs = case.inputs(number);
            judge_output(&oracle(&case, &inputs), self.ep.rank(), &uploaded.read_output(&case.config));
        }
        Ok(())
    }
}

/// Dispatch in one worker; the rows' judge, the experts and combine in another.
fn whole(shared: &Shared<'_>) -> Result<(), Error> {
    let Shared { case, world, ep, expert, .. } = shared;
    let ((give, permits), (next, operations)) = (channel(), channel());
    (0..case.config.slots).for_each(|_| give.send(()).unwrap());
    thread::scope(|scope| {
        let dispatching = scope.spawn(move || {
            let stream = shared.stream()?;
            shared.begin(&permits, &next, |uploaded| {
                let dispatched = ep.dispatch(&stream, &uploaded.tokens(&case.config))?;
                world.synchronize(&stream)?;
                Ok(dispatched)
            })
        });
        let combining = scope.spawn(move || {
            let stream = shared.stream()?;
            shared.end(&operations, &give, |Operation { number, uploaded, staging, stage }| {
                let varied = case.varied(number);
                let inputs = varied.inputs(number);
                judge_rows(&oracle(&varied, &inputs), ep.rank(), world.device(), ep, &stage);
                let experts = run_expert(expert, &stream, &stage, case, &staging)?;
                ep.combine(&stream, experts, stage, uploaded.output())?;
                world.synchronize(&stream)?;
                Ok((number, uploaded))
            })
        });
        dispatching.join().unwrap().and(combining.join().unwrap())
    })
}

/// Each half in a worker of its own, on a stream of its own.
fn halves(shared: &Shared<'_>) -> Result<(), Error> {
    let Shared { case, world, ep, expert, rounds } = shared;
    let (give, permits) = channel();
    (0..case.config.slots).for_each(|_| give.send(()).unwrap());
    let ((to_recv, sent), (to_offer, received), (to_sum, offered)) = (channel(), channel(), channel());
    thread::scope(|scope| {
        let workers = [
            scope.spawn(move || {
                let stream = shared.stream()?;
                shared.begin(&permits, &to_recv, |uploaded| {
                    ep.dispatch_send(&stream, &uploaded.tokens(&case.config))
                })
            }),
            scope.spawn(move || {
                let stream = shared.stream()?;
                for operation in sent.iter().take(*rounds as usize) {
                    let operation: Operation<DispatchSent> = operation;
                    let operation = operation.next(|sent, _, staging| {
                        let dispatched = ep.dispatch_recv(&stream, sent)?;
                        let experts = run_expert(expert, &stream, &dispatched, case, staging)?;
                        world.synchronize(&stream)?;
                        Ok((dispatched, experts))
                    })?;
                    to_offer.send(operation).unwrap();
                }
                Ok(())
            }),
            scope.spawn(move || {
                let stream = shared.stream()?;
                for operation in received.iter().take(*rounds as usize) {
                    let operation: Operation<(Dispatched, ExpertOutput)> = operation;
                    let operation = operation
                        .next(|(dispatched, experts), _, _| ep.combine_send(&stream, experts, dispatched))?;
                    to_sum.send(operation).unwrap();
                }
                // What was launched here is ordered before the halves that others launch, and over before the buffers go.
                Ok(world.synchronize(&stream)?)
            }),
            scope.spawn(move || {
                let stream = shared.stream()?;
                shared.end(&offered, &give, |operation: Operation<CombineSent>| {
                    let Operation { number, uploaded, staging, stage } = operation;
                    ep.combine_recv(&stream, stage, uploaded.output())?;
                    world.synchronize(&stream)?;
                    drop(staging);
                    Ok((number, uploaded))
                })
            }),
        ];
        let outcomes: Vec<Result<(), Error>> =
            workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        outcomes.into_iter().collect()
    })
}

fn on_workers(case: &Case, rounds: u64, work: impl Fn(&Shared<'_>) -> Result<(), Error> + Sync) {
    all_well(case.on_ranks(&world_config(), |world| {
        let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
        let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
        work(&Shared { case, world, ep: &ep, expert: &expert, rounds })
    }));
}

/// Every type, mode, way of combine and number in flight that a plan may have.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (index, dispatch) in ROW_TYPES.into_iter().enumerate() {
        for mode in [Mode::Slotted, Mode::Compact] {
            for source in [CombineSource::Window, CombineSource::Buffer] {
                let wave = [1, 4, 32, 64][cases.len() % 4];
                let mut case = Case::new(2 + index as u32 % 3, wave);
                case.config = case
                    .config
                    .dispatch_type(dispatch)
                    .combine_type(COMBINED_TYPES[index % 3])
                    .combine_source(source)
                    .mode(mode)
                    .scale_bytes(4)
                    .max_recv(if index % 2 == 0 { 0 } else { 45 })
                    .slots(1 + cases.len() as u32 / 2 % 2);
                case.staged = source.pushes();
                cases.push(case);
            }
        }
    }
    cases
}

#[test]
#[ignore = "extended"]
fn one_worker_dispatches_and_another_combines() {
    for case in cases() {
        on_workers(&case, 4, whole);
    }
}

#[test]
#[ignore = "extended"]
fn each_half_has_a_worker() {
    for case in cases() {
        on_workers(&case, 4, halves);
    }
}

/// Each plan has its worker, and all run at once: whole, in halves, expert-major.
#[test]
fn several_plans_run_in_several_threads_at_once() {
    for (wave, modes) in [
        (1, [Mode::Slotted, Mode::Compact, Mode::Slotted]),
        (4, [Mode::Compact, Mode::Slotted, Mode::Compact]),
    ] {
        let mut cases = modes.map(|mode| {
            let mut case = Case::new(3, wave);
            case.config = case.config.mode(mode).launch(2, 2);
            case
        });
        cases[1].tokens = vec![3, 33, 9];
        cases[1].config = cases[1].config.clone().slots(2);
        (cases[2].config, cases[2].staged) =
            (cases[2].config.clone().combine_source(CombineSource::Buffer), true);
        all_well(on_ranks(3, wave, &world_config(), |world| {
            let plan = |case: &Case| ExpertParallel::new(world, world.group(), case.config.clone());
            let plans = [plan(&cases[0])?, plan(&cases[1])?, plan(&cases[2])?];
            let expert = |ep: &ExpertParallel| ReferenceExpert::new(world, ep.plan(), ep.rank());
            let experts = [expert(&plans[0])?, expert(&plans[1])?];
            let shared = |index: usize| Shared {
                case: &cases[index],
                world,
                ep: &plans[index],
                expert: &experts[index],
                rounds: 12,
            };
            let (first, second) = (shared(0), shared(1));
            thread::scope(|scope| {
                let workers = [
                    scope.spawn(|| whole(&first)),
                    scope.spawn(|| halves(&second)),
                    scope.spawn(|| {
                        let mut bench =
                            Bench::new(world, &plans[2], ExpertMajorConfig::new())?.pushing(world.device());
                        let stream = world.device().create_stream()?;
                        (0..6).try_for_each(|number| {
                            let case = &cases[2];
                            expert_major_common::round(&plans[2], &mut bench, &stream, world, case, number)
                                .map(drop)
                        })
                    }),
                ];
                let outcomes: Vec<Result<(), Error>> =
                    workers.into_iter().map(|worker| worker.join().unwrap()).collect();
                outcomes.into_iter().collect::<Result<(), Error>>()
            })
        }));
    }
}

/// Runs in a thread of its own, which ends.
fn in_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    thread::spawn(work).join().unwrap()
}

/// A plan is made in one thread, used in others, and dropped in another, with its operation in flight there.
#[test]
fn plans_and_operations_move_from_thread_to_thread() {
    for (staged, mode) in [(false, Mode::Slotted), (true, Mode::Compact)] {
        let mut case = Case::new(3, 4);
        case.config = case.config.mode(mode);
        case.staged = staged;
        all_well(on_ranks(3, 4, &world_config(), |world| {
            let (made_in, config) = (world.clone(), case.config.clone());
            let (ep, expert, stream) = in_a_thread(move || {
                let ep = ExpertParallel::new(&made_in, made_in.group(), config)?;
                let expert = ReferenceExpert::new(&made_in, ep.plan(), ep.rank())?;
                let stream = made_in.device().create_stream()?;
                Ok::<_, Error>((ep, expert, stream))
            })?;
            let mut moved = (ep, expert, stream);
            for number in 0..5 {
                let (world, case) = (world.clone(), case.clone());
                moved = in_a_thread(move || {
                    let (ep, expert, stream) = moved;
                    round(&ep, &expert, &stream, &world, &case, number)?;
                    Ok::<_, Error>((ep, expert, stream))
                })?;
            }
            // Launched here, waited for by the drop there.
            let (ep, expert, stream) = moved;
            let inputs = case.inputs(7);
            let uploaded = Uploaded::new(world.device(), &case.config, &inputs[ep.rank().index()]);
            let staging = world.device().allocate(window_bytes(&ep))?;
            let dispatched = ep.dispatch(&stream, &uploaded.tokens(&case.config))?;
            let experts = run_expert(&expert, &stream, &dispatched, &case, &staging)?;
            ep.combine(&stream, experts, dispatched, uploaded.output())?;
            let me = ep.rank();
            in_a_thread(move || drop((ep, expert)));
            let output = uploaded.read_output(&case.config);
            judge_output(&oracle(&case, &inputs), me, &output);
            Ok(world.synchronize(&stream)?)
        }));
    }
}
