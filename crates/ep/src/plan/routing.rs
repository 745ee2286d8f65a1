//! Where the parts of a saved routing lie.

use super::Plan;
use crate::args::RoutingHead;

/// Offsets of the parts of a saved routing, bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RoutingLayout {
    pub(crate) head: u64,
    pub(crate) sent: u64,
    pub(crate) counts: u64,
    pub(crate) send_map: u64,
    pub(crate) ids: u64,
    pub(crate) weights: u64,
    pub(crate) bytes: u64,
}

impl RoutingLayout {
    pub(crate) fn of(plan: &Plan) -> Self {
        const ALIGNMENT: u64 = 128;
        let mut end = 0u64;
        let mut place = |bytes: u64| {
            let start = end;
            end = (start + bytes).next_multiple_of(ALIGNMENT);
            start
        };
        let ranks = u64::from(plan.ranks());
        let tokens = u64::from(plan.config().max_tokens);
        let named = tokens * u64::from(plan.config().top_k) * 4;
        Self {
            head: place(size_of::<RoutingHead>() as u64),
            sent: place(ranks * 4),
            counts: place(ranks * 4),
            send_map: place(tokens * u64::from(plan.fan_out()) * 8),
            ids: place(named),
            weights: place(named),
            bytes: end,
        }
    }
}
