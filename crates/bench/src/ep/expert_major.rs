//! Expert-major rows: of a dispatch that expands, for reference experts, and for a combine after a contract; or with steps for both.

use anabranch::{Error, GroupRank, World};
use anabranch_conformance::ep::oracle::{Contracted, FactorExperts, Oracle};
use anabranch_conformance::ep::reference::ReferenceExpertMajor;
use anabranch_ep::{
    DeviceSlice, Dispatched, ExpertMajor, ExpertMajorConfig, ExpertMajorPlan, ExpertMajorRows, ExpertOutput,
    ExpertParallel, Plan, Tokens,
};
use anabranch_hip::{DeviceBuffer, Stream};
use anabranch_hip_jit::KernelSpec;
use anyhow::bail;

use super::arguments::{EpArgs, Layout};
use crate::device;

/// One rank's expert-major layout with its experts and their output.
pub(super) struct ExpertMajorBench {
    layout: ExpertMajor,
    /// Whether expand and contract have calls, and times, of their own.
    in_steps: bool,
    experts: ReferenceExpertMajor,
    output: DeviceBuffer,
}

/// The kernels of this layout for any plan.
pub(super) fn general_kernels(arguments: &EpArgs) -> Vec<KernelSpec> {
    if arguments.layout == Layout::TokenMajor {
        return Vec::new();
    }
    let reference = anabranch_conformance::ep::reference::reference_expert_major;
    vec![anabranch_ep::kernels::expert_count(), reference(arguments.sent_type(), arguments.combine_type())]
}

/// The kernels of this layout that are compiled for each plan.
pub(super) fn kernels_of_plans(arguments: &EpArgs) -> Vec<KernelSpec> {
    if arguments.layout == Layout::TokenMajor {
        return Vec::new();
    }
    vec![
        anabranch_ep::kernels::dispatch_experts(arguments.dispatch_dtype, arguments.dispatch_cast),
        anabranch_ep::kernels::expert_expand(),
        anabranch_ep::kernels::expert_contract(arguments.combine_type()),
    ]
}

fn config(arguments: &EpArgs) -> ExpertMajorConfig {
    ExpertMajorConfig::new()
        .capacity(arguments.expert_capacity.unwrap_or(0))
        .alignment(arguments.expert_alignment.unwrap_or(1))
}

/// The checks of the starting process, before it starts ranks.
///
/// # Errors
/// Numbers that no layout of the plan can have, or that belong to another layout.
pub(super) fn check(arguments: &EpArgs, plan: &Plan) -> anyhow::Result<()> {
    if arguments.layout != Layout::TokenMajor {
        for rank in (0..plan.ranks()).map(GroupRank::new) {
            ExpertMajorPlan::new(plan, rank, config(arguments)).map_err(Error::from)?;
        }
    } else if arguments.expert_capacity.is_some() || arguments.expert_alignment.is_some() {
        bail!("--expert-capacity and --expert-alignment need --layout expert-major or expert-major-steps");
    }
    Ok(())
}

impl ExpertMajorBench {
    /// The layout, where it was asked for.
    pub(super) fn new(world: &World, ep: &ExpertParallel, arguments: &EpArgs) -> Result<Option<Self>, Error> {
        if arguments.layout == Layout::TokenMajor {
            return Ok(None);
        }
        let layout = ExpertMajor::new(ep, config(arguments))?;
        let experts = ReferenceExpertMajor::new(world, &layout)?;
        let output = world.device().allocate((layout.plan().output_bytes() as usize).max(16))?;
        let in_steps = arguments.layout == Layout::ExpertMajorSteps;
        Ok(Some(Self { layout, in_steps, experts, output }))
    }

    /// As [`Self::in_steps`].
    pub(super) fn is_in_steps(&self) -> bool {
        self.in_steps
    }

    /// Dispatches, and expands unless that is a step of its own.
    pub(super) fn dispatch(
        &mut self,
        ep: &ExpertParallel,
        stream: &Stream,
        tokens: &Tokens,
    ) -> Result<Dispatched, Error> {
        Ok(if self.in_steps {
            ep.dispatch(stream, tokens)?
        } else {
            self.layout.dispatch(ep, stream, tokens)?
        })
    }

