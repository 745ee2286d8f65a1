//! The nodes of a communicator's members.

use anabranch_ranks::{Group, Nodes};
use anabranch_shmem::World;

use crate::run::config::{CclConfig, Check};
use crate::types::{Error, Result};
#[cfg(not(feature = "rdma"))]
use crate::{
    plan::{Choice, Limits, Plan},
    types::Shape,
};

/// The nodes of a group if there are several; `None` if all members map the memory of each other. Collective over the group.
///
/// # Errors
/// [`Error::Config`] if the configured nodes are not one per member; [`Error::Unmapped`] for configured features that need one node; the
/// failure of the world. A build without the cargo feature `rdma` refuses several nodes ([`Error::Unmapped`]).
pub(crate) fn nodes_of(world: &World, group: &Group, config: &CclConfig) -> Result<Option<Nodes>> {
    let mine: Vec<u32> = match &config.nodes {
        Some(given) if given.len() != group.size() as usize => {
            let allowed = "one for each member";
            return Err(Error::Config { field: "nodes", given: given.len() as u64, allowed });
        }
        Some(given) => given.to_vec(),
        None => {
            let nodes = world.nodes_of(group)?;
            #[expect(clippy::expect_used, reason = "nodes list every member of the group")]
            group.ranks().map(|member| nodes.node_of(member).expect("every member has a node")).collect()
        }
    };
    let here = group.rank_of(world.rank()).map(|me| mine[me.index()]);
    let is_here = |member: &u32| Some(mine[*member as usize]) == here;
    let mapped = |member: &u32| {
        let global = group.members().get(*member as usize);
        global.is_some_and(|rank| world.peer_base(*rank).is_some())
    };
    // If any member reaches another member of its node only through a NIC, every member becomes a node of its own, on all members.
    let whole = (0..group.size()).filter(is_here).all(|member| mapped(&member));
    let reports = world.exchange(group, "ccl nodes", &[u8::from(whole)])?;
    let are_whole = reports.iter().all(|bytes| bytes.as_slice() == [1]);
    let nodes = Nodes::new(&if are_whole { mine } else { (0..group.size()).collect() });
    let several = Some(nodes).filter(|nodes| nodes.count() > 1);
    #[cfg(not(feature = "rdma"))]
    if let Some(nodes) = &several {
        let instead = "enable the cargo feature `rdma` of anabranch";
        return Err(Error::Unmapped { what: "a build without `rdma`", nodes: nodes.count(), instead });
    }
    if let Some(nodes) = &several
        && config.check == Check::Fingerprint
    {
        let instead = "set ccl.check to off, or check on one node";
        let what = "ccl.check = \"fingerprint\"";
        return Err(Error::Unmapped { what, nodes: nodes.count(), instead });
    }
    Ok(several)
}

/// What internode calls need. A build without them has no value of this type.
#[cfg(not(feature = "rdma"))]
#[derive(Debug)]
pub(crate) enum Internode {}

#[cfg(not(feature = "rdma"))]
impl Internode {
    pub(crate) fn refuse_messages(&self) -> Error {
        match *self {}
    }

    pub(crate) fn plan(&self, _: &Shape, _: &Limits, _: Choice) -> Result<Plan> {
        match *self {}
    }
}
