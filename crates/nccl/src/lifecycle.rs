//! NCCL's functions of communicators, windows, memory and groups, each also with the prefix `p` for profilers. Their contracts are those of
//! `nccl.h`; the comments say what differs.
#![expect(non_snake_case, reason = "NCCL's names")]

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use anabranch::Environment;
use anabranch::ccl::{DeviceScalar, ReduceOp};
use anabranch::hip::DeviceAddress;

use crate::abi::{self, Config, Handle, Properties, ResultCode, Team, UniqueId, WindowHandle};
use crate::comm::{self, Comm};
use crate::error::{self, Failure};
use crate::export::{Out, export, export_plain, out, with};
use crate::group::{self, Job};
use crate::process::Process;
use crate::split::split;
use crate::steps::Step;
use crate::window;

/// Makes a communicator, whose number is there at once, and lets it join, in the group if there is one.
fn init(
    place: *mut Handle,
    size: c_int,
    id: [u8; 128],
    rank: c_int,
    config: Result<abi::CommConfig, Failure>,
) -> Result<(), Failure> {
    let submit = || {
        let place = Out::new(place, "comm")?;
        place.put(std::ptr::null_mut());
        let device = Process::get()?.current_device()?;
        let comm = Comm::new(id, rank, size, device, config?)?;
        group::submit_job(join_job(&comm, place))
    };
    let is_rank = (0..size).contains(&rank);
    group::noted(
        submit()
            .map_err(|failure: Failure| if is_rank { failure.on(rank as u32, size as u32) } else { failure }),
    )
}

fn join_job(comm: &Arc<Comm>, place: Out<Handle>) -> Job {
    let step = Step::new(comm, comm.config.is_nonblocking);
    place.put(comm.handle());
    Job::new(step, move |step| join(step, &place))
}

fn join(step: Step, place: &Out<Handle>) -> Result<(), Failure> {
    let comm = Arc::clone(&step.comm);
    step.run(|_| comm.join()).inspect_err(|failure| {
        // The program asks for the state of a nonblocking communicator, and ends it itself.
        if comm.config.is_nonblocking {
            tracing::warn!("an initialisation failed: {}", failure.text);
        } else {
            comm.discard();
            place.put(std::ptr::null_mut());
        }
    })
}

/// Splits, and lets the part join. As in NCCL the state of the parent is "in progress" until the part of a nonblocking split has a number.
fn split_job(
    parent: &Arc<Comm>,
    color: c_int,
    key: c_int,
    config: abi::CommConfig,
    place: Out<Handle>,
) -> Job {
    Job::new(Step::new(parent, config.is_nonblocking), move |step| {
        let part = step.run(|parent| {
            let part = split(parent, color, key, config)?.map(|part| Step::new(&part, config.is_nonblocking));
            if let Some(step) = &part {
                place.put(step.comm.handle());
            }
            Ok(part)
        })?;
        part.map_or(Ok(()), |step| join(step, &place))
    })
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
            DataType::I8 => f64::from(scalar.cast::<i8>().read()),
            DataType::U8 => f64::from(scalar.cast::<u8>().read()),
            DataType::I32 => f64::from(scalar.cast::<i32>().read_unaligned()),
            DataType::U32 => f64::from(scalar.cast::<u32>().read_unaligned()),
            // Those that are not exact are too large for the operator, which is checked.
            DataType::I64 => scalar.cast::<i64>().read_unaligned() as f64,
            DataType::U64 => scalar.cast::<u64>().read_unaligned() as f64,
            other => return Err(Failure::usage(format!("PreMulSum of {other} is not supported"))),
        }
    })
}

/// Begins the end of a communicator as `how` says, and waits for it for a limited time.
fn end(comm: Handle, how: impl FnOnce(&Arc<Comm>)) -> Result<(), Failure> {
    group::noted(with(comm, |comm| {
        group::check_has_none_of(comm)?;
        how(comm);
        comm.wait_left();
        Ok(())
    }))
}

/// Where a function of this library is: another library of NCCL's interface has its own.
pub(crate) fn own_function() -> *const () {
    ncclGetVersion as *const ()
}

