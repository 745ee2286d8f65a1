//! Timing all contenders in the same way: several operations back to back between two stamps of the device's clock, the
//! contenders in turn, so that whatever drifts hits all of them.

use anabranch::{Error, World};
use anabranch_hip::{GraphExec, Stream};
use anabranch_shmem::Team;

use super::super::device::{self, Stamps};
use super::super::link;
use super::contender::Contender;

/// Rounds in which the contenders take turns.
pub(crate) const ROUNDS: u32 = 5;
/// Samples before the first that counts.
const WARM: u32 = 3;
/// Bytes that the operations of one sample move at least, as far as [`MOST_OPERATIONS`] allows.
const SAMPLE_BYTES: u64 = 64 << 20;
const MOST_OPERATIONS: u32 = 20;
const LEAST_OPERATIONS: u32 = 3;
/// Operations of a sample on the machine of CPU threads, up to this size.
const HOST_OPERATIONS: u32 = 10;
const HOST_LARGE: u64 = 1 << 20;

/// How a case is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timing {
    /// The operations of a sample are captured once and replayed.
    pub(crate) graph: bool,
    /// Operations between two stamps: the time of one is the interval by this number.
    pub(crate) operations: u32,
    /// Samples of each contender in each round.
    pub(crate) per_round: u32,
}

impl Timing {
    /// For operations of `bytes` bytes, with at least `samples` samples of each contender.
    pub(crate) fn new(bytes: u64, samples: u32, graph: bool, host: bool) -> Self {
        let enough = (SAMPLE_BYTES / bytes.max(1)).min(u64::from(MOST_OPERATIONS)) as u32;
        let on_the_host = if bytes < HOST_LARGE { HOST_OPERATIONS } else { LEAST_OPERATIONS };
        let operations = if host { on_the_host } else { enough.max(LEAST_OPERATIONS) };
        Self { graph, operations, per_round: samples.div_ceil(ROUNDS).max(1) }
    }

    /// Samples of each contender.
    pub(crate) fn samples(&self) -> u32 {
        self.per_round * ROUNDS
    }

    /// Stamps that lie unread at most.
    fn stamps(&self) -> u64 {
        2 * u64::from(self.per_round.max(WARM))
    }
}

/// Times the prepared contenders: for each the time of an operation in each sample on this rank, microseconds.
/// Collective over the team.
///
/// # Errors
/// What made the world fail, an operation that does not end, the contenders' errors.
pub(crate) fn time(
    world: &World,
    team: &Team,
    stream: &Stream,
    contenders: &mut [Box<dyn Contender + '_>],
    timing: Timing,
) -> anyhow::Result<Vec<Vec<f64>>> {
    let mut stamps = Stamps::new(world, timing.stamps())?;
    let mut samples = Vec::new();
    for contender in &mut *contenders {
        for _ in 0..WARM {
            enqueue(contender.as_mut(), team, stream, &stamps, timing.operations)?;
        }
        world.synchronize_within(stream, link::patience(world)).map_err(Error::from)?;
        stamps.read()?;
        let graph = timing
            .graph
            .then(|| capture(contender.as_mut(), team, stream, &stamps, timing.operations))
            .transpose()?;
        if let Some(graph) = &graph {
            // The first replay of a graph uploads it.
            device::replay(graph, stream)?;
            world.synchronize_within(stream, link::patience(world)).map_err(Error::from)?;
            stamps.read()?;
        }
        samples.push((graph, Vec::with_capacity(timing.samples() as usize)));
    }
    for _ in 0..ROUNDS {
        for (contender, (graph, times)) in contenders.iter_mut().zip(&mut samples) {
            for _ in 0..timing.per_round {
                match graph {
                    Some(graph) => device::replay(graph, stream)?,
                    None => enqueue(contender.as_mut(), team, stream, &stamps, timing.operations)?,
                }
            }
            world.synchronize_within(stream, link::patience(world)).map_err(Error::from)?;
            times.extend(intervals(&stamps.read()?, timing.operations));
        }
    }
    Ok(samples.into_iter().map(|(_, times)| times).collect())
}

/// One sample: all members start together, so that no rank's interval holds another's delay.
fn enqueue(
    contender: &mut dyn Contender,
    team: &Team,
    stream: &Stream,
    stamps: &Stamps,
    operations: u32,
) -> anyhow::Result<()> {
    team.barrier(stream).map_err(Error::from)?;
    stamps.take(stream)?;
    (0..operations).try_for_each(|_| contender.enqueue(stream))?;
    Ok(stamps.take(stream)?)
}

fn capture(
    contender: &mut dyn Contender,
    team: &Team,
    stream: &Stream,
    stamps: &Stamps,
    operations: u32,
) -> anyhow::Result<GraphExec> {
    stream.begin_capture().map_err(Error::from)?;
    let captured = enqueue(contender, team, stream, stamps, operations);
    // Ended whatever happened: a stream must not stay in capture.
    let graph = stream.end_capture();
    captured?;
    Ok(graph.map_err(Error::from)?.instantiate().map_err(Error::from)?)
}

/// Microseconds of one operation in each pair of stamps (nanoseconds).
fn intervals(stamps: &[u64], operations: u32) -> Vec<f64> {
    let each = |pair: &[u64]| pair[1].saturating_sub(pair[0]) as f64 / 1e3 / f64::from(operations);
    stamps.chunks_exact(2).map(each).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_operations_run_many_in_a_row_and_large_ones_few() {
        let operations = |bytes| Timing::new(bytes, 50, true, false).operations;
        assert_eq!([1, 1 << 20, 8 << 20, 1 << 30].map(operations), [20, 20, 8, 3]);
        let timing = Timing::new(1 << 30, 51, false, false);
        assert_eq!((timing.per_round, timing.samples()), (11, 55));
        assert_eq!(Timing::new(1, 1, false, true), Timing { graph: false, operations: 10, per_round: 1 });
    }

    #[test]
    fn an_interval_is_shared_by_its_operations() {
        assert_eq!(intervals(&[1_000, 5_000, 9_000, 10_000, 77], 4), [1.0, 0.25]);
    }
}
