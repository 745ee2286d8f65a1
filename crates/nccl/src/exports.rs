//! NCCL's functions, each also with the prefix `p` for profilers. Their contracts are those of `nccl.h`; the comments say what differs.
#![expect(non_snake_case, reason = "NCCL's names")]

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use anabranch::Environment;
use anabranch::ccl::{DeviceScalar, ReduceOp};
use anabranch::hip::DeviceAddress;

use crate::abi::{
    self, CallConfig, Config, Handle, Properties, RawStream, ResultCode, Team, UniqueId, WindowHandle,
};
use crate::comm::{self, Comm};
use crate::error::{self, Failure, call};
use crate::group::{self, Job};
use crate::operation::{Kind, Operation, rank_of};
use crate::process::{self, Process};
use crate::window;

/// A function, and the same with the prefix `p`. The body's failures become codes.
macro_rules! export {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $body:block)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $kind),*) -> ResultCode {
                process::start_log();
                call(stringify!($name), move || $body)
            }
        )*
        mod with_prefix {
            use super::*;
            $(
                #[unsafe(export_name = concat!("p", stringify!($name)))]
                unsafe extern "C" fn $name($($argument: $kind),*) -> ResultCode {
                    // SAFETY: the caller's contract is the same.
                    unsafe { super::$name($($argument),*) }
                }
            )*
        }
    };
}

/// An argument that a job writes through when it is done: NCCL demands that it stays valid until then.
struct Out<T>(*mut T);

// SAFETY: the program gives the place to the call that the job is of, and does not use it before that is done.
unsafe impl<T> Send for Out<T> {}

impl<T> Out<T> {
    fn new(place: *mut T, name: &str) -> Result<Self, Failure> {
        if place.is_null() { Err(Failure::argument(format!("{name} is null"))) } else { Ok(Self(place)) }
    }

    fn put(&self, value: T) {
        // SAFETY: the caller's out pointer, which is not null.
        unsafe { self.0.write(value) }
    }
}

fn out<T>(place: *mut T, name: &str, value: T) -> Result<(), Failure> {
    Out::new(place, name)?.put(value);
    Ok(())
}

/// Makes a communicator, whose number is there at once, and lets it join, in the group if there is one.
fn init(
    place: *mut Handle,
    size: c_int,
    id: [u8; 128],
    rank: c_int,
    config: abi::CommConfig,
) -> Result<(), Failure> {
    let place = Out::new(place, "comm")?;
    place.put(std::ptr::null_mut());
    let device = Process::get()?.current_device()?;
    let comm = Comm::new(id, rank, size, device, config)?;
    place.put(comm.handle());
    group::submit_job(join_job(comm, place))
}

/// Ends the waits for a communicator whose job is dropped, or panics, before it has joined.
struct Unjoined(Arc<Comm>);

