//! The layout of a slot's memory outside the symmetric heap.

use super::{Plan, Route};
use crate::args::SlotState;

/// Offsets of the parts of a slot's own memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnLayout {
    pub(crate) state: u64,
    pub(crate) routed: u64,
    pub(crate) tally: u64,
    pub(crate) bases: u64,
    pub(crate) capacity: u64,
    pub(crate) counts: u64,
    pub(crate) offsets: u64,
    pub(crate) send_map: u64,
    /// Of a plan that masks ranks.
    pub(crate) settled: u64,
    /// Of a plan whose rows engines move.
    pub(crate) posted: u64,
    /// Of a plan whose tokens go once to each node.
    #[cfg_attr(not(feature = "rdma"), expect(dead_code, reason = "kernels between nodes use it"))]
    pub(crate) relayed: u64,
    #[cfg_attr(not(feature = "rdma"), expect(dead_code, reason = "kernels between nodes use it"))]
    pub(crate) forwarded: u64,
    pub(crate) bytes: u64,
}

impl OwnLayout {
    pub(crate) fn of(plan: &Plan) -> Self {
        let ranks = u64::from(plan.ranks());
        let mut end = 0u64;
        let mut place = |bytes: u64| {
            let start = end;
            end = (start + bytes).next_multiple_of(128);
            start
        };
        let state = place(size_of::<SlotState>() as u64);
        let routed = place(ranks * 4);
        let tally = place(ranks * 4);
        let bases = place(ranks * 4);
        let capacity = place(ranks * 4);
        let counts = place(ranks * 4);
        let offsets = place((ranks + 1) * 4);
        let settled = place(if plan.route().masks() { ranks * 8 } else { 0 });
        let posted = place(if matches!(plan.route(), Route::Engine) { ranks * 8 } else { 0 });
        let relayed = place(plan.relayed_words() * 4);
        let forwarded = place(plan.forwarded_words() * 4);
        let send_map = place(u64::from(plan.config().max_tokens) * u64::from(plan.fan_out()) * 8);
        Self {
            state,
            routed,
            tally,
            bases,
            capacity,
            counts,
            offsets,
            send_map,
            settled,
            posted,
            relayed,
            forwarded,
            bytes: end,
        }
    }
}

/// The parts of a slot's own memory, by name, bytes of each.
pub(super) fn own_parts(plan: &Plan) -> [(&'static str, u64); 2] {
    let parts = OwnLayout::of(plan);
    [("state and counts", parts.send_map), ("send map", parts.bytes - parts.send_map)]
}
