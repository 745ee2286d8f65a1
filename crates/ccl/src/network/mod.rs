//! Internode collectives. Members on other nodes are not mapped and are reached through a NIC by the device functions of the heap.
//!
//! `Nodes` is the topology, `schedule` the list of steps of each member, [`layout`] the memory of links. `kernels/network_move.hip` and
//! `network_reduce.hip` run any list of steps. There are two forms: *direct*, for any nodes, and *by node*, for nodes of which at least one
//! has several members: data for several members of a node is sent there once, or packed. Both give the same bits as every other algorithm.
//! `traffic` counts the bytes and requests of both forms.
//!
//! A build without the cargo feature `rdma` has none of this but the layout, and refuses groups on several nodes.

#[cfg(feature = "rdma")]
mod call;
#[cfg(feature = "model")]
mod chains;
#[cfg(feature = "rdma")]
mod cost_model;
#[cfg(feature = "rdma")]
mod direct;
#[cfg(feature = "rdma")]
pub(crate) mod form;
#[cfg(feature = "rdma")]
mod hierarchical;
pub(crate) mod layout;
#[cfg(feature = "rdma")]
pub(crate) mod lower;
#[cfg(feature = "rdma")]
pub(crate) mod schedule;
#[cfg(test)]
mod tests;
#[cfg(feature = "model")]
pub(crate) mod traffic;

#[cfg(feature = "rdma")]
use anabranch_ranks::{GroupRank, Nodes};

#[cfg(feature = "rdma")]
pub(crate) use call::exchange_of;
pub use layout::LinkLayout;

/// Whether two members are on different nodes.
#[cfg(feature = "rdma")]
pub(crate) fn is_internode(nodes: &Nodes, one: u32, other: u32) -> bool {
    !nodes.are_together(GroupRank::new(one), GroupRank::new(other))
}
