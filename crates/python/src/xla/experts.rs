//! Dispatch and combine.
//!
//! Programs get copies of the windows, and give the experts' output in buffers of their own. A dispatch has a number, which its combine names.
//! It can be under way twice: in the forward pass, and with gradients in the backward pass.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anabranch::ep::{self, CombineOutput, DeviceSlice, ExpertOutput, ReplayedTokens, Tokens};
use anabranch::hip::{DeviceAddress, Stream};
use pyo3::prelude::*;

use super::ffi::{Call, Frame, Kind, Operand, handle};
use super::{Member, Registry, report, run_on_device};
use crate::ep::{ExpertMajor, ExpertParallel, Inner, Layout};
use crate::errors::usage;
use crate::state::State;

/// A dispatch: its number, and whether its rows are gradients.
type Key = (i64, bool);

/// What the handlers run on one device.
#[derive(Debug)]
struct Experts {
    inner: Arc<Inner>,
    layout: Option<Arc<Layout>>,
    slots: usize,
    operations: Mutex<Operations>,
}

/// A dispatch whose combine was not launched. One whose call failed after its launch is among them: its slot comes back as that of a dispatch
/// that is never combined.
#[derive(Debug)]
struct Pending {
    key: Key,
    /// Where the program keeps the routing. A program may run a dispatch again before a combine, or combine twice: the number is the same
    /// then, and the routing another buffer.
    routing: DeviceAddress,
    dispatched: ep::Dispatched,
}

#[derive(Debug, Default)]
struct Operations {
    /// Dispatches that wait for their combine, the oldest first.
    pending: Vec<Pending>,
    /// The dispatch that the layout holds.
    expanded: Option<Key>,
}

impl Member for Experts {
    fn state(&self) -> &State {
        &self.inner.state
    }
}

static PLANS: Registry<Experts> = Registry::new();

/// Keeps one plan, with its expert-major layout where it has one: a member for each device of this process in the order of the devices.
/// Returns the plan's number, and the bytes of a row's record.
#[pyfunction]
pub(crate) fn xla_register_plans(
    plans: Vec<PyRef<'_, ExpertParallel>>,
    layouts: Option<Vec<PyRef<'_, ExpertMajor>>>,
) -> PyResult<(i64, u32)> {
    let first = plans.first().ok_or_else(|| usage("a plan has at least one member"))?;
    let bytes = first.inner().ep.plan().meta_bytes();
    let layouts = layouts.unwrap_or_default();
    let member = |(index, plan): (usize, PyRef<'_, ExpertParallel>)| {
        let inner = Arc::clone(plan.inner());
        let slots = inner.ep.plan().config().slots as usize;
        let layout = layouts.get(index).map(|layout| Arc::clone(layout.layout()));
        Experts { inner, layout, slots, operations: Mutex::default() }
    };
    Ok((PLANS.insert(plans.into_iter().enumerate().map(member).collect()), bytes))
}

/// Lets go of a plan. Programs that name it fail from now on.
#[pyfunction]
pub(crate) fn xla_unregister_plans(py: Python<'_>, number: i64) {
    py.detach(|| drop(PLANS.remove(number)));
}

/// The address of the handler of dispatches.
#[pyfunction]
pub(crate) fn xla_dispatch_handler() -> usize {
    dispatch as *const () as usize
}

/// The address of the handler of combines.
#[pyfunction]
pub(crate) fn xla_combine_handler() -> usize {
    combine as *const () as usize
}

unsafe extern "C" fn dispatch(frame: *mut Frame) -> *mut c_void {
    // SAFETY: XLA calls this with a frame of its own.
    unsafe { handle(frame, Kind::EachTime, |call| with_plan(call, Experts::dispatch)) }
}

unsafe extern "C" fn combine(frame: *mut Frame) -> *mut c_void {
    // SAFETY: XLA calls this with a frame of its own.
    unsafe { handle(frame, Kind::EachTime, |call| with_plan(call, Experts::combine)) }
}

/// What went wrong, for XLA.
type Result<T> = std::result::Result<T, String>;

