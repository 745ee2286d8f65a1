//! The functions of AMD's runtime, called across the C interface of a runtime in memory (`fake_runtime.cpp`).
//!
//! The runtime is looked for among the libraries that the process has mapped, so all of this is one test: one fake after another.
#![allow(unsafe_code, reason = "loads the fake runtime")]

use core::ffi::{CStr, c_char, c_int};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anabranch_transport_sdma::QueueEngine;
use anabranch_transport_sdma::amd::{
    AmdEngine, AmdEngines, AmdError, Driver, GpuAddress, PciAddress, RingPlace, Topology, open_driver,
};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

const RING_BYTES: u64 = 1 << 14;

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that stays behind is no reason to fail.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A fake that this process has mapped, until it is dropped.
struct Fake {
    number: unsafe extern "C" fn(*const c_char) -> *mut c_int,
    fail: unsafe extern "C" fn(*const c_char, c_int),
    _library: Library,
}

impl Fake {
    /// Compiles and maps a fake with some of its parts.
    fn new(folder: &Path, name: &str, parts: &[&str]) -> Self {
        let file = folder.join(name);
        let made = Command::new("c++")
            .args(["-std=c++17", "-O1", "-shared", "-fPIC", "-Wall", "-Wno-unused", "-Werror"])
            .arg("-Wl,-soname,libhsa-runtime64.so.1")
            .args(parts.iter().map(|part| format!("-D{part}")))
            .arg("-o")
            .args([file.as_os_str(), concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake_runtime.cpp").as_ref()])
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        // SAFETY: the file was just made and has no initialisers.
        let library = unsafe { Library::open(Some(&file), RTLD_NOW | RTLD_LOCAL) }.unwrap();
        // SAFETY: the types are those in `fake_runtime.cpp`; the library stays as long as they do.
        unsafe {
            let number = *library.get(b"fakeNumber").unwrap();
            let fail = *library.get(b"fakeFail").unwrap();
            Self { number, fail, _library: library }
        }
    }

    fn place(&self, name: &CStr) -> *mut c_int {
        // SAFETY: it looks the name up.
        let place = unsafe { (self.number)(name.as_ptr()) };
        assert!(!place.is_null(), "{name:?}");
        place
    }

    fn get(&self, name: &CStr) -> c_int {
        // SAFETY: a variable of the library, which no other thread uses.
        unsafe { *self.place(name) }
    }

    fn set(&self, name: &CStr, value: c_int) {
        // SAFETY: as in `get`.
        unsafe { *self.place(name) = value };
    }

    /// From now on a function returns a code; none does for an empty name.
    fn fail(&self, function: &CStr, code: c_int) {
        // SAFETY: it copies the name.
        unsafe { (self.fail)(function.as_ptr(), code) }
    }

    fn assert_nothing_is_held(&self) {
        for what in [c"memory", c"mapped", c"queues", c"complaints"] {
            assert_eq!(self.get(what), 0, "{what:?}");
        }
    }
}

/// Nodes 3 and 4 are GPUs that the fake shows as nodes 1 and 2; node 5 it does not show.
fn tree(folder: &Path) -> Arc<Topology> {
    let nodes = folder.join("nodes");
    let write = |file: String, text: String| {
        let file = nodes.join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    };
    write("0/gpu_id".to_owned(), "0\n".to_owned());
    for (node, domain) in [(3, 0), (4, 1), (5, 2)] {
        write(format!("{node}/gpu_id"), format!("{}\n", 1000 + node));
        let properties = format!(
            "device_id 29857\nlocation_id {}\ndomain {domain}\nnum_sdma_engines 2\nnum_sdma_xgmi_engines 14\n\
             num_sdma_queues_per_engine 8\n",
            0x0c << 8
        );
        write(format!("{node}/properties"), properties);
        for (index, peer) in (3..6).filter(|peer| *peer != node).enumerate() {
            let link = format!("type 11\nnode_to {peer}\nrecommended_sdma_engine_id_mask 64\nflags 1\n");
            write(format!("{node}/io_links/{index}/properties"), link);
        }
    }
    Arc::new(Topology::read(&nodes, &folder.join("pci")).unwrap())
}

fn gpu(domain: u32) -> GpuAddress {
    PciAddress { domain, bus: 0x0c, device: 0, function: 0 }.into()
}

fn engines(topology: &Arc<Topology>, driver: &Arc<dyn Driver>) -> AmdEngines {
    AmdEngines::new(&gpu(0), Arc::clone(topology), Arc::clone(driver), RING_BYTES).unwrap()
}

#[test]
fn queues_across_the_c_interface() {
    let name = format!("anabranch-amd-runtime-{}", std::process::id());
    let folder = Folder(std::env::temp_dir().join(name));
    fs::create_dir_all(&folder.0).unwrap();
    let topology = tree(&folder.0);
    what_is_missing_is_said(&folder.0);
    by_the_runtimes_own_function(&folder.0, &topology);
    by_the_thunks_functions(&folder.0, &topology);
    assert!(matches!(open_driver(), Err(AmdError::NotMapped { .. })), "all fakes are gone");
}

fn what_is_missing_is_said(folder: &Path) {
    let error = open_driver().unwrap_err();
    assert!(matches!(error, AmdError::NotMapped { .. }), "{error}");
    assert!(error.to_string().contains("libhsa-runtime64.so.1"), "{error}");

    let empty = Fake::new(folder, "empty.so", &[]);
    let error = open_driver().unwrap_err();
    let AmdError::Symbols { symbols, .. } = &error else { panic!("{error}") };
    assert_eq!(symbols.len(), 6);
    assert!(symbols.contains(&"hsa_iterate_agents"), "{error}");
    drop(empty);

    let bare = Fake::new(folder, "bare.so", &["HSA"]);
    let error = open_driver().unwrap_err();
    let AmdError::NoWay { tried, .. } = &error else { panic!("{error}") };
    assert_eq!(tried.len(), 2);
    assert!(tried[0].contains("hsa_amd_queue_create, hsa_amd_queue_get_info, hsa_queue_destroy"), "{error}");
    assert!(tried[1].contains("hsaKmtOpenKFD") && tried[1].contains("hsaKmtCreateQueueExt"), "{error}");
    assert_eq!(bare.get(c"users"), 0, "what was opened is closed");
    bare.fail(c"hsa_init", 0x1000);
    let error = open_driver().unwrap_err();
    assert!(matches!(error, AmdError::Call { call: "hsa_init", code: 0x1000, .. }), "{error}");
    drop(bare);

    let old = Fake::new(folder, "old.so", &["HSA", "RUNTIME_QUEUES", "THUNK"]);
    old.set(c"interface", 30);
    old.set(c"kfd", 16);
    let error = open_driver().unwrap_err();
    let AmdError::NoWay { tried, .. } = &error else { panic!("{error}") };
    assert!(tried[0].contains("interface 1.30") && tried[0].contains("1.31 is needed"), "{error}");
    assert!(tried[1].contains("KFD 1.16") && tried[1].contains("need 1.17"), "{error}");
    assert_eq!((old.get(c"users"), old.get(c"opened")), (0, 0), "what was opened is closed");
}

fn by_the_runtimes_own_function(folder: &Path, topology: &Arc<Topology>) {
    let fake = Fake::new(folder, "runtime.so", &["HSA", "RUNTIME_QUEUES", "THUNK"]);
    let driver = open_driver().unwrap();
    assert!(driver.origin().contains("hsa_amd_queue_create") && driver.origin().contains("1.31"));
    assert_eq!(fake.get(c"users"), 1);
    let engines = engines(topology, &driver);
    let queue = engines.create(Some(&gpu(1)), 0).unwrap();
    assert_eq!((queue.engine(), queue.ring_bytes(), queue.ring_place()), (6, RING_BYTES, RingPlace::Host));
    assert_eq!((queue.read_pointer(), queue.write_pointer()), (queue.doorbell() + 8, queue.doorbell() + 16));
    assert!(queue.device_ringable());
    // SAFETY: the fake's ring, of which the queue says that the host may write it.
    unsafe { (queue.ring_address() as *mut u8).write_bytes(0xff, RING_BYTES as usize) };
    queue.close().unwrap();
    fake.assert_nothing_is_held();

    fake.set(c"host_only", 1);
    let queue = engines.create(None, 0).unwrap();
    assert!(!queue.device_ringable());
    assert!(matches!(AmdEngine::new(queue), Err(AmdError::HostRings { engine: 0 })));
    fake.set(c"host_only", 0);
    fake.assert_nothing_is_held();

    submissions(&fake, &engines);

    fake.set(c"wrong_engine", 1);
    let error = engines.create(Some(&gpu(1)), 0).unwrap_err();
    assert!(matches!(error, AmdError::Returned { .. }) && error.to_string().contains("engine 7"), "{error}");
    fake.set(c"wrong_engine", 0);
    for function in [c"hsa_amd_queue_get_info", c"hsa_amd_pointer_info", c"hsa_amd_queue_create"] {
        fake.fail(function, 0x1000);
        let error = engines.create(Some(&gpu(1)), 0).unwrap_err();
        let AmdError::Call { call, code: 0x1000, .. } = error else { panic!("{error}") };
        assert_eq!(call, function.to_str().unwrap());
        fake.assert_nothing_is_held();
    }
    fake.fail(c"", 0);

    exhaustion(&fake, &engines, 0x1008);
    rounds(&fake, &engines);
    not_shown(&fake, topology, &driver);

    let queue = engines.create(Some(&gpu(1)), 0).unwrap();
    fake.fail(c"hsa_queue_destroy", 0x1001);
    assert!(matches!(queue.close(), Err(AmdError::Call { call: "hsa_queue_destroy", .. })));
    assert_eq!((fake.get(c"queues"), engines.lost()), (1, 1));

    drop(engines);
    drop(driver);
    assert_eq!((fake.get(c"users"), fake.get(c"complaints")), (0, 0));
}

fn by_the_thunks_functions(folder: &Path, topology: &Arc<Topology>) {
    let fake = Fake::new(folder, "thunk.so", &["HSA", "THUNK"]);
    fake.set(c"second_thunk", 1);
    let error = open_driver().unwrap_err();
    assert!(matches!(&error, AmdError::NoWay { tried, .. } if tried[1].contains("second thunk")), "{error}");
    assert_eq!((fake.get(c"users"), fake.get(c"opened")), (0, 0), "what was opened is closed");
    fake.set(c"second_thunk", 0);
    let driver = open_driver().unwrap();
    assert!(driver.origin().contains("thunk"), "{}", driver.origin());
    assert_eq!((fake.get(c"users"), fake.get(c"opened")), (1, 1));
    drop(open_driver().unwrap());
    assert_eq!(
        (fake.get(c"users"), fake.get(c"opened")),
        (1, 1),
        "one that is open already opens and closes too"
    );
    let engines = engines(topology, &driver);
    let queue = engines.create(Some(&gpu(1)), 0).unwrap();
    assert_eq!((queue.engine(), queue.ring_bytes(), queue.ring_place()), (6, RING_BYTES, RingPlace::Device));
    assert_eq!((queue.read_pointer(), queue.write_pointer()), (queue.doorbell() + 8, queue.doorbell() + 16));
    assert!(queue.device_ringable());
    assert_eq!((fake.get(c"memory"), fake.get(c"mapped"), fake.get(c"queues")), (1, 1, 1));
    queue.close().unwrap();
    fake.assert_nothing_is_held();

    fake.set(c"host_only", 1);
    let queue = engines.create(None, 0).unwrap();
    assert!(!queue.device_ringable());
    assert!(matches!(AmdEngine::new(queue), Err(AmdError::HostRings { engine: 0 })));
    fake.set(c"host_only", 0);
    fake.assert_nothing_is_held();

    submissions(&fake, &engines);

    for function in [c"hsaKmtAllocMemory", c"hsaKmtMapMemoryToGPU", c"hsaKmtCreateQueueExt"] {
        fake.fail(function, 3);
        let error = engines.create(Some(&gpu(1)), 0).unwrap_err();
        let AmdError::Call { call, code: 3, .. } = error else { panic!("{error}") };
        assert_eq!(call, function.to_str().unwrap());
        fake.assert_nothing_is_held();
    }
    fake.fail(c"", 0);

    exhaustion(&fake, &engines, 6);
    rounds(&fake, &engines);
    not_shown(&fake, topology, &driver);

    let queue = engines.create(Some(&gpu(1)), 0).unwrap();
    fake.fail(c"hsaKmtDestroyQueue", 1);
    assert!(matches!(queue.close(), Err(AmdError::Call { call: "hsaKmtDestroyQueue", .. })));
    assert_eq!((fake.get(c"memory"), fake.get(c"mapped"), fake.get(c"queues")), (1, 1, 1), "the ring stays");

    drop(engines);
    drop(driver);
    assert_eq!((fake.get(c"users"), fake.get(c"opened"), fake.get(c"complaints")), (0, 0, 0));
}

/// Others hold six of the engine's eight slots.
fn exhaustion(fake: &Fake, engines: &AmdEngines, code: u32) {
    fake.set(c"slots", 2);
    let queues: Vec<_> = (0..2).map(|channel| engines.create(Some(&gpu(1)), channel).unwrap()).collect();
    let error = engines.create(Some(&gpu(1)), 2).unwrap_err();
    let AmdError::Exhausted { engine: 6, in_use: 2, queues_per_engine: 8, source, .. } = error else {
        panic!("{error}")
    };
    let Some(AmdError::QueueRefused { node: 1, engine: 6, code: said, .. }) = source.as_deref() else {
        panic!("{source:?}")
    };
    assert_eq!(*said, code);
    drop(queues);
    fake.set(c"slots", 8);
    fake.assert_nothing_is_held();
}

fn rounds(fake: &Fake, engines: &AmdEngines) {
    for _ in 0..100 {
        let queues: Vec<_> = (0..8).map(|channel| engines.create(Some(&gpu(1)), channel).unwrap()).collect();
        assert_eq!(fake.get(c"queues"), 8);
        drop(queues);
        fake.assert_nothing_is_held();
    }
    assert_eq!((engines.in_use(6), engines.lost()), (0, 0));
}

/// The kernel shows a GPU that this process's runtime leaves out, as `ROCR_VISIBLE_DEVICES` makes it.
fn not_shown(fake: &Fake, topology: &Arc<Topology>, driver: &Arc<dyn Driver>) {
    let error = AmdEngines::new(&gpu(2), Arc::clone(topology), Arc::clone(driver), RING_BYTES).unwrap_err();
    assert!(matches!(error, AmdError::NotShown { .. }), "{error}");
    for said in ["0002:0c:00.0", "it shows 0000:0c:00.0; 0001:0c:00.0"] {
        assert!(error.to_string().contains(said), "{error}");
    }
    fake.set(c"twins", 1);
    let error = AmdEngines::new(&gpu(0), Arc::clone(topology), Arc::clone(driver), RING_BYTES).unwrap_err();
    assert!(matches!(error, AmdError::ShownSeveralTimes { count: 2, .. }), "{error}");
    fake.set(c"twins", 0);
}

/// Words, write pointer and doorbell arrive where the queue says; a port keeps its queue.
fn submissions(fake: &Fake, engines: &AmdEngines) {
    let engine = AmdEngine::new(engines.create(Some(&gpu(1)), 0).unwrap()).unwrap();
    assert!(engine.describe().starts_with("copy engine 6 (xGMI:"), "{}", engine.describe());
    let at = engine.words();
    let port = engine.port();
    // SAFETY: words of the fake's queue, which is there as long as `port` is; nothing else uses them now.
    let load = |address: u64| unsafe { (address as *const u64).read_volatile() };
    let words: Vec<u32> = (1..=24).collect();
    let pair = |index: usize| u64::from(words[index]) | u64::from(words[index + 1]) << 32;
    for place in [0, 96, RING_BYTES - 96] {
        let end = place + 96;
        port.write(place, &words);
        port.publish(end);
        assert_eq!([load(at.write_pointer.0), load(at.doorbell.0)], [end; 2]);
        assert_eq!(
            [load(at.ring.0 + place), load(at.ring.0 + place + 88)],
            [pair(0), pair(22)],
            "at {place}"
        );
    }
    drop(engine);
    assert_eq!(fake.get(c"queues"), 1, "the port keeps it");
    drop(port);
    fake.assert_nothing_is_held();
}
