//! The thunk of the runtime that this process has mapped.

use core::ffi::c_void;
use core::fmt;
use core::ptr;
use std::sync::Arc;

use super::functions::{QueueResource, ThunkFunctions, ThunkPointerInfo, VersionInfo};
use super::session::{Session, check, covers};
use crate::amd::driver::QueueToken;
use crate::amd::error::{AmdError, AmdResult};
use crate::amd::thunk::{Allocation, KfdVersion, Thunk, ThunkQueue};
use crate::amd::topology::Gpu;

/// `HsaMemFlags`, by bit: `NonPaged` 0, `PageSize` 4 and 5 (0 is 4 KiB), `HostAccess` 6, `ExecuteAccess` 12, `NoNUMABind` 16,
/// `Uncached` 17.
const RING_FLAGS: u32 = 1 << 0 | 1 << 6 | 1 << 12 | 1 << 16 | 1 << 17;

/// `HSA_QUEUE_SDMA_BY_ENG_ID`.
const SDMA_BY_ENGINE: u32 = 6;
/// The share of the time that the scheduler gives; in percent.
const PERCENTAGE: u32 = 100;
/// `HSA_QUEUE_PRIORITY_MAXIMUM`, which ROCr takes for its own copy queues.
const PRIORITY: i64 = 3;

/// `HSAKMT_STATUS_KERNEL_ALREADY_OPENED`: the runtime has; this open counts all the same (`openclose.c`).
const ALREADY_OPENED: u32 = 22;
/// `HSAKMT_STATUS_NO_MEMORY` (`ENOMEM` of the kernel: no slot), `HSAKMT_STATUS_OUT_OF_RESOURCES`, and `HSAKMT_STATUS_ERROR`, which
/// older versions return for all failures.
const REFUSALS: [u32; 3] = [6, 13, 1];
/// `HSA_POINTER_UNKNOWN`.
const UNKNOWN: u32 = 0;

/// The thunk's functions, found in the mapped runtime or in what it was linked with.
pub(super) struct MappedThunk {
    functions: ThunkFunctions,
    origin: String,
    /// Closed after the thunk.
    session: Arc<Session>,
}

impl fmt::Debug for MappedThunk {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("MappedThunk").field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl MappedThunk {
    pub(super) fn open(session: Arc<Session>, functions: ThunkFunctions) -> AmdResult<Self> {
        // SAFETY: it takes nothing, and the thunk counts how often it is open.
        let code = unsafe { (functions.hsaKmtOpenKFD)() };
        if code == 0 {
            // The runtime keeps its thunk open: this one, which was not open, is another.
            // SAFETY: it undoes the open above.
            let closed = unsafe { (functions.hsaKmtCloseKFD)() };
            check("hsaKmtCloseKFD", || session.name().to_owned(), closed)?;
            return Err(AmdError::SecondThunk { library: session.name().to_owned() });
        }
        if code != ALREADY_OPENED {
            check("hsaKmtOpenKFD", || session.name().to_owned(), code)?;
        }
        let origin = format!("the thunk in {}", session.name());
        Ok(Self { functions, origin, session })
    }
}

impl Drop for MappedThunk {
    fn drop(&mut self) {
        // SAFETY: it undoes the open of this value; the runtime's own stays.
        let code = unsafe { (self.functions.hsaKmtCloseKFD)() };
        if code != 0 {
            tracing::warn!(code, "hsaKmtCloseKFD failed");
        }
    }
}

fn at(address: u64) -> *mut c_void {
    address as *mut c_void
}

fn memory(memory: &Allocation) -> String {
    format!("{} bytes at {:#x}", memory.bytes, memory.address)
}

impl Thunk for MappedThunk {
    fn origin(&self) -> &str {
        &self.origin
    }

    fn version(&self) -> AmdResult<KfdVersion> {
        let mut version = VersionInfo::default();
        // SAFETY: a place for the two numbers.
        let code = unsafe { (self.functions.hsaKmtGetVersion)(&raw mut version) };
        check("hsaKmtGetVersion", || self.origin.clone(), code)?;
        Ok(KfdVersion { major: version.major, minor: version.minor })
    }

