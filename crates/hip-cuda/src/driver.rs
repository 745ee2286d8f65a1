//! The opened driver: its functions, its devices, and the one place where it is kept.
//!
//! The functions of the HIP ABI carry no context, and `libcuda` itself is state of the process, so the opened
//! driver is kept in a static. This is the only global of the crate; it holds what the process has anyway
//! (the library, the list of devices, the retained primary contexts, the captures under way), and nothing of any world.

use core::ffi::{c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use anabranch_hip::{HipError, LoadError, RuntimeKind};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::captures::Captures;
use crate::convert::check;
use crate::cuda::{CuContext, CuDevice, CuResult};
use crate::functions::DriverFunctions;

const LIBRARY: &str = "libcuda.so.1";

/// Places outside the system loader's path where NVIDIA's packages put the driver.
const KNOWN_PLACES: &[&str] = &["/usr/lib/wsl/lib", "/usr/local/nvidia/lib64"];

/// `RTLD_NOLOAD` of Linux: a handle only if the library is mapped already.
const RTLD_NOLOAD: c_int = 4;

/// The first success is kept for the life of the process; failures are not, so that a later call with other
/// places to search gets its chance.
static DRIVER: OnceLock<Driver> = OnceLock::new();
static OPENING: Mutex<()> = Mutex::new(());

/// An initialized CUDA driver.
pub(crate) struct Driver {
    pub(crate) cuda: DriverFunctions,
    pub(crate) devices: Vec<DeviceSlot>,
    /// Captures under way: HIP's functions are refused beside those of the process, and carry nothing that could tell more.
    pub(crate) captures: Captures,
    /// Where the library came from and its version, for people.
    pub(crate) origin: String,
    /// Keeps the library mapped.
    _library: Library,
}

/// One device and its primary context.
pub(crate) struct DeviceSlot {
    pub(crate) handle: CuDevice,
    /// Null until it is retained. It is never released: a framework in this process uses the same context,
    /// and memory of the device lives in it.
    context: AtomicPtr<c_void>,
    retaining: Mutex<()>,
}

impl DeviceSlot {
    /// The primary context, if this crate holds it already.
    pub(crate) fn retained(&self) -> Option<CuContext> {
        let context = self.context.load(Ordering::Acquire);
        (!context.is_null()).then_some(context)
    }

    /// The primary context, retained on first use.
    pub(crate) fn primary_context(&self, cuda: &DriverFunctions) -> Result<CuContext, HipError> {
        if let Some(context) = self.retained() {
            return Ok(context);
        }
        let _guard = self.retaining.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = self.retained() {
            return Ok(context);
        }
        let mut context = ptr::null_mut();
        // SAFETY: cuDevicePrimaryCtxRetain takes a place for the context and a device handle of cuDeviceGet.
        check(unsafe { (cuda.cuDevicePrimaryCtxRetain)(&raw mut context, self.handle) })?;
        self.context.store(context, Ordering::Release);
        Ok(context)
    }
}

impl Driver {
    /// The slot of a HIP device ordinal.
    pub(crate) fn slot(&self, ordinal: c_int) -> Result<&DeviceSlot, HipError> {
        usize::try_from(ordinal)
            .ok()
            .and_then(|index| self.devices.get(index))
            .ok_or(HipError::INVALID_DEVICE)
    }

    /// The HIP ordinal of a device handle.
    pub(crate) fn ordinal(&self, handle: CuDevice) -> Result<c_int, HipError> {
        let index = self.devices.iter().position(|slot| slot.handle == handle);
        index.map(|index| index as c_int).ok_or(HipError::INVALID_DEVICE)
    }
}

/// The driver, if [`open`] has succeeded in this process.
pub(crate) fn get() -> Option<&'static Driver> {
    DRIVER.get()
}

/// Opens the driver, or returns the one that is open.
pub(crate) fn open(search: &[PathBuf]) -> Result<&'static Driver, LoadError> {
    if let Some(driver) = DRIVER.get() {
        return Ok(driver);
    }
    let _guard = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(driver) = DRIVER.get() {
        return Ok(driver);
    }
    let driver = find(search)?;
    tracing::info!(origin = %driver.origin, devices = driver.devices.len(), "opened the CUDA driver");
    Ok(DRIVER.get_or_init(|| driver))
}

