//! The current device of a thread, on top of the driver's current context.
//!
//! The driver's current context is the truth: a framework in the same thread may change it behind our back,
//! and then the current device has changed, as it has for the framework. Only while no context is current
//! does the thread's own note count. `hipSetDevice` to a device whose primary context does not exist yet
//! leaves it so: a rank that merely restores "device 0" must not cost device 0 a context (hundreds of MB).

use core::cell::Cell;
use core::ffi::c_int;
use core::ptr;

use anabranch_hip::HipError;

use crate::convert::check;
use crate::cuda::CuContext;
use crate::driver::Driver;

thread_local! {
    /// The device chosen while no context is current.
    static CHOSEN: Cell<c_int> = const { Cell::new(0) };
}

fn current(driver: &Driver) -> Result<Option<CuContext>, HipError> {
    let mut context = ptr::null_mut();
    // SAFETY: cuCtxGetCurrent writes one handle.
    check(unsafe { (driver.cuda.cuCtxGetCurrent)(&raw mut context) })?;
    Ok((!context.is_null()).then_some(context))
}

fn make_current(driver: &Driver, context: CuContext) -> Result<(), HipError> {
    // SAFETY: the context is null (none) or a primary context that is never released.
    check(unsafe { (driver.cuda.cuCtxSetCurrent)(context) })
}

/// Makes sure that some context is current: the chosen device's, where there was none.
pub(crate) fn ensure(driver: &Driver) -> Result<(), HipError> {
    if current(driver)?.is_some() {
        return Ok(());
    }
    let context = driver.slot(CHOSEN.get())?.primary_context(&driver.cuda)?;
    make_current(driver, context)
}

/// The ordinal of the thread's current device.
pub(crate) fn device(driver: &Driver) -> Result<c_int, HipError> {
    if current(driver)?.is_none() {
        return Ok(CHOSEN.get());
    }
    let mut handle = 0;
    // SAFETY: a context is current; cuCtxGetDevice writes its device.
    check(unsafe { (driver.cuda.cuCtxGetDevice)(&raw mut handle) })?;
    driver.ordinal(handle)
}

/// Makes a device current for the thread; its primary context becomes current at once if it exists, and with
/// the first call that needs it otherwise.
pub(crate) fn set_device(driver: &Driver, ordinal: c_int) -> Result<(), HipError> {
    let slot = driver.slot(ordinal)?;
    let exists = slot.retained().is_some() || {
        let (mut flags, mut active) = (0, 0);
        // SAFETY: cuDevicePrimaryCtxGetState writes two ints for a handle of cuDeviceGet.
        check(unsafe {
            (driver.cuda.cuDevicePrimaryCtxGetState)(slot.handle, &raw mut flags, &raw mut active)
        })?;
        active != 0
    };
    let context = if exists { slot.primary_context(&driver.cuda)? } else { ptr::null_mut() };
    make_current(driver, context)?;
    CHOSEN.set(ordinal);
    Ok(())
}
