//! Collectives across machines: members whose memory is not mapped, reached through a NIC by the device functions of the heap.
//!
//! [`Nodes`] says which members are on one machine, [`schedule`] what each member does, as steps over links, [`layout`] where the links
//! are, and `kernels/network_move.hip` and `network_reduce.hip` do the steps, whatever they are. Two forms: *direct*, for any
//! machines, and *by node*, for machines of which one has several members, where what concerns several members of a machine goes there
//! once, or packed. Both give the same bits as every other algorithm.
//! [`traffic`] counts what either moves.

mod call;
mod chains;
mod cost_model;
mod direct;
pub(crate) mod form;
mod hierarchical;
pub(crate) mod layout;
pub(crate) mod lower;
pub(crate) mod schedule;
#[cfg(test)]
mod tests;
pub(crate) mod traffic;

use anabranch_ranks::{GroupRank, Nodes};

pub(crate) use call::exchange_of;
pub use layout::LinkLayout;

/// Whether two members are on different machines.
pub(crate) fn is_across(nodes: &Nodes, one: u32, other: u32) -> bool {
    !nodes.are_together(GroupRank::new(one), GroupRank::new(other))
}
