//! Dispatch and combine.

use std::ffi::c_void;
use std::sync::{Arc, Mutex};

use anabranch::GroupRank;
use anabranch::ep::{self, CombineOutput, DeviceSlice, ExpertOutput, Tokens};
use anabranch::hip::DeviceAddress;

use crate::ep_config::anabranch_ep_config;
use crate::group::anabranch_group;
use crate::handle::{Handle, OfWorld, Out, destroy, peek, put_all, take, with};
use crate::state::{State, locked};
use crate::status::{Failure, Result, anabranch_status};
use crate::versioned::{self, Versioned};
use crate::world::anabranch_world;

/// What the handles of a plan share.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) state: Arc<State>,
    pub(crate) inner: ep::ExpertParallel,
}

/// Dispatch and combine of one group on one rank. All ranks begin and end operations in the same order. Threads may share it and keep that
/// order; its handles are each used by one thread at a time.
#[derive(Debug)]
pub struct anabranch_ep {
    pub(crate) plan: Arc<Plan>,
}

/// Rows that a dispatch brought, until they are combined or released.
#[derive(Debug)]
pub struct anabranch_dispatched {
    pub(crate) plan: Arc<Plan>,
    pub(crate) inner: Mutex<ep::Dispatched>,
}

/// A dispatch that was sent and not received yet.
#[derive(Debug)]
pub struct anabranch_dispatch_sent {
    pub(crate) plan: Arc<Plan>,
    pub(crate) inner: ep::DispatchSent,
}

/// A combine that was sent and not received yet.
#[derive(Debug)]
pub struct anabranch_combine_sent {
    pub(crate) plan: Arc<Plan>,
    pub(crate) inner: ep::CombineSent,
}

/// Which rank gets which token: saved from a dispatch, to send other rows the same way.
#[derive(Debug)]
pub struct anabranch_routing {
    pub(crate) plan: Arc<Plan>,
    pub(crate) inner: ep::Routing,
}

macro_rules! handles {
    ($($handle:ty: $name:literal),* $(,)?) => {$(
        impl Handle for $handle {
            const NAME: &'static str = $name;
        }

        impl OfWorld for $handle {
            fn state(&self) -> &State {
                &self.plan.state
            }
        }
    )*};
}

handles! {
    anabranch_ep: "ep",
    anabranch_dispatched: "dispatched",
    anabranch_dispatch_sent: "dispatch_sent",
    anabranch_combine_sent: "combine_sent",
    anabranch_routing: "routing",
}

/// Sizes of a plan.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct anabranch_ep_info {
    /// `sizeof(anabranch_ep_info)`, set by the caller.
    pub size: usize,
    /// This rank in the group.
    pub rank: u32,
    /// Ranks of the group.
    pub ranks: u32,
    /// Rows of each window.
    pub rows: u64,
    /// Rows of a source in the windows; 0 where `offsets` says where they start.
    pub row_stride: u32,
    /// Bytes of a row that dispatch sends.
    pub row_bytes: u32,
    /// Bytes of a row that combine sums.
    pub combine_row_bytes: u32,
    /// Bytes of a meta record.
    pub meta_bytes: u32,
    /// Experts of this rank.
    pub local_experts: u32,
    /// Bytes of scales in a meta record.
    pub scale_bytes: u32,
    /// Bytes of the symmetric heap that the plan takes.
    pub heap_bytes: u64,
}

// SAFETY: numbers, the size first.
unsafe impl Versioned for anabranch_ep_info {
    const NAME: &'static str = "anabranch_ep_info";
    const LEAST: usize = std::mem::offset_of!(Self, row_bytes);
}

/// The tokens of a dispatch, in device memory.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct anabranch_tokens {
    /// `sizeof(anabranch_tokens)`.
    pub size: usize,
    /// Tokens, 0 to the plan's `max_tokens`.
    pub count: u32,
    /// `[count][hidden]` of the plan's dispatch type (with a cast: of `cast_from`), at a multiple of 16 bytes.
    pub rows: *const c_void,
    /// `[count][top_k]` expert ids of the plan's `id_type`, aligned to their size; -1 is no expert. Not read by `anabranch_dispatch_with`.
    pub ids: *const c_void,
    /// `[count][top_k]`, sent with the rows; NULL sends zeros, in `anabranch_dispatch_with` the saved weights.
    pub weights: *const f32,
    /// `[count][scale_bytes]`, at a multiple of 4 bytes, in plans with scales; else NULL.
    pub scales: *const c_void,
    /// One number of tokens, at most `count`, in plans with `device_token_count`; else NULL.
    pub device_count: *const u32,
}

