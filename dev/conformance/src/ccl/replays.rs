//! Calls captured into graphs and replayed, with new data each time and every byte judged behind every replay.

use anabranch_hip::{GraphExec, Stream};
use anabranch_shmem::World;

use super::exists::choices;
use super::{Failure, FilledTrial, Numbers, Scratch, Subset, Tally, Trial};
use anabranch_ccl::Result;
use anabranch_ccl::{Algorithm, CclConfig, Choice, Communicator, DataType};

const fn by(algorithm: Algorithm) -> Choice {
    Choice { algorithm: Some(algorithm), blocks: None, block_bytes: None, phased: None }
}

/// A captured sequence of calls of one communicator, each with buffers of its own. The communicator lives longer.
#[derive(Debug)]
pub struct Captured {
    calls: Vec<(Trial, Scratch)>,
    graph: GraphExec,
}

impl Captured {
    /// Runs each call once, which loads its kernels, and captures them all. Collective over the communicator's group. The verdict is
    /// of those that ran.
    ///
    /// # Errors
    /// What a call, the capture or the world fails with.
    pub fn new(
        communicator: &mut Communicator,
        stream: &Stream,
        trials: Vec<(impl Into<Trial>, Algorithm)>,
    ) -> Result<(Self, Result<(), Failure>)> {
        let world = communicator.world().clone();
        let mut calls = Vec::new();
        let mut verdict = Ok(());
        for (trial, algorithm) in trials {
            let trial = trial.into();
            let mut scratch = Scratch::new(&world, communicator, trial.scratch_bytes(communicator.size()))?;
            let ran = trial.run(communicator, &mut scratch, by(algorithm), stream)?;
            verdict = verdict.and(ran);
            calls.push((trial, scratch, algorithm));
        }
        stream.begin_capture()?;
        for (trial, scratch, algorithm) in &calls {
            // The stream's order is enough.
            drop(trial.launch(communicator, scratch, by(*algorithm), stream)?);
        }
        let graph = stream.end_capture()?.instantiate()?;
        let calls = calls.into_iter().map(|(trial, scratch, _)| (trial, scratch)).collect();
        Ok((Self { calls, graph }, verdict))
    }

    /// Fills all buffers with the inputs of this seed. Nothing may be in flight on them.
    ///
    /// # Errors
    /// The runtime's. A failure is a case that the oracle refuses.
    pub fn refill(
        &mut self,
        communicator: &Communicator,
        seed: u64,
    ) -> Result<Vec<Result<FilledTrial, Failure>>> {
        let refill = |(trial, scratch): &mut (Trial, Scratch)| {
            trial.set_seed(seed);
            trial.fill(communicator, scratch)
        };
        self.calls.iter_mut().map(refill).collect()
    }

    /// Replays the graph once. The communicator is the one that it was captured with. Collective over its group; waits for nothing.
    ///
    /// # Errors
    /// The runtime's.
    pub fn launch(&self, _communicator: &Communicator, stream: &Stream) -> Result<()> {
        // SAFETY: the communicator is alive, the buffers are this value's, and both end behind a wait for the stream, by the
        // contract of `release`.
        Ok(unsafe { self.graph.launch(stream) }?)
    }

    /// Compares every byte of all buffers with what the calls had to make of them. The replay must be over. `Ok(Err(_))` is a
    /// wrong result.
    ///
    /// # Errors
    /// The runtime's.
    pub fn judge(&self, filled: &[Result<FilledTrial, Failure>]) -> Result<Result<(), Failure>> {
        for (filled, (_, scratch)) in filled.iter().zip(&self.calls) {
            let verdict = match filled {
                Ok(filled) => filled.judge(scratch)?,
                Err(failure) => Err(failure.clone()),
            };
            if verdict.is_err() {
                return Ok(verdict);
            }
        }
        Ok(Ok(()))
    }

    /// Fills, replays, waits and judges.
    ///
    /// # Errors
    /// What the world or the runtime fails with.
    pub fn replay(
        &mut self,
        communicator: &Communicator,
        stream: &Stream,
        seed: u64,
    ) -> Result<Result<(), Failure>> {
        let filled = self.refill(communicator, seed)?;
        self.launch(communicator, stream)?;
        communicator.world().synchronize(stream)?;
        self.judge(&filled)
    }

    /// What is in the graph.
    pub fn trials(&self) -> impl Iterator<Item = &Trial> {
        self.calls.iter().map(|(trial, _)| trial)
    }

    /// Whether a call's output lies over its input: a second replay would begin with results.
    pub fn is_in_place(&self) -> bool {
        self.trials().any(Trial::is_in_place)
    }

