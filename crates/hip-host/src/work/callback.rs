//! Host functions of streams run on a thread of their own: they may block, and a worker must not.

use core::fmt;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anabranch_clock::{Signal, attach};

use crate::sync::modelled::{Mutex, lock};
use crate::work::core::Core;
use crate::work::operation::HostFunction;
use crate::work::scheduler::Scheduler;

/// A host function that was asked for.
#[derive(Debug)]
pub(crate) struct HostCall {
    function: HostFunction,
    done: AtomicBool,
}

impl HostCall {
    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }
}

/// The thread, started at the first call.
#[derive(Default)]
pub(crate) struct Callbacks {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Signal,
}

#[derive(Default)]
struct Queue {
    calls: VecDeque<Arc<HostCall>>,
    stop: bool,
}

impl fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callbacks")
            .field("queued", &lock(&self.shared.queue).calls.len())
            .finish_non_exhaustive()
    }
}

impl Callbacks {
    /// Queues a call. A thread that cannot be started runs nothing: the call counts as done and is logged.
    pub(crate) fn call(&self, function: HostFunction, core: &Core) -> Arc<HostCall> {
        let call = Arc::new(HostCall { function, done: AtomicBool::new(false) });
        let mut thread = lock(&self.thread);
        if thread.is_none() {
            let shared = Arc::clone(&self.shared);
            let scheduler = Arc::clone(&core.scheduler);
            // Given out here, so that the thread's place in a virtual order does not depend on when it starts.
            let servant = Arc::clone(&scheduler).servant();
            let started = std::thread::Builder::new().name("host-gpu-calls".to_owned()).spawn(move || {
                let _attached = servant.map(|(driver, seat)| attach(driver, seat));
                shared.run(&*scheduler);
            });
            match started {
                Ok(handle) => *thread = Some(handle),
                Err(error) => {
                    tracing::error!(%error, "no thread for host functions; one is skipped");
                    call.done.store(true, Ordering::Release);
                    return call;
                }
            }
        }
        drop(thread);
        lock(&self.shared.queue).calls.push_back(Arc::clone(&call));
        self.shared.changed.notify_all();
        call
    }

    /// Ends the thread after the call that it is in.
    pub(crate) fn stop(&self) {
        lock(&self.shared.queue).stop = true;
        self.shared.changed.notify_all();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::warn!("the thread for host functions panicked");
        }
    }
}

impl Shared {
    fn run(&self, scheduler: &dyn Scheduler) {
        loop {
            let mut queue = lock(&self.queue);
            let call = loop {
                if queue.stop {
                    return;
                }
                match queue.calls.pop_front() {
                    Some(call) => break call,
                    None => queue = self.changed.wait(&self.queue, queue, None),
                }
            };
            drop(queue);
            let HostFunction { function, data } = call.function;
            // SAFETY: hipLaunchHostFunc's caller promises that the function may be called once with this
            // argument on any thread.
            unsafe { function(data) };
            call.done.store(true, Ordering::Release);
            scheduler.wake();
        }
    }
}
