//! Received rows grouped by expert.

use std::ffi::c_void;
use std::sync::{Arc, Mutex};

use anabranch::ep::{self, ExpertMajorConfig};

use crate::ep::{Plan, anabranch_dispatched, anabranch_ep, pointer, range};
use crate::handle::{Handle, OfWorld, Out, destroy, get, with};
use crate::state::{State, locked};
use crate::status::{Failure, Result, anabranch_status};
use crate::versioned::{self, Versioned};

/// Rows grouped by expert, the input of grouped matrix products: device memory of this rank that holds one dispatch at a time. One thread at
/// a time uses it.
///
/// A pair is a received row and an expert of this rank that its token names; each pair is a row of the layout. The rows of an expert are in
/// the order of source rank, token and place in the token's ids. Pairs beyond the capacity are dropped, and `anabranch_contract` leaves them
/// out.
#[derive(Debug)]
pub struct anabranch_expert_major {
    plan: Arc<Plan>,
    inner: Mutex<ep::ExpertMajor>,
}

impl Handle for anabranch_expert_major {
    const NAME: &'static str = "expert_major";
}

impl OfWorld for anabranch_expert_major {
    fn state(&self) -> &State {
        &self.plan.state
    }
}

/// Where a row of the layout is from; all numbers are `UINT32_MAX` in a row of padding.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct anabranch_expert_row {
    /// The row of the dispatch's windows.
    pub row: u32,
    /// The rank that sent it.
    pub source_rank: u32,
    /// The token's number on that rank.
    pub source_token: u32,
    /// The place of the expert in the token's ids.
    pub k: u32,
    /// The dispatched weight; 0 in a row of padding.
    pub weight: f32,
}

/// The parts of a layout, in device memory; C is the capacity, E the experts of this rank in ascending order.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct anabranch_expert_windows {
    /// `sizeof(anabranch_expert_windows)`, set by the caller.
    pub size: usize,
    /// E.
    pub local_experts: u32,
    /// C.
    pub capacity: u32,
    /// Bytes of all parts.
    pub bytes: u64,
    /// `[E][C][hidden]` of the dispatch type. The first `counts[e]` rows of expert e are its pairs; those up to the next multiple of the
    /// alignment are zeros; the rest is undefined.
    pub rows: *mut c_void,
    /// `[E][C][scale_bytes]`, zeros in the padding.
    pub scales: *mut c_void,
    /// `[E]`: rows of each expert.
    pub counts: *const u32,
    /// `[E]`: pairs of each expert, dropped ones too.
    pub pairs: *const u32,
    /// `[E][ranks + 1]`: the rows of expert e from rank s are `source_offsets[e][s]` up to `source_offsets[e][s + 1]`.
    pub source_offsets: *const u32,
    /// `[E][C]`.
    pub sources: *const anabranch_expert_row,
    /// `[rows][top_k]` by row of the dispatch's windows: `e * C + row`; `UINT32_MAX` where the expert is not of this rank,
    /// `UINT32_MAX - 1` for a dropped pair. Undefined for rows that did not come.
    pub slot_map: *const u32,
}

// SAFETY: pointers and numbers, the size first.
unsafe impl Versioned for anabranch_expert_windows {
    const NAME: &'static str = "anabranch_expert_windows";
    const LEAST: usize = std::mem::offset_of!(Self, pairs);
}

/// Allocates a layout for the dispatches of a plan. `capacity` is the rows of each expert, a multiple of `alignment`, or 0 for as many as a
/// rank can receive; `alignment` is a power of two up to 1024. Not collective.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_expert_major_create(
    ep: *const anabranch_ep,
    capacity: u32,
    alignment: u32,
    major: *mut *mut anabranch_expert_major,
) -> anabranch_status {
    let out = Out::new(major);
    with(ep, |ep| {
        let out = out?;
        ep.plan.state.live()?;
        let config = ExpertMajorConfig::new().capacity(capacity).alignment(alignment);
        let inner = Mutex::new(ep::ExpertMajor::new(&ep.plan.inner, config)?);
        out.give(anabranch_expert_major { plan: Arc::clone(&ep.plan), inner });
        Ok(())
    })
}

/// Frees it, after its work is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_expert_major_destroy(major: *mut anabranch_expert_major) {
    destroy(major);
}

/// The parts of a layout. They stay where they are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_expert_major_get_windows(
    major: *const anabranch_expert_major,
    windows: *mut anabranch_expert_windows,
) -> anabranch_status {
    with(major, |major| {
        let inner = locked(&major.inner);
        let found = anabranch_expert_windows {
            size: 0,
            local_experts: inner.plan().local_experts(),
            capacity: inner.plan().capacity(),
            bytes: inner.plan().bytes(),
            rows: pointer(inner.rows()),
            scales: pointer(inner.scales()),
            counts: pointer::<u32>(inner.counts()),
            pairs: pointer::<u32>(inner.pairs()),
            source_offsets: pointer::<u32>(inner.source_offsets()),
            sources: pointer::<anabranch_expert_row>(inner.sources()),
            slot_map: pointer::<u32>(inner.slot_map()),
        };
        versioned::write(windows, &found)
    })
}

fn of_plan<'a>(
    major: &anabranch_expert_major,
    dispatched: *const anabranch_dispatched,
) -> Result<&'a anabranch_dispatched> {
    let dispatched = get(dispatched)?;
    if Arc::ptr_eq(&major.plan, &dispatched.plan) {
        Ok(dispatched)
    } else {
        Err(Failure::usage("dispatched is of another plan"))
    }
}

/// Copies the rows of a dispatch into the layout, on the stream of the dispatch or after it. Not collective.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_expand(
    major: *const anabranch_expert_major,
    dispatched: *const anabranch_dispatched,
    stream: *mut c_void,
) -> anabranch_status {
    with(major, |major| {
        let (stream, dispatched) = (major.plan.state.stream(stream)?, of_plan(major, dispatched)?);
        Ok(locked(&major.inner).expand(&stream, &locked(&dispatched.inner))?)
    })
}

/// Sums the experts' output of each received row, times the dispatched weights. `experts` is `[E][C][hidden]` of the combine type. `output`
/// NULL: the sums go to `combine_rows` of the dispatch's windows; combine then with `experts` NULL. Else `output` is `[rows][hidden]` of the
/// combine type, for the combine to take as `experts`. Not collective.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_contract(
    major: *const anabranch_expert_major,
    dispatched: *const anabranch_dispatched,
    experts: *const c_void,
    output: *mut c_void,
    stream: *mut c_void,
) -> anabranch_status {
    with(major, |major| {
        let (stream, dispatched) = (major.plan.state.stream(stream)?, of_plan(major, dispatched)?);
        let (inner, dispatched) = (locked(&major.inner), locked(&dispatched.inner));
        let experts = range(experts, inner.plan().output_bytes() as usize);
        if output.is_null() {
            inner.contract(&stream, &dispatched, experts)?;
        } else {
            let output = range(output, inner.plan().contracted_bytes() as usize);
            inner.contract_into(&stream, &dispatched, experts, output)?;
        }
        Ok(())
    })
}
