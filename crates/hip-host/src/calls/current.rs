//! Which machine and which device a thread means.
//!
//! HIP's functions carry no context: "the current device" belongs to the calling thread. With several machines
//! in a process the same holds for the machine, so this is the one place with thread-local state. Nothing in
//! it keeps a machine alive.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use anabranch_hip::HipError;

use crate::machine::HostMachine;
use crate::work::device::DeviceState;
use crate::work::scheduler::Scheduler;
use crate::work::stream::Stream;

/// A thread's view of one machine.
struct Entry {
    machine: Weak<HostMachine>,
    device: u32,
    last_error: HipError,
}

/// The machines that a thread has used; the last one is current.
#[derive(Default)]
struct Machines(Vec<Entry>);

thread_local! {
    static MACHINES: RefCell<Machines> = RefCell::default();
}

fn is(entry: &Entry, machine: &Arc<HostMachine>) -> bool {
    // The weak reference keeps the address from being used again.
    core::ptr::eq(entry.machine.as_ptr(), Arc::as_ptr(machine))
}

/// Reaches the thread's machines; `None` when the thread is ending and its state is gone.
fn machines<T>(body: impl FnOnce(&mut Vec<Entry>) -> T) -> Option<T> {
    MACHINES
        .try_with(|machines| machines.try_borrow_mut().ok().map(|mut machines| body(&mut machines.0)))
        .ok()?
}

/// Makes a machine current for the calling thread. Its current device is what the thread last set on it, at
/// first device 0.
pub(crate) fn bind(machine: &Arc<HostMachine>) {
    machines(|entries| {
        if entries.last().is_some_and(|entry| is(entry, machine)) {
            return;
        }
        let known = entries.iter().position(|entry| is(entry, machine));
        let entry = known.map_or_else(
            || Entry { machine: Arc::downgrade(machine), device: 0, last_error: HipError::SUCCESS },
            |index| entries.remove(index),
        );
        entries.retain(|entry| entry.machine.strong_count() > 0);
        entries.push(entry);
    });
}

/// The machine and device that a call is for.
pub(crate) struct Current {
    pub(crate) machine: Arc<HostMachine>,
    pub(crate) device: u32,
}

impl Current {
    fn of_thread() -> Result<Self, HipError> {
        let found = machines(|entries| {
            let entry = entries.last().ok_or(HipError::NOT_INITIALIZED)?;
            let machine = entry.machine.upgrade().ok_or(HipError::DEINITIALIZED)?;
            Ok(Self { machine, device: entry.device })
        });
        found.unwrap_or(Err(HipError::NOT_INITIALIZED))
    }

    pub(crate) fn state(&self) -> Result<&Arc<DeviceState>, HipError> {
        self.machine.device(self.device as i32)
    }

    /// A stream by its handle; null means the current device's null stream.
    pub(crate) fn stream(&self, handle: *mut core::ffi::c_void) -> Result<Arc<Stream>, HipError> {
        if handle.is_null() {
            return self
                .machine
                .null_streams
                .get(self.device as usize)
                .cloned()
                .ok_or(HipError::INVALID_DEVICE);
        }
        self.machine.streams.get(handle)
    }
}

/// The calling thread is within a HIP call while this lives.
struct InCall<'a>(&'a dyn Scheduler);

impl Drop for InCall<'_> {
    fn drop(&mut self) {
        self.0.end_call();
    }
}

/// Runs a call for the thread's machine, when the scheduler lets it, and remembers its error for `hipGetLastError`.
pub(crate) fn call(name: &'static str, body: impl FnOnce(&Current) -> Result<(), HipError>) -> HipError {
    let called = Current::of_thread().and_then(|current| {
        let scheduler = &*current.machine.core.scheduler;
        let _inside = InCall(scheduler);
        scheduler.begin_call(name, current.device)?;
        body(&current)
    });
    let error = match called {
        Ok(()) => return HipError::SUCCESS,
        Err(error) => error,
    };
    // "Not yet" is an answer and no error.
    if error != HipError::NOT_READY {
        set_last_error(error);
    }
    error
}

fn set_last_error(error: HipError) {
    machines(|entries| {
        if let Some(entry) = entries.last_mut() {
            entry.last_error = error;
        }
    });
}

/// Returns the thread's last error on the current machine and forgets it.
pub(crate) fn take_last_error() -> HipError {
    machines(|entries| {
        let entry = entries.last_mut()?;
        Some(core::mem::replace(&mut entry.last_error, HipError::SUCCESS))
    })
    .flatten()
    .unwrap_or(HipError::NOT_INITIALIZED)
}

/// Sets the thread's current device on the current machine. The device was checked.
pub(crate) fn set_device(device: u32) {
    machines(|entries| {
        if let Some(entry) = entries.last_mut() {
            entry.device = device;
        }
    });
}
