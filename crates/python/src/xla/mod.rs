//! Handlers of XLA's FFI: collectives, and dispatch and combine, which compiled programs of JAX call.

mod collectives;
mod experts;
mod ffi;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anabranch::RuntimeKind;
use anabranch::ccl::Work;
use anabranch::hip::{RelaxedCapture, Stream};

use ffi::{Call, PANICKED};

use crate::state::{SLICE, State};

pub(crate) use collectives::{
    xla_collective_handler, xla_operator, xla_register, xla_start_handler, xla_start_state, xla_unregister,
};
pub(crate) use experts::{
    xla_combine_handler, xla_dispatch_handler, xla_register_plans, xla_unregister_plans,
};

/// A rank of this process: what a handler runs on one device.
trait Member {
    fn state(&self) -> &State;
}

/// Members by number: one for each device of this process, in the order of the devices. A program of XLA can only name a number; none is used
/// again.
#[derive(Debug)]
struct Registry<T> {
    entries: Mutex<Entries<T>>,
}

#[derive(Debug)]
struct Entries<T> {
    last: i64,
    members: BTreeMap<i64, Arc<Vec<T>>>,
}

impl<T> Registry<T> {
    const fn new() -> Self {
        Self { entries: Mutex::new(Entries { last: 0, members: BTreeMap::new() }) }
    }

    fn insert(&self, members: Vec<T>) -> i64 {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.last += 1;
        let number = entries.last;
        entries.members.insert(number, Arc::new(members));
        number
    }

    /// A drop of what it returns may wait for other ranks.
    fn remove(&self, number: i64) -> Option<Arc<Vec<T>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).members.remove(&number)
    }

    fn get(&self, number: i64) -> Option<Arc<Vec<T>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).members.get(&number).cloned()
    }
}

/// Launches with the member of the call's device. On the CPU, returns when the work is over: what `launch` returned, or all of the stream's.
fn run_on_device<T: Member>(
    registry: &Registry<T>,
    call: Call<'_>,
    launch: impl FnOnce(&T, &Stream) -> Result<Option<Work>, String>,
) -> Result<(), String> {
    let members = registry.get(call.integer("group")?);
    let members = members.ok_or_else(|| "the group of this program was left".to_owned())?;
    let ordinal = call.ordinal()?;
    // A process with one member has one device in the mesh, whatever XLA numbers it.
    let index = if members.len() == 1 { Some(0) } else { usize::try_from(ordinal).ok() };
    let member = index.and_then(|index| members.get(index));
    let member =
        member.ok_or_else(|| format!("device {ordinal} is not in the group, which has {}", members.len()))?;
    let state = member.state();
    let launch = |stream: &Stream| {
        catch_unwind(AssertUnwindSafe(|| launch(member, stream))).unwrap_or_else(|_| {
            // The other devices would wait for what this one did not launch.
            let reason = format!("a call of XLA panicked on rank {}", state.world.rank().get());
            for member in members.iter() {
                member.state().world.poison(&reason);
            }
            Err(PANICKED.to_owned())
        })
    };
    if state.home.runtime != RuntimeKind::Host {
        // SAFETY: XLA's stream of this device, used in this call.
        let stream = unsafe { state.world.device().borrow_stream(call.stream()?) };
        // XLA captures a call on the thread that makes it, before the call has run eagerly: kernels are loaded meanwhile.
        let runtime = state.world.device().runtime();
        let _relaxed = RelaxedCapture::for_streams(runtime, std::slice::from_ref(&stream)).map_err(report)?;
        return launch(&stream).map(drop);
    }
    let stream = state.own_stream();
    let launched = launch(stream);
    let waited = wait_for(|slice| match &launched {
        Ok(Some(work)) => Ok(work.join(slice)?),
        // After an error or a panic too: XLA frees the buffers of the call.
        _ => Ok(state.world.synchronize_within(stream, slice)?),
    });
    launched.and(waited)
}

/// Waits until the work is over. Kernels have a deadline.
fn wait_for(wait: impl Fn(Duration) -> Result<(), anabranch::Error>) -> Result<(), String> {
    loop {
        match wait(SLICE) {
            Err(error) if error.is_busy() => {}
            waited => return waited.map_err(report),
        }
    }
}

/// An error, for XLA.
fn report(error: impl Into<anabranch::Error>) -> String {
    format!("{:?}", error.into())
}
