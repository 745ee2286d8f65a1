//! Pointers from C: handles, results, texts and arrays.

use std::ffi::{CStr, c_char};
use std::time::Duration;

use crate::state::State;
use crate::status::{Failure, Result, anabranch_status, guard, guard_with};

/// What a handle of the interface points to.
pub(crate) trait Handle {
    /// The type's name in C.
    const NAME: &'static str;
}

/// A handle that belongs to a world.
pub(crate) trait OfWorld: Handle {
    /// Its world.
    fn state(&self) -> &State;
}

fn too_many(name: &str, count: usize) -> Failure {
    Failure::usage(format!("{name} has {count} elements: more than memory can hold"))
}

fn missing(name: &str) -> Failure {
    Failure::usage(format!("{name} is NULL"))
}

/// What a handle points to.
pub(crate) fn get<'a, H: Handle>(handle: *const H) -> Result<&'a H> {
    // SAFETY: the caller's: NULL, or a handle that was not destroyed and is not while the call runs.
    unsafe { handle.as_ref() }.ok_or_else(|| missing(H::NAME))
}

/// The same for a handle that may be NULL.
pub(crate) fn optional<'a, H: Handle>(handle: *const H) -> Option<&'a H> {
    // SAFETY: as `get`.
    unsafe { handle.as_ref() }
}

/// Runs the body of a function of a handle. Errors begin with the rank; a panic poisons the world.
pub(crate) fn with<H: OfWorld>(handle: *const H, body: impl FnOnce(&H) -> Result) -> anabranch_status {
    match get(handle) {
        Err(failure) => guard(|| Err(failure)),
        Ok(value) => {
            let rank = value.state().world.rank();
            let named = || {
                body(value)
                    .map_err(|failure| Failure { text: format!("{rank}: {}", failure.text), ..failure })
            };
            guard_with(named, |text| value.state().world.poison(text))
        }
    }
}

/// Where a function writes a new handle. Made before anything can fail: after an error the caller's pointer is NULL, not that of an older
/// handle, which the caller may destroy twice.
pub(crate) struct Out<T>(*mut *mut T);

impl<T: Handle> Out<T> {
    /// Checks the pointer, and makes it NULL until there is a handle.
    pub(crate) fn new(place: *mut *mut T) -> Result<Self> {
        if place.is_null() {
            return Err(Failure::usage(format!("the pointer to the new {} is NULL", T::NAME)));
        }
        // SAFETY: the caller's pointer to a pointer.
        unsafe { place.write(std::ptr::null_mut()) };
        Ok(Self(place))
    }

    /// The same where the caller may not want the handle.
    pub(crate) fn optional(place: *mut *mut T) -> Option<Self> {
        Self::new(place).ok()
    }

    pub(crate) fn give(self, value: T) {
        // SAFETY: checked in `new`.
        unsafe { self.0.write(Box::into_raw(Box::new(value))) };
    }
}

/// Destroys a handle; NULL is none.
pub(crate) fn destroy<T>(handle: *mut T) {
    if !handle.is_null() {
        // A panic is printed by its hook.
        let _ = guard(|| {
            // SAFETY: the caller's: a handle of `Out::give` that was not destroyed.
            drop(unsafe { Box::from_raw(handle) });
            Ok(())
        });
    }
}

/// What the caller's handle points to, before it is consumed.
pub(crate) fn peek<'a, T: Handle>(place: *mut *mut T) -> Result<&'a T> {
    if place.is_null() {
        return Err(missing(T::NAME));
    }
    // SAFETY: the caller's pointer to a handle.
    get(unsafe { place.read() })
}

/// Consumes the caller's handle and makes it NULL.
pub(crate) fn take<T: Handle>(place: *mut *mut T) -> Result<T> {
    peek(place)?;
    // SAFETY: `peek` checked both pointers; the handle is of `Out::give`, and the caller no longer has it.
    Ok(unsafe { *Box::from_raw(place.replace(std::ptr::null_mut())) })
}

/// A text that may be NULL.
pub(crate) fn text<'a>(given: *const c_char, name: &str) -> Result<Option<&'a str>> {
    if given.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's: a text that ends with 0.
    let text = unsafe { CStr::from_ptr(given) };
    text.to_str().map(Some).map_err(|_| Failure::usage(format!("{name} is not UTF-8: {text:?}")))
}

/// An array.
pub(crate) fn slice<'a, T>(given: *const T, count: usize, name: &str) -> Result<&'a [T]> {
    match (given.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Failure::usage(format!("{name} is NULL; {count} elements are needed"))),
        _ if count > isize::MAX as usize / size_of::<T>().max(1) => Err(too_many(name, count)),
        // SAFETY: the caller's: an array of `count` elements.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(given, count) }),
    }
}

/// Bytes that a function writes. They may be uninitialised, so they are set to 0 first.
pub(crate) fn slice_mut<'a>(given: *mut u8, count: usize, name: &str) -> Result<&'a mut [u8]> {
    match (given.is_null(), count) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(Failure::usage(format!("{name} is NULL; {count} elements are needed"))),
        _ if count > isize::MAX as usize => Err(too_many(name, count)),
        // SAFETY: the caller passes `count` writable bytes, and nothing else uses them during the call.
        (false, _) => unsafe {
            given.write_bytes(0, count);
            Ok(std::slice::from_raw_parts_mut(given, count))
        },
    }
}

/// Writes a value to a pointer of the caller.
pub(crate) fn put<T>(place: *mut T, value: T, name: &str) -> Result {
    if place.is_null() {
        return Err(missing(name));
    }
    // SAFETY: the caller's: a place for one value.
    unsafe { place.write(value) };
    Ok(())
}

/// Copies as much as fits into an array of the caller, and says how much there is.
pub(crate) fn put_all<T: Copy>(values: &[T], target: *mut T, capacity: usize, count: *mut usize) -> Result {
    put(count, values.len(), "count")?;
    if !target.is_null() {
        // SAFETY: the caller's: an array of `capacity` elements.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), target, values.len().min(capacity)) };
    }
    Ok(())
}

/// Copies a text with a 0 behind it, cut where it does not fit.
pub(crate) fn put_text(value: &str, target: *mut c_char, capacity: usize) {
    if target.is_null() || capacity == 0 {
        return;
    }
    let mut length = value.len().min(capacity - 1);
    while !value.is_char_boundary(length) {
        length -= 1;
    }
    // SAFETY: the caller's: `capacity` bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(value.as_ptr().cast::<c_char>(), target, length);
        target.add(length).write(0);
    }
}

/// A time limit in seconds; below 0 is none.
pub(crate) fn limit(seconds: f64) -> Result<Duration> {
    /// About 34 years, which clocks can add.
    const NONE: Duration = Duration::from_secs(1 << 30);
    if seconds < 0.0 {
        return Ok(NONE);
    }
    let given = Duration::try_from_secs_f64(seconds);
    given
        .map(|given| given.min(NONE))
        .map_err(|_| Failure::usage(format!("{seconds} is no number of seconds")))
}