    fn node(&self, gpu: &Gpu) -> AmdResult<u32> {
        Ok(self.session.find(gpu)?.node)
    }

    fn allocate(&self, node: u32, bytes: u64) -> AmdResult<Allocation> {
        let mut address = ptr::null_mut();
        // SAFETY: the address is an out-parameter, cleared, since no place is asked for.
        let code = unsafe { (self.functions.hsaKmtAllocMemory)(node, bytes, RING_FLAGS, &raw mut address) };
        let place = || format!("{bytes} bytes on node {node}");
        check("hsaKmtAllocMemory", place, code)?;
        if address.is_null() {
            let what = "no memory".to_owned();
            return Err(AmdError::Returned { call: "hsaKmtAllocMemory", place: place(), what });
        }
        Ok(Allocation { address: address as u64, bytes })
    }

    fn map(&self, ring: &Allocation) -> AmdResult<()> {
        // Versions differ in whether the last argument may be null.
        let mut alternate = 0u64;
        // SAFETY: memory of this thunk, all of it.
        let code = unsafe {
            (self.functions.hsaKmtMapMemoryToGPU)(at(ring.address), ring.bytes, &raw mut alternate)
        };
        check("hsaKmtMapMemoryToGPU", || memory(ring), code)
    }

    fn create_queue(&self, node: u32, engine: u32, ring: &Allocation) -> AmdResult<ThunkQueue> {
        let mut resource = QueueResource::default();
        // SAFETY: the ring is mapped memory of this thunk and outlives the queue (`ThunkDriver`); there is no event; the
        // resource is cleared.
        let code = unsafe {
            (self.functions.hsaKmtCreateQueueExt)(
                node,
                SDMA_BY_ENGINE,
                PERCENTAGE,
                PRIORITY,
                engine,
                at(ring.address),
                ring.bytes,
                ptr::null_mut(),
                &raw mut resource,
            )
        };
        if REFUSALS.contains(&code) {
            return Err(AmdError::QueueRefused { call: "hsaKmtCreateQueueExt", node, engine, code });
        }
        check("hsaKmtCreateQueueExt", || format!("engine {engine} of node {node}"), code)?;
        Ok(ThunkQueue {
            token: QueueToken::new(resource.queue_id),
            doorbell: resource.doorbell,
            write_pointer: resource.write_pointer,
            read_pointer: resource.read_pointer,
        })
    }

    fn reaches(&self, address: u64) -> AmdResult<bool> {
        let mut info = ThunkPointerInfo::default();
        // SAFETY: the thunk only looks the address up, and `info` is a place for what it finds.
        let code = unsafe { (self.functions.hsaKmtQueryPointerInfo)(at(address), &raw mut info) };
        // An address that the thunk does not know is an error to it, and no more than "no" here.
        if code != 0 || info.kind == UNKNOWN {
            return Ok(false);
        }
        Ok(info.mapped_count > 0 && covers(info.host_address, info.gpu_address, info.bytes, address))
    }

    fn destroy_queue(&self, queue: &QueueToken) -> AmdResult<()> {
        // SAFETY: a token of this thunk's, whose queue is still there: `ThunkDriver` gives up both together.
        let code = unsafe { (self.functions.hsaKmtDestroyQueue)(queue.value()) };
        check("hsaKmtDestroyQueue", || self.origin.clone(), code)
    }

    fn unmap(&self, ring: &Allocation) -> AmdResult<()> {
        // SAFETY: memory of this thunk that no queue uses any more.
        let code = unsafe { (self.functions.hsaKmtUnmapMemoryToGPU)(at(ring.address)) };
        check("hsaKmtUnmapMemoryToGPU", || memory(ring), code)
    }

    fn free(&self, ring: Allocation) -> AmdResult<()> {
        // SAFETY: memory of this thunk that is mapped for no GPU any more, given up here.
        let code = unsafe { (self.functions.hsaKmtFreeMemory)(at(ring.address), ring.bytes) };
        check("hsaKmtFreeMemory", || memory(&ring), code)
    }
}
