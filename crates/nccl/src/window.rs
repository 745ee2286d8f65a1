//! Windows and memory of `ncclMemAlloc`.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anabranch::ccl::{DataType, Tensor};
use anabranch::hip::{DeviceAddress, DeviceBuffer};
use anabranch::shmem::Registration;

use crate::comm::{Comm, lock};
use crate::error::Failure;
use crate::process::Process;

/// Buffers of `ncclMemAlloc` by their addresses.
static BUFFERS: Mutex<BTreeMap<u64, DeviceBuffer>> = Mutex::new(BTreeMap::new());

/// A registered window.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) number: usize,
    pub(crate) address: u64,
    bytes: u64,
    registration: Registration,
    /// All ranks give the same offsets: the program says so.
    is_symmetric: bool,
}

/// `ncclCommWindowRegister`: `None` where the memory cannot be shared with other processes. Collective.
///
/// # Errors
/// Ranks that did not come; different sizes; a communicator that failed.
///
/// # Safety
/// The memory stays allocated until all ranks have deregistered the window.
pub(crate) unsafe fn register(
    comm: &Comm,
    address: u64,
    bytes: u64,
    is_symmetric: bool,
) -> Result<Option<usize>, Failure> {
    static NUMBER: AtomicUsize = AtomicUsize::new(1);
    let joined = comm.outcome()?;
    // SAFETY: the caller's contract; launches with tensors in the window are over before it is deregistered, as NCCL demands.
    let registered =
        unsafe { joined.world.register(joined.world.group(), DeviceAddress(address), bytes, "window") };
    let registration = match registered {
        Ok(registration) => registration,
        // The memory of some rank: all have this error. Calls then stage it.
        Err(error @ (anabranch::shmem::Error::FailedOn { .. } | anabranch::shmem::Error::Transport(_))) => {
            joined.world.check()?;
            tracing::warn!(rank = comm.rank, "a window is not shared, and is staged: {error}");
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    };
    let number = NUMBER.fetch_add(1, Ordering::Relaxed) << 6;
    comm.keep_window(std::sync::Arc::new(Window { number, address, bytes, registration, is_symmetric }));
    Ok(Some(number))
}

impl Window {
    fn contains(&self, address: u64, bytes: u64) -> bool {
        let offset = address.checked_sub(self.address);
        offset.and_then(|offset| offset.checked_add(bytes)).is_some_and(|end| end <= self.bytes)
    }

    /// The elements, as memory that peers reach, if all are in the window and all ranks give the same offset.
    pub(crate) fn tensor(&self, address: u64, data_type: DataType, count: u64) -> Option<Tensor<'_>> {
        if !self.is_symmetric || !self.contains(address, count * u64::from(data_type.bytes())) {
            return None;
        }
        Tensor::registered(&self.registration, address - self.address, data_type, count).ok()
    }
}

/// `ncclMemAlloc`, on the thread's current device. Windows of it are shared between processes.
///
/// # Errors
/// The device's.
pub(crate) fn allocate(bytes: usize) -> Result<u64, Failure> {
    if bytes == 0 {
        return Ok(0);
    }
    let process = Process::get()?;
    let buffer = process.device(process.current_device()?)?.allocate(bytes)?;
    let address = buffer.address().0;
    lock(&BUFFERS).insert(address, buffer);
    Ok(address)
}

/// `ncclMemFree`.
///
/// # Errors
/// An address that [`allocate`] did not return.
pub(crate) fn free(address: u64) -> Result<(), Failure> {
    if address == 0 {
        return Ok(());
    }
    let buffer = lock(&BUFFERS).remove(&address);
    buffer
        .map(drop)
        .ok_or_else(|| Failure::argument(format!("{address:#x} is no address that ncclMemAlloc returned")))
}
