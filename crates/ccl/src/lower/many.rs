//! Several tensors gathered in one launch, as segments of one message.

use anabranch_hip_jit::DevicePointer;
use anabranch_hip_jit::bytemuck::{self, Zeroable};
use anabranch_shmem::{Team, TeamTable};

use super::engine::Gathered;
use crate::call::many::{Pair, SEGMENT_ALIGNMENT};
use crate::device::args::{BufferView, CommView, GatherManyArgs, Segment};
use crate::types::Result;

/// The tensors as one message. Tensors without elements are left out.
#[derive(Clone, Debug)]
pub struct Segments {
    /// The segments, in the order of the tensors.
    pub list: Vec<Segment>,
    /// Bytes of the message.
    pub total: u64,
    /// Whether all addresses and lengths are multiples of 8.
    pub is_wide: bool,
}

impl Segments {
    /// The segments of `(outputs, input, bytes of the input, alignment of all these addresses)`.
    pub fn of(given: impl IntoIterator<Item = (BufferView, u64, u64, u64)>) -> Self {
        let mut made = Self { list: Vec::new(), total: 0, is_wide: true };
        for (output, input, bytes, alignment) in given.into_iter().filter(|given| given.2 > 0) {
            made.is_wide &= alignment >= 8 && bytes.is_multiple_of(8);
            made.list.push(Segment { input, output, bytes, start: made.total });
            made.total += bytes.next_multiple_of(SEGMENT_ALIGNMENT);
        }
        made
    }

    /// The segments of checked tensors.
    fn new(pairs: &[Pair<'_>], team: &Team) -> Result<Self> {
        let given = pairs.iter().map(|(output, input)| {
            let alignment = output.alignment(team).min(input.alignment(team));
            Ok((output.place(team), input.address(team)?.0, input.bytes(), alignment))
        });
        Ok(Self::of(given.collect::<Result<Vec<_>>>()?))
    }

    /// The arguments of a launch, and whether the list is too long for them: then it has to lie in device memory at `table`.
    pub fn arguments(&self, comm: CommView) -> (Box<GatherManyArgs>, bool) {
        let mut args = Box::new(GatherManyArgs {
            comm,
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

/// The tensors as copies by engine need them.
///
/// # Errors
/// `Error::Foreign`.
pub(crate) fn gathered(pairs: &[Pair<'_>], team: &Team) -> Result<Vec<Gathered>> {
    let of_pair = |(output, input): &Pair<'_>| {
        let outputs = team.group().ranks().map(|member| Ok(output.address_at(team, member)?.0));
        let outputs = outputs.collect::<Result<_>>()?;
        Ok(Gathered { input: input.address(team)?.0, bytes: input.bytes(), outputs })
    };
    pairs.iter().map(of_pair).collect()
}

/// The arguments of a launch, and the list in device memory if it is too long for them.
///
/// # Errors
/// Allocation of device memory for the list; `Error::Foreign`.
pub(crate) fn arguments(
    pairs: &[Pair<'_>],
    team: &Team,
    comm: CommView,
) -> Result<(Box<GatherManyArgs>, Option<TeamTable>)> {
    let made = Segments::new(pairs, team)?;
    let (mut args, is_listed) = made.arguments(comm);
    if !is_listed {
        return Ok((args, None));
    }
    let table = team.table(bytemuck::cast_slice(&made.list))?;
    args.table = DevicePointer::new(table.address());
    Ok((args, Some(table)))
}
