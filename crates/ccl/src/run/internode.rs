//! Internode calls of a communicator: the plan of each, and the arguments of its kernel.

use anabranch_hip::DeviceAddress;
use anabranch_hip_jit::DevicePointer;
use anabranch_hip_jit::bytemuck::Zeroable;
use anabranch_ranks::{Across, LinkSpeeds, Nodes};
use anabranch_shmem::{Team, TeamTable};

use crate::call::Call;
use crate::call::tensor::Tensor;
use crate::device::args::{Links, NetworkArgs, Reduction};
use crate::lower::{Counts, reduction};
use crate::network::form::{piece_bytes_of, plan_of, steps_of};
use crate::network::lower::{Listed, Tensors, list};
use crate::plan::{Choice, Limits, Plan};
use crate::types::{Algorithm, Error, Result, Shape};

/// State of a communicator whose members are on several nodes: the topology, the links in its heap memory, and the inputs of the choice
/// between direct and by node.
#[derive(Debug)]
pub(crate) struct Internode {
    nodes: Nodes,
    links: Links,
    across: Across,
    speeds: LinkSpeeds,
}

/// A call, or one tensor of several, lowered. The address of its table of steps is still open.
struct Lowered {
    listed: Listed,
    reduction: Reduction,
    piece_bytes: u64,
}

impl Internode {
    pub(crate) fn new(nodes: Nodes, links: Links, across: Across, speeds: LinkSpeeds) -> Self {
        Self { nodes, links, across, speeds }
    }

    /// The error for features that need one node.
    pub(crate) fn refuse(&self, what: &'static str, instead: &'static str) -> Error {
        Error::Unmapped { what, nodes: self.nodes.count(), instead }
    }

    pub(crate) fn refuse_messages(&self) -> Error {
        self.refuse("a message between two members", "exchange it by a collective")
    }

    /// The plan of a call.
    ///
    /// # Errors
    /// [`Error::Algorithm`] for a requested intranode algorithm, and for a form that the nodes or the call do not allow; [`Error::Config`]
    /// for blocks outside 1 to the number of channels.
    pub(crate) fn plan(&self, shape: &Shape, limits: &Limits, choice: Choice) -> Result<Plan> {
        let (across, algorithm) = match choice.algorithm {
            Some(Algorithm::NetworkDirect) => (Across::Direct, None),
            Some(Algorithm::NetworkByNode) => (Across::Node, None),
            other => (self.across, other),
        };
        let choice = Choice { algorithm, ..choice };
        plan_of(&self.nodes, across, (shape, limits, choice), (self.links.slot_bytes, self.speeds))
    }

    fn lower(
        &self,
        team: &Team,
        (output, input): (Option<Tensor<'_>>, Option<Tensor<'_>>),
        (shape, plan, counts): (&Shape, &Plan, Counts<'_>),
    ) -> Result<Lowered> {
        let steps = steps_of(&self.nodes, self.links.team.rank, plan.algorithm, shape, counts)?;
        let piece_bytes = piece_bytes_of(&self.nodes, plan, shape, &steps, self.links.slot_bytes);
        let address = |tensor: Option<Tensor<'_>>| {
            tensor.map_or(Ok(0), |tensor| Ok::<_, Error>(tensor.address(team)?.0))
        };
        let tensors = Tensors { input: address(input)?, output: address(output)? };
        let listed = list(&self.nodes, self.links.team.rank, &steps, tensors, piece_bytes, plan.blocks);
        let reduction = shape.op.map_or_else(Reduction::zeroed, |op| reduction(shape, op));
        Ok(Lowered { listed, reduction, piece_bytes })
    }

    /// The arguments of the launches of a call, one per tensor of a list, and the table in device memory that they point to, if any.
    ///
    /// # Errors
    /// [`Error::Unmapped`] for sends and receives; allocation of device memory for the steps; [`Error::Foreign`].
    pub(crate) fn arguments(
        &self,
        team: &Team,
        call: &Call<'_>,
        (shape, plan, counts): (&Shape, &Plan, Counts<'_>),
    ) -> Result<(Vec<NetworkArgs>, Option<TeamTable>)> {
        let lowered = match call {
            Call::AllGatherMany(pairs) => {
                let of_pair = |(output, input): &(Tensor<'_>, Tensor<'_>)| {
                    let call = Call::AllGather { output: *output, input: *input };
                    let shape = call.shape(team.size(), team.rank())?;
                    self.lower(team, (Some(*output), Some(*input)), (&shape, plan, Counts::Even))
                };
                pairs.iter().map(of_pair).collect::<Result<Vec<_>>>()?
            }
            _ => vec![self.lower(team, call.tensors(), (shape, plan, counts))?],
        };
        let long = lowered.iter().filter(|one| one.listed.is_long());
        let words: Vec<u64> = long.flat_map(|one| one.listed.words.iter().copied()).collect();
        let table = if words.is_empty() { None } else { Some(team.table(&words)?) };
        let mut at = table.as_ref().map_or(DeviceAddress::NULL, TeamTable::address);
        let mut all = Vec::with_capacity(lowered.len());
        for Lowered { listed, reduction, piece_bytes } in lowered {
            all.push(*listed.arguments(&self.links, DevicePointer::new(at), reduction, piece_bytes));
            if listed.is_long() {
                at = at.offset(size_of_val(listed.words.as_slice()) as u64);
            }
        }
        Ok((all, table))
    }
}
