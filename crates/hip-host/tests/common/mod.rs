//! What the tests share: a compiler, a watchdog and short names for table calls.
#![allow(clippy::disallowed_methods, reason = "real threads are waited for, but not for ever")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "tests call the C table with locals of theirs")]
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of this")]

use std::ffi::{CString, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::ptr::null_mut;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anabranch_hip::types::{HipEvent, HipFunction, HipModule, HipStream, flags, memcpy_kind};
use anabranch_hip::{HipApi, HipError, Runtime};
use anabranch_hip_host::{HostConfig, HostMachine};

/// Runs a test's body under a watchdog.
pub fn within(limit: Duration, body: impl FnOnce() + Send + 'static) {
    let (done, finished) = channel();
    let thread = std::thread::spawn(move || {
        body();
        done.send(()).ok();
    });
    match finished.recv_timeout(limit) {
        Err(RecvTimeoutError::Timeout) => panic!("the test hangs: not done after {limit:?}"),
        Ok(()) | Err(RecvTimeoutError::Disconnected) => {
            if let Err(cause) = thread.join() {
                std::panic::resume_unwind(cause);
            }
        }
    }
}

/// Most tests end within a second.
pub const LIMIT: Duration = Duration::from_secs(60);

/// The test kernels, compiled for a wave width.
pub fn image(width: u32) -> Vec<u8> {
    static IMAGES: Mutex<Vec<(u32, Vec<u8>)>> = Mutex::new(Vec::new());
    let mut images = IMAGES.lock().unwrap();
    if let Some((_, image)) = images.iter().find(|(known, _)| *known == width) {
        return image.clone();
    }
    let crate_folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let object = std::env::temp_dir().join(format!("anabranch-host-test-{}-{width}.so", std::process::id()));
    let output = Command::new("c++")
        .args(["-std=c++17", "-O2", "-shared", "-fPIC", "-Wall", "-Werror"])
        .arg(format!("-DWAVE={width}"))
        .arg("-I")
        .arg(crate_folder.join("../hip-jit/device"))
        .arg(crate_folder.join("tests/device/kernels.cpp"))
        .arg("-o")
        .arg(&object)
        .output()
        .expect("a C++ compiler named c++");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let image = std::fs::read(&object).unwrap();
    std::fs::remove_file(&object).unwrap();
    images.push((width, image.clone()));
    image
}

/// A machine and its table.
pub struct Gpu {
    pub machine: Arc<HostMachine>,
    pub runtime: Runtime,
    pub width: u32,
}

/// Two workers, so that tests see blocks on different threads.
pub fn config() -> HostConfig {
    HostConfig { devices: 2, workers: 2.try_into().ok(), ..HostConfig::default() }
}

pub fn ok(code: HipError) {
    assert_eq!(code, HipError::SUCCESS);
}

impl Gpu {
    pub fn new(config: HostConfig) -> Self {
        let width = config.wave_width;
        let machine = HostMachine::new(config).unwrap();
        Self { runtime: machine.runtime(), machine, width }
    }

    pub fn api(&self) -> &HipApi {
        self.runtime.api()
    }

    pub fn set_device(&self, device: i32) {
        ok(unsafe { (self.api().hipSetDevice)(device) });
    }

    pub fn malloc(&self, bytes: usize) -> *mut c_void {
        let mut pointer = null_mut();
        ok(unsafe { (self.api().hipMalloc)(&raw mut pointer, bytes) });
        pointer
    }

    pub fn free(&self, pointer: *mut c_void) {
        ok(unsafe { (self.api().hipFree)(pointer) });
    }

    pub fn write<T: Copy>(&self, target: *mut c_void, values: &[T]) {
        let source = values.as_ptr().cast();
        ok(unsafe {
            (self.api().hipMemcpy)(target, source, size_of_val(values), memcpy_kind::HOST_TO_DEVICE)
        });
    }

    pub fn read<T: Copy + Default>(&self, source: *mut c_void, count: usize) -> Vec<T> {
        let mut values = vec![T::default(); count];
        let bytes = size_of_val(values.as_slice());
        ok(unsafe {
            (self.api().hipMemcpy)(values.as_mut_ptr().cast(), source, bytes, memcpy_kind::DEVICE_TO_HOST)
        });
        values
    }

    /// Reads a word without the machine's help, while kernels may write it.
    pub fn peek(word: *mut c_void) -> u64 {
        unsafe { std::sync::atomic::AtomicU64::from_ptr(word.cast()) }
            .load(std::sync::atomic::Ordering::Acquire)
    }

    pub fn poke(word: *mut c_void, value: u64) {
        unsafe { std::sync::atomic::AtomicU64::from_ptr(word.cast()) }
            .store(value, std::sync::atomic::Ordering::Release);
    }

    pub fn stream(&self) -> HipStream {
        let mut stream = null_mut();
        ok(unsafe { (self.api().hipStreamCreateWithFlags)(&raw mut stream, flags::STREAM_NON_BLOCKING) });
        stream
    }

    pub fn sync(&self, stream: HipStream) -> HipError {
        unsafe { (self.api().hipStreamSynchronize)(stream) }
    }

    pub fn event(&self) -> HipEvent {
        let mut event = null_mut();
        ok(unsafe { (self.api().hipEventCreateWithFlags)(&raw mut event, 0) });
        event
    }

    pub fn record(&self, event: HipEvent, stream: HipStream) -> HipError {
        unsafe { (self.api().hipEventRecord)(event, stream) }
    }

    pub fn wait_event(&self, stream: HipStream, event: HipEvent) -> HipError {
        unsafe { (self.api().hipStreamWaitEvent)(stream, event, 0) }
    }

    pub fn module(&self) -> HipModule {
        let mut module = null_mut();
        let image = image(self.width);
        ok(unsafe { (self.api().hipModuleLoadData)(&raw mut module, image.as_ptr().cast()) });
        module
    }

    pub fn function(&self, module: HipModule, name: &str) -> Result<HipFunction, HipError> {
        let name = CString::new(name).unwrap();
        let mut function = null_mut();
        let code = unsafe { (self.api().hipModuleGetFunction)(&raw mut function, module, name.as_ptr()) };
        if code == HipError::SUCCESS { Ok(function) } else { Err(code) }
    }

    /// Loads the test kernels on the current device and looks one up.
    pub fn kernel(&self, name: &str) -> HipFunction {
        self.function(self.module(), name).unwrap()
    }

    pub fn try_launch<T>(
        &self,
        function: HipFunction,
        (grid, block, local): (u32, u32, u32),
        stream: HipStream,
        mut arguments: T,
    ) -> HipError {
        let mut parameters = [(&raw mut arguments).cast::<c_void>()];
        let parameters = parameters.as_mut_ptr();
        unsafe {
            (self.api().hipModuleLaunchKernel)(
                function,
                grid,
                1,
                1,
                block,
                1,
                1,
                local,
                stream,
                parameters,
                null_mut(),
            )
        }
    }

    pub fn launch<T>(&self, function: HipFunction, shape: (u32, u32, u32), stream: HipStream, arguments: T) {
        ok(self.try_launch(function, shape, stream, arguments));
    }
}

/// Waits until something holds.
pub fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "not within 30 s: {what}");
        std::thread::yield_now();
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Word {
    pub word: *mut c_void,
    pub value: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct PingPong {
    pub mine: *mut c_void,
    pub theirs: *mut c_void,
    pub rounds: u64,
}
