//! The table against a driver that only writes down what it is asked: argument orders, flags, current devices.
//!
//! One test, since the opened driver belongs to the process.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anabranch_hip::types::{
    HipMemAllocationProperties, HipMemLocation, HipPointerAttributes, flags, memory_type,
};
use anabranch_hip::{
    DeviceOrdinal, HipError, IpcHandle, LaunchShape, RelaxedCapture, Runtime, RuntimeKind, Stream,
};
use anabranch_hip_cuda::DRIVER_SYMBOLS;
use libloading::os::unix::Library;

/// Optional functions that the fake has; the others stay away, as in an older driver.
const OPTIONAL: [&str; 4] =
    ["cuStreamGetCaptureInfo", "cuEventRecordWithFlags", "cuFuncLoad", "cuStreamWaitValue64_v2"];

fn build(folder: &Path) -> PathBuf {
    let by_hand = include_str!("fake_libcuda.c");
    let mut source = by_hand.to_owned();
    for (symbol, required) in DRIVER_SYMBOLS {
        let present = by_hand.contains(&format!("int {symbol}("));
        if *required && !present {
            writeln!(source, "int {symbol}(void) {{ return 801; }}").unwrap();
        }
        assert!(*required || present == OPTIONAL.contains(symbol), "{symbol}");
    }
    std::fs::create_dir_all(folder).unwrap();
    let (c_file, library) = (folder.join("fake_libcuda.c"), folder.join("libcuda.so.1"));
    std::fs::write(&c_file, source).unwrap();
    let output = Command::new("c++")
        .args(["-x", "c", "-shared", "-fPIC", "-w", "-o"])
        .args([&library, &c_file])
        .output()
        .expect("the workspace needs a C++ compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    library
}

/// What the fake wrote down since the last time.
struct Notes(Library);

impl Notes {
    /// After so many more waits for streams, so many are refused.
    fn refuse_waits(&self, after: c_int, times: c_int) {
        // SAFETY: the fake exports this function with this signature.
        let refuse = unsafe { self.0.get::<unsafe extern "C" fn(c_int, c_int)>("fake_refuse_waits") };
        // SAFETY: it takes any numbers.
        unsafe { refuse.unwrap()(after, times) };
    }

    fn take(&self) -> String {
        // SAFETY: the fake exports these two functions with these signatures.
        let (notes, forget) = unsafe {
            (
                self.0.get::<unsafe extern "C" fn() -> *const c_char>("fake_notes").unwrap(),
                self.0.get::<unsafe extern "C" fn()>("fake_forget").unwrap(),
            )
        };
        // SAFETY: the text is zero-terminated, and no other thread calls the fake.
        let text = unsafe { CStr::from_ptr(notes()) }.to_str().unwrap().to_owned();
        // SAFETY: as above.
        unsafe { forget() };
        text
    }
}

#[test]
fn calls_reach_the_driver_with_the_right_arguments() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fake_driver");
    let library = build(&folder);
    let runtime = anabranch_hip_cuda::open(std::slice::from_ref(&folder)).expect("the fake driver opens");
    assert_eq!(runtime.kind(), RuntimeKind::Nvidia);
    assert_eq!(runtime.origin(), format!("{}, CUDA 12.4", library.display()));
    // SAFETY: the library is already open; its initialisers have run.
    let notes = Notes(unsafe { Library::new(&library) }.unwrap());

    devices(&runtime, &notes);
    memory(&runtime, &notes);
    modules(&runtime, &notes);
    streams(&runtime, &notes);
    relaxed_captures(&runtime, &notes);
    waits_in_captures(&runtime, &notes);
    captures(&runtime, &notes);
    table(&runtime, &notes);
}

