//! `ncclCommSplit`.

use std::ffi::c_int;
use std::sync::Arc;

use anabranch::bootstrap::TcpRoot;

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
/// A parent that failed; ranks that did not come; no socket on the first rank of the part.
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
    // A part's first rank has the socket of its id. Its failure goes to the others, who would wait for the id.
    let own = (place == Some(0)).then(bind);
    let ids =
        world.exchange(world.group(), "ncclCommSplit ids", &own.as_ref().map_or_else(Vec::new, offer))?;
    let Some(place) = place else { return Ok(None) };
    let id = accept(members[0].1, &ids[members[0].1 as usize])?;
    let root = own.and_then(Result::ok).map(|(root, _)| root);
    let place = (place as u32, members.len() as u32);
    Ok(Some(Comm::with_root(id, root, place, parent.device, config)))
}

/// The success code and an id, or another code and a text.
fn offer(own: &Result<(TcpRoot, Id), Failure>) -> Vec<u8> {
    let (code, rest) = match own {
        Ok((_, id)) => (abi::SUCCESS, &id[..]),
        Err(failure) => (failure.code, failure.text.as_bytes()),
    };
    std::iter::once(code as u8).chain(rest.iter().copied()).collect()
}

/// The id that a rank of the parent offers.
fn accept(rank: u32, offer: &[u8]) -> Result<Id, Failure> {
    let text = match offer.split_first() {
        Some((0, id)) => match Id::try_from(id) {
            Ok(id) => return Ok(id),
            Err(_) => format!("rank {rank} sent {} bytes for an id", id.len()),
        },
        Some((code, text)) => {
            let text = format!("rank {rank} has no socket for its part: {}", String::from_utf8_lossy(text));
            return Err(Failure::new(abi::ResultCode::from(*code), text));
        }
        None => format!("rank {rank} sent no id"),
    };
    Err(Failure::new(abi::INTERNAL, text))
}