// SAFETY: pointers and numbers, the size first.
unsafe impl Versioned for anabranch_tokens {
    const NAME: &'static str = "anabranch_tokens";
    const LEAST: usize = std::mem::offset_of!(Self, weights);
}

/// What a dispatch brought, in device memory of the plan. Valid in the order of the stream, until its combine or release.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct anabranch_windows {
    /// `sizeof(anabranch_windows)`, set by the caller.
    pub size: usize,
    /// Tokens that this rank dispatched.
    pub tokens: u32,
    /// `[rows][hidden]` of the dispatch type. Those of rank s are the `counts[s]` rows from `s * row_stride` on, or with a `row_stride` of 0
    /// from `offsets[s]` on. Other rows are undefined.
    pub rows: *mut c_void,
    /// `[rows][meta_bytes]`, records of the rows: token on its rank (u32), place (u32), ids (`[top_k]` i32), weights (`[top_k]` f32), scales
    /// (`scale_bytes` of the plan); what follows is the library's.
    pub meta: *const c_void,
    /// `[ranks]`: rows from each rank.
    pub counts: *const u32,
    /// `[ranks + 1]`: running sum of the counts.
    pub offsets: *const u32,
    /// One number: tokens of this rank, in plans with `device_token_count`.
    pub token_count: *const u32,
    /// One number: copies of this rank's tokens that were not sent for lack of capacity.
    pub dropped_count: *const u32,
    /// One number: copies of this rank's tokens that are left out because their ranks are masked.
    pub masked_count: *const u32,
    /// `[rows][hidden]` of the combine type, for the experts' output, at the rows' indices. NULL in plans with the source `"buffer"`.
    pub combine_rows: *mut c_void,
    /// `[rows][top_k]` weights that combine sums, in plans with `combine_weights`; else NULL.
    pub combine_weights: *mut f32,
}

// SAFETY: pointers and numbers, the size first.
unsafe impl Versioned for anabranch_windows {
    const NAME: &'static str = "anabranch_windows";
    const LEAST: usize = std::mem::offset_of!(Self, token_count);
}

/// A range of the caller's device memory.
pub(crate) fn range<T>(address: *const T, bytes: usize) -> DeviceSlice {
    // SAFETY: the caller's: device memory of the size that the parameter states, left alone until the work is done.
    unsafe { DeviceSlice::from_raw(DeviceAddress(address as u64), bytes) }
}

pub(crate) fn optional_range<T>(address: *const T, bytes: usize) -> Option<DeviceSlice> {
    (!address.is_null()).then(|| range(address, bytes))
}

/// An address of device memory as a pointer.
pub(crate) fn pointer<T>(address: DeviceAddress) -> *mut T {
    address.as_ptr().cast()
}

/// Bytes of so many parts.
pub(crate) fn bytes(count: usize, each: u32) -> usize {
    count * each as usize
}

impl Plan {
    pub(crate) fn config(&self) -> &ep::EpConfig {
        self.inner.plan().config()
    }

    pub(crate) fn given(&self, tokens: &anabranch_tokens) -> Result<(usize, DeviceSlice)> {
        let count = tokens.count as usize;
        if tokens.rows.is_null() && count > 0 {
            return Err(Failure::usage(format!("tokens.rows is NULL; it has {count} tokens")));
        }
        Ok((count, range(tokens.rows, bytes(count, self.inner.plan().token_bytes()))))
    }

