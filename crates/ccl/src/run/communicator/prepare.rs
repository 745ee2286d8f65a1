//! Preparation of calls: checks, plan, arguments, kernels.

use std::sync::Arc;

use anabranch_hip::LaunchShape;
use anabranch_hip_jit::{KernelUnit, LoadedUnit};
use anabranch_shmem::{MemoryUse, StreamBarrier, TeamTable};

use super::{Communicator, key};
use crate::call::message::PointToPoint;
use crate::call::tensor::Tensor;
use crate::call::{Call, in_place, many, message};
use crate::device::args::{BufferView, MOST_UNEVEN};
use crate::device::kernels;
use crate::device::norm::UNIT_BYTES;
use crate::device::pipes::PipeLayout;
use crate::lower;
use crate::lower::launch::{Launch, LoadedLaunch, Stage};
use crate::lower::messages::TransferLists;
use crate::lower::norm::{self, Norm};
use crate::lower::{Buffers, Counts, Engine, Job, Tensors};
#[cfg(feature = "rdma")]
use crate::network::LinkLayout;
use crate::plan::{Choice, Plan};
use crate::run::prepared::{Prepared, describe};
use crate::run::sizes::local_memory;
use crate::run::steps::Step;
use crate::types::{Collective, DataType, Error, Result, Shape};

impl Communicator {
    /// Checks and plans a call, and loads its kernels. Prepare calls before the first launch, because nothing can be loaded while kernels
    /// of other members wait. Not collective: every member prepares the same call for itself, and nothing is exchanged.
    ///
    /// # Errors
    /// Invalid calls ([`Error::Argument`], [`Error::Count`], [`Error::Type`], [`Error::Unsupported`], [`Error::Member`], [`Error::Missing`], [`Error::Overlap`],
    /// [`Error::Alignment`], [`Error::Foreign`]); a call that the algorithm or the nodes do not support ([`Error::Algorithm`],
    /// [`Error::Unmapped`]); different counts in groups of more than 64 members on one node ([`Error::Config`]); compiler errors. The
    /// communicator stays usable.
    pub fn prepare(&mut self, call: &Call<'_>) -> Result<Prepared> {
        let choice = Choice { algorithm: self.config.algorithm, ..Choice::default() };
        self.prepare_as(call, choice)
    }

    /// [`Self::prepare`] with `choice` instead of the configured algorithm, for tuning and tests. All members give the same choice;
    /// otherwise their kernels wait for each other until the deadline.
    ///
    /// # Errors
    /// As [`Self::prepare`]; [`Error::Config`] for blocks outside 1 to [`Self::channels`].
    pub fn prepare_as(&mut self, call: &Call<'_>, choice: Choice) -> Result<Prepared> {
        let shape = call.shape(self.size(), self.rank())?;
        #[cfg(feature = "rdma")]
        if self.internode.is_some() {
            return self.prepare_internode(call, shape, choice);
        }
        if let Some(messages) = call.messages() {
            return self.prepare_messages(call, shape, &messages);
        }
        if shape.uneven && self.size() as usize > MOST_UNEVEN {
            let allowed = "at most 64 where counts differ";
            return Err(Error::Config { field: "the group's size", given: self.size().into(), allowed });
        }
        let table = self.table.as_deref();
        let plan = Plan::chosen(&shape, &self.limits, table, choice)?;
        self.check_places(call, &shape)?;
        let (stages, table) = self.lowered(call, &shape, &plan)?;
        let steps = stages.into_iter().map(|stage| self.step(stage)).collect::<Result<_>>()?;
        let description = match call {
            Call::AllGatherMany(pairs) => format!("{} tensors: {}", pairs.len(), describe(&shape, &plan)),
            _ => describe(&shape, &plan),
        };
        Ok(Prepared {
            plan,
            shape,
            steps,
            comm: self.comm.channels,
            table,
            uses: self.uses(call),
            description: description.into(),
            fingerprint: self.checking.as_ref().map(|checking| checking.arguments(call, &shape, &plan)),
        })
    }