fn check_memory(buffer: *mut c_void, size: usize) -> Result<(), Failure> {
    if buffer.is_null() || size == 0 {
        return Err(Failure::argument(format!("buff is {buffer:p} of {size} bytes")));
    }
    Ok(())
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
        init(comm, size, id.internal, rank, Ok(abi::CommConfig::default()))
    }

    fn ncclCommInitRankConfig(comm: *mut Handle, size: c_int, id: UniqueId, rank: c_int, config: *const Config) {
        // SAFETY: the caller's contract.
        init(comm, size, id.internal, rank, unsafe { Config::read(config) })
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
            return group::noted(Err(Failure::argument(format!("nId is {number}; at least one id is needed"))));
        }
        // SAFETY: the caller's contract.
        let (id, config) = unsafe { (ids.read_unaligned(), Config::read(config)) };
        init(comm, size, id.internal, rank, config)
    }

    fn ncclCommInitAll(comms: *mut Handle, number: c_int, devices: *const c_int) {
        if comms.is_null() || number < 1 {
            return Err(Failure::argument(format!("ndev is {number}, comm is {comms:p}; a place for each device is needed")));
        }
        let process = Process::get()?;
        let devices = (0..number).map(|rank| {
            // SAFETY: the caller's contract: `number` devices, if any are given.
            let device = if devices.is_null() { rank } else { unsafe { devices.add(rank as usize).read() } };
            let known = u32::try_from(device).map_err(|_| Failure::argument(format!("device is {device}")));
            let known = known.and_then(|device| process.local_rank(device).map(|_| device));
            known.map_err(|failure| failure.on(rank as u32, number as u32))
        });
        let devices = devices.collect::<Result<Vec<_>, Failure>>()?;
        let repeated = devices.iter().enumerate().find(|(rank, device)| devices[..*rank].contains(device));
        if let Some((_, device)) = repeated {
            return Err(Failure::usage(format!("devlist has device {device} twice; each rank needs one of its own")));
        }
        let (root, id) = comm::bind().map_err(|failure| failure.on(0, number as u32))?;
        let mut root = Some(root);
        let jobs = devices.into_iter().enumerate().map(|(rank, device)| {
            let of_rank = (rank as u32, number as u32);
            let comm = Comm::with_root(id, root.take(), of_rank, device, abi::CommConfig::default());
            // SAFETY: the caller's contract: places for `number` communicators.
            let place = Out::new(unsafe { comms.add(rank) }, "comm")?;
            Ok(join_job(&comm, place))
        });
        group::run_jobs(jobs.collect::<Result<_, Failure>>()?)
    }

    /// Starts to leave; the state is "in progress" until all ranks have.
    fn ncclCommFinalize(comm: Handle) {
        end(comm, Comm::start_leaving)
    }

    fn ncclCommDestroy(comm: Handle) {
        if comm.is_null() { Ok(()) } else { end(comm, Comm::discard) }
    }

    /// The other ranks get an error that names this one.
    fn ncclCommAbort(comm: Handle) {
        if !comm.is_null() {
            comm::find(comm)?.abort();
        }
        Ok(())
    }

    fn ncclCommSplit(comm: Handle, color: c_int, key: c_int, result: *mut Handle, config: *const Config) {
        group::noted(with(comm, |comm| {
            let place = Out::new(result, "newcomm")?;
            place.put(std::ptr::null_mut());
            // SAFETY: the caller's contract.
            let config = if config.is_null() { comm.config } else { unsafe { Config::read(config) }? };
            if color < abi::NO_COLOR {
                return Err(Failure::argument(format!("color is {color}; -1 (none) and up are allowed")));
            }
            comm.check_open()?;
            group::submit_job(split_job(comm, color, key, config, place))
        }))
    }

    fn ncclCommGetAsyncError(comm: Handle, result: *mut ResultCode) {
        with(comm, |comm| {
            let (place, state) = (Out::new(result, "asyncError")?, comm.state());
            place.put(state.as_ref().map_or_else(|failure| failure.code, |()| abi::SUCCESS));
            if let Err(failure) = state
                && failure.code != abi::IN_PROGRESS
            {
                error::note(&failure.text);
            }
            Ok(())
        })
    }

    fn ncclCommCount(comm: Handle, count: *mut c_int) {
        with(comm, |comm| out(count, "count", comm.size as c_int))
    }

    fn ncclCommCuDevice(comm: Handle, device: *mut c_int) {
        with(comm, |comm| out(device, "device", comm.device as c_int))
    }

    fn ncclCommUserRank(comm: Handle, rank: *mut c_int) {
        with(comm, |comm| out(rank, "rank", comm.rank as c_int))
    }

    /// No device API, no multicast, no one-sided operations.
    fn ncclCommQueryProperties(comm: Handle, properties: *mut Properties) {
        with(comm, |comm| {
            Out::new(properties, "props")?;
            // SAFETY: the caller's contract.
            unsafe { Properties::write(properties, comm.rank as c_int, comm.size as c_int, comm.device as c_int) }
        })
    }

    /// Nothing is registered: the memory stays local and is staged.
    fn ncclCommRegister(comm: Handle, buffer: *mut c_void, size: usize, handle: *mut *mut c_void) {
        with(comm, |_| {
            check_memory(buffer, size)?;
            out(handle, "handle", buffer)
        })
    }

    fn ncclCommDeregister(comm: Handle, handle: *mut c_void) {
        let _ = handle;
        comm::find(comm).map(drop)
    }

    fn ncclCommWindowRegister(comm: Handle, buffer: *mut c_void, size: usize, result: *mut WindowHandle, flags: c_int) {
        group::noted(with(comm, |comm| {
            let place = Out::new(result, "win")?;
            check_memory(buffer, size)?;
            comm.check_open()?;
            let address = buffer as u64;
            group::submit_job(Job::new(Step::new(comm, false), move |step| {
                let is_symmetric = flags & abi::WINDOW_SYMMETRIC != 0;
                place.put(std::ptr::null_mut());
                // SAFETY: the caller's contract.
                let window = step.run(|comm| unsafe { window::register(comm, address, size as u64, is_symmetric) });
                if let Some(number) = window? {
                    place.put(number as WindowHandle);
                }
                Ok(())
            }))
        }))
    }

    fn ncclCommWindowDeregister(comm: Handle, window: WindowHandle) {
        with(comm, |comm| if window.is_null() { Ok(()) } else { comm.take_window(window as usize).map(drop) })
    }

    fn ncclWinGetUserPtr(comm: Handle, window: WindowHandle, result: *mut *mut c_void) {
        with(comm, |comm| {
            let windows = comm.windows();
            let found = windows.iter().find(|one| one.number == window as usize);
            // NCCL: a null pointer where a window is not one.
            out(result, "outUserPtr", found.map_or(std::ptr::null_mut(), |window| window.address as *mut c_void))
        })
    }

    fn ncclMemAlloc(result: *mut *mut c_void, size: usize) {
        let place = Out::new(result, "ptr")?;
        place.put(window::allocate(size)? as *mut c_void);
        Ok(())
    }

    fn ncclMemFree(address: *mut c_void) {
        window::free(address as u64)
    }

    /// Ranks may give different scalars, as in NCCL.
    fn ncclRedOpCreatePreMulSum(
        result: *mut c_int,
        scalar: *mut c_void,
        data_type: c_int,
        residence: c_int,
        comm: Handle,
    ) {
        with(comm, |comm| {
            let place = Out::new(result, "op")?;
            if scalar.is_null() {
                return Err(Failure::argument("scalar is null"));
            }
            let element = abi::data_type(data_type)?;
            let op = match residence {
                // SAFETY: the caller's contract: device memory that stays as it is until the collectives with the operator are over.
                0 => ReduceOp::PreMulSumAt(unsafe { DeviceScalar::at(DeviceAddress(scalar as u64), element) }),
                // SAFETY: the caller's contract: an element in host memory.
                1 => ReduceOp::PreMulSum(unsafe { host_scalar(scalar, data_type) }?),
                other => return Err(Failure::argument(format!("residence is {other}; 0 and 1 are allowed"))),
            };
            op.check(element).map_err(|error| Failure::usage(error.to_string()))?;
            place.put(comm.keep_operator(op));
            Ok(())
        })
    }

    fn ncclRedOpDestroy(op: c_int, comm: Handle) {
        with(comm, |comm| comm.drop_operator(op))
    }

    fn ncclGroupStart() {
        group::start();
        Ok(())
    }

    fn ncclGroupEnd() {
        group::end()
    }
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
