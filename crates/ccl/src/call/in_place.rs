//! Which overlaps of output and input are in place, and which are errors.

use anabranch_shmem::Team;

use crate::call::Call;
use crate::call::tensor::Tensor;
use crate::types::{Collective, Error, ReduceOp, Result, Shape};

/// Checks that tensors are aligned to their elements, and that output and input are disjoint or in place.
///
/// # Errors
/// [`Error::Alignment`], [`Error::Overlap`].
pub(crate) fn check(call: &Call<'_>, shape: &Shape, team: &Team) -> Result<()> {
    let (mut output, mut input) = call.tensors();
    // Tensors that this rank does not access are not checked: all members launch, or none.
    if shape.root.is_some_and(|root| root != team.rank()) {
        match shape.collective {
            Collective::Gather => output = None,
            Collective::Scatter => input = None,
            _ => {}
        }
    }
    for tensor in [&output, &input].into_iter().flatten() {
        check_alignment(tensor, team)?;
    }
    if let (Some(output), Some(scalar)) = (&output, shape.op.and_then(ReduceOp::device_scalar)) {
        // Blocks read it when they begin, and others may have written their part of the output by then.
        let (to, at) = (output.address(team)?.0, scalar.address().0);
        if at < to + output.bytes() && to < at + u64::from(output.data_type().bytes()) {
            let allowed = "the scalar in device memory must not be in the output";
            return Err(Error::Overlap { collective: shape.collective, output: to, input: at, allowed });
        }
    }
    let (Some(output), Some(input)) = (output, input) else { return Ok(()) };
    let (to, from) = (output.address(team)?.0, input.address(team)?.0);
    let is_empty = output.bytes() == 0 || input.bytes() == 0;
    if is_empty || to + output.bytes() <= from || from + input.bytes() <= to {
        return Ok(());
    }
    let mine = team.rank().index() as u64 * shape.bytes();
    let (is_in_place, allowed) = match shape.collective {
        Collective::AllReduce | Collective::Reduce | Collective::Broadcast => {
            (to == from, "in place they are the same")
        }
        Collective::AllGather | Collective::Gather if !shape.uneven => {
            (to + mine == from, "in place the input is this rank's part of the output")
        }
        Collective::ReduceScatter if !shape.uneven => {
            (from + mine == to, "in place the output is this rank's part of the input")
        }
        // Mapped outputs of all members are at the offset of the root's.
        Collective::Scatter => (
            from + mine == to && !output.kind().is_reached(),
            "in place the output is this rank's part of the input, and peers do not reach it",
        ),
        _ => (false, "they must not"),
    };
    if is_in_place {
        Ok(())
    } else {
        Err(Error::Overlap { collective: shape.collective, output: to, input: from, allowed })
    }
}

/// Checks that the start of a tensor is a multiple of the element size.
fn check_alignment(tensor: &Tensor<'_>, team: &Team) -> Result<()> {
    let (address, data_type) = (tensor.address(team)?.0, tensor.data_type());
    if tensor.count() > 0 && !address.is_multiple_of(u64::from(data_type.bytes())) {
        return Err(Error::Alignment { address, data_type });
    }
    Ok(())
}

/// Checks tensors, each read or written: aligned to their elements, and no written tensor overlaps another.
///
/// # Errors
/// [`Error::Alignment`], [`Error::Overlap`].
pub(crate) fn check_apart<'a>(
    collective: Collective,
    tensors: impl Iterator<Item = (Tensor<'a>, bool)>,
    team: &Team,
) -> Result<()> {
    let mut places = Vec::new();
    for (tensor, is_written) in tensors {
        check_alignment(&tensor, team)?;
        if tensor.bytes() > 0 {
            let start = tensor.address(team)?.0;
            places.push((start, start + tensor.bytes(), is_written));
        }
    }
    match first_overlap(&mut places) {
        None => Ok(()),
        Some((output, input)) => Err(Error::Overlap {
            collective,
            output,
            input,
            allowed: "written tensors must not overlap other tensors",
        }),
    }
}

/// The starts of the first two overlapping ranges `(start, end, is_written)` of which at least one is written.
fn first_overlap(places: &mut [(u64, u64, bool)]) -> Option<(u64, u64)> {
    places.sort_unstable();
    // The earlier range, and the earlier written range, with the last end.
    let (mut read, mut written) = ((0, 0), (0, 0));
    for &(start, end, is_written) in &*places {
        if start < written.1 {
            return Some((written.0, start));
        }
        if is_written && start < read.1 {
            return Some((start, read.0));
        }
        let last = if is_written { &mut written } else { &mut read };
        if end > last.1 {
            *last = (start, end);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn first_overlap_agrees_with_pairwise_comparison(
            given in proptest::collection::vec((0u64..60, 1u64..9, any::<bool>()), 0..9),
        ) {
            let mut places: Vec<_> = given.iter().map(|(start, length, written)| (*start, start + length, *written)).collect();
            let any = (0..places.len()).any(|one| (0..one).any(|other| {
                let (a, b) = (places[one], places[other]);
                (a.2 || b.2) && a.0 < b.1 && b.0 < a.1
            }));
            prop_assert_eq!(first_overlap(&mut places).is_some(), any);
        }
    }
}
