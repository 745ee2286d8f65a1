//! Halves of dispatch and combine, saved routings, and masks.

use std::ffi::c_void;
use std::sync::Arc;

use anabranch::GroupRank;
use anabranch::ep::ReplayedTokens;

use crate::ep::{
    anabranch_combine_sent, anabranch_dispatch_sent, anabranch_dispatched, anabranch_ep, anabranch_routing,
    anabranch_tokens, bytes, optional_range,
};
use crate::handle::{Out, destroy, get, limit, peek, put_all, slice, take, with};
use crate::state::locked;
use crate::status::{Failure, anabranch_status};
use crate::versioned;

/// The first half of `anabranch_dispatch`: sends, and waits for no rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_dispatch_send(
    ep: *const anabranch_ep,
    tokens: *const anabranch_tokens,
    stream: *mut c_void,
    sent: *mut *mut anabranch_dispatch_sent,
) -> anabranch_status {
    let out = Out::new(sent);
    with(ep, |ep| {
        let out = out?;
        let (tokens, stream) = (ep.plan.tokens(tokens)?, ep.plan.state.stream(stream)?);
        let inner = ep.plan.inner.dispatch_send(&stream, &tokens)?;
        out.give(anabranch_dispatch_sent { plan: Arc::clone(&ep.plan), inner });
        Ok(())
    })
}

/// The second half of `anabranch_dispatch`: waits for the other ranks' rows. Consumes the first and makes the pointer NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_dispatch_recv(
    ep: *const anabranch_ep,
    sent: *mut *mut anabranch_dispatch_sent,
    stream: *mut c_void,
    dispatched: *mut *mut anabranch_dispatched,
) -> anabranch_status {
    let out = Out::new(dispatched);
    with(ep, |ep| {
        let out = out?;
        let stream = ep.plan.state.stream(stream)?;
        ep.own(&peek(sent)?.plan, "dispatch_sent")?;
        let inner = take(sent)?.inner;
        out.give(ep.dispatched(ep.plan.inner.dispatch_recv(&stream, inner)?));
        Ok(())
    })
}

/// The first half of `anabranch_combine`: sends, and waits for no rank. Consumes the dispatch as that does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_combine_send(
    ep: *const anabranch_ep,
    dispatched: *mut *mut anabranch_dispatched,
    experts: *const c_void,
    stream: *mut c_void,
    sent: *mut *mut anabranch_combine_sent,
) -> anabranch_status {
    let out = Out::new(sent);
    with(ep, |ep| {
        let out = out?;
        let (stream, experts) = (ep.plan.state.stream(stream)?, ep.plan.experts(experts));
        let (inner, _) = ep.checked(dispatched, experts, |_| None)?;
        let inner = ep.plan.inner.combine_send(&stream, experts, inner)?;
        out.give(anabranch_combine_sent { plan: Arc::clone(&ep.plan), inner });
        Ok(())
    })
}

/// The second half of `anabranch_combine`: waits for the other ranks' rows and sums. Consumes the first and makes the pointer NULL, unless an
/// argument was refused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_combine_recv(
    ep: *const anabranch_ep,
    sent: *mut *mut anabranch_combine_sent,
    output: *mut c_void,
    output_weights: *mut f32,
    stream: *mut c_void,
) -> anabranch_status {
    with(ep, |ep| {
        let stream = ep.plan.state.stream(stream)?;
        let held = peek(sent)?;
        ep.own(&held.plan, "combine_sent")?;
        let place = ep.plan.output(held.inner.tokens(), output, output_weights);
        ep.plan.inner.check_output(held.inner.tokens(), &place)?;
        Ok(ep.plan.inner.combine_recv(&stream, take(sent)?.inner, place)?)
    })
}

/// Gives up the first half of a dispatch after an error: its slot of the plan is lost.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_dispatch_sent_destroy(sent: *mut anabranch_dispatch_sent) {
    destroy(sent);
}

/// Gives up the first half of a combine after an error: its slot of the plan is lost.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_combine_sent_destroy(sent: *mut anabranch_combine_sent) {
    destroy(sent);
}

