//! Modules: shared objects handed over as bytes.

use core::ffi::c_void;
use std::ffi::{CStr, CString};
use std::fmt::Write as _;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use anabranch_hip::HipError;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use rustix::fs::{MemfdFlags, fstat, memfd_create};

use crate::grid::abi::{HostEntry, HostKernel, KERNEL_DESCRIPTOR_SUFFIX, KernelAbi};

const ELF_HEADER: usize = 64;
/// Shared objects larger than this are not ours.
const LARGEST_IMAGE: usize = 1 << 30;
#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;

/// A loaded shared object. Launches hold it, so that unloading its module waits for them.
#[derive(Debug)]
pub(crate) struct LoadedObject {
    library: Library,
    // The loader knows an object by the path it was opened under; while this is open no other object can get
    // the same number.
    _file: OwnedFd,
}

/// A module on a device.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) device: u32,
    object: Arc<LoadedObject>,
}

/// A kernel of a module. Holding it keeps the module's code loaded.
#[derive(Debug)]
pub struct KernelEntry {
    pub(crate) name: String,
    pub(crate) device: u32,
    pub(crate) entry: HostEntry,
    pub(crate) abi: KernelAbi,
    pub(crate) argument_bytes: u32,
    pub(crate) max_block_threads: u32,
    object: Arc<LoadedObject>,
}

impl KernelEntry {
    /// Loads the kernel `name` of a shared object, compiled for an ABI and waves of this width.
    ///
    /// # Errors
    /// What `hipModuleLoadData` and `hipModuleGetFunction` would return.
    ///
    /// # Safety
    /// `object` is a complete shared object made from the prelude: its initialisers are sound to run, and its kernels are
    /// of the ABI that their descriptors state.
    pub unsafe fn load(object: &[u8], name: &str, wave_width: u32, abi: KernelAbi) -> Result<Self, HipError> {
        let name = CString::new(name).map_err(|_| HipError::NOT_FOUND)?;
        if object.len() < ELF_HEADER {
            return Err(HipError::INVALID_IMAGE);
        }
        // SAFETY: the caller's promise.
        let module = unsafe { Module::load(object.as_ptr().cast(), 0) }?;
        module.kernel_of(&name, wave_width, abi)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of its one argument struct.
    pub fn argument_bytes(&self) -> u32 {
        self.argument_bytes
    }

    /// The most threads of a block.
    pub fn max_block_threads(&self) -> u32 {
        self.max_block_threads
    }
}

impl Module {
    /// Loads a shared object.
    ///
    /// # Errors
    /// `hipErrorInvalidImage` if it is none, `hipErrorNoBinaryForGpu` if it is for another processor,
    /// `hipErrorSharedObjectInitFailed` if the system's loader refuses it (its words are logged).
    ///
    /// # Safety
    /// `image` points to a complete shared object whose initialisers, if any, are sound to run.
    pub(crate) unsafe fn load(image: *const c_void, device: u32) -> Result<Self, HipError> {
        // SAFETY: passed on.
        let bytes = unsafe { image_bytes(image) }?;
        let refused = |error: rustix::io::Errno| {
            tracing::warn!(%error, "no file in memory for a module");
            HipError::SHARED_OBJECT_INIT_FAILED
        };
        let file = memfd_create("anabranch-module", MemfdFlags::CLOEXEC).map_err(refused)?;
        let mut rest = bytes;
        while !rest.is_empty() {
            let written = rustix::io::write(&file, rest).map_err(refused)?;
            rest = &rest[written..];
        }
        let serial = fstat(&file).map_err(refused)?.st_ino;
        let path = unique_path(file.as_fd().as_raw_fd(), serial);
        // SAFETY: the caller vouches for the object's initialisers; kernels have none.
        let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| {
            tracing::error!(%error, "the loader refused a module");
            HipError::SHARED_OBJECT_INIT_FAILED
        })?;
        Ok(Self { device, object: Arc::new(LoadedObject { library, _file: file }) })
    }