fn find(search: &[PathBuf]) -> Result<Driver, LoadError> {
    let mut tried = Vec::new();
    for (path, flags) in candidates(search) {
        // SAFETY: opening runs the library's initialisers; the CUDA driver's are made to run in any process,
        // and the caller vouches for the places it names.
        let words = match unsafe { Library::open(Some(&path), flags) } {
            Ok(library) => match initialize(&path, library)? {
                Some(driver) => return Ok(driver),
                None => "the toolkit's stub, not a driver".to_owned(),
            },
            Err(_) if flags & RTLD_NOLOAD != 0 => "not mapped in this process yet".to_owned(),
            // The loader's own words may be the error's source rather than its message.
            Err(error) => anabranch_hip::with_distinct_causes(&error),
        };
        tracing::debug!(path = %path.display(), words, "not a usable CUDA driver");
        tried.push((path, words));
    }
    Err(LoadError::NotFound { runtime: RuntimeKind::Nvidia, tried })
}

/// A copy that is mapped already comes first (a framework's: two copies do not share pointers).
fn candidates(search: &[PathBuf]) -> Vec<(PathBuf, c_int)> {
    let open = RTLD_NOW | RTLD_LOCAL;
    let named = search.iter().map(|place| if place.is_dir() { place.join(LIBRARY) } else { place.clone() });
    let known = KNOWN_PLACES.iter().map(|place| Path::new(place).join(LIBRARY));
    core::iter::once((PathBuf::from(LIBRARY), open | RTLD_NOLOAD))
        .chain(named.chain([PathBuf::from(LIBRARY)]).chain(known).map(|path| (path, open)))
        .collect()
}

/// The driver behind an opened library; nothing for the toolkit's stub, whose place a real one may take.
fn initialize(path: &Path, library: Library) -> Result<Option<Driver>, LoadError> {
    let lookup = |name: &'static str| {
        // SAFETY: the symbol is only carried as an address here; `from_lookup` gives it its type.
        let symbol = unsafe { library.get::<*const c_void>(name) };
        symbol.ok().map(|symbol| symbol.as_raw_ptr().cast_const()).filter(|address| !address.is_null())
    };
    // SAFETY: these are the names under which the CUDA driver exports the listed signatures, and the library
    // outlives them: both go into one `Driver`, or are dropped here.
    let cuda =
        unsafe { DriverFunctions::from_lookup(lookup) }.map_err(|symbol| LoadError::MissingSymbol {
            runtime: RuntimeKind::Nvidia,
            path: path.to_owned(),
            symbol: symbol.to_owned(),
        })?;
    let failed = |call, result: CuResult| LoadError::Init { path: path.to_owned(), call, code: result.0 };
    // SAFETY: cuInit takes 0 and may be called any number of times.
    let usable = match unsafe { (cuda.cuInit)(0) } {
        CuResult::SUCCESS => true,
        CuResult::NO_DEVICE => false,
        CuResult::STUB_LIBRARY => return Ok(None),
        other => return Err(failed("cuInit", other)),
    };
    let mut version = 0;
    // SAFETY: cuDriverGetVersion writes one int, before and after cuInit.
    match unsafe { (cuda.cuDriverGetVersion)(&raw mut version) } {
        CuResult::SUCCESS => {}
        other => return Err(failed("cuDriverGetVersion", other)),
    }
    let devices = if usable { list_devices(&cuda, failed)? } else { Vec::new() };
    let origin = format!("{}, CUDA {}.{}", path.display(), version / 1000, version % 1000 / 10);
    Ok(Some(Driver { cuda, devices, captures: Captures::default(), origin, _library: library }))
}

fn list_devices(
    cuda: &DriverFunctions,
    failed: impl Fn(&'static str, CuResult) -> LoadError,
) -> Result<Vec<DeviceSlot>, LoadError> {
    let mut count = 0;
    // SAFETY: cuDeviceGetCount writes one int.
    match unsafe { (cuda.cuDeviceGetCount)(&raw mut count) } {
        CuResult::SUCCESS => {}
        other => return Err(failed("cuDeviceGetCount", other)),
    }
    let mut devices = Vec::new();
    for ordinal in 0..count {
        let mut handle = 0;
        // SAFETY: cuDeviceGet writes one handle for an ordinal below the count.
        match unsafe { (cuda.cuDeviceGet)(&raw mut handle, ordinal) } {
            CuResult::SUCCESS => {}
            other => return Err(failed("cuDeviceGet", other)),
        }
        let context = AtomicPtr::new(ptr::null_mut());
        devices.push(DeviceSlot { handle, context, retaining: Mutex::new(()) });
    }
    Ok(devices)
}