/// Saves the routing of a dispatch that was not combined yet, in device memory of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_routing_save(
    ep: *const anabranch_ep,
    dispatched: *const anabranch_dispatched,
    stream: *mut c_void,
    routing: *mut *mut anabranch_routing,
) -> anabranch_status {
    let out = Out::new(routing);
    with(ep, |ep| {
        let out = out?;
        let (stream, dispatched) = (ep.plan.state.stream(stream)?, get(dispatched)?);
        ep.own(&dispatched.plan, "dispatched")?;
        let inner = ep.plan.inner.routing(&stream, &mut locked(&dispatched.inner))?;
        out.give(anabranch_routing { plan: Arc::clone(&ep.plan), inner });
        Ok(())
    })
}

/// Sends other rows to where the tokens of a saved routing went: the backward pass of a combine. `tokens` has as many tokens as the saved
/// dispatch; its ids and `device_count` are not used. All ranks call it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_dispatch_with(
    ep: *const anabranch_ep,
    routing: *const anabranch_routing,
    tokens: *const anabranch_tokens,
    stream: *mut c_void,
    dispatched: *mut *mut anabranch_dispatched,
) -> anabranch_status {
    let out = Out::new(dispatched);
    with(ep, |ep| {
        let out = out?;
        let (stream, routing, given) =
            (ep.plan.state.stream(stream)?, get(routing)?, versioned::read(tokens)?);
        ep.own(&routing.plan, "routing")?;
        let (count, rows) = ep.plan.given(&given)?;
        if routing.inner.tokens() != Some(given.count) {
            let saved = routing.inner.tokens().unwrap_or_default();
            return Err(Failure::usage(format!(
                "tokens.count is {count}; the saved dispatch had {saved} tokens"
            )));
        }
        let config = ep.plan.config();
        let tokens = ReplayedTokens {
            data_type: config.token_type(),
            rows,
            weights: optional_range(given.weights, bytes(count, config.top_k * 4)),
            scales: optional_range(given.scales, bytes(count, config.scale_bytes)),
        };
        out.give(ep.dispatched(ep.plan.inner.dispatch_with(&stream, &routing.inner, &tokens)?));
        Ok(())
    })
}

/// Frees it, after the work with it is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_routing_destroy(routing: *mut anabranch_routing) {
    destroy(routing);
}

/// Reports expert ids of this rank's dispatches that do not exist (they counted as -1), and device token counts above their bounds. Waits
/// for the stream. Not collective.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_ep_check_ids(
    ep: *const anabranch_ep,
    stream: *mut c_void,
) -> anabranch_status {
    with(ep, |ep| Ok(ep.plan.inner.check_ids(&ep.plan.state.stream(stream)?)?))
}

/// The ranks of the group that this rank has masked, ascending: the first `capacity` of them, and their number to `count`. Waits for the
/// stream. Not collective.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_ep_masked(
    ep: *const anabranch_ep,
    stream: *mut c_void,
    ranks: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> anabranch_status {
    with(ep, |ep| {
        let masked = ep.plan.inner.masked(&ep.plan.state.stream(stream)?)?;
        let masked = masked.iter().map(|masked| masked.rank.get()).collect::<Vec<_>>();
        put_all(&masked, ranks, capacity, count)
    })
}

/// Leaves a rank of the group out of operations from the next one on. Each rank that is to leave it out calls it between the same two
/// operations.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_ep_mask_rank(
    ep: *const anabranch_ep,
    group_rank: u32,
    stream: *mut c_void,
) -> anabranch_status {
    with(ep, |ep| Ok(ep.plan.inner.mask_rank(&ep.plan.state.stream(stream)?, GroupRank::new(group_rank))?))
}

/// Unmasks these ranks of the group for each other, and masks all others. Collective over `together`, between operations; fails when the
/// first of them has waited for `limit_seconds`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_ep_reset_mask(
    ep: *const anabranch_ep,
    together: *const u32,
    count: usize,
    limit_seconds: f64,
    stream: *mut c_void,
) -> anabranch_status {
    with(ep, |ep| {
        let together =
            slice(together, count, "together")?.iter().copied().map(GroupRank::new).collect::<Vec<_>>();
        let stream = ep.plan.state.stream(stream)?;
        Ok(ep.plan.inner.reset_mask(&stream, &together, limit(limit_seconds)?)?)
    })
}
