//! A communicator and memory of NCCL's own.
#![expect(unsafe_code, reason = "calls into a C library")]

use core::ffi::{CStr, c_char, c_int, c_void};

use anabranch::{Group, GroupRank, World};
use anabranch_hip::{Device, DeviceAddress};

use super::super::contender::Area;
use super::error::NcclError;
use super::library::{
    NcclLibrary, RawCommunicator, RawWindow, SUCCESS, UNIQUE_ID_BYTES, UniqueId, WINDOW_SYMMETRIC,
};

/// NCCL's communicator of a group, on one rank. Group ranks are NCCL's ranks.
#[derive(Debug)]
pub(super) struct Communicator {
    pub(super) library: NcclLibrary,
    pub(super) raw: RawCommunicator,
    pub(super) device: Device,
    pub(super) me: GroupRank,
    pub(super) ranks: u32,
}

impl Communicator {
    /// Collective over the group; waits for all members, inside NCCL too.
    ///
    /// # Errors
    /// Of NCCL's calls, on all members alike; what made the world fail.
    pub(super) fn new(
        world: &World,
        group: &Group,
        me: GroupRank,
        library: NcclLibrary,
    ) -> anyhow::Result<Self> {
        let mut made = Self {
            library,
            raw: std::ptr::null_mut(),
            device: world.device().clone(),
            me,
            ranks: group.size(),
        };
        let id = if me.index() == 0 { made.unique_id().map(Some) } else { Ok(None) };
        world
            .agree_outcome(group, "nccl unique id", id.as_ref().err().map(|error| error as _))
            .map_err(anabranch::Error::from)?;
        let mine = id?.map(|id| id.0.to_vec()).unwrap_or_default();
        let said = world.exchange(group, "nccl unique id", &mine).map_err(anabranch::Error::from)?;
        let bytes = said.first().and_then(|bytes| <[u8; UNIQUE_ID_BYTES]>::try_from(bytes.as_slice()).ok());
        let Some(bytes) = bytes else {
            anyhow::bail!("{} sent no NCCL id of {UNIQUE_ID_BYTES} bytes", group.members()[0])
        };
        let connected = made.connect(UniqueId(bytes)).map(|raw| made.raw = raw);
        world
            .agree_outcome(group, "nccl communicator", connected.as_ref().err().map(|error| error as _))
            .map_err(anabranch::Error::from)?;
        connected?;
        Ok(made)
    }

    fn unique_id(&self) -> Result<UniqueId, NcclError> {
        let mut id = UniqueId([0; UNIQUE_ID_BYTES]);
        // SAFETY: the call writes one id.
        self.check("ncclGetUniqueId", unsafe { (self.library.functions.ncclGetUniqueId)(&raw mut id) })?;
        Ok(id)
    }

    fn connect(&self, id: UniqueId) -> Result<RawCommunicator, NcclError> {
        let _device = self.current()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the call writes one handle; the rank is below the number of ranks; the device, on which the world has
        // memory, is current.
        let code = unsafe {
            (self.library.functions.ncclCommInitRank)(
                &raw mut raw,
                self.ranks as c_int,
                id,
                self.me.get() as c_int,
            )
        };
        self.check("ncclCommInitRank", code)?;
        Ok(raw)
    }