    pub(crate) fn tokens(&self, given: *const anabranch_tokens) -> Result<Tokens> {
        let given = versioned::read(given)?;
        let (count, rows) = self.given(&given)?;
        if given.ids.is_null() && count > 0 {
            return Err(Failure::usage(format!("tokens.ids is NULL; it has {count} tokens")));
        }
        let top_k = self.config().top_k;
        let id_bytes = self.config().id_type.bytes_of(1) as u32;
        Ok(Tokens {
            count,
            data_type: self.config().token_type(),
            rows,
            ids: range(given.ids, bytes(count, top_k * id_bytes)),
            weights: optional_range(given.weights, bytes(count, top_k * 4)),
            scales: optional_range(given.scales, bytes(count, self.config().scale_bytes)),
            device_count: optional_range(given.device_count, 4),
        })
    }

    pub(crate) fn output(&self, tokens: u32, rows: *mut c_void, weights: *mut f32) -> CombineOutput {
        let tokens = tokens as usize;
        CombineOutput {
            rows: range(rows, bytes(tokens, self.inner.plan().combine_row_bytes())),
            weights: optional_range(weights, bytes(tokens, self.config().top_k * 4)),
        }
    }

    pub(crate) fn experts(&self, experts: *const c_void) -> ExpertOutput {
        let plan = self.inner.plan();
        let all = bytes(plan.rows() as usize, plan.combine_row_bytes());
        optional_range(experts, all).map_or(ExpertOutput::InWindow, ExpertOutput::Staged)
    }
}

impl anabranch_ep {
    /// Checks that a handle is of this plan.
    pub(crate) fn own(&self, plan: &Arc<Plan>, what: &str) -> Result {
        if Arc::ptr_eq(&self.plan, plan) {
            Ok(())
        } else {
            Err(Failure::usage(format!("{what} is of another plan")))
        }
    }

    pub(crate) fn dispatched(&self, inner: ep::Dispatched) -> anabranch_dispatched {
        anabranch_dispatched { plan: Arc::clone(&self.plan), inner: Mutex::new(inner) }
    }

    /// A dispatch that is to be combined, after the checks of its arguments.
    pub(crate) fn checked(
        &self,
        dispatched: *mut *mut anabranch_dispatched,
        experts: ExpertOutput,
        output: impl FnOnce(u32) -> Option<CombineOutput>,
    ) -> Result<(ep::Dispatched, Option<CombineOutput>)> {
        let held = peek(dispatched)?;
        self.own(&held.plan, "dispatched")?;
        let output = {
            let inner = locked(&held.inner);
            let output = output(inner.tokens());
            self.plan.inner.check_combine(experts, &inner, output.as_ref())?;
            output
        };
        let inner = take(dispatched)?.inner.into_inner();
        Ok((inner.unwrap_or_else(std::sync::PoisonError::into_inner), output))
    }
}

/// Makes a plan for the ranks of a group (NULL: the world): compiles its kernels and allocates its memory. Collective, with equal
/// configurations. All work on its handles is done before it is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_ep_create(
    world: *const anabranch_world,
    group: *const anabranch_group,
    config: *const anabranch_ep_config,
    ep: *mut *mut anabranch_ep,
) -> anabranch_status {
    let out = Out::new(ep);
    with(world, |world| {
        let out = out?;
        let plan = versioned::read(config)?.plan()?;
        let group = world.state.group(group)?;
        let inner = world.state.live()?.expert_parallel(&group, plan)?;
        out.give(anabranch_ep { plan: Arc::new(Plan { state: Arc::clone(&world.state), inner }) });
        Ok(())
    })
}

/// Frees the handle; the plan when its other handles are gone too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_ep_destroy(ep: *mut anabranch_ep) {
    destroy(ep);
}

/// The sizes of a plan.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_ep_get_info(
    ep: *const anabranch_ep,
    info: *mut anabranch_ep_info,
) -> anabranch_status {
    with(ep, |ep| {
        let (inner, plan) = (&ep.plan.inner, ep.plan.inner.plan());
        let found = anabranch_ep_info {
            size: 0,
            rank: inner.rank().get(),
            ranks: plan.ranks(),
            rows: plan.rows(),
            row_stride: plan.row_stride(),
            row_bytes: plan.row_bytes(),
            combine_row_bytes: plan.combine_row_bytes(),
            meta_bytes: plan.meta_bytes(),
            local_experts: plan.experts_on(inner.rank()).len() as u32,
            scale_bytes: plan.config().sent_scale_bytes(),
            heap_bytes: plan.heap_bytes(),
        };
        versioned::write(info, &found)
    })
}

