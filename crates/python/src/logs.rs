//! The library's log in Python's `logging`.
//!
//! Threads of the library never take the interpreter's lock: records wait in a ring until a call of the module, [`flush`], or the exit of
//! the interpreter hands them on.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::{EnvFilter, Registry};

/// Most records that wait.
const ROOM: usize = 1024;

#[derive(Debug)]
struct Record {
    level: u8,
    target: &'static str,
    text: String,
}

#[derive(Debug, Default)]
struct Ring {
    records: VecDeque<Record>,
    lost: u64,
}

static RING: Mutex<Ring> = Mutex::new(Ring { records: VecDeque::new(), lost: 0 });
static IS_WAITING: AtomicBool = AtomicBool::new(false);

struct ToRing;

impl<S: Subscriber> Layer<S> for ToRing {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = Text::default();
        event.record(&mut text);
        let level = match *event.metadata().level() {
            Level::ERROR => 40,
            Level::WARN => 30,
            Level::INFO => 20,
            Level::DEBUG => 10,
            Level::TRACE => 5,
        };
        let record = Record { level, target: event.metadata().target(), text: text.0 };
        let mut ring = RING.lock().unwrap_or_else(PoisonError::into_inner);
        if ring.records.len() < ROOM {
            ring.records.push_back(record);
        } else {
            ring.lost += 1;
        }
        IS_WAITING.store(true, Ordering::Release);
    }
}

/// The message, and the fields behind it as `name=value`.
#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let space = if self.0.is_empty() { "" } else { " " };
        // Writing to a string does not fail.
        let _ = if field.name() == "message" {
            write!(self.0, "{space}{value:?}")
        } else {
            write!(self.0, "{space}{}={value:?}", field.name())
        };
    }
}

/// Sends the library's log to the ring. `ANABRANCH_LOG` chooses what is in it; warnings and errors where it is not set.
pub(crate) fn start() {
    let wanted = anabranch::Environment::of_process();
    let filter = EnvFilter::new(wanted.get("ANABRANCH_LOG").unwrap_or("warn"));
    // A program that embeds Python may have a subscriber of its own, which then gets the log.
    let _ = tracing::subscriber::set_global_default(Registry::default().with(ToRing.with_filter(filter)));
}

/// Hands waiting records to `logging`, under the name of the part of the library (`anabranch.shmem`). An exception of a handler is printed
/// and goes no further: the call at hand has a result of its own.
pub(crate) fn flush(py: Python<'_>) {
    if IS_WAITING.swap(false, Ordering::AcqRel)
        && let Err(error) = hand_on(py)
    {
        error.write_unraisable(py, None);
    }
}

fn hand_on(py: Python<'_>) -> PyResult<()> {
    let ring = std::mem::take(&mut *RING.lock().unwrap_or_else(PoisonError::into_inner));
    let logging = py.import("logging")?;
    for Record { level, target, text } in ring.records {
        let part = target.split("::").next().unwrap_or(target).replacen('_', ".", 1);
        logging.call_method1("getLogger", (part,))?.call_method1("log", (level, "%s", text))?;
    }
    if ring.lost > 0 {
        let text =
            format!("{} records of the log were lost: more than {ROOM} came between two calls", ring.lost);
        logging.call_method1("getLogger", ("anabranch",))?.call_method1("warning", ("%s", text))?;
    }
    Ok(())
}
