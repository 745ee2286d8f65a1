//! Which members are on which nodes, and whether all are reachable.

use anabranch_ranks::{Across, Group, Nodes};
use anabranch_shmem::World;
use anabranch_transport::{Operation, PeerInfo, Scope, Support, TransportKind};

use crate::error::{Error, Result};
use crate::plan::{EpConfig, NodesOptions, Plan, Route};

/// The configuration with the link speeds of the device where none are set, and with the nodes of the group's members, where some member
/// cannot be reached by loads and stores, or a way to other nodes is asked for.
pub(crate) fn located(world: &World, group: &Group, mut config: EpConfig) -> EpConfig {
    let unmapped = || group.members().iter().any(|member| world.peer_base(*member).is_none());
    if config.nodes.is_none() && (config.across != Across::Auto || unmapped()) {
        let host = |info: &PeerInfo| info.host.clone();
        let hosts: Vec<_> =
            group.members().iter().map(|member| world.peers().get(member.index()).map(host)).collect();
        config.nodes = Some(Nodes::new(&hosts));
    }
    config.links = config.links.on(&world.device().arch()).into();
    config
}

/// Checks that every member is reachable: on this node by loads and stores, on other nodes by puts of kernels.
pub(crate) fn check_reach(world: &World, group: &Group, plan: &Plan) -> Result<()> {
    let me = group.rank_of(world.rank());
    for (rank, member) in group.iter() {
        let is_near = match (plan.route(), me) {
            (Route::Nodes(NodesOptions { nodes, .. }), Some(me)) => nodes.are_together(rank, me),
            _ => true,
        };
        if is_near {
            if world.peer_base(member).is_none() {
                let route = world.routes().get(member.index());
                let route = route.map_or_else(
                    || "there is no route to it".to_owned(),
                    |route| format!("its route is {} ({})", route.kind, route.reason),
                );
                let needed = "loads and stores, which dispatch and combine need of a member that is near";
                return Err(Error::Unreachable { peer: member, needed, route });
            }
            continue;
        }
        // An engine writes a flag as two words, and a kernel could take half of a flag for a whole one.
        let route = world.routes().get(member.index()).map(|route| route.kind);
        let puts = world.support(member, Operation::PutSignal, Scope::Wave) != Support::Unsupported;
        if !puts || route == Some(TransportKind::Sdma) {
            let route = route.map_or_else(|| "none".to_owned(), |kind| kind.to_string());
            let needed = "puts of kernels, which dispatch and combine need of a member on another node, and p2p and rdma have";
            return Err(Error::Unreachable { peer: member, needed, route });
        }
    }
    Ok(())
}
