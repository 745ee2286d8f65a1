//! `ncclCommSplit`.

use std::ffi::c_int;
use std::sync::Arc;

use crate::abi::{self, CommConfig};
use crate::comm::{Comm, Id, bind};
use crate::error::Failure;

/// The place of the `step`th word of what a rank sends.
fn word(bytes: &[u8], step: usize) -> Option<c_int> {
    bytes.get(4 * step..4 * step + 4)?.try_into().ok().map(c_int::from_le_bytes)
}

/// This rank's part, with a world of its own for each color: it outlives its parent, and fails by itself. It is not joined yet. Collective
/// over the parent.
///
/// # Errors
/// A parent that failed; ranks that did not come; a color below -1.
pub(crate) fn split(
    parent: &Comm,
    color: c_int,
    key: c_int,
    config: CommConfig,
) -> Result<Option<Arc<Comm>>, Failure> {
    let joined = parent.outcome()?;
    let world = &joined.world;
    let mine: Vec<u8> = [color, key].iter().flat_map(|word| word.to_le_bytes()).collect();
    let all = world.exchange(world.group(), "ncclCommSplit", &mine)?;
    let mut members = Vec::new();
    for (rank, bytes) in all.iter().enumerate() {
        let (Some(their_color), Some(their_key)) = (word(bytes, 0), word(bytes, 1)) else {
            let text = format!("rank {rank} sent {} bytes for a split", bytes.len());
            return Err(Failure::new(abi::INTERNAL, text));
        };
        if their_color == color {
            members.push((their_key, rank as u32));
        }
    }
    members.sort_unstable();
    let place = members.iter().position(|(_, rank)| *rank == parent.rank).filter(|_| color != abi::NO_COLOR);
    let own = if place == Some(0) { Some(bind()?) } else { None };
    let id = own.as_ref().map_or(&[][..], |(_, id)| &id[..]);
    let ids = world.exchange(world.group(), "ncclCommSplit ids", id)?;
    let Some(place) = place else { return Ok(None) };
    let id = Id::try_from(ids[members[0].1 as usize].as_slice())
        .map_err(|_| Failure::new(abi::INTERNAL, format!("rank {} sent no id", members[0].1)))?;
    let place = (place as u32, members.len() as u32);
    Ok(Some(Comm::with_root(id, own.map(|(root, _)| root), place, parent.device, config)))
}
