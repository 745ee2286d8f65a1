//! From a call to what is launched: checks, plan, arguments, kernels.

use std::sync::Arc;

use anabranch_hip_jit::LoadedUnit;
use anabranch_shmem::{MemoryUse, StreamMeeting};

use super::Communicator;
use crate::args::{MOST_UNEVEN, Place};
use crate::call::{Call, Shape};
use crate::engine::EngineStep;
use crate::error::{Error, Result};
use crate::kernels::entry;
use crate::lower::{Arguments, Buffers, Counts, Unit, gather_many_kernel, kernel_of, local_bytes};
use crate::message::{self, PointToPoint, TransferLists};
use crate::network::LinkLayout;
use crate::pipes::PipeLayout;
use crate::plan::{Algorithm, Choice, Plan};
use crate::prepared::{Prepared, describe};
use crate::steps::{self, Launch, Step};
use crate::tensor::Tensor;
use crate::{in_place, many};

impl Communicator {
    /// Checks a call and chooses how it is done. Loads its kernels, so that nothing is loaded while others are in flight: prepare
    /// before the first launch. Not collective: every member prepares the same call for itself, and nothing is exchanged.
    ///
    /// # Errors
    /// Whatever is wrong with the call ([`Call::shape`], [`Error::Overlap`], [`Error::Alignment`], [`Error::Algorithm`]); a kernel
    /// that does not compile.
    pub fn prepare(&mut self, call: &Call<'_>) -> Result<Prepared> {
        let choice = Choice { algorithm: self.config.algorithm, ..Choice::default() };
        self.prepare_as(call, choice)
    }

    /// [`Self::prepare`] with this choice in place of the configuration's and the plan's: for tuning, and for tests. All members
    /// give the same, or their kernels do not meet.
    ///
    /// # Errors
    /// Those of [`Self::prepare`]; [`Error::Config`] for blocks that are not within 1 and [`Self::lanes`].
    pub fn prepare_as(&mut self, call: &Call<'_>, choice: Choice) -> Result<Prepared> {
        let shape = call.shape(self.size(), self.rank())?;
        if self.crossing.is_some() {
            return self.prepare_across(call, shape, choice);
        }
        if let Some(messages) = call.messages() {
            return self.prepare_messages(call, shape, &messages);
        }
        if shape.uneven && self.size() as usize > MOST_UNEVEN {
            let allowed = "at most 64 where counts differ";
            return Err(Error::Config { field: "the group's size", given: self.size().into(), allowed });
        }
        let table = self.table.as_deref();
        let plan = match call {
            Call::AllGatherMany(_) => many::plan(&shape, &self.limits, table, choice)?,
            _ => Plan::chosen(&shape, &self.limits, table, choice)?,
        };
        let (output, input) = call.tensors();
        in_place::check(call, &shape, &self.team)?;
        let counts = counts_of(call);
        let alignment = [&output, &input].into_iter().flatten().map(|tensor| tensor.alignment(&self.team));
        let buffers = Buffers {
            input: self.place(input.as_ref()),
            output: self.place(output.as_ref()),
            alignment: alignment.min().unwrap_or(1),
        };
        let mut table = None;
        if let Call::AllGatherMany(pairs) = call {
            many::check(pairs, &self.team)?;
        }
        let steps = match call {
            _ if plan.algorithm == Algorithm::CopyEngine => {
                let of_call = (&self.channel, self.limits.lanes);
                let steps = steps::by_engine(&self.team, of_call, call, (&shape, &plan), (&buffers, counts))?;
                let streams = self.config.copy_streams.unwrap_or_else(|| self.team.usual_leg_streams());
                self.team.prepare_legs(streams)?;
                self.with_kernels(steps, &shape, &plan)?
            }
            Call::AllGatherMany(pairs) => {
                let (args, listed) = many::arguments(pairs, &self.team, self.channel)?;
                table = listed.map(Arc::new);
                vec![self.step(gather_many_kernel(plan.algorithm), Arguments::GatherMany(args), &plan)?]
            }
            _ => {
                let arguments = Arguments::new(&self.channel, &shape, &plan, &buffers, counts);
                vec![self.step(kernel_of(&shape, plan.algorithm), arguments, &plan)?]
            }
        };
        let description = match call {
            Call::AllGatherMany(pairs) => format!("{} tensors: {}", pairs.len(), describe(&shape, &plan)),
            _ => describe(&shape, &plan),
        };
        Ok(Prepared {
            plan,
            shape,
            steps,
            channel: self.channel.lanes,
            table,
            uses: self.uses(call),
            description: description.into(),
            fingerprint: self.checking.as_ref().map(|checking| checking.arguments(call, &shape, &plan)),
        })
    }

    /// A kernel with the plan's launch shape.
    fn step(&mut self, (unit, entry): (Unit, &str), arguments: Arguments, plan: &Plan) -> Result<Step> {
        let (blocks, threads, local_bytes) = (plan.blocks, plan.threads, local_bytes(self.size()));
        let kernel = self.unit(unit)?.kernel(entry)?.clone();
        Ok(Step::Kernel(Box::new(Launch { kernel, arguments, blocks, threads, local_bytes })))
    }