impl Drop for Unjoined {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

fn join_job(comm: Arc<Comm>, place: Out<Handle>) -> Job {
    let is_nonblocking = comm.is_nonblocking();
    let unjoined = Unjoined(Arc::clone(&comm));
    Job::new(comm.handle(), is_nonblocking, move || {
        let _unjoined = unjoined;
        // The program asks for the state of a nonblocking communicator, and ends it itself.
        let keeps = comm.is_nonblocking();
        comm.join().inspect_err(|failure| {
            if keeps {
                tracing::warn!("ncclCommInitRankConfig: {}", failure.text);
            } else {
                comm.discard();
                place.put(std::ptr::null_mut());
            }
        })
    })
}

/// An operation with its arguments in NCCL's order.
struct Arguments {
    kind: Kind,
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    data_type: c_int,
    op: Option<c_int>,
    root: c_int,
    comm: Handle,
    stream: RawStream,
}

fn operation(arguments: &Arguments) -> Result<Operation, Failure> {
    let comm = comm::find(arguments.comm)?;
    let op = arguments.op.map(|op| comm.operator(op)).transpose()?;
    let operation = Operation {
        kind: arguments.kind,
        stream: arguments.stream as usize,
        send: arguments.send as u64,
        receive: arguments.receive as u64,
        count: arguments.count as u64,
        data_type: abi::data_type(arguments.data_type)?,
        op,
        root: rank_of(arguments.root)?,
        comm,
    };
    operation.check()?;
    Ok(operation)
}

fn submit(arguments: &Arguments) -> Result<(), Failure> {
    group::submit(operation(arguments).inspect_err(group::spoil)?)
}

/// The version that `ANABRANCH_NCCL_VERSION` gives, for programs that demand one; else that of the header.
fn version() -> Result<c_int, Failure> {
    match Environment::of_process().get("ANABRANCH_NCCL_VERSION") {
        None => Ok(abi::VERSION),
        Some(text) => text.parse().map_err(|_| {
            Failure::usage(format!(
                "ANABRANCH_NCCL_VERSION is {text:?}; a number like {} is needed",
                abi::VERSION
            ))
        }),
    }
}

/// The scalar of an operator, of any type that has one.
///
/// # Safety
/// `scalar` points to an element of the type.
unsafe fn host_scalar(scalar: *const c_void, data_type: c_int) -> Result<f64, Failure> {
    use anabranch::ccl::{DataType, F8E4m3, F8E5m2};
    // SAFETY: the caller's contract.
    Ok(unsafe {
        match abi::data_type(data_type)? {
            DataType::F16 => f64::from(scalar.cast::<half::f16>().read_unaligned()),
            DataType::Bf16 => f64::from(scalar.cast::<half::bf16>().read_unaligned()),
            DataType::F32 => f64::from(scalar.cast::<f32>().read_unaligned()),
            DataType::F64 => scalar.cast::<f64>().read_unaligned(),
            DataType::F8E4m3 => f64::from(F8E4m3::from_bits(scalar.cast::<u8>().read()).to_f32()),
            DataType::F8E5m2 => f64::from(F8E5m2::from_bits(scalar.cast::<u8>().read()).to_f32()),
            other => {
                return Err(Failure::usage(format!("PreMulSum of {other} is not supported; floats are")));
            }
        }
    })
}

export! {
    fn ncclGetVersion(result: *mut c_int) {
        out(result, "version", version()?)
    }

    fn ncclGetUniqueId(id: *mut UniqueId) {
        let place = Out::new(id, "uniqueId")?;
        place.put(UniqueId { internal: comm::unique_id()? });
        Ok(())
    }

    fn ncclCommInitRank(comm: *mut Handle, size: c_int, id: UniqueId, rank: c_int) {
        init(comm, size, id.internal, rank, abi::CommConfig::default())
    }

    fn ncclCommInitRankConfig(comm: *mut Handle, size: c_int, id: UniqueId, rank: c_int, config: *const Config) {
        // SAFETY: the caller's contract.
        init(comm, size, id.internal, rank, unsafe { Config::read(config) }?)
    }

    /// The ranks meet by the first id.
    fn ncclCommInitRankScalable(
        comm: *mut Handle,
        size: c_int,
        rank: c_int,
        number: c_int,
        ids: *const UniqueId,
        config: *const Config,
    ) {
        if number < 1 || ids.is_null() {
            return Err(Failure::argument(format!("nId is {number}; at least one id is needed")));
        }
        // SAFETY: the caller's contract.
        let (id, config) = unsafe { (ids.read_unaligned(), Config::read(config)?) };
        init(comm, size, id.internal, rank, config)
    }

    fn ncclCommInitAll(comms: *mut Handle, number: c_int, devices: *const c_int) {
        if comms.is_null() || number < 1 {
            return Err(Failure::argument(format!("ndev is {number}, comm is {comms:p}; a place for each device is needed")));
        }
        let id = comm::unique_id()?;
        let mut made = Vec::new();
        for rank in 0..number {
            // SAFETY: the caller's contract: `number` devices, if any are given.
            let device = if devices.is_null() { rank } else { unsafe { devices.add(rank as usize).read() } };
            let device = u32::try_from(device).map_err(|_| Failure::argument(format!("device is {device}")))?;
            let comm = Comm::new(id, rank, number, device, abi::CommConfig::default());
            made.push(comm.inspect_err(|_| made.iter().for_each(|comm: &Arc<Comm>| comm.discard()))?);
        }
        let jobs = made.into_iter().enumerate().map(|(rank, comm)| {
            // SAFETY: the caller's contract: places for `number` communicators.
            let place = Out(unsafe { comms.add(rank) });
            place.put(comm.handle());
            join_job(comm, place)
        });
        group::run_jobs(jobs.collect())
    }

    /// Starts to leave; the state is "in progress" until all ranks have.
    fn ncclCommFinalize(comm: Handle) {
        let comm = comm::find(comm)?;
        comm.start_leaving();
        comm.wait_left();
        Ok(())
    }

    fn ncclCommDestroy(comm: Handle) {
        if comm.is_null() {
            return Ok(());
        }
        let comm = comm::find(comm)?;
        comm.start_leaving();
        comm.forget();
        comm.wait_left();
        Ok(())
    }

    /// The other ranks get an error that names this one.
    fn ncclCommAbort(comm: Handle) {
        if comm.is_null() {
            return Ok(());
        }
        comm::find(comm)?.abort();
        Ok(())
    }

    fn ncclCommSplit(comm: Handle, color: c_int, key: c_int, result: *mut Handle, config: *const Config) {
        let (comm, place) = (comm::find(comm)?, Out::new(result, "newcomm")?);
        // SAFETY: the caller's contract.
        let config = if config.is_null() { None } else { Some(unsafe { Config::read(config) }?) };
        group::submit_job(Job::new(comm.handle(), false, move || {
            place.put(std::ptr::null_mut());
            if let Some(part) = comm.split(color, key, config)? {
                place.put(part.handle());
            }
            Ok(())
        }))
    }

    fn ncclCommGetAsyncError(comm: Handle, result: *mut ResultCode) {
        let (comm, place) = (comm::find(comm)?, Out::new(result, "asyncError")?);
        let state = comm.state();
        place.put(state.as_ref().map_or_else(|failure| failure.code, |()| abi::SUCCESS));
        if let Err(failure) = state
            && failure.code != abi::IN_PROGRESS
        {
            error::note(&failure.text);
        }
        Ok(())
    }

    fn ncclCommCount(comm: Handle, count: *mut c_int) {
        out(count, "count", comm::find(comm)?.size as c_int)
    }

    fn ncclCommCuDevice(comm: Handle, device: *mut c_int) {
        out(device, "device", comm::find(comm)?.device as c_int)
    }

    fn ncclCommUserRank(comm: Handle, rank: *mut c_int) {
        out(rank, "rank", comm::find(comm)?.rank as c_int)
    }

    /// No device API, no multicast, no one-sided operations.
    fn ncclCommQueryProperties(comm: Handle, properties: *mut Properties) {
        let comm = comm::find(comm)?;
        Out::new(properties, "props")?;
        // SAFETY: the caller's contract.
        unsafe { Properties::write(properties, comm.rank as c_int, comm.size as c_int, comm.device as c_int) }
    }

    /// Nothing is registered: the memory stays local and is staged.
    fn ncclCommRegister(comm: Handle, buffer: *mut c_void, size: usize, handle: *mut *mut c_void) {
        comm::find(comm)?;
        if buffer.is_null() || size == 0 {
            return Err(Failure::argument(format!("buff is {buffer:p} of {size} bytes")));
        }
        out(handle, "handle", buffer)
    }

    fn ncclCommDeregister(comm: Handle, handle: *mut c_void) {
        let _ = handle;
        comm::find(comm).map(drop)
    }

    fn ncclCommWindowRegister(comm: Handle, buffer: *mut c_void, size: usize, result: *mut WindowHandle, flags: c_int) {
        let (comm, place) = (comm::find(comm)?, Out::new(result, "win")?);
        if buffer.is_null() || size == 0 {
            return Err(Failure::argument(format!("buff is {buffer:p} of {size} bytes")));
        }
        let address = buffer as u64;
        group::submit_job(Job::new(comm.handle(), false, move || {
            let is_symmetric = flags & abi::WINDOW_SYMMETRIC != 0;
            place.put(std::ptr::null_mut());
            // SAFETY: the caller's contract.
            let window = unsafe { window::register(&comm, address, size as u64, is_symmetric) };
            if let Some(number) = window.map_err(|failure| comm.explain(failure))? {
                place.put(number as WindowHandle);
            }
            Ok(())
        }))
    }

    fn ncclCommWindowDeregister(comm: Handle, window: WindowHandle) {
        let comm = comm::find(comm)?;
        if window.is_null() {
            return Ok(());
        }
        comm.take_window(window as usize).map(drop)
    }

    fn ncclWinGetUserPtr(comm: Handle, window: WindowHandle, result: *mut *mut c_void) {
        let comm = comm::find(comm)?;
        let windows = comm.windows();
        let found = windows.iter().find(|one| one.number == window as usize);
        // NCCL: a null pointer where a window is not one.
        out(result, "outUserPtr", found.map_or(std::ptr::null_mut(), |window| window.address as *mut c_void))
    }

    fn ncclMemAlloc(result: *mut *mut c_void, size: usize) {
        let place = Out::new(result, "ptr")?;
        place.put(window::allocate(size)? as *mut c_void);
        Ok(())
    }

    fn ncclMemFree(address: *mut c_void) {
        window::free(address as u64)
    }

    /// Floats only. All ranks give equal scalars.
    fn ncclRedOpCreatePreMulSum(
        result: *mut c_int,
        scalar: *mut c_void,
        data_type: c_int,
        residence: c_int,
        comm: Handle,
    ) {
        let (comm, place) = (comm::find(comm)?, Out::new(result, "op")?);
        if scalar.is_null() {
            return Err(Failure::argument("scalar is null"));
        }
        let op = match residence {
            // SAFETY: the caller's contract: device memory that stays as it is until the collectives with the operator are over.
            0 => ReduceOp::PreMulSumAt(unsafe { DeviceScalar::at(DeviceAddress(scalar as u64), abi::data_type(data_type)?) }),
            // SAFETY: the caller's contract: an element in host memory.
            1 => ReduceOp::PreMulSum(unsafe { host_scalar(scalar, data_type) }?),
            other => return Err(Failure::argument(format!("residence is {other}; 0 and 1 are allowed"))),
        };
        op.check(abi::data_type(data_type)?).map_err(|error| Failure::usage(error.to_string()))?;
        place.put(comm.keep_operator(op));
        Ok(())
    }

    fn ncclRedOpDestroy(op: c_int, comm: Handle) {
        comm::find(comm)?.drop_operator(op)
    }

    fn ncclGroupStart() {
        group::start();
        Ok(())
    }

    fn ncclGroupEnd() {
        group::end()
    }

    fn ncclReduce(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, op: c_int, root: c_int, comm: Handle,
        stream: RawStream,
    ) {
        submit(&Arguments { kind: Kind::Reduce, send, receive, count, data_type, op: Some(op), root, comm, stream })
    }

    fn ncclBcast(buffer: *mut c_void, count: usize, data_type: c_int, root: c_int, comm: Handle, stream: RawStream) {
        let (kind, send, receive) = (Kind::Broadcast, buffer, buffer);
        submit(&Arguments { kind, send, receive, count, data_type, op: None, root, comm, stream })
    }

    fn ncclBroadcast(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, root: c_int, comm: Handle,
        stream: RawStream,
    ) {
        submit(&Arguments { kind: Kind::Broadcast, send, receive, count, data_type, op: None, root, comm, stream })
    }

    fn ncclAllReduce(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, op: c_int, comm: Handle,
        stream: RawStream,
    ) {
        submit(&Arguments { kind: Kind::AllReduce, send, receive, count, data_type, op: Some(op), root: 0, comm, stream })
    }

    fn ncclReduceScatter(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, op: c_int, comm: Handle,
        stream: RawStream,
    ) {
        submit(&Arguments { kind: Kind::ReduceScatter, send, receive, count, data_type, op: Some(op), root: 0, comm, stream })
    }

    fn ncclAllGather(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, comm: Handle, stream: RawStream,
    ) {
        submit(&Arguments { kind: Kind::AllGather, send, receive, count, data_type, op: None, root: 0, comm, stream })
    }

    fn ncclAlltoAll(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, comm: Handle, stream: RawStream,
    ) {
        submit(&Arguments { kind: Kind::AllToAll, send, receive, count, data_type, op: None, root: 0, comm, stream })
    }

    /// RCCL's spelling.
    fn ncclAllToAll(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, comm: Handle, stream: RawStream,
    ) {
        submit(&Arguments { kind: Kind::AllToAll, send, receive, count, data_type, op: None, root: 0, comm, stream })
    }

    fn ncclGather(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, root: c_int, comm: Handle,
        stream: RawStream,
    ) {
        submit(&Arguments { kind: Kind::Gather, send, receive, count, data_type, op: None, root, comm, stream })
    }

    fn ncclScatter(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, root: c_int, comm: Handle,
        stream: RawStream,
    ) {
        submit(&Arguments { kind: Kind::Scatter, send, receive, count, data_type, op: None, root, comm, stream })
    }

    fn ncclSend(send: *const c_void, count: usize, data_type: c_int, root: c_int, comm: Handle, stream: RawStream) {
        let receive = std::ptr::null_mut();
        submit(&Arguments { kind: Kind::Send, send, receive, count, data_type, op: None, root, comm, stream })
    }

    fn ncclRecv(receive: *mut c_void, count: usize, data_type: c_int, root: c_int, comm: Handle, stream: RawStream) {
        let send = std::ptr::null();
        submit(&Arguments { kind: Kind::Receive, send, receive, count, data_type, op: None, root, comm, stream })
    }

    fn ncclAllReduceConfig(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, op: c_int, comm: Handle,
        stream: RawStream, config: *const CallConfig,
    ) {
        // SAFETY: the caller's contract.
        unsafe { CallConfig::check(config) }?;
        submit(&Arguments { kind: Kind::AllReduce, send, receive, count, data_type, op: Some(op), root: 0, comm, stream })
    }

    fn ncclBroadcastConfig(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, root: c_int, comm: Handle,
        stream: RawStream, config: *const CallConfig,
    ) {
        // SAFETY: the caller's contract.
        unsafe { CallConfig::check(config) }?;
        submit(&Arguments { kind: Kind::Broadcast, send, receive, count, data_type, op: None, root, comm, stream })
    }

    fn ncclReduceConfig(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, op: c_int, root: c_int, comm: Handle,
        stream: RawStream, config: *const CallConfig,
    ) {
        // SAFETY: the caller's contract.
        unsafe { CallConfig::check(config) }?;
        submit(&Arguments { kind: Kind::Reduce, send, receive, count, data_type, op: Some(op), root, comm, stream })
    }

    fn ncclAllGatherConfig(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, comm: Handle, stream: RawStream,
        config: *const CallConfig,
    ) {
        // SAFETY: the caller's contract.
        unsafe { CallConfig::check(config) }?;
        submit(&Arguments { kind: Kind::AllGather, send, receive, count, data_type, op: None, root: 0, comm, stream })
    }

    fn ncclReduceScatterConfig(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, op: c_int, comm: Handle,
        stream: RawStream, config: *const CallConfig,
    ) {
        // SAFETY: the caller's contract.
        unsafe { CallConfig::check(config) }?;
        submit(&Arguments { kind: Kind::ReduceScatter, send, receive, count, data_type, op: Some(op), root: 0, comm, stream })
    }

    fn ncclAlltoAllConfig(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, comm: Handle, stream: RawStream,
        config: *const CallConfig,
    ) {
        // SAFETY: the caller's contract.
        unsafe { CallConfig::check(config) }?;
        submit(&Arguments { kind: Kind::AllToAll, send, receive, count, data_type, op: None, root: 0, comm, stream })
    }

    fn ncclGatherConfig(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, root: c_int, comm: Handle,
        stream: RawStream, config: *const CallConfig,
    ) {
        // SAFETY: the caller's contract.
        unsafe { CallConfig::check(config) }?;
        submit(&Arguments { kind: Kind::Gather, send, receive, count, data_type, op: None, root, comm, stream })
    }

    fn ncclScatterConfig(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, root: c_int, comm: Handle,
        stream: RawStream, config: *const CallConfig,
    ) {
        // SAFETY: the caller's contract.
        unsafe { CallConfig::check(config) }?;
        submit(&Arguments { kind: Kind::Scatter, send, receive, count, data_type, op: None, root, comm, stream })
    }
}

/// Functions that return no code.
macro_rules! export_plain {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)? $body:block)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $kind),*) $(-> $result)? $body
        )*
        mod plain_with_prefix {
            use super::*;
            $(
                #[unsafe(export_name = concat!("p", stringify!($name)))]
                unsafe extern "C" fn $name($($argument: $kind),*) $(-> $result)? {
                    // SAFETY: the caller's contract is the same.
                    unsafe { super::$name($($argument),*) }
                }
            )*
        }
    };
}

export_plain! {
    fn ncclGetErrorString(code: ResultCode) -> *const c_char {
        abi::text_of(code).as_ptr()
    }

    /// The cause of a failed communicator, which names the rank; else the last error of the thread.
    fn ncclGetLastError(comm: Handle) -> *const c_char {
        let state = if comm.is_null() { Ok(()) } else { comm::find(comm).and_then(|comm| comm.state()) };
        match state {
            Err(failure) if failure.code != abi::IN_PROGRESS => error::note(&failure.text),
            _ => error::last(),
        }
    }

    fn ncclTeamWorld(comm: Handle) -> Team {
        comm::find(comm).map_or(Team { ranks: 0, rank: 0, stride: 0 }, |comm| {
            Team { ranks: comm.size as c_int, rank: comm.rank as c_int, stride: 1 }
        })
    }

    /// `ANABRANCH_LOG` is read once.
    fn ncclResetDebugInit() {}
}