/// How a call wants its dispatch.
#[derive(Clone, Copy)]
struct Request {
    key: Key,
    /// Whether rows are grouped by expert.
    is_by_expert: bool,
}

fn with_plan(
    call: Call<'_>,
    run: impl FnOnce(&Experts, &mut Operations, &Stream, Request, Call<'_>) -> Result<()>,
) -> Result<()> {
    let key = (call.integer("number")?, call.integer("is_gradient")? != 0);
    let request = Request { key, is_by_expert: call.integer("is_by_expert")? != 0 };
    run_on_device(&PLANS, call, |member, stream| {
        let mut operations = member.operations.lock().unwrap_or_else(PoisonError::into_inner);
        run(member, &mut operations, stream, request, call).map(|()| None)
    })
}

/// A buffer of the program, for launches of this call.
fn slice(of: Operand<'_>) -> DeviceSlice {
    // SAFETY: buffers of the frame are valid until the work is over: on the CPU the call waits for it, on GPUs XLA's stream is behind it.
    unsafe { DeviceSlice::from_raw(of.address, of.bytes() as usize) }
}

/// Copies between memory of the plan and a buffer of the program, which has as many bytes.
fn copy(
    stream: &Stream,
    (target, source): (DeviceAddress, DeviceAddress),
    of: Operand<'_>,
    bytes: u64,
) -> Result<()> {
    if of.bytes() != bytes {
        return Err(format!("a buffer has {} bytes; the plan's window has {bytes}", of.bytes()));
    }
    // SAFETY: as in `slice`; the plan's memory is that of an operation that is under way on this stream.
    unsafe { stream.copy_async(target, source, bytes as usize) }.map_err(report)
}

impl Experts {
    fn layout(&self) -> Result<&Layout> {
        self.layout
            .as_deref()
            .ok_or_else(|| "the plan has no expert-major layout; give ExpertParallel a capacity".to_owned())
    }

    /// Frees a slot for a dispatch. The oldest that were never combined give their slots back, on all ranks alike.
    fn free_slot(&self, operations: &mut Operations, stream: &Stream, key: Key) -> Result<()> {
        while let Some(index) = operations
            .pending
            .iter()
            .position(|pending| pending.key == key)
            .or((operations.pending.len() >= self.slots).then_some(0))
        {
            let pending = operations.pending.remove(index);
            self.inner.ep.release(stream, pending.dispatched).map_err(report)?;
        }
        if operations.expanded == Some(key) {
            operations.expanded = None;
        }
        Ok(())
    }

    /// Sends rows along a saved routing; without weights, the saved ones. Returns the place among those that are pending.
    fn replay(
        &self,
        operations: &mut Operations,
        stream: &Stream,
        (key, routing): (Key, Operand<'_>),
        rows: Operand<'_>,
        weights: Option<Operand<'_>>,
    ) -> Result<usize> {
        self.free_slot(operations, stream, key)?;
        let tokens = rows.extents.first().and_then(|tokens| u32::try_from(*tokens).ok());
        // SAFETY: a program gives `routing` from the dispatch of the same number, which wrote it; the buffer is valid as in `slice`.
        let kept = unsafe { self.inner.ep.routing_in(slice(routing), tokens) }.map_err(report)?;
        let sent = ReplayedTokens {
            data_type: rows.data_type,
            rows: slice(rows),
            weights: weights.map(slice),
            scales: None,
        };
        let dispatched = self.inner.ep.dispatch_with(stream, &kept, &sent).map_err(report)?;
        operations.pending.push(Pending { key, routing: routing.address, dispatched });
        Ok(operations.pending.len() - 1)
    }

    fn dispatch(
        &self,
        operations: &mut Operations,
        stream: &Stream,
        request: Request,
        call: Call<'_>,
    ) -> Result<()> {
        let Request { key, is_by_expert } = request;
        let plan = self.inner.ep.plan();
        let rows_bytes = plan.rows() * u64::from(plan.row_bytes());
        if key.1 {
            let ([x, routing, weights, _], [rows, _]) = (call.arguments()?, call.results()?);
            let index = self.replay(operations, stream, (key, routing), x, Some(weights))?;
            let dispatched = &operations.pending[index].dispatched;
            if !is_by_expert {
                return copy(stream, (rows.address, dispatched.rows()), rows, rows_bytes);
            }
            let layout = self.expand(&mut operations.expanded, stream, key, dispatched)?;
            return copy(stream, (rows.address, layout.rows()), rows, layout.plan().output_bytes());
        }
        let [x, ids, weights, _] = call.arguments()?;
        let tokens = Tokens {
            count: x.extents.first().map_or(0, |tokens| tokens.unsigned_abs() as usize),
            data_type: x.data_type,
            rows: slice(x),
            ids: slice(ids),
            weights: Some(slice(weights)),
            scales: None,
            device_count: None,
        };
        self.free_slot(operations, stream, key)?;
        let (dispatched, routing, copied) = if is_by_expert {
            let results @ [.., routing, _] = call.results::<8>()?;
            let mut layout = self.layout()?.lock();
            operations.expanded = None;
            let mut dispatched = layout.dispatch(&self.inner.ep, stream, &tokens).map_err(report)?;
            operations.expanded = Some(key);
            let copied = self.copy_experts(stream, &layout, &mut dispatched, results);
            (dispatched, routing, copied)
        } else {
            let results @ [.., routing, _] = call.results::<5>()?;
            let mut dispatched = self.inner.ep.dispatch(stream, &tokens).map_err(report)?;
            let copied = self.copy_rows(stream, &mut dispatched, results);
            (dispatched, routing, copied)
        };
        operations.pending.push(Pending { key, routing: routing.address, dispatched });
        copied
    }

    /// What a dispatch gives the program.
    fn copy_rows(
        &self,
        stream: &Stream,
        dispatched: &mut ep::Dispatched,
        [rows, records, counts, routing, _]: [Operand<'_>; 5],
    ) -> Result<()> {
        let plan = self.inner.ep.plan();
        copy(stream, (rows.address, dispatched.rows()), rows, plan.rows() * u64::from(plan.row_bytes()))?;
        copy(stream, (records.address, dispatched.meta()), records, self.record_bytes())?;
        copy(stream, (counts.address, dispatched.counts()), counts, u64::from(plan.ranks()) * 4)?;
        self.save_routing(stream, dispatched, routing)
    }

    /// The same of a dispatch by expert.
    fn copy_experts(
        &self,
        stream: &Stream,
        layout: &ep::ExpertMajor,
        dispatched: &mut ep::Dispatched,
        [rows, sources, pairs, slot_map, counts, records, routing, _]: [Operand<'_>; 8],
    ) -> Result<()> {
        let (plan, sizes) = (self.inner.ep.plan(), layout.plan());
        let places = u64::from(sizes.local_experts()) * u64::from(sizes.capacity());
        let map_bytes = plan.rows() * u64::from(plan.config().top_k) * 4;
        copy(stream, (rows.address, layout.rows()), rows, places * u64::from(plan.row_bytes()))?;
        copy(stream, (sources.address, layout.sources()), sources, places * SOURCE_BYTES)?;
        copy(stream, (pairs.address, layout.counts()), pairs, u64::from(sizes.local_experts()) * 4)?;
        copy(stream, (slot_map.address, layout.slot_map()), slot_map, map_bytes)?;
        copy(stream, (records.address, dispatched.meta()), records, self.record_bytes())?;
        copy(stream, (counts.address, dispatched.counts()), counts, u64::from(plan.ranks()) * 4)?;
        self.save_routing(stream, dispatched, routing)
    }

    /// Bytes of the records of all rows.
    fn record_bytes(&self) -> u64 {
        let plan = self.inner.ep.plan();
        plan.rows() * u64::from(plan.meta_bytes())
    }

    fn save_routing(
        &self,
        stream: &Stream,
        dispatched: &mut ep::Dispatched,
        routing: Operand<'_>,
    ) -> Result<()> {
        // SAFETY: the routing is used in this call alone, and its buffer is valid as in `slice`.
        let mut saved = unsafe { self.inner.ep.routing_in(slice(routing), None) }.map_err(report)?;
        self.inner.ep.save_routing(stream, dispatched, &mut saved).map_err(report)
    }

    /// Fills the layout with a dispatch.
    fn expand(
        &self,
        expanded: &mut Option<Key>,
        stream: &Stream,
        key: Key,
        dispatched: &ep::Dispatched,
    ) -> Result<MutexGuard<'_, ep::ExpertMajor>> {
        let mut layout = self.layout()?.lock();
        *expanded = None;
        layout.expand(stream, dispatched).map_err(report)?;
        *expanded = Some(key);
        Ok(layout)
    }

    fn combine(
        &self,
        operations: &mut Operations,
        stream: &Stream,
        request: Request,
        call: Call<'_>,
    ) -> Result<()> {
        let Request { key, is_by_expert } = request;
        let plan = self.inner.ep.plan();
        let [out, out_weights, _] = call.results()?;
        let (y, routing, records, weights) = if key.1 {
            let [y, routing, of_rows, of_tokens, _] = call.arguments()?;
            (y, routing, None, Some((of_rows, of_tokens)))
        } else if is_by_expert {
            let [y, routing, records, _] = call.arguments()?;
            (y, routing, Some(records), None)
        } else {
            let [y, routing, _] = call.arguments()?;
            (y, routing, None, None)
        };
        if y.data_type != plan.config().combine_type || out.data_type != y.data_type {
            return Err(format!(
                "y has elements of {}, and the output of {}; the plan combines {}",
                y.data_type,
                out.data_type,
                plan.config().combine_type
            ));
        }
        let is_of_this = |pending: &Pending| pending.key == key && pending.routing == routing.address;
        let index = if let Some(index) = operations.pending.iter().position(is_of_this) {
            index
        } else {
            // Another execution's, released, or never sent with gradients. What is sent does not matter, as combine reads `y`: it is the
            // output's memory, which the kernel has read when combine writes it.
            let weights = weights.map(|(_, of_tokens)| of_tokens);
            self.replay(operations, stream, (key, routing), out, weights)?
        };
        let dispatched = &operations.pending[index].dispatched;
        if is_by_expert && operations.expanded != Some(key) {
            drop(self.expand(&mut operations.expanded, stream, key, dispatched)?);
        }
        if let Some(records) = records {
            // The sums' weights are read there: the program gives the records of its dispatch, with the weights of its choice. Peers write
            // there in a later dispatch alone, which waits for this combine.
            copy(stream, (dispatched.meta(), records.address), records, self.record_bytes())?;
        }
        if let Some((of_rows, _)) = weights {
            let bytes = plan.rows() * u64::from(plan.config().top_k) * 4;
            copy(stream, (dispatched.combine_weights(), of_rows.address), of_rows, bytes)?;
        }
        let output = CombineOutput { rows: slice(out), weights: Some(slice(out_weights)) };
        // What can be refused is refused before the combine takes the dispatch.
        if !is_by_expert {
            let rows = ExpertOutput::Staged(slice(y));
            self.inner.ep.check_combine(rows, dispatched, Some(&output)).map_err(report)?;
            let dispatched = operations.pending.remove(index).dispatched;
            return self.inner.ep.combine(stream, rows, dispatched, output).map_err(report);
        }
        let layout = self.layout()?.lock();
        layout.check_combine(&self.inner.ep, slice(y), dispatched, &output).map_err(report)?;
        let wanted = layout.plan().output_bytes();
        if y.bytes() != wanted {
            return Err(format!("y has {} bytes; the plan's layout by expert has {wanted}", y.bytes()));
        }
        let dispatched = operations.pending.remove(index).dispatched;
        layout.combine(&self.inner.ep, stream, slice(y), dispatched, output).map_err(report)
    }
}

/// Bytes of `ep::ExpertRowSource`.
const SOURCE_BYTES: u64 = 20;