    /// Ends the registrations. Collective over the communicator's group; the stream must have been waited for.
    ///
    /// # Errors
    /// What made the world fail.
    pub fn release(self) -> Result<()> {
        self.calls.into_iter().try_for_each(|(_, scratch)| scratch.release())
    }
}

/// What [`run_replays`] does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replays {
    /// How many replays of graphs.
    pub count: u64,
    /// Types of the calls; their kernels are compiled for each.
    pub types: Vec<DataType>,
    /// Calls have fewer elements.
    pub most_count: u64,
    /// What is drawn.
    pub seed: u64,
}

/// A graph's calls, and the share of [`Replays::most_count`] that they have, in 64ths.
const GRAPHS: [(u64, u64); 6] = [(1, 1), (3, 2), (2, 16), (1, 64), (4, 5), (9, 3)];

/// Replays graphs of mixed calls, collectives, messages and many tensors gathered, over the world in an order that is drawn, and in between runs eager calls over the world and over
/// half of its ranks: those with even and those with odd numbers, backwards. Collective over the world. Goes on behind wrong results.
///
/// # Errors
/// What a call or the world fails with.
pub fn run_replays(world: &World, config: &CclConfig, replays: &Replays, stream: &Stream) -> Result<Tally> {
    let mut tally = Tally::default();
    let everyone = Subset::new(0..world.size());
    let parity = world.rank().get() % 2;
    let half = Subset::new((0..world.size()).filter(|rank| rank % 2 == parity).rev());
    let group = half.group(world.group()).map_err(anabranch_shmem::Error::from)?;
    let mut all = Communicator::new(world, world.group(), config.clone())?;
    let mut some = Communicator::new(world, &group, config.clone())?;
    tally.groups = 2;
    let mut numbers = Numbers(replays.seed);
    let most = |share: u64| (replays.most_count * share / 64).max(1);
    // Drawn again until there is something that the communicator has: alike on all its members.
    let mut draw = |communicator: &Communicator, most: u64| loop {
        let (trial, algorithm) = Trial::any(&mut numbers, communicator.size(), &replays.types, most);
        let ways = choices(communicator, &trial, by(algorithm), &mut tally)?;
        // On one machine nothing is drawn here: there is one way.
        let way = match ways[..] {
            [] => continue,
            [only] => only,
            _ => numbers.pick(&ways),
        };
        return Ok::<_, anabranch_ccl::Error>((trial, way.algorithm.unwrap_or(algorithm)));
    };
    let mut drawn = Vec::new();
    for (calls, share) in GRAPHS {
        drawn.push((0..calls).map(|_| draw(&all, most(share))).collect::<Result<Vec<_>>>()?);
    }
    let eager = (0..replays.count).map(|_| draw(&all, most(8))).collect::<Result<Vec<_>>>()?;
    let others = (0..replays.count).map(|_| draw(&some, most(8))).collect::<Result<Vec<_>>>()?;
    let mut graphs = Vec::new();
    for trials in drawn {
        let (graph, verdict) = Captured::new(&mut all, stream, trials)?;
        tally.judged(&everyone, graph.trials(), verdict, "before its capture");
        graphs.push(graph);
    }
    let bytes = |trials: &[(Trial, Algorithm)], members: u32| {
        trials.iter().map(|(trial, _)| trial.scratch_bytes(members)).max().unwrap_or(0)
    };
    let mut scratch = Scratch::new(world, &all, bytes(&eager, all.size()))?;
    let mut scratch_of_some = Scratch::new(world, &some, bytes(&others, some.size()))?;
    let mut which = Numbers(!replays.seed);
    for (replay, (eager, other)) in (0..).zip(eager.into_iter().zip(others)) {
        let graph = &mut graphs[which.below(GRAPHS.len() as u64) as usize];
        let verdict = graph.replay(&all, stream, replay)?;
        tally.judged(&everyone, graph.trials(), verdict, &format!("replay {replay}"));
        if replay % 3 == 1 {
            let verdict = eager.0.run(&mut all, &mut scratch, by(eager.1), stream)?;
            tally.judged(&everyone, [&eager.0], verdict, &format!("eager behind replay {replay}"));
        }
        if replay % 4 == 2 {
            let verdict = other.0.run(&mut some, &mut scratch_of_some, by(other.1), stream)?;
            tally.judged(&half, [&other.0], verdict, &format!("behind replay {replay}"));
        }
    }
    graphs.into_iter().try_for_each(Captured::release)?;
    scratch.release()?;
    scratch_of_some.release()?;
    Ok(tally)
}
