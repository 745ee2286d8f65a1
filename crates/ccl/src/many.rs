//! Many tensors gathered in one launch: what is right about them, and how they are laid out as one message.

use anabranch_hip_jit::DevicePointer;
use anabranch_hip_jit::bytemuck::{self, Zeroable};
use anabranch_shmem::{Team, TeamTable};

use crate::args::{Channel, GatherManyArgs, Place, Segment};
use crate::call::{Call, Collective, Shape};
use crate::engine::Gathered;
use crate::error::{Error, Result};
use crate::in_place;
use crate::plan::{Algorithm, Choice, Limits, Plan};
use crate::tensor::{LocationKind, Tensor};
use crate::tuning::Table;

/// Each input begins at a multiple of this in the message.
const SEGMENT_ALIGNMENT: u64 = 16;

/// Output and input.
pub(crate) type Pair<'a> = (Tensor<'a>, Tensor<'a>);

/// What is known of the tensors without their addresses: an `all_gather` of bytes. Peers reach the outputs when they reach each.
///
/// # Errors
/// [`Error::Types`], [`Error::Count`].
pub(crate) fn shape(pairs: &[Pair<'_>], members: u32) -> Result<Shape> {
    let collective = Collective::AllGather;
    let mut count = 0u64;
    for (output, input) in pairs {
        if output.data_type() != input.data_type() {
            let (output, input) = (output.data_type(), input.data_type());
            return Err(Error::Types { collective, output, input });
        }
        if input.count().checked_mul(members.into()) != Some(output.count()) {
            let rule = format!("{members} (the group's size) times the input's {}", input.count());
            return Err(Error::Count { collective, what: "an output", given: output.count(), rule });
        }
        count += input.bytes().next_multiple_of(SEGMENT_ALIGNMENT);
    }
    Ok(Shape {
        input: kind_of_all(pairs.iter().map(|pair| pair.1.kind())),
        output: kind_of_all(pairs.iter().map(|pair| pair.0.kind())),
        ..Shape::of_bytes(collective, members, count)
    })
}

/// How they are gathered: as one message of their bytes would be, but not round the ring, which has no form for many.
///
/// # Errors
/// Those of [`Plan::chosen`]; [`Error::Algorithm`] for the ring.
pub(crate) fn plan(shape: &Shape, limits: &Limits, table: Option<&Table>, choice: Choice) -> Result<Plan> {
    let plan = Plan::chosen(shape, limits, table, choice)?;
    if plan.algorithm != Algorithm::Ring {
        return Ok(plan);
    }
    if choice.algorithm.is_none() {
        // What was measured of one tensor says nothing here.
        return Plan::chosen(shape, limits, None, choice);
    }
    let (collective, algorithm) = (shape.collective, plan.algorithm);
    Err(Error::Algorithm { collective, algorithm, reason: "many tensors at once do not go round the ring" })
}

/// What can be done with all of them: local when one is.
fn kind_of_all(mut kinds: impl Iterator<Item = LocationKind> + Clone) -> LocationKind {
    let most = kinds.clone().max().unwrap_or(LocationKind::Symmetric);
    if kinds.all(LocationKind::is_reached) { most } else { LocationKind::Local }
}

/// Checks addresses: aligned to the elements, each input apart from its output or its part of it, and no output on top of
/// another pair's tensors.
///
/// # Errors
/// [`Error::Alignment`], [`Error::Overlap`], [`Error::Foreign`].
pub(crate) fn check(pairs: &[Pair<'_>], team: &Team) -> Result<()> {
    let mut places = Vec::with_capacity(2 * pairs.len());
    for (output, input) in pairs {
        let call = Call::AllGather { output: *output, input: *input };
        in_place::check(&call, &call.shape(team.size(), team.rank())?, team)?;
        places.push((*output, true));
        let (to, from) = (output.address(team)?.0, input.address(team)?.0);
        if !(to..to + output.bytes()).contains(&from) {
            places.push((*input, false));
        }
    }
    in_place::check_apart(Collective::AllGather, places.into_iter(), team)
}

/// The tensors as one message; tensors without elements are left out.
#[derive(Clone, Debug)]
pub struct Segments {
    /// In their order.
    pub list: Vec<Segment>,
    /// Bytes of the message.
    pub total: u64,
    /// Whether all addresses and lengths are multiples of 8.
    pub is_wide: bool,
}

impl Segments {
    /// Of (where the outputs are, where the input is, its bytes, what all these addresses are multiples of).
    pub fn of(given: impl IntoIterator<Item = (Place, u64, u64, u64)>) -> Self {
        let mut made = Self { list: Vec::new(), total: 0, is_wide: true };
        for (output, input, bytes, alignment) in given.into_iter().filter(|given| given.2 > 0) {
            made.is_wide &= alignment >= 8 && bytes.is_multiple_of(8);
            made.list.push(Segment { input, output, bytes, start: made.total });
            made.total += bytes.next_multiple_of(SEGMENT_ALIGNMENT);
        }
        made
    }

    /// Of tensors that were checked.
    fn new(pairs: &[Pair<'_>], team: &Team) -> Result<Self> {
        let given = pairs.iter().map(|(output, input)| {
            let alignment = output.alignment(team).min(input.alignment(team));
            Ok((output.place(team), input.address(team)?.0, input.bytes(), alignment))
        });
        Ok(Self::of(given.collect::<Result<Vec<_>>>()?))
    }

    /// The arguments of a launch, and whether the list has to lie in memory that `table` names: it does not fit into them.
    pub fn arguments(&self, channel: Channel) -> (Box<GatherManyArgs>, bool) {
        let mut args = Box::new(GatherManyArgs {
            channel,
            total: self.total,
            count: self.list.len() as u32,
            is_wide: u32::from(self.is_wide),
            ..GatherManyArgs::zeroed()
        });
        match args.segments.get_mut(..self.list.len()) {
            Some(places) => {
                places.copy_from_slice(&self.list);
                (args, false)
            }
            None => (args, true),
        }
    }
}

/// What copy engines are to copy.
///
/// # Errors
/// [`Error::Foreign`].
pub(crate) fn gathered(pairs: &[Pair<'_>], team: &Team) -> Result<Vec<Gathered>> {
    let of_pair = |(output, input): &Pair<'_>| {
        let outputs = team.group().ranks().map(|member| Ok(output.address_at(team, member)?.0));
        let outputs = outputs.collect::<Result<_>>()?;
        Ok(Gathered { input: input.address(team)?.0, bytes: input.bytes(), outputs })
    };
    pairs.iter().map(of_pair).collect()
}

/// The arguments of a launch, and the list where it does not fit into them.
///
/// # Errors
/// Device memory for the list; [`Error::Foreign`].
pub(crate) fn arguments(
    pairs: &[Pair<'_>],
    team: &Team,
    channel: Channel,
) -> Result<(Box<GatherManyArgs>, Option<TeamTable>)> {
    let made = Segments::new(pairs, team)?;
    let (mut args, is_listed) = made.arguments(channel);
    if !is_listed {
        return Ok((args, None));
    }
    let table = team.table(bytemuck::cast_slice(&made.list))?;
    args.table = DevicePointer::new(table.address());
    Ok((args, Some(table)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_with_the_ring_chooses_something_else_for_many() {
        let table = "device = \"x\"\n[[choices]]\ncollective = \"all_gather\"\nmembers = 3\nreached = false\n\
            steps = [{ algorithm = \"ring\", block_bytes = 4096 }]";
        let table = Table::parse(table).unwrap();
        let limits = Limits { lanes: 4, packet_threads: 256, bulk_threads: 512, meeting_threads: 32 };
        let shape = Shape::of_bytes(Collective::AllGather, 3, 1 << 20);
        let one = Plan::chosen(&shape, &limits, Some(&table), Choice::default()).unwrap();
        let many = plan(&shape, &limits, Some(&table), Choice::default()).unwrap();
        assert_eq!((one.algorithm, many.algorithm), (Algorithm::Ring, Algorithm::Staged));
        let asked = Choice { algorithm: Some(Algorithm::Ring), ..Choice::default() };
        assert!(matches!(plan(&shape, &limits, None, asked), Err(Error::Algorithm { .. })));
    }
}