fn devices(runtime: &Runtime, notes: &Notes) {
    assert_eq!(runtime.device_count().unwrap(), 2);
    assert_eq!(runtime.versions().unwrap(), (12040, 12040));
    let device = runtime.device(DeviceOrdinal(1)).unwrap();
    assert_eq!(device.arch(), "sm_90");
    assert_eq!(device.properties().name(), "Fake 11");
    assert_eq!(device.properties().total_global_memory(), 11 << 30);
    assert_eq!(device.properties().shared_memory_per_block(), 232_448);
    assert_eq!((device.wave_size(), device.multiprocessors()), (32, 132));
    assert_eq!(device.pci_bus_id().unwrap(), "0000:1b:00.0");
    assert!(runtime.device(DeviceOrdinal(2)).is_err());
    assert_eq!(notes.take(), "", "looking at devices makes no context");

    // Work on device 1 from a thread whose current device is 0 must not make a context on device 0.
    let synchronize = || {
        let _guard = device.guard().unwrap();
        // SAFETY: no arguments.
        assert_eq!(unsafe { (runtime.api().hipDeviceSynchronize)() }, HipError::SUCCESS);
    };
    synchronize();
    assert_eq!(notes.take(), "retain 11\nsynchronize 11\n");
    let mut current = -1;
    // SAFETY: the call writes one int.
    unsafe { (runtime.api().hipGetDevice)(&raw mut current) };
    assert_eq!(current, 0);
    synchronize();
    assert_eq!(notes.take(), "synchronize 11\n", "a context is retained once");

    // Nor must what was made there and is dropped while nothing is current.
    let again = runtime.device(DeviceOrdinal(1)).unwrap();
    let mut buffer = again.allocate(64).unwrap();
    buffer.fill(1).unwrap();
    let stream = again.create_stream().unwrap();
    stream.begin_capture().unwrap();
    let graph = stream.end_capture().unwrap();
    let exec = graph.instantiate().unwrap();
    notes.take();
    drop((exec, graph, stream, buffer));
    assert_eq!(notes.take(), "destroy exec 9a\ndestroy graph 99\nfree 7f0000000000\n");
    drop(again);
    assert_eq!(notes.take(), "destroy 52\n", "device 0 has no context yet, and gets none");

    let first = runtime.device(DeviceOrdinal(0)).unwrap();
    assert!(device.can_access_peer(&first).unwrap());
    device.enable_peer_access(&first).unwrap();
    assert_eq!(notes.take(), "retain 10\npeer 10 0\n");
    device.enable_peer_access(&first).unwrap();
    // SAFETY: no arguments.
    assert_eq!(unsafe { (runtime.api().hipGetLastError)() }, HipError::SUCCESS, "the one error is consumed");
    notes.take();
}

fn memory(runtime: &Runtime, notes: &Notes) {
    let device = runtime.device(DeviceOrdinal(1)).unwrap();
    let mut buffer = device.allocate_uncached(4096).unwrap();
    assert_eq!(notes.take(), "alloc 4096\n");
    buffer.fill(0x1ff_u32 as u8).unwrap();
    // By a stream of the device's own, which is waited for before and behind.
    assert_eq!(notes.take(), "stream 1 -5\nwait 52\nset 7f0000000000 255 4096 52\nwait 52\n");
    let mut bytes = [1; 4];
    buffer.copy_to_host(7, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 4]);
    assert_eq!(notes.take(), "wait 52\ncopy 4 52\nwait 52\n");
    buffer.copy_from_host(8, &bytes).unwrap();
    assert_eq!(notes.take(), "wait 52\ncopy 4 52\nwait 52\n", "the stream is made once");
    // Refused before anything is put: nothing is copied. Refused behind it: tried again, as the copy may be under way.
    notes.refuse_waits(0, 1);
    let refused = buffer.copy_to_host(7, &mut bytes).unwrap_err();
    assert_eq!(refused.code(), Some(HipError::STREAM_CAPTURE_UNSUPPORTED));
    assert_eq!(notes.take(), "wait 52\n");
    notes.refuse_waits(1, 2);
    buffer.copy_to_host(7, &mut bytes).unwrap();
    assert_eq!(notes.take(), "wait 52\ncopy 4 52\nwait 52\nwait 52\nwait 52\n");
    // HIP's own synchronous calls go by the default stream.
    // SAFETY: the fake writes four bytes to the host's array, and nothing to its own memory.
    let (copied, filled) = unsafe {
        let _guard = device.guard().unwrap();
        let (api, there) = (runtime.api(), buffer.address().as_ptr());
        ((api.hipMemcpy)(bytes.as_mut_ptr().cast(), there, 4, 2), (api.hipMemset)(there, 0x1ff, 16))
    };
    assert_eq!((copied, filled), (HipError::SUCCESS, HipError::SUCCESS));
    assert_eq!(notes.take(), "copy 4\nwait 0\nset 7f0000000000 255 16 0\nwait 0\n");

    let host = device.allocate_host(100).unwrap();
    assert_eq!(notes.take(), "host 100 3\n");
    assert_eq!(host.device_address().0, host.as_ptr() as u64);
    drop(host);
    assert_eq!(notes.take(), "free host\n");

    let mut found = HipPointerAttributes::default();
    // SAFETY: the call writes one struct; any address may be asked for.
    let code = unsafe { (runtime.api().hipPointerGetAttributes)(&raw mut found, buffer.address().as_ptr()) };
    assert_eq!(code, HipError::SUCCESS);
    assert_eq!((found.memory_type, found.device), (memory_type::DEVICE, 1));
    let mine = 5_u64;
    // SAFETY: as above.
    unsafe { (runtime.api().hipPointerGetAttributes)(&raw mut found, (&raw const mine).cast()) };
    assert_eq!((found.memory_type, found.device), (memory_type::UNREGISTERED, -1));
    assert_eq!(found.host_pointer.cast_const(), (&raw const mine).cast());

    let handle = buffer.ipc_handle().unwrap();
    assert_eq!(handle.to_bytes(), [0x5a; 64]);
    let mapping = device.open_ipc(&IpcHandle::from_bytes([0xa5; 64])).unwrap();
    assert_eq!(mapping.address().0, 0x7e00_0000_0000);
    drop(mapping);
    assert_eq!(notes.take(), "open ipc a5a5 1\nclose ipc 7e0000000000\n");
    let mut raw = handle.0;
    let mut get = |address: u64| {
        // SAFETY: the call writes 64 bytes; the fake refuses these addresses.
        unsafe { (runtime.api().hipIpcGetMemHandle)(&raw mut raw, address as *mut c_void) }
    };
    assert_eq!(get(0x7f00_0000_2000), HipError::NOT_SUPPORTED, "known, but not to be shared by handle");
    assert_eq!(get(0x7f00_0020_0000), HipError::INVALID_VALUE, "not known");

    drop(buffer);
    assert_eq!(notes.take(), "free 7f0000000000\n");
    drop(device);
    assert_eq!(notes.take(), "destroy 52\n", "with the last handle of the device");
}

