//! The combine of a case: the one that pulls, or, staged, the one that pushes.

use anabranch_weakmem::SeededError;

use super::{
    Bench, CombineArgs, CombineCodec, CombinePushArgs, DataType, DeviceAddress, Ep, Grid, Kernels, Push,
    ScenarioError, SeededKernel, TeamView, kernels,
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

    /// The arguments of a part of a combine.
    pub(super) fn way(&self, team: TeamView, rank: u32, epoch: u32, part: Part) -> Way {
        let output = self.output(rank, epoch);
        let output = if let Part::Send = part { None } else { Some(&output) };
        let (slot, mask, tokens) = (self.slot(rank), self.mask_view(rank), self.case.tokens);
        let arguments = self.arguments(team);
        if !self.case.staged {
            return Way::Pull(arguments.pull(&slot, tokens, output, self.summing.segments, mask));
        }
        let staged = DeviceAddress(self.memory[rank as usize].staged.address());
        let rows = if let Part::Receive = part { DeviceAddress::NULL } else { staged };
        Way::Push(arguments.push(&slot, Push { rows, tokens, output }, &self.summing, mask))
    }
}
