//! Functions of the C library that this one stands in front of. What is not for a NIC of ours goes on to the C library's own.
//!
//! `open` and `ioctl` are variadic in C. Here they take the one more argument that there can be: on the architectures below callers
//! pass it in the same register either way.

use std::ffi::{CStr, c_char, c_int, c_long, c_ulong, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::Errno;
use crate::controls::Controls;
use crate::driver::Driver;
use crate::uverbs::abi::{Attribute, MethodHead, RDMA_VERBS_IOCTL};
use crate::uverbs::methods::{PAGE, page_of};
use crate::uverbs::{commands, methods};

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
compile_error!("variadic functions are replaced for Linux on x86_64 and aarch64 alone");

/// The device files begin so; the NIC's number follows.
const DEVICE: &str = "/dev/infiniband/uverbs";
/// Their numbers: `IB_UVERBS_MAJOR`, `IB_UVERBS_BASE_MINOR` of Linux. The fake `/sys` of run.sh has the same.
const MAJOR: u32 = 231;
const FIRST_MINOR: u32 = 192;
/// Family of sockets by which the kernel lists its NICs (`NETLINK_RDMA` of `linux/netlink.h`): without it libibverbs reads `/sys`.
const NETLINK_RDMA: c_int = 20;

/// Of each file descriptor: one more than the number of the NIC that it is open on, or zero.
static NIC_OF: [AtomicU8; 65536] = [const { AtomicU8::new(0) }; 65536];
/// The driver's state, from the first NIC that is opened on.
static DRIVER: OnceLock<Result<Mutex<Driver>, Errno>> = OnceLock::new();

/// The function that the C library has by a name.
fn next(cache: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = cache.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: the name is a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() {
        crate::report(format_args!("there is no {}", name.to_string_lossy()));
        std::process::abort();
    }
    cache.store(found, Ordering::Relaxed);
    found
}

/// The C library's own function, looked up once.
macro_rules! real {
    ($name:literal: $kind:ty) => {{
        static CACHE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
        // SAFETY: the C library declares the function with this type; a variadic one is called with as many arguments as here.
        unsafe { transmute::<*mut c_void, $kind>(next(&CACHE, $name)) }
    }};
}

fn set_errno(error: Errno) {
    // SAFETY: the C library gives the address of this thread's number.
    unsafe { *libc::__errno_location() = error.0 };
}

/// What C calls make of a result: -1 and the error's number.
fn answer<T>(result: Result<T, Errno>, failed: T) -> T {
    result.unwrap_or_else(|error| {
        set_errno(error);
        failed
    })
}

fn start() -> Result<Mutex<Driver>, Errno> {
    let variables = std::env::vars_os();
    let texts =
        variables.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let controls = Controls::parse(texts).map_err(|error| {
        crate::report(format_args!("{error}"));
        Errno(libc::ENODEV)
    })?;
    Driver::new(controls).map(Mutex::new)
}

fn driver() -> Result<MutexGuard<'static, Driver>, Errno> {
    let driver = DRIVER.get_or_init(start).as_ref().map_err(|error| *error)?;
    Ok(driver.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The NIC's number in the path of a device file.
///
/// # Safety
///
/// `path` is null or a C string.
unsafe fn nic_of_path(path: *const c_char) -> Option<u8> {
    if path.is_null() {
        return None;
    }
    // SAFETY: this function's contract.
    let path = unsafe { CStr::from_ptr(path) };
    path.to_str().ok()?.strip_prefix(DEVICE)?.parse().ok().filter(|number| *number < u8::MAX)
}

/// The NIC that a file descriptor is open on.
fn nic_of_file(file: c_int) -> Option<u8> {
    NIC_OF.get(usize::try_from(file).ok()?)?.load(Ordering::Relaxed).checked_sub(1)
}

fn open_nic(number: u8) -> Result<c_int, Errno> {
    drop(driver()?);
    // SAFETY: no memory is passed.
    let file = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    let slot = usize::try_from(file).ok().and_then(|file| NIC_OF.get(file)).ok_or(Errno(libc::EMFILE))?;
    slot.store(number + 1, Ordering::Relaxed);
    Ok(file)
}

/// What `stat` says of a NIC's device file.
///
/// # Safety
///
/// `status` can be written.
unsafe fn describe(number: u8, status: *mut libc::stat) {
    // SAFETY: the structure has numbers alone, for which zero is a value; the caller has room for it.
    unsafe {
        status.write_bytes(0, 1);
        (*status).st_mode = libc::S_IFCHR | 0o666;
        (*status).st_rdev = libc::makedev(MAJOR, FIRST_MINOR + u32::from(number));
    }
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: the caller's contract.
    match unsafe { nic_of_path(path) } {
        Some(number) => answer(open_nic(number), -1),
        None => real!(c"open": extern "C" fn(*const c_char, c_int, libc::mode_t) -> c_int)(path, flags, mode),
    }
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn stat(path: *const c_char, status: *mut libc::stat) -> c_int {
    // SAFETY: the caller's contract.
    let Some(number) = (unsafe { nic_of_path(path) }) else {
        return real!(c"stat": extern "C" fn(*const c_char, *mut libc::stat) -> c_int)(path, status);
    };
    // SAFETY: the caller's contract.
    unsafe { describe(number, status) };
    0
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn fstat(file: c_int, status: *mut libc::stat) -> c_int {
    let Some(number) = nic_of_file(file) else {
        return real!(c"fstat": extern "C" fn(c_int, *mut libc::stat) -> c_int)(file, status);
    };
    // SAFETY: the caller's contract.
    unsafe { describe(number, status) };
    0
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn close(file: c_int) -> c_int {
    if let Some(slot) = usize::try_from(file).ok().and_then(|file| NIC_OF.get(file)) {
        slot.store(0, Ordering::Relaxed);
    }
    real!(c"close": extern "C" fn(c_int) -> c_int)(file)
}

/// Takes the way to list NICs that does not read `/sys`.
///
/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int {
    if family == libc::AF_NETLINK && protocol == NETLINK_RDMA {
        return answer(Err(Errno(libc::EPROTONOSUPPORT)), -1);
    }
    real!(c"socket": extern "C" fn(c_int, c_int, c_int) -> c_int)(family, kind, protocol)
}

type Mmap = extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, libc::off_t) -> *mut c_void;

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn mmap(
    wanted: *mut c_void,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    let real = real!(c"mmap": Mmap);
    if nic_of_file(file).is_none() {
        return real(wanted, bytes, protection, flags, file, offset);
    }
    let Some(number) = page_of(offset).filter(|_| bytes == PAGE) else {
        return answer(Err(Errno(libc::EINVAL)), libc::MAP_FAILED);
    };
    // Registers that are memory: the NIC looks there.
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let page = real(wanted, bytes, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
    if page == libc::MAP_FAILED {
        return page;
    }
    let mapped = driver().and_then(|mut driver| driver.map_page(number, page as usize));
    answer(mapped.map(|()| page), libc::MAP_FAILED)
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn write(file: c_int, bytes: *const c_void, count: usize) -> isize {
    if nic_of_file(file).is_none() {
        return real!(c"write": extern "C" fn(c_int, *const c_void, usize) -> isize)(file, bytes, count);
    }
    // SAFETY: the caller's contract.
    let command = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), count) };
    let done = driver().and_then(|mut driver| commands::execute(&mut driver, command));
    answer(done.map(|()| count as isize), -1)
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(file: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if nic_of_file(file).is_none() {
        return real!(c"ioctl": extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int)(file, request, argument);
    }
    if request != RDMA_VERBS_IOCTL {
        return answer(Err(Errno(libc::ENOTTY)), -1);
    }
    // SAFETY: with this request the argument is a head (the caller's contract), and as many attributes as that says follow it.
    let (head, attributes) = unsafe {
        let head = *argument.cast::<MethodHead>();
        let first = argument.cast::<MethodHead>().add(1).cast::<Attribute>();
        (head, std::slice::from_raw_parts_mut(first, head.num_attrs.into()))
    };
    let done = driver().and_then(|mut driver| methods::call(&mut driver, &head, attributes));
    answer(done.map(|()| 0), -1)
}

/// The types above are the C library's: `long` offsets, and pointers as large as `unsigned long`.
const _: () = assert!(size_of::<libc::off_t>() == size_of::<c_long>() && size_of::<c_ulong>() == 8);