fn modules(runtime: &Runtime, notes: &Notes) {
    let device = runtime.device(DeviceOrdinal(1)).unwrap();
    // SAFETY: the fake compares a zero-terminated text.
    let refused = unsafe { device.load_module(b"garbage\0") }.unwrap_err();
    assert_eq!(refused.code(), Some(HipError::INVALID_IMAGE));
    // SAFETY: as above.
    let module = unsafe { device.load_module(b"cubin\0") }.unwrap();
    assert_eq!(module.kernel("other").unwrap_err().code(), Some(HipError::NOT_FOUND));
    notes.take();
    let kernel = module.kernel("entry").unwrap();
    assert_eq!(notes.take(), "load 31\nlimit 8 232000\n", "loaded now, and allowed all but 448 static bytes");
    assert_eq!(kernel.max_block_threads().unwrap(), 256);

    let stream = device.create_stream().unwrap();
    assert_eq!(notes.take(), "stream 1\n");
    let mut shape = LaunchShape { grid_blocks: 3, block_threads: 64, local_bytes: 65536 };
    // SAFETY: the fake reads one u64.
    unsafe { kernel.launch(shape, &stream, &77_u64.to_ne_bytes()) }.unwrap();
    assert_eq!(notes.take(), "launch 31 3 1 1 / 64 1 1 local 65536 stream 51 parameter 77\n");
    shape.local_bytes = 232_100;
    // SAFETY: as above.
    let refused = unsafe { kernel.launch(shape, &stream, &77_u64.to_ne_bytes()) }.unwrap_err();
    assert_eq!(refused.code(), Some(HipError::LAUNCH_OUT_OF_RESOURCES));
    notes.take();
}