    /// Expands, where that is a step of its own.
    pub(super) fn expand(&mut self, stream: &Stream, dispatched: &Dispatched) -> Result<(), Error> {
        if self.in_steps {
            self.layout.expand(stream, dispatched)?;
        }
        Ok(())
    }

    /// Contracts, unless that is a step of its own, and combines from the window or from a buffer.
    pub(super) fn combine(
        &self,
        ep: &ExpertParallel,
        stream: &Stream,
        dispatched: Dispatched,
        buffer: Option<&DeviceBuffer>,
        output: DeviceSlice,
    ) -> Result<(), Error> {
        if !self.in_steps {
            self.contract_rows(stream, &dispatched, buffer)?;
        }
        let rows =
            buffer.map_or(ExpertOutput::InWindow, |buffer| ExpertOutput::Staged(device::slice(buffer)));
        Ok(ep.combine(stream, rows, dispatched, output)?)
    }

    pub(super) fn run_experts(&self, stream: &Stream) -> Result<(), Error> {
        device::run_experts_major(&self.experts, stream, &self.layout, &self.output)
    }

    /// Contracts, where that is a step of its own.
    pub(super) fn contract(
        &self,
        stream: &Stream,
        dispatched: &Dispatched,
        buffer: Option<&DeviceBuffer>,
    ) -> Result<(), Error> {
        if self.in_steps { self.contract_rows(stream, dispatched, buffer) } else { Ok(()) }
    }

    /// Into the combine window, or into a buffer that is pushed from.
    fn contract_rows(
        &self,
        stream: &Stream,
        dispatched: &Dispatched,
        buffer: Option<&DeviceBuffer>,
    ) -> Result<(), Error> {
        let experts = device::slice(&self.output);
        match buffer {
            Some(buffer) => self.layout.contract_into(stream, dispatched, experts, device::slice(buffer))?,
            None => self.layout.contract(stream, dispatched, experts)?,
        };
        Ok(())
    }

    /// Whether the output of the last expand equals the oracle. Wait for the stream first.
    pub(super) fn judge(&self, world: &World, me: GroupRank, oracle: &Oracle<'_>) -> anyhow::Result<bool> {
        let seen = ExpertMajorRows::read(world.device(), &self.layout).map_err(Error::from)?;
        let (capacity, alignment) = (self.capacity(), self.layout.plan().alignment() as usize);
        let judged = oracle.expert_major(me, capacity, alignment)?.compare(&seen);
        if let Err(mismatch) = &judged {
            tracing::error!("expand: {mismatch}");
        }
        Ok(judged.is_ok())
    }

    /// Compares combined tokens with the oracle's, for these experts.
    pub(super) fn compare_output(
        &self,
        me: GroupRank,
        oracle: &Oracle<'_>,
        output: &[u8],
    ) -> anyhow::Result<Result<(), anabranch_conformance::ep::oracle::Mismatch>> {
        Ok(oracle.combine(me)?.compare_output(output, &self.contracted(oracle)?))
    }

    /// What these experts and the contract make of each received row.
    pub(super) fn contracted<'o>(
        &self,
        oracle: &'o Oracle<'o>,
    ) -> anyhow::Result<Contracted<'o, FactorExperts>> {
        Ok(oracle.contracted(self.capacity(), FactorExperts)?)
    }

    /// Rows that expand writes and that contract reads, over all ranks.
    pub(super) fn kept(&self, oracle: &Oracle<'_>, ranks: u32) -> anyhow::Result<u64> {
        let mut rows = 0;
        for destination in (0..ranks).map(GroupRank::new) {
            let delivery = oracle.expert_major(destination, self.capacity(), 1)?;
            rows += (0..delivery.experts().len()).map(|local| delivery.kept(local).len() as u64).sum::<u64>();
        }
        Ok(rows)
    }

    /// Blocks and threads of a block, of expand and contract.
    pub(super) fn geometry(&self) -> (u32, u32) {
        let geometry = self.layout.geometry();
        (geometry.blocks, geometry.block_threads)
    }

    /// The same of the dispatch of `tokens`, where it expands.
    pub(super) fn dispatch_shape(&self, tokens: u32) -> Option<(u32, u32)> {
        if self.in_steps { None } else { self.layout.dispatch_shape(tokens) }
    }

    fn capacity(&self) -> usize {
        self.layout.plan().capacity() as usize
    }
}