    /// The stages of a checked and planned call, and the list in device memory that its kernel reads, if it does not fit into the
    /// arguments.
    fn lowered(
        &self,
        call: &Call<'_>,
        shape: &Shape,
        plan: &Plan,
    ) -> Result<(Vec<Stage>, Option<Arc<TeamTable>>)> {
        let is_copied = plan.recipe.is_by_copies();
        let (output, input) = call.tensors();
        let alignment = [&output, &input].into_iter().flatten().map(|tensor| tensor.alignment(&self.team));
        let buffers = Buffers {
            input: self.place(input.as_ref()),
            output: self.place(output.as_ref()),
            alignment: alignment.min().unwrap_or(1),
        };
        let (mut many, mut copied, mut table) = (None, Vec::new(), None);
        match call {
            Call::AllGatherMany(pairs) if is_copied => copied = lower::many::gathered(pairs, &self.team)?,
            Call::AllGatherMany(pairs) => {
                let (args, listed) = lower::many::arguments(pairs, &self.team, self.comm)?;
                (many, table) = (Some(args), listed.map(Arc::new));
            }
            _ => {}
        }
        let tensors = match (call, &many) {
            (_, Some(args)) => Tensors::Many(args),
            (Call::AllGatherMany(_), None) => Tensors::Copied(&copied),
            _ => Tensors::One(&buffers, counts_of(call)),
        };
        let (heaps, outputs) = if is_copied { self.addresses(shape, output)? } else { Default::default() };
        let engine = Engine {
            channels: self.limits.channels,
            barrier_threads: self.limits.barrier_threads,
            heaps: &heaps,
            outputs: &outputs,
        };
        if is_copied {
            let streams = self.config.copy_streams.unwrap_or_else(|| self.team.default_copy_streams());
            self.team.prepare_copies(streams)?;
        }
        let norm = self.norm(call)?;
        let stages = lower::lowered(&Job { comm: &self.comm, shape, plan, tensors, engine, norm })?;
        Ok((stages, table))
    }

    /// Checks the alignment and the overlaps of tensors.
    fn check_places(&self, call: &Call<'_>, shape: &Shape) -> Result<()> {
        match call {
            Call::AllGatherMany(pairs) => many::check(pairs, &self.team),
            Call::AllReduceRmsNorm { input, norm } => norm.check_places(input, &self.team),
            _ => in_place::check(call, shape, &self.team),
        }
    }