    /// The steps of a call by copy engine, with their kernels.
    fn with_kernels(&mut self, steps: Vec<EngineStep>, shape: &Shape, plan: &Plan) -> Result<Vec<Step>> {
        let meeting = Plan { blocks: 1, threads: self.limits.meeting_threads, ..*plan };
        let with_kernel = |step| match step {
            EngineStep::Legs(legs) => Ok(Step::Legs(legs)),
            EngineStep::Meeting => {
                let kernel = (Unit::Move, entry::BARRIER);
                self.step(kernel, Arguments::meeting(&self.channel), &meeting).map(Step::into_meeting)
            }
            EngineStep::Reduce(args) => {
                self.step(kernel_of(shape, plan.algorithm), Arguments::EngineReduce(args), plan)
            }
        };
        steps.into_iter().map(with_kernel).collect()
    }

    /// A call whose members are on several machines.
    fn prepare_across(&mut self, call: &Call<'_>, shape: Shape, choice: Choice) -> Result<Prepared> {
        let Some(crossing) = &self.crossing else {
            return Err(Error::Foreign { what: "a call across machines" });
        };
        if call.messages().is_some() {
            return Err(crossing.refuse_messages());
        }
        let plan = crossing.plan(&shape, &self.limits, choice)?;
        match call {
            Call::AllGatherMany(pairs) => many::check(pairs, &self.team)?,
            _ => in_place::check(call, &shape, &self.team)?,
        }
        let (all, table) = crossing.arguments(&self.team, call, (&shape, &plan, counts_of(call)))?;
        let (unit, entry) = kernel_of(&shape, plan.algorithm);
        let local_bytes = LinkLayout::local_bytes(self.size());
        let kernel = self.unit(unit)?.kernel(entry)?.clone();
        let Plan { blocks, threads, .. } = plan;
        let launch = |args| {
            let (kernel, arguments) = (kernel.clone(), Arguments::Network(Box::new(args)));
            Step::Kernel(Box::new(Launch { kernel, arguments, blocks, threads, local_bytes }))
        };
        Ok(Prepared {
            plan,
            shape,
            steps: all.into_iter().map(launch).collect(),
            channel: self.channel.lanes,
            table: table.map(Arc::new),
            uses: self.uses(call),
            description: describe(&shape, &plan).into(),
            fingerprint: None,
        })
    }

    fn prepare_messages(
        &mut self,
        call: &Call<'_>,
        shape: Shape,
        messages: &[PointToPoint<'_>],
    ) -> Result<Prepared> {
        message::check(messages, &self.team)?;
        let lists = TransferLists::new(messages, &self.team, &self.pipe_layout)?;
        let served = lists.lists * lists.used_pipes;
        let mut plan = Plan::new(&shape, &self.limits, None, None)?;
        plan.blocks = served.clamp(1, self.limits.lanes);
        let (args, table) = message::arguments(&lists, &self.team, self.pipes)?;
        let step = Step::Kernel(Box::new(Launch {
            kernel: self.unit(Unit::Pipes)?.kernel(entry::PIPES)?.clone(),
            arguments: Arguments::Pipes(args),
            blocks: plan.blocks,
            threads: plan.threads,
            local_bytes: PipeLayout::local_bytes(served, plan.blocks),
        }));
        Ok(Prepared {
            plan,
            shape,
            steps: vec![step],
            channel: self.channel.lanes,
            table: table.map(Arc::new),
            uses: self.uses(call),
            description: message::describe(messages, &plan).into(),
            // Others have no part in it.
            fingerprint: None,
        })
    }

    fn uses(&self, call: &Call<'_>) -> Vec<MemoryUse> {
        let check = self.checking.as_ref().map(|checking| checking.checker.usage());
        let meeting = self.meeting.as_ref().map(StreamMeeting::usage);
        let own = [self.memory.usage()].into_iter().chain(check).chain(meeting);
        call.all_tensors().iter().filter_map(Tensor::usage).chain(own).collect()
    }

    fn unit(&mut self, unit: Unit) -> Result<&Arc<LoadedUnit>> {
        use std::collections::hash_map::Entry;
        match self.units.entry(unit) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(place) => {
                let loaded = self.world.jit().load(self.world.device(), &unit.spec_in(&self.world))?;
                Ok(place.insert(loaded))
            }
        }
    }

    fn place(&self, tensor: Option<&Tensor<'_>>) -> Place {
        tensor.map_or(Buffers::NOWHERE, |tensor| tensor.place(&self.team))
    }
}

/// Elements that are exchanged with each member, where the call has counts that differ.
const fn counts_of<'a>(call: &Call<'a>) -> Counts<'a> {
    match *call {
        Call::AllGatherUneven { counts, .. } => Counts::AllGather(counts),
        Call::AllToAllUneven { output_splits, input_splits, .. } => {
            Counts::AllToAll { input_splits, output_splits }
        }
        _ => Counts::Even,
    }
}
