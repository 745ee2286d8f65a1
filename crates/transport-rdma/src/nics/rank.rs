//! The NIC of a rank, when all ranks of its machine choose alike.

use std::io;
use std::path::Path;

use anabranch_ranks::GlobalRank;
use anabranch_transport::{PciAddress, PeerInfo};

use super::assign::{Assignment, assign_to_parts};
use super::distance::PciLocation;
use super::error::{NicTreeError, NicTreeResult};
use super::filter::NicFilter;
use super::machine::Machine;

/// Chooses the port of a rank among `peers`, the ranks of the world in the order of their numbers: those of its machine share the
/// machine's ports. Where they count as on several machines ([`PeerInfo::host`]), each of these gets ports of its own among those that
/// are equal for its devices, if these are at least as many as such machines. `root` is usually [`SYSTEM_FOLDER`](super::SYSTEM_FOLDER). Not collective; every rank of a machine comes to an
/// answer that fits the others', if they see the same devices and have the same `filter`.
///
/// A device that is not on the PCI bus (the host runtime's) or that this process is not shown counts as one at a distance that is
/// not known.
///
/// # Errors
/// [`NicTreeError::Read`] or [`NicTreeError::Content`] for what the kernel reports about a device. A rank that is not among `peers` has no
/// port and a reason that says so.
pub fn assign_to_rank(
    root: &Path,
    own: GlobalRank,
    peers: &[PeerInfo],
    machine: &Machine,
    filter: &NicFilter,
) -> NicTreeResult<Assignment> {
    let none = || Assignment {
        chosen: None,
        equals: Vec::new(),
        reason: format!("{own} is not one of the world's {} ranks", peers.len()),
        considered: Vec::new(),
    };
    let Some(mine) = peers.iter().find(|peer| peer.rank == own) else { return Ok(none()) };
    let beside: Vec<&PeerInfo> = peers.iter().filter(|peer| peer.same_nics(mine)).collect();
    // What counts as a machine is named by the place of its first rank.
    #[expect(clippy::expect_used, reason = "says why there is one")]
    let part = |one: &PeerInfo| {
        let first = beside.iter().position(|peer| peer.same_host(one));
        first.expect("a rank is on its own host")
    };
    let places = beside.iter().map(|peer| Ok((place(root, peer)?, part(peer))));
    let all = assign_to_parts(&places.collect::<NicTreeResult<Vec<_>>>()?, machine, filter);
    let found = beside.iter().zip(all).find(|(peer, _)| peer.rank == own);
    Ok(found.map_or_else(none, |(_, assignment)| assignment))
}

/// Where a rank's device is by the runtime's word for its address.
fn place(root: &Path, peer: &PeerInfo) -> NicTreeResult<PciLocation> {
    /// The runtime whose devices have addresses of its own making.
    const HOST: &str = "host";
    let nowhere = PciLocation { path: None, numa: None };
    let Ok(address) = peer.pci.parse::<PciAddress>() else { return Ok(nowhere) };
    if peer.runtime == HOST {
        return Ok(nowhere);
    }
    // Runtimes may put the number of a GPU's partition where the function is.
    for address in [address, PciAddress { function: 0, ..address }] {
        match PciLocation::of_device(root, address) {
            Err(NicTreeError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            other => return other,
        }
    }
    Ok(nowhere)
}