fn streams(runtime: &Runtime, notes: &Notes) {
    let device = runtime.device(DeviceOrdinal(1)).unwrap();
    let stream = device.create_stream().unwrap();
    notes.take();
    assert!(!stream.is_idle().unwrap(), "not ready is an answer");
    let api = runtime.api();
    // SAFETY: no arguments; earlier steps may have left an error.
    unsafe { (api.hipGetLastError)() };
    // SAFETY: the fake looks at no stream.
    assert_eq!(unsafe { (api.hipStreamQuery)(stream.raw()) }, HipError::NOT_READY);
    // SAFETY: no arguments.
    assert_eq!(unsafe { (api.hipGetLastError)() }, HipError::SUCCESS, "not ready is no error");

    let wait = api.hipStreamWaitValue64.unwrap();
    let place = 0x7f00_0000_0010_u64 as *mut c_void;
    let ask = |kind, mask| {
        // SAFETY: the fake waits for nothing.
        unsafe { wait(stream.raw(), place, 0xff, kind, mask) }
    };
    assert_eq!(ask(flags::WAIT_VALUE_GREATER_OR_EQUAL, u64::MAX), HipError::SUCCESS);
    assert_eq!(ask(flags::WAIT_VALUE_AND, 0x0f), HipError::SUCCESS);
    assert_eq!(ask(flags::WAIT_VALUE_EQUAL, 0x0f), HipError::NOT_SUPPORTED);
    assert_eq!(notes.take(), "wait value 7f0000000010 ff 0\nwait value 7f0000000010 f 2\n");

    // SAFETY: the fake captures nothing.
    let code = unsafe { (api.hipStreamBeginCapture)(stream.raw(), flags::CAPTURE_MODE_RELAXED) };
    assert_eq!(code, HipError::SUCCESS);
    assert_eq!(notes.take(), "capture 2\n");
    stream.end_capture().unwrap();
    assert_eq!(notes.take(), "destroy graph 99\n");
}

/// The mode of the thread is relaxed where one of its streams is captured, and set back.
fn relaxed_captures(runtime: &Runtime, notes: &Notes) {
    let stream = runtime.device(DeviceOrdinal(1)).unwrap().create_stream().unwrap();
    let relax = || RelaxedCapture::for_streams(runtime, std::slice::from_ref(&stream)).unwrap();
    notes.take();
    assert!(relax().is_none());
    assert_eq!(notes.take(), "");
    stream.begin_capture().unwrap();
    notes.take();
    let relaxed = relax();
    assert_eq!((relaxed.is_some(), notes.take()), (true, "mode 2\n".to_owned()));
    drop(relaxed);
    assert_eq!(notes.take(), "mode 0\n");
    stream.end_capture().unwrap();
    notes.take();
    // A thread without a context gets none by it.
    std::thread::scope(|scope| {
        scope.spawn(|| drop(RelaxedCapture::new(runtime).unwrap()));
    });
    assert_eq!(notes.take(), "mode 2\nmode 0\n");
}

