//! A timeline of one device: calls of the host, and kernels, graphs and copies by the device's clock.
//!
//! [`Device::start_trace`] turns it on for all clones of a [`Device`]; while it is off, a launch or a call reads one flag. Work on a stream
//! is timed by events before and after it. Calls are recorded by the crates above, with [`Device::record_call`].

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::ThreadId;
use std::time::Duration;

use anabranch_clock::Moment;

use crate::clocks::{Anchor, Look, host_ns};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::stream::{Event, Stream};

/// Launches whose end is not known yet: each has two events. The system has more, but programs that are further ahead are rare.
const MOST_PENDING: usize = 1 << 14;

/// One call of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostCall {
    /// What was called, as the method is named.
    pub name: &'static str,
    /// The communicator, team or plan; equal on all members of its group.
    pub of: Option<Arc<str>>,
    /// The number among such calls of it, from 1; equal on all members for collectives.
    pub sequence: Option<u64>,
    /// Bytes of the message.
    pub bytes: Option<u64>,
}

impl HostCall {
    /// A call without arguments.
    pub const fn new(name: &'static str) -> Self {
        Self { name, of: None, sequence: None, bytes: None }
    }

    /// A call of this communicator, team, plan or step, on so many bytes.
    pub fn on(name: &'static str, of: impl Into<Arc<str>>, bytes: Option<usize>) -> Self {
        Self { of: Some(of.into()), bytes: bytes.map(|bytes| bytes as u64), ..Self::new(name) }
    }
}

/// What was put on a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamWork {
    /// The kernel's C name; `graph` and `copy` for those.
    pub name: Arc<str>,
    /// Blocks and threads of a block, of a kernel.
    pub grid: Option<(u32, u32)>,
    /// Bytes of a copy.
    pub bytes: Option<u64>,
}

/// One entry of a timeline. Times of the host are those of its monotonic clock, in ns; times of the device are in ns from an origin that
/// [`TraceRecord::Clocks`] relates to it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TraceRecord {
    /// A thread of the host, before its first call.
    Thread {
        /// Its number in this trace.
        thread: u32,
        /// Its name, if it has one.
        name: Option<String>,
    },
    /// A call, from its begin to its return.
    Call {
        /// Its number in this trace.
        id: u64,
        /// What.
        call: HostCall,
        /// The thread's number.
        thread: u32,
        /// Host clock.
        begin_ns: u64,
        /// Host clock.
        end_ns: u64,
    },
    /// Work on a stream, from the end of what the stream did before it to its own end.
    Work {
        /// What.
        work: StreamWork,
        /// The innermost call that put it there.
        call: Option<u64>,
        /// The stream's handle.
        stream: u64,
        /// Device clock.
        begin_ns: i64,
        /// Device clock.
        end_ns: i64,
    },
    /// One moment by both clocks.
    Clocks {
        /// Device clock.
        device_ns: i64,
        /// Host clock.
        host_ns: u64,
        /// The most by which they may be apart.
        error_ns: u64,
    },
}

/// What a trace does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Untraced {
    /// Entries over the bound, and work that could not be timed.
    pub lost: u64,
    /// Launches into graphs that were captured: the launch of the graph is traced in their place.
    pub captured: u64,
}

/// A running trace of a device.
#[derive(Debug)]
pub struct Trace {
    device: Device,
    /// For looks at the clocks: nothing else runs on it.
    stream: Stream,
    bound: usize,
    calls: AtomicU64,
    records: Mutex<Vec<TraceRecord>>,
    pending: Mutex<VecDeque<Pending>>,
    /// Held by the thread that looks at `pending`; the others do not wait for it.
    polling: Mutex<()>,
    anchor: Mutex<Arc<Anchor>>,
    threads: Mutex<HashMap<ThreadId, HostThread>>,
    events: Mutex<Vec<Event>>,
    lost: AtomicU64,
    captured: AtomicU64,
}

#[derive(Debug)]
struct HostThread {
    number: u32,
    open: Vec<u64>,
}

#[derive(Debug)]
struct Pending {
    work: StreamWork,
    call: Option<u64>,
    stream: u64,
    anchor: Arc<Anchor>,
    begin: Event,
    end: Event,
}