    /// Looks a kernel of a given ABI up.
    ///
    /// # Errors
    /// `hipErrorNotFound`; `hipErrorInvalidImage` for another version of the ABI or a descriptor without an
    /// entry; `hipErrorNoBinaryForGpu` for another wave width.
    pub(crate) fn kernel_of(
        &self,
        name: &CStr,
        wave_width: u32,
        abi: KernelAbi,
    ) -> Result<KernelEntry, HipError> {
        let name = name.to_str().map_err(|_| HipError::NOT_FOUND)?.to_owned();
        let symbol =
            CString::new(format!("{name}{KERNEL_DESCRIPTOR_SUFFIX}")).map_err(|_| HipError::NOT_FOUND)?;
        // SAFETY: a symbol of this name is a descriptor by the ABI; only its address is taken here.
        let found = unsafe { self.object.library.get::<*const HostKernel>(symbol.as_bytes_with_nul()) };
        let descriptor = found.map_err(|_| HipError::NOT_FOUND)?.as_raw_ptr().cast::<HostKernel>();
        if descriptor.is_null() {
            return Err(HipError::NOT_FOUND);
        }
        // SAFETY: the object is loaded and exports a descriptor under this name.
        let descriptor = unsafe { descriptor.read_unaligned() };
        if descriptor.abi != abi as u32 {
            tracing::error!(
                kernel = name,
                abi = descriptor.abi,
                wanted = abi as u32,
                "another kernel ABI (0x100 is set in that of instrumented kernels)"
            );
            return Err(HipError::INVALID_IMAGE);
        }
        if descriptor.wave_width != wave_width {
            tracing::error!(
                kernel = name,
                width = descriptor.wave_width,
                machine = wave_width,
                "another wave width"
            );
            return Err(HipError::NO_BINARY_FOR_GPU);
        }
        Ok(KernelEntry {
            entry: descriptor.entry.ok_or(HipError::INVALID_IMAGE)?,
            name,
            abi,
            device: self.device,
            argument_bytes: descriptor.argument_bytes,
            max_block_threads: descriptor.max_block_threads,
            object: Arc::clone(&self.object),
        })
    }

    /// Whether a kernel is one of this module.
    pub(crate) fn has(&self, kernel: &KernelEntry) -> bool {
        Arc::ptr_eq(&self.object, &kernel.object)
    }
}

/// A path of an open file that no other load has used. The loader takes two loads of one path for the same
/// object, even after the file under it has changed, so the file's serial number is spelled out in redundant
/// path components.
fn unique_path(file: i32, serial: u64) -> String {
    let mut path = String::from("/proc/self/fd");
    for bit in (0..u64::BITS - serial.leading_zeros()).rev() {
        path.push_str(if serial >> bit & 1 == 1 { "/." } else { "/" });
    }
    // Writing to a string cannot fail.
    let _ = write!(path, "/{file}");
    path
}

/// The bytes of a shared object of which only the start is known: the section table comes last.
///
/// # Safety
/// `image` points to a complete shared object, if its first 64 bytes say that it is one.
unsafe fn image_bytes<'a>(image: *const c_void) -> Result<&'a [u8], HipError> {
    if image.is_null() {
        return Err(HipError::INVALID_VALUE);
    }
    let start = image.cast::<u8>();
    // SAFETY: the caller's promise; any image has at least a header.
    let header = unsafe { core::slice::from_raw_parts(start, ELF_HEADER) };
    let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let word = |at: usize| {
        let mut raw = [0; 8];
        raw.copy_from_slice(&header[at..at + 8]);
        u64::from_le_bytes(raw)
    };
    // 64-bit, little-endian, a shared object.
    if header[..6] != *b"\x7fELF\x02\x01" || half(16) != 3 {
        return Err(HipError::INVALID_IMAGE);
    }
    if half(18) != MACHINE {
        return Err(HipError::NO_BINARY_FOR_GPU);
    }
    let table = u64::from(half(58)) * u64::from(half(60));
    let bytes = word(40).checked_add(table).ok_or(HipError::INVALID_IMAGE)?;
    let bytes = usize::try_from(bytes).map_err(|_| HipError::INVALID_IMAGE)?;
    if word(40) == 0 || !(ELF_HEADER..=LARGEST_IMAGE).contains(&bytes) {
        return Err(HipError::INVALID_IMAGE);
    }
    // SAFETY: the caller promises a complete object, which extends at least to its section table's end.
    Ok(unsafe { core::slice::from_raw_parts(start, bytes) })
}
