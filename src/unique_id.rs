//! Joining without a launcher: rank 0 makes an id, and the program brings it to the other ranks.

use std::sync::Arc;

use anabranch_bootstrap::{
    Deadline, Heartbeat, JoinStop, Rendezvous as _, TcpConfig, TcpRendezvous, TcpRoot, UniqueId,
};
use anabranch_ranks::{GlobalRank, Group};

use crate::config::Config;
use crate::error::Result;
use crate::world::JoinedRank;

/// The sockets on which rank 0 waits for the others: of `bootstrap.interface`, else of all interfaces. Their
/// [`unique_id`](TcpRoot::unique_id) is secret: it admits its holder to the world. Give it to the other ranks only.
///
/// # Errors
/// [`crate::Error::Bootstrap`]: no such interface, no free port.
pub fn bind_root(config: &Config) -> Result<TcpRoot> {
    let root = match &config.bootstrap.interface {
        Some(interface) => TcpRoot::bind_interface(interface),
        None => TcpRoot::bind("[::]:0").or_else(|_| TcpRoot::bind("0.0.0.0:0")),
    };
    Ok(root?)
}

/// Joins the other ranks at the rendezvous of an id. Collective: returns when all `size` ranks have joined.
///
/// `place` is this rank and the number of ranks. Rank 0 gives the root that the id is of. `local` is this rank's index on its machine, and
/// the number of ranks there. Either all ranks give it or none does; without it the kernel's boot id identifies a machine. Another thread
/// ends the join by `stop`.
///
/// # Errors
/// [`crate::Error::Bootstrap`]: ranks that did not join within `deadline.rendezvous`, or that were refused.
pub fn rendezvous_by_id(
    config: &Config,
    id: &UniqueId,
    root: Option<TcpRoot>,
    place: (u32, u32),
    local: Option<(u32, u32)>,
    stop: &JoinStop,
) -> Result<JoinedRank> {
    config.check()?;
    let (rank, size) = place;
    let deadline = || Deadline::after(config.deadline.rendezvous.duration());
    let mut tcp = TcpConfig::with_unique_id(id, GlobalRank::new(rank), size, deadline());
    tcp.stop = stop.clone();
    tcp.heartbeat = Heartbeat {
        interval: config.bootstrap.heartbeat.duration(),
        limit: config.bootstrap.silence.duration(),
    };
    let rendezvous = match root {
        Some(root) => TcpRendezvous::join_with_root(tcp, root)?,
        None => TcpRendezvous::join(tcp)?,
    };
    let (local_rank, local_size) = match local {
        Some(local) => local,
        None => local_ranks(&rendezvous, deadline())?,
    };
    Ok(JoinedRank { rendezvous: Arc::new(rendezvous), local_rank, local_size })
}

/// This rank among those of its machine, and their number.
fn local_ranks(rendezvous: &TcpRendezvous, deadline: Deadline) -> Result<(u32, u32)> {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let group = Group::world(rendezvous.size()).map_err(anabranch_shmem::Error::from)?;
    let all = rendezvous.all_gather(&group, "machines", &boot, deadline)?;
    let own = rendezvous.rank().index();
    let alike = |ranks: &[Vec<u8>]| ranks.iter().filter(|other| **other == boot).count() as u32;
    Ok((alike(&all[..own]), alike(&all)))
}