/// The experts of a rank of the group, ascending: the first `capacity` of them, and their number to `count`. `experts` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_ep_experts_on(
    ep: *const anabranch_ep,
    group_rank: u32,
    experts: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> anabranch_status {
    with(ep, |ep| {
        let plan = ep.plan.inner.plan();
        if group_rank >= plan.ranks() {
            let text = format!("group_rank is {group_rank}; the group has ranks 0 to {}", plan.ranks() - 1);
            return Err(Failure::usage(text));
        }
        put_all(&plan.experts_on(GroupRank::new(group_rank)), experts, capacity, count)
    })
}

/// Sends every token to the ranks that own its experts, once to each, and receives the rows for the experts of this rank. All ranks call it,
/// also with 0 tokens. The tokens' memory is left alone until the work is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_dispatch(
    ep: *const anabranch_ep,
    tokens: *const anabranch_tokens,
    stream: *mut c_void,
    dispatched: *mut *mut anabranch_dispatched,
) -> anabranch_status {
    let out = Out::new(dispatched);
    with(ep, |ep| {
        let out = out?;
        let (tokens, stream) = (ep.plan.tokens(tokens)?, ep.plan.state.stream(stream)?);
        out.give(ep.dispatched(ep.plan.inner.dispatch(&stream, &tokens)?));
        Ok(())
    })
}

/// The windows of a dispatch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_dispatched_get_windows(
    dispatched: *const anabranch_dispatched,
    windows: *mut anabranch_windows,
) -> anabranch_status {
    with(dispatched, |dispatched| {
        let inner = locked(&dispatched.inner);
        let found = anabranch_windows {
            size: 0,
            tokens: inner.tokens(),
            rows: pointer(inner.rows()),
            meta: pointer::<c_void>(inner.meta()),
            counts: pointer::<u32>(inner.counts()),
            offsets: pointer::<u32>(inner.offsets()),
            token_count: pointer::<u32>(inner.token_count()),
            dropped_count: pointer::<u32>(inner.dropped_count()),
            masked_count: pointer::<u32>(inner.masked_count()),
            combine_rows: pointer(inner.combine_rows()),
            combine_weights: pointer(inner.combine_weights()),
        };
        versioned::write(windows, &found)
    })
}

/// Sums, for each token, the experts' rows of the ranks that it went to, in rank order, into `output`, `[tokens][hidden]` of the combine
/// type. Weights are not applied. All ranks combine the same dispatch, from the same source.
///
/// `experts` NULL: the experts' output is in `combine_rows` of the windows. Else it is `[rows][hidden]` of the combine type, at the rows'
/// indices. `output_weights` is `[tokens][top_k]` in plans with `combine_weights`, else NULL. Consumes the dispatch and makes the pointer
/// NULL, unless an argument was refused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_combine(
    ep: *const anabranch_ep,
    dispatched: *mut *mut anabranch_dispatched,
    experts: *const c_void,
    output: *mut c_void,
    output_weights: *mut f32,
    stream: *mut c_void,
) -> anabranch_status {
    with(ep, |ep| {
        let (stream, experts) = (ep.plan.state.stream(stream)?, ep.plan.experts(experts));
        let place = |tokens| Some(ep.plan.output(tokens, output, output_weights));
        let (inner, place) = ep.checked(dispatched, experts, place)?;
        let place = place.ok_or_else(|| Failure::usage("output is NULL"))?;
        Ok(ep.plan.inner.combine(&stream, experts, inner, place)?)
    })
}

/// Ends a dispatch without a combine. All ranks do. Consumes it and makes the pointer NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_release(
    ep: *const anabranch_ep,
    dispatched: *mut *mut anabranch_dispatched,
    stream: *mut c_void,
) -> anabranch_status {
    with(ep, |ep| {
        let stream = ep.plan.state.stream(stream)?;
        ep.own(&peek(dispatched)?.plan, "dispatched")?;
        let inner = take(dispatched)?.inner.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        Ok(ep.plan.inner.release(&stream, inner)?)
    })
}

/// Gives up a handle that was neither combined nor released, after an error: its slot of the plan is lost.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_dispatched_destroy(dispatched: *mut anabranch_dispatched) {
    destroy(dispatched);
}
