//! Devices, streams and graphs of the host runtime, for programs without a GPU: what CUDA's runtime does for those with one. Memory is any
//! memory of the process. Not NCCL's; tests use them.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::Mutex;

use anabranch::RuntimeKind;
use anabranch::hip::{GraphExec, Stream};

use crate::abi::{RawStream, ResultCode};
use crate::comm::lock;
use crate::error::{Failure, call};
use crate::process::{Process, start_log};

static STREAMS: Mutex<Option<HashMap<usize, Stream>>> = Mutex::new(None);
static GRAPHS: Mutex<Vec<GraphExec>> = Mutex::new(Vec::new());

fn host() -> Result<std::sync::Arc<Process>, Failure> {
    start_log();
    let process = Process::get()?;
    if process.kind() == RuntimeKind::Host {
        return Ok(process);
    }
    Err(Failure::usage(format!(
        "this function is for the host runtime; device.runtime is {}",
        process.kind().word()
    )))
}

/// Waiting holds no lock.
fn with_stream<T>(stream: RawStream, body: impl FnOnce(&Stream) -> Result<T, Failure>) -> Result<T, Failure> {
    host()?;
    let known =
        lock(&STREAMS).get_or_insert_default().get(&(stream as usize)).map(|stream| stream.device().clone());
    let device = known
        .ok_or_else(|| Failure::argument(format!("{stream:p} is no stream of anabranchHostStreamCreate")))?;
    // SAFETY: streams of the registry live as long as the process.
    body(&unsafe { device.borrow_stream(stream) })
}

/// The calling thread's current device.
#[unsafe(no_mangle)]
extern "C" fn anabranchHostSetDevice(device: c_int) -> ResultCode {
    call("anabranchHostSetDevice", || {
        let ordinal = u32::try_from(device).map_err(|_| Failure::argument(format!("device is {device}")))?;
        host()?.device(ordinal)?;
        Process::set_host_device(ordinal);
        Ok(())
    })
}

/// A stream of the thread's device. It lives until the process ends.
#[unsafe(no_mangle)]
unsafe extern "C" fn anabranchHostStreamCreate(result: *mut RawStream) -> ResultCode {
    call("anabranchHostStreamCreate", || {
        let process = host()?;
        let stream = process.device(process.current_device()?)?.create_stream()?;
        let raw = stream.raw();
        lock(&STREAMS).get_or_insert_default().insert(raw as usize, stream);
        // SAFETY: the caller's out pointer.
        unsafe { result.write(raw) };
        Ok(())
    })
}

/// What the first stream gets next comes after what the second one was given so far.
#[unsafe(no_mangle)]
extern "C" fn anabranchHostStreamFollow(stream: RawStream, other: RawStream) -> ResultCode {
    call("anabranchHostStreamFollow", || {
        with_stream(stream, |stream| {
            with_stream(other, |other| {
                let event = other.device().create_event()?;
                other.record(&event)?;
                Ok(stream.wait_event(&event)?)
            })
        })
    })
}

/// Waits for a stream.
#[unsafe(no_mangle)]
extern "C" fn anabranchHostStreamSynchronize(stream: RawStream) -> ResultCode {
    call("anabranchHostStreamSynchronize", || with_stream(stream, |stream| Ok(stream.synchronize()?)))
}

/// Begins a capture of a stream.
#[unsafe(no_mangle)]
extern "C" fn anabranchHostBeginCapture(stream: RawStream) -> ResultCode {
    call("anabranchHostBeginCapture", || with_stream(stream, |stream| Ok(stream.begin_capture()?)))
}

/// Ends it, and gives the number of the graph, which lives until the process ends.
#[unsafe(no_mangle)]
unsafe extern "C" fn anabranchHostEndCapture(stream: RawStream, result: *mut c_int) -> ResultCode {
    call("anabranchHostEndCapture", || {
        let graph = with_stream(stream, |stream| Ok(stream.end_capture()?.instantiate()?))?;
        let mut graphs = lock(&GRAPHS);
        graphs.push(graph);
        // SAFETY: the caller's out pointer.
        unsafe { result.write(graphs.len() as c_int - 1) };
        Ok(())
    })
}

/// Replays a graph.
#[unsafe(no_mangle)]
unsafe extern "C" fn anabranchHostGraphLaunch(graph: c_int, stream: RawStream) -> ResultCode {
    call("anabranchHostGraphLaunch", || {
        with_stream(stream, |stream| {
            let graphs = lock(&GRAPHS);
            let graph = usize::try_from(graph).ok().and_then(|number| graphs.get(number));
            let graph = graph.ok_or_else(|| Failure::argument("no such graph"))?;
            // SAFETY: the caller keeps what was captured.
            Ok(unsafe { graph.launch(stream) }?)
        })
    })
}