/// What HIP refuses beside a capture is refused here, although the driver would do it.
fn captures(runtime: &Runtime, notes: &Notes) {
    let device = runtime.device(DeviceOrdinal(1)).unwrap();
    let mut buffer = device.allocate(64).unwrap();
    let there = buffer.address().as_ptr() as usize;
    let stream = device.create_stream().unwrap();
    let raw = stream.raw() as usize;
    let elsewhere =
        |call: &(dyn Fn() -> HipError + Sync)| std::thread::scope(|scope| scope.spawn(call).join().unwrap());
    let (implicit, unsupported) = (HipError::STREAM_CAPTURE_IMPLICIT, HipError::STREAM_CAPTURE_UNSUPPORTED);
    let mut byte = 0_u8;
    let host = (&raw mut byte) as usize;
    let copy = |target: usize, source: usize, bytes| {
        // SAFETY: refused before the fake would touch anything.
        unsafe { (runtime.api().hipMemcpy)(target as *mut c_void, source as *const c_void, bytes, 4) }
    };
    let other = 0x77_usize;
    let calls: [(&str, HipError, &(dyn Fn() -> HipError + Sync)); 5] = [
        ("copy to the host", implicit, &|| copy(host, there, 1)),
        ("copy to the device", implicit, &|| copy(there, host, 1)),
        ("copy of nothing", implicit, &|| copy(there, host, 0)),
        // SAFETY: refused.
        ("fill", implicit, &|| unsafe { (runtime.api().hipMemset)(there as *mut c_void, 0, 8) }),
        // SAFETY: no arguments.
        ("wait for the device", unsupported, &|| unsafe { (runtime.api().hipDeviceSynchronize)() }),
    ];
    for (name, code, call) in calls {
        for thread in ["another", "this"] {
            stream.begin_capture().unwrap();
            assert!(stream.is_capturing().unwrap());
            notes.take();
            let seen = if thread == "this" { call() } else { elsewhere(call) };
            assert_eq!(seen, code, "{name}, {thread} thread");
            assert_eq!(notes.take(), "", "{name}: the driver is not asked");
            let mut status = -1;
            // SAFETY: the call writes one int.
            let asked = unsafe { (runtime.api().hipStreamIsCapturing)(stream.raw(), &raw mut status) };
            assert_eq!((asked, status), (HipError::SUCCESS, flags::CAPTURE_STATUS_INVALIDATED), "{name}");
            let ended = stream.end_capture().unwrap_err();
            assert_eq!(ended.code(), Some(HipError::STREAM_CAPTURE_INVALIDATED), "{name}, {thread} thread");
            assert_eq!(notes.take(), "destroy graph 99\n", "{name}: what was recorded goes");
            assert!(!stream.is_capturing().unwrap());
            assert_eq!(elsewhere(&|| copy(there, host, 1)), HipError::SUCCESS, "{name}: over is over");
        }
    }

    // Waits for streams are refused to the thread that captures, and to all during a global capture.
    let wait = || {
        // SAFETY: the fake looks at no stream.
        unsafe { (runtime.api().hipStreamSynchronize)(other as *mut c_void) }
    };
    let query = || {
        // SAFETY: as above.
        unsafe { (runtime.api().hipStreamQuery)(other as *mut c_void) }
    };
    let begin = |mode| {
        // SAFETY: the stream is live.
        let code = unsafe { (runtime.api().hipStreamBeginCapture)(stream.raw(), mode) };
        assert_eq!(code, HipError::SUCCESS);
        notes.take();
    };
    for (name, call, answer) in [
        ("wait", &wait as &(dyn Fn() -> HipError + Sync), HipError::SUCCESS),
        ("query", &query, HipError::NOT_READY),
    ] {
        for (mode, here, there) in [
            (flags::CAPTURE_MODE_GLOBAL, unsupported, unsupported),
            (flags::CAPTURE_MODE_THREAD_LOCAL, unsupported, answer),
            (flags::CAPTURE_MODE_RELAXED, answer, answer),
        ] {
            begin(mode);
            assert_eq!(elsewhere(call), there, "{name}, mode {mode}, another thread");
            assert_eq!(stream.end_capture().is_err(), there == unsupported, "{name}, mode {mode}");
            begin(mode);
            assert_eq!(call(), here, "{name}, mode {mode}, this thread");
            assert_eq!(stream.end_capture().is_err(), here == unsupported, "{name}, mode {mode}");
        }
    }
    // A transfer of the thread that captures ends its capture, and touches nothing.
    stream.begin_capture().unwrap();
    notes.take();
    assert_eq!(buffer.fill(3).unwrap_err().code(), Some(unsupported));
    assert!(!notes.take().contains("set"), "nothing is filled");
    assert!(stream.end_capture().is_err());

    // What is allowed leaves a capture alone; one that another thread tries to end goes on.
    stream.begin_capture().unwrap();
    std::thread::scope(|scope| scope.spawn(|| buffer.fill(3).unwrap()).join().unwrap());
    let wrong = elsewhere(&|| {
        let mut graph = std::ptr::null_mut();
        // SAFETY: the call writes one handle, or none.
        unsafe { (runtime.api().hipStreamEndCapture)(raw as *mut c_void, &raw mut graph) }
    });
    assert_eq!(wrong, HipError::STREAM_CAPTURE_WRONG_THREAD);
    stream.end_capture().unwrap();
    stream.begin_capture().unwrap();
    assert_eq!(elsewhere(&|| copy(there, host, 1)), implicit, "the capture is known again");
    assert!(stream.end_capture().is_err());

    // A stream that goes takes its capture along.
    assert_eq!(stream.capture_number().unwrap(), None);
    stream.begin_capture().unwrap();
    assert!(stream.capture_number().unwrap().is_some());
    notes.take();
    let record = runtime.api().hipEventRecordWithFlags.unwrap();
    // SAFETY: the fake looks at no event.
    let recorded = unsafe { record(0x77 as *mut c_void, stream.raw(), flags::EVENT_RECORD_EXTERNAL) };
    assert_eq!((recorded, notes.take()), (HipError::SUCCESS, format!("record 77 {raw:x} 1\n")));
    drop(stream);
    assert_eq!(elsewhere(&|| copy(there, host, 1)), HipError::SUCCESS);
    notes.take();
}

