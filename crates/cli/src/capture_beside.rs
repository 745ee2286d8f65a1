//! A thread that captures and replays its own graphs while ranks run on other threads, as a framework does (`--capture-beside`).

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anabranch::Error;
use anabranch_hip::{Device, DeviceBuffer, Stream};
use anyhow::{Context, bail};

/// How long a capture stays open: much longer than its replay, so that a capture is open most of the time.
const OPEN: Duration = Duration::from_millis(1);
/// Bytes that a graph fills, and as many into which it copies them.
const BYTES: usize = 256;

/// The thread, which captures until it is stopped.
#[derive(Debug)]
pub(crate) struct CaptureBeside {
    stop: Sender<()>,
    thread: JoinHandle<anyhow::Result<u64>>,
}

impl CaptureBeside {
    /// Starts it on a device; its first capture is open on return.
    ///
    /// # Errors
    /// The system's error if no thread can be started.
    pub(crate) fn start(device: Device) -> anyhow::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let (began, begins) = mpsc::channel();
        let body = move || capture_until(&device, &stopped, &began);
        let thread = thread::Builder::new().name("capture-beside".to_owned()).spawn(body);
        let thread = thread.context("--capture-beside: the system starts no thread")?;
        // Without a first capture the thread has ended; joining it returns the error.
        let _begun = begins.recv();
        Ok(Self { stop, thread })
    }

    /// Stops it and returns the number of graphs that were captured and replayed.
    ///
    /// # Errors
    /// The first capture or replay that failed.
    pub(crate) fn finish(self) -> anyhow::Result<u64> {
        // A failed thread no longer receives.
        let _sent = self.stop.send(());
        let ended = self.thread.join();
        let graphs = ended.unwrap_or_else(|_| bail!("the thread panicked"));
        graphs.context("--capture-beside: a capture beside the ranks failed")
    }
}

fn capture_until(device: &Device, stopped: &Receiver<()>, began: &Sender<()>) -> anyhow::Result<u64> {
    let stream = device.create_stream().map_err(Error::from)?;
    let memory = device.allocate(2 * BYTES).map_err(Error::from)?;
    for graphs in 1.. {
        let value = graphs as u8;
        let rest = || {
            // Only the first capture has a receiver.
            let _sent = began.send(());
            stopped.recv_timeout(OPEN) == Err(RecvTimeoutError::Timeout)
        };
        let goes_on = capture_and_replay(&stream, &memory, value, rest)
            .map_err(Error::from)
            .with_context(|| format!("capture {graphs}"))?;
        let mut seen = [0; 2 * BYTES];
        memory.copy_to_host(0, &mut seen).map_err(Error::from)?;
        if seen != [value; 2 * BYTES] {
            bail!("the replay of capture {graphs} left {seen:?}; each byte should be {value}");
        }
        if !goes_on {
            return Ok(graphs);
        }
    }
    Ok(u64::MAX)
}

/// Captures a fill and a copy with a rest between them, replays them and waits.
#[expect(unsafe_code, reason = "work of a stream takes addresses")]
fn capture_and_replay(
    stream: &Stream,
    memory: &DeviceBuffer,
    value: u8,
    rest: impl FnOnce() -> bool,
) -> Result<bool, anabranch_hip::Error> {
    let (first, second) = (memory.address(), memory.address().offset(BYTES as u64));
    stream.begin_capture()?;
    // SAFETY: each range is a half of `memory`, which outlives the replay (waited for below) and is used by no other code.
    unsafe { stream.fill_async(first, value, BYTES) }?;
    let goes_on = rest();
    // SAFETY: as above.
    unsafe { stream.copy_async(second, first, BYTES) }?;
    let graph = stream.end_capture()?.instantiate()?;
    // SAFETY: as above.
    unsafe { graph.launch(stream) }?;
    stream.synchronize()?;
    Ok(goes_on)
}
