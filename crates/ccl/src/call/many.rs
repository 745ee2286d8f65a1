//! Checks of an all_gather of several tensors.

use anabranch_shmem::Team;

use crate::call::tensor::Tensor;
use crate::call::{Call, in_place};
use crate::types::{Collective, Error, LocationKind, Result, Shape};

/// Alignment of each input in the message, bytes.
pub(crate) const SEGMENT_ALIGNMENT: u64 = 16;

/// Output and input.
pub(crate) type Pair<'a> = (Tensor<'a>, Tensor<'a>);

/// The shape of the call: an `all_gather` of bytes. The outputs are mapped if each output is.
///
/// # Errors
/// [`Error::Type`], [`Error::Count`].
pub(crate) fn shape(pairs: &[Pair<'_>], members: u32) -> Result<Shape> {
    let collective = Collective::AllGather;
    let mut count = 0u64;
    for (output, input) in pairs {
        if output.data_type() != input.data_type() {
            let (output, input) = (output.data_type(), input.data_type());
            let allowed = format!("the input's {input}");
            return Err(Error::Type { collective, what: "an output", given: output, allowed });
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

/// The kind of memory of a list: local if any tensor is local.
fn kind_of_all(mut kinds: impl Iterator<Item = LocationKind> + Clone) -> LocationKind {
    let most = kinds.clone().max().unwrap_or(LocationKind::Symmetric);
    if kinds.all(LocationKind::is_reached) { most } else { LocationKind::Local }
}

/// Checks that tensors are aligned to their elements, that each input is outside its output or in place, and that no output overlaps the
/// tensors of another pair.
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
