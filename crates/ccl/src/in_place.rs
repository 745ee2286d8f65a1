//! Which overlaps of output and input are in place, and which are mistakes.

use anabranch_shmem::Team;

use crate::call::{Call, Collective, Shape};
use crate::error::{Error, Result};

/// Checks addresses: aligned to the element, and output and input apart or in place.
///
/// # Errors
/// [`Error::Alignment`], [`Error::Overlap`].
pub(crate) fn check(call: &Call<'_>, shape: &Shape, team: &Team) -> Result<()> {
    let (output, input) = call.tensors();
    for tensor in [&output, &input].into_iter().flatten() {
        let address = tensor.address(team)?.0;
        if tensor.count() > 0 && !address.is_multiple_of(u64::from(tensor.data_type().bytes())) {
            return Err(Error::Alignment { address, data_type: tensor.data_type() });
        }
    }
    let (Some(output), Some(input)) = (output, input) else { return Ok(()) };
    let (to, from) = (output.address(team)?.0, input.address(team)?.0);
    if to + output.bytes() <= from || from + input.bytes() <= to {
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
        Collective::ReduceScatter => {
            (from + mine == to, "in place the output is this rank's part of the input")
        }
        // Elsewhere outputs are at the offset of the root's.
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
