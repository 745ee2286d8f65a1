//! One rank of the group that is measured: its contenders, and judging and timing them in one case.

use anabranch::{Error, World};
use anabranch_hip::Stream;
use anabranch_shmem::Team;

use super::super::link;
use super::contender::{Case, Contender, Description};
use super::reference::Reference;
use super::timing::{self, Timing};
use super::{judge, memory};

/// One member's measurement of one contender.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Finding {
    pub(crate) name: &'static str,
    /// Microseconds an operation, for each sample.
    pub(crate) times: Vec<f64>,
    /// Whether every result equals the reference; `None` where it need not, because rounding is the library's own.
    pub(crate) right: Option<bool>,
    pub(crate) description: Description,
}

/// One rank of the group.
pub(crate) struct Member<'w> {
    pub(crate) world: &'w World,
    pub(crate) team: Team,
    pub(crate) stream: Stream,
    /// This library first; peers may lie on its memory.
    pub(crate) contenders: Vec<Box<dyn Contender + 'w>>,
}

impl Member<'_> {
    /// Measures a case. Collective over the group.
    ///
    /// # Errors
    /// Errors of a contender; a fault of the world.
    pub(crate) fn measure(&mut self, case: &Case, timing: Timing) -> anyhow::Result<Vec<Finding>> {
        let reference = Reference::new(case)?;
        for contender in &mut self.contenders {
            contender.prepare(case)?;
        }
        let mut right = self.judge_all(case, &reference)?;
        // The output of the timed operations is compared too, so it is cleared after the first comparison.
        self.forget_output(case)?;
        let times = timing::time(self.world, &self.team, &self.stream, &mut self.contenders, timing)?;
        if !case.in_place {
            let ours = judge::compare(self.world.device(), self.contenders[0].as_ref(), case, &reference)?;
            right[0] = right[0].map(|right| right && ours);
        }
        let again = self.judge_all(case, &reference)?;
        let findings = self.contenders.iter().zip(times).zip(right.into_iter().zip(again));
        Ok(findings
            .map(|((contender, times), (before, after))| Finding {
                name: contender.name(),
                times,
                right: before.zip(after).map(|(before, after)| before && after),
                description: contender.describe(),
            })
            .collect())
    }

    /// One operation of each contender from fresh inputs, judged.
    fn judge_all(&mut self, case: &Case, reference: &Reference) -> anyhow::Result<Vec<Option<bool>>> {
        let device = self.world.device().clone();
        let mut all = Vec::with_capacity(self.contenders.len());
        for (index, contender) in self.contenders.iter_mut().enumerate() {
            judge::prepare(&self.stream, contender.as_ref(), case, reference)?;
            // Peers may write here as soon as they run, so the inputs of all ranks must be written.
            self.world.barrier(&case.group, "ccl inputs").map_err(Error::from)?;
            contender.enqueue(&self.stream)?;
            self.world.synchronize_within(&self.stream, link::patience(self.world)).map_err(Error::from)?;
            let compared = judge::compare(&device, contender.as_ref(), case, reference)?;
            // No rank may overwrite what another still reads.
            self.world.barrier(&case.group, "ccl outputs").map_err(Error::from)?;
            let comparable = index == 0 || reference.is_exact();
            if comparable && !compared {
                tracing::error!("{}: a result differs from the reference", contender.name());
            }
            all.push(comparable.then_some(compared));
        }
        Ok(all)
    }

    fn forget_output(&mut self, case: &Case) -> anyhow::Result<()> {
        if case.in_place {
            return Ok(());
        }
        if let Some(places) = judge::output(case) {
            for contender in &self.contenders {
                memory::fill(&self.stream, contender.memory(), places.0, places.1, judge::UNTOUCHED)?;
            }
        }
        self.world.synchronize_within(&self.stream, link::patience(self.world)).map_err(Error::from)?;
        Ok(self.world.barrier(&case.group, "ccl outputs forgotten").map_err(Error::from)?)
    }

    /// Gives everything back, peers first. Collective over the group.
    ///
    /// # Errors
    /// The contenders'.
    pub(crate) fn finish(mut self) -> anyhow::Result<()> {
        while let Some(contender) = self.contenders.pop() {
            contender.finish()?;
        }
        Ok(())
    }
}