    /// The norm of a call.
    fn norm(&self, call: &Call<'_>) -> Result<Option<Norm<'_>>> {
        let Call::AllReduceRmsNorm { input, norm } = call else { return Ok(None) };
        let row = norm.arguments(input, &self.team)?;
        let longest = norm::longest_alone(local_memory(&self.world));
        if u64::from(row.units) * UNIT_BYTES > longest {
            return Err(norm.too_long(input, longest));
        }
        // Two blocks fit on a multiprocessor. The kernel waits for no peer, so `shared_blocks` does not limit it; `max_blocks` does.
        let blocks =
            if self.config.max_blocks > 0 { self.limits.channels } else { 2 * self.world.multiprocessors() };
        Ok(Some(Norm { comm: &self.rows, row, blocks, threads: self.limits.row_threads }))
    }

    /// The addresses of the heap and the output of each member, for copies by engine.
    fn addresses(&self, shape: &Shape, output: Option<Tensor<'_>>) -> Result<(Vec<u64>, Vec<u64>)> {
        let ranks = || self.team.group().ranks();
        #[expect(clippy::expect_used, reason = "otherwise every member is a node of its own (`nodes_of`)")]
        let heap = |member| self.team.peer_base(member).expect("members of one node map all heaps").0;
        let heaps = ranks().map(heap).collect();
        // Members of a reduce_scatter keep their part.
        let output = output.filter(|_| shape.collective != Collective::ReduceScatter);
        let address = |member| output.map_or(Ok(0), |output| Ok(output.address_at(&self.team, member)?.0));
        let outputs = ranks().map(address).collect::<Result<_>>()?;
        Ok((heaps, outputs))
    }

    /// Loads the kernel of a stage.
    fn step(&mut self, stage: Stage) -> Result<Step> {
        Ok(match stage {
            Stage::Kernel(launch) => Step::Kernel(self.loaded(&launch)?),
            Stage::Barrier(launch) => Step::Barrier(self.loaded(&launch)?),
            Stage::Copies(copies) => Step::Copies(copies),
        })
    }

    fn loaded(&mut self, launch: &Launch) -> Result<LoadedLaunch> {
        Ok(launch.load(self.unit(launch.unit(), launch.data_type)?)?)
    }

    /// Prepares an internode call.
    #[cfg(feature = "rdma")]
    fn prepare_internode(&mut self, call: &Call<'_>, shape: Shape, choice: Choice) -> Result<Prepared> {
        let Some(internode) = &self.internode else {
            return Err(Error::Foreign { what: "an internode call" });
        };
        if call.messages().is_some() {
            return Err(internode.refuse_messages());
        }
        let plan = internode.plan(&shape, &self.limits, choice)?;
        self.check_places(call, &shape)?;
        let (all, table) = internode.arguments(&self.team, call, (&shape, &plan, counts_of(call)))?;
        let kernel = if shape.collective.reduces() { kernels::NETWORK_REDUCE } else { kernels::NETWORK_MOVE };
        let (grid_blocks, block_threads) = (plan.blocks, plan.threads);
        let grid =
            LaunchShape { grid_blocks, block_threads, local_bytes: LinkLayout::local_bytes(self.size()) };
        let stage = |args| Stage::Kernel(Launch::new(kernel, args, shape.data_type, grid));
        let norm = self.norm(call)?;
        let norm =
            norm.map(|norm| norm::alone(&norm, self.place(call.tensors().1.as_ref()).own, shape.data_type));
        let stages: Vec<_> = all.into_iter().map(stage).chain(norm).collect();
        let steps = stages.into_iter().map(|stage| self.step(stage)).collect::<Result<_>>()?;
        Ok(Prepared {
            plan,
            shape,
            steps,
            comm: self.comm.channels,
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
        // In a group of one member the block that sends and the block that receives would wait for each other, and no permit keeps both
        // on the device. One block polls both sides.
        plan.blocks = if self.size() == 1 { 1 } else { served.clamp(1, self.limits.channels) };
        let (args, table) = lower::messages::arguments(&lists, &self.team, self.pipes)?;
        let grid = LaunchShape {
            grid_blocks: plan.blocks,
            block_threads: plan.threads,
            local_bytes: PipeLayout::local_bytes(served, plan.blocks),
        };
        let step = self.step(Stage::Kernel(Launch::new(kernels::PIPES, *args, shape.data_type, grid)))?;
        Ok(Prepared {
            plan,
            shape,
            steps: vec![step],
            comm: self.comm.channels,
            table: table.map(Arc::new),
            uses: self.uses(call),
            description: lower::messages::describe(messages, &plan).into(),
            // Sends and receives are not compared.
            fingerprint: None,
        })
    }

    fn uses(&self, call: &Call<'_>) -> Vec<MemoryUse> {
        let check = self.checking.as_ref().map(|checking| checking.checker.usage());
        let barrier = self.stream_barrier.as_ref().map(StreamBarrier::usage);
        let own = [self.memory.usage()].into_iter().chain(check).chain(barrier);
        call.all_tensors().iter().filter_map(Tensor::usage).chain(own).collect()
    }

    fn unit(&mut self, unit: &'static KernelUnit, data_type: DataType) -> Result<&Arc<LoadedUnit>> {
        use std::collections::hash_map::Entry;
        match self.units.entry(key(unit, data_type)) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(vacant) => {
                let spec = kernels::spec_in(&self.world, self.team.size(), unit, data_type);
                Ok(vacant.insert(self.world.jit().load(self.world.device(), &spec)?))
            }
        }
    }

    fn place(&self, tensor: Option<&Tensor<'_>>) -> BufferView {
        tensor.map_or(Buffers::NOWHERE, |tensor| tensor.place(&self.team))
    }
}

/// The counts of a call with different counts.
const fn counts_of<'a>(call: &Call<'a>) -> Counts<'a> {
    match *call {
        Call::AllGatherUneven { counts, .. } => Counts::AllGather(counts),
        Call::ReduceScatterUneven { counts, .. } => Counts::ReduceScatter(counts),
        Call::AllToAllUneven { output_splits, input_splits, .. } => {
            Counts::AllToAll { input_splits, output_splits }
        }
        _ => Counts::Even,
    }
}