/// Where a device's trace is, when it has one.
#[derive(Default)]
pub(crate) struct TraceSlot {
    is_on: AtomicBool,
    trace: RwLock<Option<Arc<Trace>>>,
}

impl fmt::Debug for TraceSlot {
    // The trace has the device.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceSlot").field("is_on", &self.is_on).finish_non_exhaustive()
    }
}

impl TraceSlot {
    fn get(&self) -> Option<Arc<Trace>> {
        if !self.is_on.load(Ordering::Acquire) {
            return None;
        }
        self.trace.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A call that has begun; it ends when this is dropped.
#[derive(Debug)]
#[must_use = "the call is recorded until this is dropped"]
pub struct CallSpan(Option<OpenCall>);

#[derive(Debug)]
struct OpenCall {
    trace: Arc<Trace>,
    id: u64,
    call: HostCall,
    begin_ns: u64,
}

impl Device {
    /// Starts to record what clones of this device do, up to `bound` entries between two calls of [`Trace::take`].
    ///
    /// # Errors
    /// [`Error::Traced`] while another trace of this device runs; the codes of a stream and its events.
    pub fn start_trace(&self, bound: usize) -> Result<Arc<Trace>> {
        let stream = self.create_stream()?;
        let (anchor, look) = Anchor::first(&stream)?;
        let trace = Arc::new(Trace {
            device: self.clone(),
            stream,
            bound,
            calls: AtomicU64::new(0),
            records: Mutex::new(vec![look.into()]),
            pending: Mutex::default(),
            polling: Mutex::default(),
            anchor: Mutex::new(Arc::new(anchor)),
            threads: Mutex::default(),
            events: Mutex::default(),
            lost: AtomicU64::new(0),
            captured: AtomicU64::new(0),
        });
        let slot = self.trace_slot();
        let mut running = slot.trace.write().unwrap_or_else(PoisonError::into_inner);
        if running.is_some() {
            return Err(Error::Traced { device: self.ordinal() });
        }
        *running = Some(Arc::clone(&trace));
        slot.is_on.store(true, Ordering::Release);
        Ok(trace)
    }

    /// Records a call of the host from now until the answer is dropped, if a trace runs. What it puts on streams names it.
    pub fn record_call(&self, call: impl FnOnce() -> HostCall) -> CallSpan {
        CallSpan(self.trace_slot().get().map(|trace| trace.begin(call())))
    }

    /// Times what `launch` puts on the stream, if a trace runs.
    pub(crate) fn timed(
        &self,
        stream: &Stream,
        work: impl FnOnce() -> StreamWork,
        launch: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        match self.trace_slot().get() {
            None => launch(),
            Some(trace) => trace.around(stream, work, launch),
        }
    }
}

impl Trace {
    fn begin(self: Arc<Self>, call: HostCall) -> OpenCall {
        let id = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        self.on_thread(|thread| thread.open.push(id));
        OpenCall { trace: self, id, call, begin_ns: host_ns() }
    }

    /// The calling thread.
    fn on_thread<T>(&self, use_it: impl FnOnce(&mut HostThread) -> T) -> T {
        let current = std::thread::current();
        let mut threads = lock(&self.threads);
        let number = threads.len() as u32;
        let thread = threads.entry(current.id()).or_insert_with(|| {
            self.push(TraceRecord::Thread { thread: number, name: current.name().map(str::to_owned) });
            HostThread { number, open: Vec::new() }
        });
        use_it(thread)
    }

    fn around(
        &self,
        stream: &Stream,
        work: impl FnOnce() -> StreamWork,
        launch: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        // Events of a capture have no time.
        if stream.is_capturing().unwrap_or(true) {
            self.captured.fetch_add(1, Ordering::Relaxed);
            return launch();
        }
        self.poll();
        let anchor = self.anchor();
        let begin = self.mark(stream);
        launch()?;
        let (Ok(begin), Ok(end)) = (begin, self.mark(stream)) else {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        };
        let call = self.on_thread(|thread| thread.open.last().copied());
        let pending = Pending { work: work(), call, stream: stream.raw() as u64, anchor, begin, end };
        let mut all = lock(&self.pending);
        if all.len() < MOST_PENDING {
            all.push_back(pending);
        } else {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// What events that are recorded from now on count from.
    fn anchor(&self) -> Arc<Anchor> {
        let anchor = Arc::clone(&lock(&self.anchor));
        if !anchor.is_old() {
            return anchor;
        }
        self.look_at_clocks();
        Arc::clone(&lock(&self.anchor))
    }

    /// Records a moment by both clocks, and counts from it. Where the device does not answer in time, the earlier one serves on.
    fn look_at_clocks(&self) {
        let anchor = Arc::clone(&lock(&self.anchor));
        let Ok(Some((anchor, look))) = anchor.next(&self.stream) else { return };
        *lock(&self.anchor) = Arc::new(anchor);
        self.push(look.into());
    }

    fn mark(&self, stream: &Stream) -> Result<Event> {
        let free = lock(&self.events).pop();
        let event = free.map_or_else(|| self.device.create_timing_event(), Ok)?;
        stream.record(&event)?;
        Ok(event)
    }

    /// Notes what is over. Calls the runtime, as a launch does: not on a thread that captures.
    fn poll(&self) {
        let Ok(_only) = self.polling.try_lock() else { return };
        loop {
            // No lock is held while the runtime is called.
            let Some(first) = lock(&self.pending).pop_front() else { return };
            match first.end.is_done() {
                Ok(false) => return lock(&self.pending).push_front(first),
                Ok(true) => self.resolve(first),
                Err(_) => self.lose(),
            }
        }
    }

    fn resolve(&self, done: Pending) {
        let Pending { work, call, stream, anchor, begin, end } = done;
        let times = anchor.time_of(&begin).and_then(|at| Ok((at, begin.microseconds_until(&end)?)));
        match times {
            Ok((begin_ns, lasted)) => {
                let end_ns = begin_ns + (lasted * 1000.0) as i64;
                self.push(TraceRecord::Work { work, call, stream, begin_ns, end_ns });
            }
            Err(_) => self.lose(),
        }
        lock(&self.events).extend([begin, end]);
    }

    fn lose(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    fn push(&self, record: TraceRecord) {
        let mut records = lock(&self.records);
        if records.len() < self.bound {
            records.push(record);
        } else {
            self.lose();
        }
    }

    /// What was recorded since the last call. Calls no function of the runtime.
    pub fn take(&self) -> Vec<TraceRecord> {
        std::mem::take(&mut *lock(&self.records))
    }

    /// Waits until all traced work is over, at most this long. Calls the runtime: not on a thread that captures.
    pub fn drain(&self, limit: Duration) {
        let begun = Moment::now();
        loop {
            self.poll();
            if lock(&self.pending).is_empty() || begun.elapsed() > limit {
                return;
            }
            anabranch_clock::sleep(Duration::from_micros(100));
        }
    }

    /// The host's clock of records, now, in ns.
    pub fn now_ns() -> u64 {
        host_ns()
    }

    /// What it does not have so far.
    pub fn untraced(&self) -> Untraced {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Untraced { lost: read(&self.lost), captured: read(&self.captured) }
    }

    /// Ends it: nothing is recorded any more. Work that is not over counts as lost. Doing it again does nothing.
    pub fn stop(&self) {
        let slot = self.device.trace_slot();
        {
            let mut running = slot.trace.write().unwrap_or_else(PoisonError::into_inner);
            if !running.as_ref().is_some_and(|running| std::ptr::eq(&raw const **running, self)) {
                return;
            }
            slot.is_on.store(false, Ordering::Release);
            *running = None;
        }
        let pending = std::mem::take(&mut *lock(&self.pending));
        for one in pending {
            if one.end.is_done().unwrap_or(false) {
                self.resolve(one);
            } else {
                self.lose();
            }
        }
        self.look_at_clocks();
    }
}

impl From<Look> for TraceRecord {
    fn from(look: Look) -> Self {
        Self::Clocks { device_ns: look.device, host_ns: look.host, error_ns: look.error }
    }
}

impl Drop for CallSpan {
    fn drop(&mut self) {
        let Some(OpenCall { trace, id, call, begin_ns }) = self.0.take() else { return };
        let end_ns = host_ns();
        let thread = trace.on_thread(|thread| {
            thread.open.retain(|open| *open != id);
            thread.number
        });
        trace.push(TraceRecord::Call { id, call, thread, begin_ns, end_ns });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
