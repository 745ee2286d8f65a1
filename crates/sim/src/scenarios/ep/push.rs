//! The combine of a case: the one that pulls, or, staged, the one that pushes.

use anabranch_hip_host::seeded::SeededError;

use super::{
    Bench, COMBINE, CombineArgs, CombineCodec, CombinePushArgs, DataType, Ep, FLAG_STRIDE, Grid, HIDDEN,
    Kernels, ScenarioError, SeededKernel, TeamView, at, kernels,
};

/// A whole combine, or one of its halves.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    Whole,
    Send,
    Receive,
}

pub(super) fn load(
    kernels: &mut Kernels<'_>,
    (staged, weighted, masks): (bool, bool, bool),
    part: Part,
) -> Result<SeededKernel, ScenarioError> {
    let entry = match (staged, part) {
        (false, Part::Whole) => "anabranch_ep_combine",
        (false, Part::Send) => "anabranch_ep_combine_send",
        (false, Part::Receive) => "anabranch_ep_combine_recv",
        (true, Part::Whole) => "anabranch_ep_combine_push",
        (true, Part::Send) => "anabranch_ep_combine_push_send",
        (true, Part::Receive) => "anabranch_ep_combine_push_recv",
    };
    let spec = if staged {
        kernels::combine_push(DataType::F32, CombineCodec::None)
    } else {
        kernels::combine(DataType::F32)
    };
    let spec = if weighted { kernels::with_weights(spec) } else { spec };
    kernels.load(if masks { kernels::masking(spec) } else { spec }, entry)
}

/// Arguments of all kernels of a combine.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    Pull(CombineArgs),
    Push(CombinePushArgs),
}

impl Way {
    pub(super) fn launch(
        &self,
        bench: &mut Bench,
        rank: u32,
        kernel: &SeededKernel,
        grid: Grid,
    ) -> Result<(), SeededError> {
        match self {
            Self::Pull(args) => bench.launch(rank, kernel, grid, args),
            Self::Push(args) => bench.launch(rank, kernel, grid, args),
        }
    }
}

impl Ep {
    /// Across nodes a buffer's rows go to the combine window.
    pub(super) fn pushes(&self) -> bool {
        self.case.staged && self.nodes.is_none()
    }

    pub(super) fn way(&self, team: TeamView, rank: u32, epoch: u32) -> Way {
        if self.case.staged {
            Way::Push(self.push_args(team, rank, epoch))
        } else {
            Way::Pull(self.combine_args(team, rank, epoch))
        }
    }

    fn push_args(&self, team: TeamView, rank: u32, epoch: u32) -> CombinePushArgs {
        let (plan, layout, own) = (&self.plan, self.plan.layout(), self.bench.ranks[rank as usize].own);
        let memory = &self.memory[rank as usize];
        CombinePushArgs {
            team,
            rows: at(memory.staged, 0),
            output: at(memory.inputs[epoch as usize].output, 0),
            send_map: at(own, self.own.send_map),
            offsets: at(own, self.own.offsets),
            state: at(own, self.own.state),
            meta_offset: layout.meta,
            push_offset: layout.push_rows,
            flags_offset: layout.combine_flags,
            token_count: self.case.tokens,
            max_tokens: self.case.tokens,
            row_stride: plan.row_stride(),
            fan_out: plan.fan_out(),
            hidden: HIDDEN,
            wire_bytes: plan.combine_wire_bytes(),
            meta_bytes: plan.meta_bytes(),
            segments: self.summing.segments,
            push_segments: self.pushing,
            flag_stride: FLAG_STRIDE,
            operation: COMBINE.0,
            top_k: super::TOP_K,
            weights: at(memory.inputs[epoch as usize].summed, 0),
            weights_offset: layout.combine_weights,
            pushed_weights_offset: layout.pushed_weights,
            mask: self.mask_view(rank),
        }
    }
}