    /// Makes the device current, which is what NCCL takes the device from.
    pub(super) fn current(&self) -> Result<anabranch_hip::DeviceGuard<'_>, NcclError> {
        self.device.guard().map_err(|error| NcclError::Call {
            call: "making the device current",
            me: self.me,
            ranks: self.ranks,
            code: error.code().map_or(0, |code| code.0 as i32),
            words: anabranch_hip::with_causes(&error),
            detail: String::new(),
        })
    }

    /// # Errors
    /// [`NcclError::Call`] for every result but `ncclSuccess`.
    pub(super) fn check(&self, call: &'static str, code: c_int) -> Result<(), NcclError> {
        if code == SUCCESS {
            return Ok(());
        }
        let functions = &self.library.functions;
        // SAFETY: the library gives a static C string for any code.
        let words = text(unsafe { (functions.ncclGetErrorString)(code) });
        // SAFETY: the handle is live or null, which the call does not look at (nccl.h: the last error of the process).
        let detail =
            functions.ncclGetLastError.map(|last| text(unsafe { last(self.raw) })).unwrap_or_default();
        let detail = if detail.is_empty() { detail } else { format!(": {}", detail.trim()) };
        Err(NcclError::Call { call, me: self.me, ranks: self.ranks, code, words, detail })
    }

    /// Allocates `bytes` bytes as NCCL wants them for windows, and registers them as symmetric. Collective over the group.
    pub(super) fn symmetric_memory(&self, bytes: u64) -> Result<SymmetricWindow, NcclError> {
        let functions = &self.library.functions;
        let allocate = self.library.since(functions.ncclMemAlloc, "ncclMemAlloc", "2.19")?;
        let register =
            self.library.since(functions.ncclCommWindowRegister, "ncclCommWindowRegister", "2.27")?;
        let _device = self.current()?;
        let (mut start, mut window) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the call writes one pointer.
        self.check("ncclMemAlloc", unsafe { allocate(&raw mut start, bytes as usize) })?;
        // SAFETY: the memory was allocated with so many bytes and is freed only after the window is gone; the call writes
        // one handle.
        let code = unsafe { register(self.raw, start, bytes as usize, &raw mut window, WINDOW_SYMMETRIC) };
        self.check("ncclCommWindowRegister", code)?;
        let area = Area { start: DeviceAddress(start as usize as u64), bytes };
        Ok(SymmetricWindow { area, window })
    }

    /// Gives a window and its memory back. Collective over the group. Nothing may use it any more.
    pub(super) fn free(&self, memory: &SymmetricWindow) -> Result<(), NcclError> {
        let functions = &self.library.functions;
        let deregister =
            self.library.since(functions.ncclCommWindowDeregister, "ncclCommWindowDeregister", "2.27")?;
        let free = self.library.since(functions.ncclMemFree, "ncclMemFree", "2.19")?;
        let _device = self.current()?;
        // SAFETY: the window is live and of this communicator.
        self.check("ncclCommWindowDeregister", unsafe { deregister(self.raw, memory.window) })?;
        // SAFETY: the pointer came from ncclMemAlloc and is freed once, here: the value is used up by its owner.
        self.check("ncclMemFree", unsafe { free(memory.area.start.as_ptr()) })
    }

    /// Ends it. All members call it, with no work of it in flight.
    pub(super) fn destroy(mut self) -> Result<(), NcclError> {
        let raw = std::mem::replace(&mut self.raw, std::ptr::null_mut());
        let _device = self.current()?;
        // SAFETY: the handle is live and destroyed once, here; callers have waited for their streams.
        self.check("ncclCommDestroy", unsafe { (self.library.functions.ncclCommDestroy)(raw) })
    }
}

impl Drop for Communicator {
    /// Something has failed: ends the communicator without the other members, with whatever is in flight.
    fn drop(&mut self) {
        if self.raw.is_null() {
            return;
        }
        let Ok(_device) = self.device.guard() else { return };
        // SAFETY: the handle is live and given up once, here.
        let code = unsafe { (self.library.functions.ncclCommAbort)(self.raw) };
        if code != SUCCESS {
            tracing::warn!(code, "ncclCommAbort failed");
        }
    }
}

/// Memory of `ncclMemAlloc` within a symmetric window.
#[derive(Debug)]
pub(super) struct SymmetricWindow {
    pub(super) area: Area,
    window: RawWindow,
}

fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: not null; NCCL's strings end with a zero and stay until its next call on this thread.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

/// An address as NCCL takes it.
pub(super) fn pointer(address: DeviceAddress) -> *mut c_void {
    address.as_ptr()
}