/// A stream does not wait for what it recorded in the same capture.
fn waits_in_captures(runtime: &Runtime, notes: &Notes) {
    let device = runtime.device(DeviceOrdinal(1)).unwrap();
    let (stream, event) = (device.create_stream().unwrap(), device.create_event().unwrap());
    // SAFETY: the fake looks at no stream.
    let other = unsafe { device.borrow_stream(0x66 as *mut c_void) };
    let waits = |stream: &Stream| {
        notes.take();
        stream.wait_event(&event).unwrap();
        notes.take().contains("wait event")
    };
    stream.record(&event).unwrap();
    stream.begin_capture().unwrap();
    assert!(waits(&stream), "the record was outside of the capture");
    stream.record(&event).unwrap();
    assert!(!waits(&stream));
    assert!(waits(&other), "another stream of the capture");
    other.record(&event).unwrap();
    assert!(waits(&stream), "the other stream's record");
    stream.record(&event).unwrap();
    stream.record_in_replays(&event).unwrap();
    assert!(waits(&stream), "a record of replays");
    stream.record(&event).unwrap();
    stream.end_capture().unwrap();
    assert!(waits(&stream), "the capture is over");
    stream.begin_capture().unwrap();
    assert!(waits(&stream), "another capture");
    stream.end_capture().unwrap();
    drop(stream);
    notes.take();
}

fn table(runtime: &Runtime, notes: &Notes) {
    let api = runtime.api();
    let absent: Vec<_> = api.optional().into_iter().filter(|(_, has)| !has).map(|(name, _)| name).collect();
    assert_eq!(absent, ["hipStreamWriteValue64", "hipMemGetHandleForAddressRange"]);

    let mut value: c_int = 0;
    // SAFETY: the call writes one int.
    assert_eq!(unsafe { (api.hipDeviceGetAttribute)(&raw mut value, 74, 1) }, HipError::SUCCESS);
    assert_eq!(value, 232_448);
    // Virtual memory management, on a device whose memory can be exported and on one whose cannot.
    for (device, supported) in [(0, 1), (1, 0)] {
        // SAFETY: as above.
        let code = unsafe { (api.hipDeviceGetAttribute)(&raw mut value, 89, device) };
        assert_eq!((code, value), (HipError::SUCCESS, supported));
        assert_eq!(
            runtime.device(DeviceOrdinal(device as u32)).unwrap().has_virtual_memory().unwrap(),
            supported != 0
        );
    }
    // SAFETY: as above; a null place is refused before anything is written.
    assert_eq!(unsafe { (api.hipGetDevice)(std::ptr::null_mut()) }, HipError::INVALID_VALUE);
    // SAFETY: as above.
    assert_eq!(unsafe { (api.hipSetDevice)(2) }, HipError::INVALID_DEVICE);

    let text = |pointer: *const c_char| {
        // SAFETY: names and descriptions are constant texts.
        unsafe { CStr::from_ptr(pointer) }.to_str().unwrap().to_owned()
    };
    // SAFETY: any code may be asked for.
    unsafe {
        assert_eq!(text((api.hipGetErrorName)(HipError(2))), "hipErrorOutOfMemory");
        assert_eq!(text((api.hipGetErrorString)(HipError(2))), "out of memory");
        assert_eq!(text((api.hipGetErrorName)(HipError(716))), "CUDA_ERROR_MISALIGNED_ADDRESS");
        assert_eq!(text((api.hipGetErrorString)(HipError(4242))), "hipError(unlisted)");
    }

    let properties = HipMemAllocationProperties {
        kind: flags::MEM_ALLOCATION_TYPE_UNCACHED,
        requested_handle_type: flags::MEM_HANDLE_TYPE_POSIX_FD,
        location: HipMemLocation { kind: flags::MEM_LOCATION_TYPE_DEVICE, id: 1 },
        win32_handle_meta_data: std::ptr::null_mut(),
        compression_type: 0,
        gpu_direct_rdma_capable: 1,
        usage: 0,
    };
    let mut handle = std::ptr::null_mut();
    notes.take();
    // SAFETY: the call reads one struct and writes one handle.
    let code = unsafe { api.hipMemCreate.unwrap()(&raw mut handle, 1 << 21, &raw const properties, 0) };
    assert_eq!((code, handle as usize), (HipError::SUCCESS, 0x77));
    assert!(notes.take().ends_with("create 2097152 kind 1 types 1 location 1 1 rdma 1\n"));
}
