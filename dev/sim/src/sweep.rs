//! A world with a fault injected at every point in turn: where its ranks can die, where a call can fail, where a link can be cut.

use core::num::NonZeroUsize;
use core::ops::Range;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

use anabranch_clock::Moment;
use anabranch_hip::HipError;
use anabranch_hip_jit::Jit;
use anabranch_weakmem::Fault as MachineFault;
use sha2::{Digest as _, Sha256};

use crate::scenarios::world::World;
use crate::{Case, Fault, Found, Kind, ScenarioError};

/// The faults injected in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sweep {
    /// Nothing more than the case's own faults: how each seed ends is counted.
    Seeds,
    /// Each rank dies at each of its primitives.
    Kill,
    /// Each HIP call of each rank fails, out of memory, with an invalid handle, and as a launch does.
    FailCall,
    /// Each rank's link to the rendezvous is cut before each of its calls.
    Cut,
}

/// How a sweep is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweepOptions {
    /// The fault.
    pub sweep: Sweep,
    /// Every point under each of these.
    pub seeds: Range<u64>,
    /// Only every so-manieth point, beginning with the first; each seed begins one later.
    pub stride: NonZeroUsize,
    /// Threads that run. The result does not depend on it.
    pub threads: NonZeroUsize,
}

/// What a sweep came to.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SweepReport {
    /// Runs, those without a fault that say where the points are among them.
    pub runs: u64,
    /// How many runs ended in which way. Those that are wrong count by the kind of what is wrong.
    pub outcomes: BTreeMap<String, u64>,
    /// The first point, in the order of the sweep, at which a run is wrong. It has no events.
    pub wrong: Option<Found>,
    /// A digest of all runs and their outcomes: the same in every process.
    pub digest: u64,
    /// Seconds and all.
    pub wall: Duration,
}

/// One run.
struct Point {
    seed: u64,
    fault: Option<Fault>,
}

/// How a point's run ended.
struct Ended {
    digest: u64,
    outcome: Result<&'static str, String>,
}

/// Runs a world with a fault at every point in turn, in as many runs as there are points.
///
/// `tell` is called with the runs done and all, now and then, on any thread.
///
/// # Errors
/// A case that is no world; kernels that do not compile; a run without the sweep's faults that is wrong.
pub fn sweep(
    case: &Case,
    jit: &Jit,
    options: &SweepOptions,
    tell: &(dyn Fn(usize, usize) + Sync),
) -> Result<SweepReport, ScenarioError> {
    let begun = Moment::now();
    if case.protocol != crate::Protocol::World {
        return Err(crate::CaseError::Lacks { protocol: case.protocol, what: "points to strike" }.into());
    }
    crate::scenarios::check(case)?;
    let world = World::new(case.clone(), jit)?;
    let points = points(&world, options)?;
    let (next, ended) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..options.threads.get().min(points.len().max(1)) {
            scope.spawn(|| {
                while let Some((index, point)) = {
                    let index = next.fetch_add(1, Ordering::SeqCst);
                    points.get(index).map(|point| (index, point))
                } {
                    let (outcome, run) = world.run_and_judge(point.seed, point.fault.as_slice(), false);
                    let mut ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
                    ended.insert(index, Ended { digest: run.digest, outcome });
                    tell(ended.len(), points.len());
                }
            });
        }
    });
    let ended = ended.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(report(case, &points, ended, begun.elapsed()))
}

fn report(case: &Case, points: &[Point], ended: BTreeMap<usize, Ended>, wall: Duration) -> SweepReport {
    let mut hash = Sha256::new();
    let mut report =
        SweepReport { runs: points.len() as u64, outcomes: BTreeMap::new(), wrong: None, digest: 0, wall };
    for (point, Ended { digest, outcome }) in points.iter().zip(ended.into_values()) {
        hash.update(digest.to_le_bytes());
        let words = match outcome {
            Ok(words) => words.to_owned(),
            Err(problem) => {
                hash.update(&problem);
                let words = format!("WRONG: {}", Kind::of(&problem));
                let faults = case.faults.iter().copied().chain(point.fault).collect();
                report.wrong.get_or_insert_with(|| Found {
                    case: Case { faults, ..case.clone() },
                    seed: point.seed,
                    most_switches: None,
                    problem,
                    events: Vec::new(),
                });
                words
            }
        };
        hash.update(&words);
        *report.outcomes.entry(words).or_default() += 1;
    }
    report.digest = hash.finalize().iter().take(8).fold(0, |word, byte| (word << 8) | u64::from(*byte));
    report
}

/// Every run of the sweep, in order. A run of the seed without the sweep's faults finds the points.
fn points(world: &World, options: &SweepOptions) -> Result<Vec<Point>, ScenarioError> {
    let mut points = Vec::new();
    for (number, seed) in options.seeds.clone().enumerate() {
        points.push(Point { seed, fault: None });
        if options.sweep == Sweep::Seeds {
            continue;
        }
        let lives = world.live(seed, &[], false)?;
        let counts = match options.sweep {
            Sweep::Seeds => Vec::new(),
            Sweep::Kill => lives.primitives,
            Sweep::FailCall => lives.calls,
            Sweep::Cut => lives.meetings,
        };
        let faults = (0..)
            .zip(counts)
            .flat_map(|(rank, count)| (0..count).flat_map(move |nth| faults_at(options.sweep, rank, nth)));
        let stride = options.stride.get();
        let chosen = faults.skip(number % stride).step_by(stride);
        points.extend(chosen.map(|fault| Point { seed, fault: Some(fault) }));
    }
    Ok(points)
}

/// The faults of one point.
fn faults_at(sweep: Sweep, rank: u32, nth: u64) -> Vec<Fault> {
    let codes = [HipError::OUT_OF_MEMORY, HipError::INVALID_HANDLE, HipError::LAUNCH_FAILURE];
    match sweep {
        Sweep::Seeds => Vec::new(),
        Sweep::Kill => vec![Fault::Machine(MachineFault::Kill { rank, at: nth })],
        Sweep::FailCall => {
            codes.map(|code| Fault::Machine(MachineFault::FailCall { rank, nth, code })).to_vec()
        }
        Sweep::Cut => vec![Fault::Cut { rank, call: nth }],
    }
}
