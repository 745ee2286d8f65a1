//! What is timed of a dispatch and its combine, and how.

use anabranch::Error;
use anabranch_shmem::Team;

use super::EpBench;
use super::expert_major::ExpertMajorBench;
use crate::device::{self, Stamps};
use crate::link;
use crate::statistics::Samples;

impl EpBench<'_> {
    /// One timed repetition: stamps around dispatch and around combine, each after a barrier, so that no rank's time
    /// holds another's delay; between them stamps around expand and around contract, where they are steps.
    pub(super) fn enqueue(&mut self, stamps: &Stamps, team: &Team) -> Result<(), Error> {
        team.barrier(&self.stream)?;
        stamps.take(&self.stream)?;
        let in_steps = self.is_in_steps();
        let dispatched = self.dispatch()?;
        stamps.take(&self.stream)?;
        if in_steps {
            self.expand(&dispatched)?;
            stamps.take(&self.stream)?;
        }
        self.run_experts(&dispatched)?;
        if in_steps {
            stamps.take(&self.stream)?;
            self.contract(&dispatched)?;
            stamps.take(&self.stream)?;
        }
        team.barrier(&self.stream)?;
        stamps.take(&self.stream)?;
        self.combine(dispatched)?;
        stamps.take(&self.stream)?;
        let Some(replay) = &self.replay else { return Ok(()) };
        team.barrier(&self.stream)?;
        stamps.take(&self.stream)?;
        let dispatched = replay.dispatch(self)?;
        stamps.take(&self.stream)?;
        Ok(self.ep.release(&self.stream, dispatched)?)
    }

    fn is_in_steps(&self) -> bool {
        self.expert_major.as_ref().is_some_and(ExpertMajorBench::is_in_steps)
    }

    /// What is timed, and between which stamps of a repetition.
    pub(super) fn intervals(&self) -> &'static [(&'static str, usize, usize)] {
        if self.replay.is_some() {
            return &[("dispatch", 0, 1), ("combine", 2, 3), ("dispatch-again", 4, 5)];
        }
        if !self.is_in_steps() {
            return &[("dispatch", 0, 1), ("combine", 2, 3)];
        }
        &[("dispatch", 0, 1), ("combine", 5, 6), ("expand", 1, 2), ("contract", 3, 4)]
    }

    /// Times of each interval on this rank, microseconds.
    pub(super) fn time(&mut self, team: &Team, iters: u32) -> Result<Vec<Vec<f64>>, Error> {
        const WARM: u32 = 3;
        const IN_GRAPH: u32 = 10;
        let world = self.world();
        let repetitions = if self.arguments.graph { iters.next_multiple_of(IN_GRAPH) } else { iters };
        let intervals = self.intervals();
        let each = intervals.iter().map(|(_, _, last)| last + 1).max().unwrap_or_default();
        let mut stamps = Stamps::new(world, each as u64 * u64::from(repetitions.max(WARM)))?;
        for _ in 0..WARM {
            self.enqueue(&stamps, team)?;
        }
        world.synchronize_within(&self.stream, link::patience(world))?;
        stamps.read()?;
        if self.arguments.graph {
            self.stream.begin_capture()?;
            let captured = (0..IN_GRAPH).try_for_each(|_| self.enqueue(&stamps, team));
            let graph = self.stream.end_capture();
            captured?;
            let exec = graph?.instantiate()?;
            for _ in 0..repetitions / IN_GRAPH {
                device::replay(&exec, &self.stream)?;
            }
            world.synchronize_within(&self.stream, link::patience(world))?;
        } else {
            for _ in 0..repetitions {
                self.enqueue(&stamps, team)?;
            }
            world.synchronize_within(&self.stream, link::patience(world))?;
        }
        let taken = stamps.read()?;
        let between = |from: usize, to: usize| {
            let each = taken.chunks_exact(each);
            each.map(|stamps| stamps[to].saturating_sub(stamps[from]) as f64 / 1e3).collect()
        };
        Ok(intervals.iter().map(|&(_, from, to)| between(from, to)).collect())
    }

    /// What an empty interval between two stamps takes: the part of every time that is not the operation's.
    pub(super) fn empty_interval(&self) -> Result<f64, Error> {
        const STAMPS: u32 = 32;
        let mut stamps = Stamps::new(self.world(), u64::from(STAMPS))?;
        let take_all = || (0..STAMPS).try_for_each(|_| stamps.take(&self.stream));
        if self.arguments.graph {
            self.stream.begin_capture()?;
            let captured = take_all();
            let graph = self.stream.end_capture();
            captured?;
            let exec = graph?.instantiate()?;
            device::replay(&exec, &self.stream)?;
            self.world().synchronize(&self.stream)?;
        } else {
            take_all()?;
            self.world().synchronize(&self.stream)?;
        }
        let all = stamps.read()?;
        let gaps = all.windows(2).map(|pair| pair[1].saturating_sub(pair[0]) as f64 / 1e3).collect();
        Ok(Samples::new(gaps).median())
    }
}
