//! The shared library as a program sees it, and elements of NCCL's types.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anabranch::ccl::{F8E4m3, F8E5m2};
use anabranch_testkit::{Ranks, Role, role};
use half::{bf16, f16};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// A limit that only a hang reaches, or a busy machine that compiles kernels.
pub(crate) const LIMIT: Duration = Duration::from_secs(400);
pub(crate) type Comm = *mut c_void;
pub(crate) type Stream = *mut c_void;
pub(crate) type Id = [u8; 128];

pub(crate) const SUM: c_int = 0;
pub(crate) const AVG: c_int = 4;
pub(crate) const UINT8: c_int = 1;
pub(crate) const INT32: c_int = 2;
pub(crate) const FLOAT: c_int = 7;
pub(crate) const BFLOAT16: c_int = 9;

/// The library, which programs open once.
pub(crate) struct Nccl {
    library: Library,
}

/// Beside the binary of the tests: cargo builds it there.
pub(crate) fn path() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().join("libanabranch_nccl.so")
}

/// The kernels of all tests of the workspace.
pub(crate) fn cache() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kernels")
}

/// Calls a function that returns a code.
macro_rules! nccl {
    ($nccl:expr, $name:ident($($argument:expr => $kind:ty),* $(,)?)) => {
        // SAFETY: the types are those of NCCL's header; the arguments are valid for the call.
        unsafe { $nccl.function::<unsafe extern "C" fn($($kind),*) -> std::ffi::c_int>(stringify!($name))($($argument),*) }
    };
}
pub(crate) use nccl;

/// Runs a test in a process of its own.
macro_rules! alone {
    ($name:literal) => {
        if !anabranch_testkit::is_alone(anabranch_testkit::test_path!($name)) {
            return;
        }
    };
}
pub(crate) use alone;

impl Nccl {
    /// Opens the library in a process that [`anabranch_testkit::Ranks`] started, with settings of its own.
    pub(crate) fn open(settings: &[(&str, &str)]) -> Self {
        let cache = cache();
        let known = [
            ("ANABRANCH__DEVICE__RUNTIME", "host"),
            ("ANABRANCH__KERNELS__CACHE", cache.to_str().unwrap()),
            ("ANABRANCH__KERNELS__PATIENCE", "600 s"),
            ("ANABRANCH__DEADLINE__OPERATION", "30 s"),
        ];
        for name in ["RANK", "SIZE", "ARGUMENT"] {
            // SAFETY: this process has one thread that runs: the test's.
            unsafe { std::env::remove_var(format!("ANABRANCH_TESTKIT_{name}")) };
        }
        for (name, value) in known.iter().chain(settings) {
            // SAFETY: as above.
            unsafe { std::env::set_var(name, value) };
        }
        // SAFETY: the library's initialisers are those of Rust's standard library.
        let library = unsafe { Library::open(Some(path()), RTLD_NOW | RTLD_LOCAL) };
        Self { library: library.unwrap() }
    }

    /// # Safety
    /// `F` is the function's type.
    pub(crate) unsafe fn function<F: Copy>(&self, name: &str) -> F {
        // SAFETY: the caller's contract.
        *unsafe { self.library.get::<F>(name) }.unwrap()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        // SAFETY: the symbol is not used.
        unsafe { self.library.get::<*const c_void>(name) }.is_ok()
    }

    pub(crate) fn last_error(&self, comm: Comm) -> String {
        // SAFETY: the type is that of NCCL's header; the text is copied at once.
        unsafe {
            let last = self.function::<unsafe extern "C" fn(Comm) -> *const c_char>("ncclGetLastError");
            CStr::from_ptr(last(comm)).to_str().unwrap().to_owned()
        }
    }

    #[track_caller]
    pub(crate) fn ok(&self, code: c_int) {
        assert_eq!(code, 0, "{}", self.last_error(std::ptr::null_mut()));
    }

    pub(crate) fn unique_id(&self) -> Id {
        let mut id = [0; 128];
        self.ok(nccl!(self, ncclGetUniqueId(&raw mut id => *mut Id)));
        id
    }

    pub(crate) fn set_device(&self, device: u32) {
        self.ok(nccl!(self, anabranchHostSetDevice(device as c_int => c_int)));
    }

    pub(crate) fn stream(&self) -> Stream {
        let mut stream = std::ptr::null_mut();
        self.ok(nccl!(self, anabranchHostStreamCreate(&raw mut stream => *mut Stream)));
        stream
    }

    pub(crate) fn synchronize(&self, stream: Stream) {
        self.ok(nccl!(self, anabranchHostStreamSynchronize(stream => Stream)));
    }

    pub(crate) fn init(&self, size: u32, id: Id, rank: u32) -> Comm {
        let mut comm = std::ptr::null_mut();
        self.ok(nccl!(self, ncclCommInitRank(&raw mut comm => *mut Comm, size as c_int => c_int, id.into() => IdValue, rank as c_int => c_int)));
        comm
    }

    pub(crate) fn async_error(&self, comm: Comm) -> c_int {
        let mut code = -1;
        self.ok(nccl!(self, ncclCommGetAsyncError(comm => Comm, &raw mut code => *mut c_int)));
        code
    }

    pub(crate) fn destroy(&self, comm: Comm) {
        self.ok(nccl!(self, ncclCommDestroy(comm => Comm)));
    }

    pub(crate) fn group(&self, calls: impl FnOnce()) {
        self.ok(nccl!(self, ncclGroupStart()));
        calls();
        self.ok(nccl!(self, ncclGroupEnd()));
    }

    /// `comms` of one thread, a device each.
    pub(crate) fn init_all(&self, number: u32) -> Vec<Comm> {
        let mut comms = vec![std::ptr::null_mut(); number as usize];
        let devices = std::ptr::null();
        self.ok(nccl!(self, ncclCommInitAll(comms.as_mut_ptr() => *mut Comm, number as c_int => c_int, devices => *const c_int)));
        comms
    }

    pub(crate) fn all_reduce(
        &self,
        rank: &Rank<'_>,
        send: &Buffer,
        receive: &mut Buffer,
        op: c_int,
    ) -> c_int {
        nccl!(self, ncclAllReduce(send.address() => *const c_void, receive.address() => *mut c_void, send.count => usize, send.data_type => c_int, op => c_int, rank.comm => Comm, rank.stream => Stream))
    }

    /// Sums ones of int32, and checks the number of ranks.
    #[track_caller]
    pub(crate) fn count_ranks(&self, rank: &Rank<'_>) {
        let (send, mut receive) = (Buffer::of(INT32, &[1.0; 33]), Buffer::zeros(INT32, 33));
        self.ok(self.all_reduce(rank, &send, &mut receive, SUM));
        self.synchronize(rank.stream);
        assert_eq!(receive.values(), [f64::from(rank.size); 33]);
    }
}

/// `ncclUniqueId`, by value.
pub(crate) type IdValue = UniqueId;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UniqueId(Id);

impl From<Id> for UniqueId {
    fn from(id: Id) -> Self {
        Self(id)
    }
}

/// One rank of a communicator.
pub(crate) struct Rank<'a> {
    pub(crate) nccl: &'a Nccl,
    pub(crate) comm: Comm,
    pub(crate) stream: Stream,
    pub(crate) number: u32,
    pub(crate) size: u32,
}

/// Runs `work` on ranks that are threads of this process, a device each.
pub(crate) fn on_threads(nccl: &Nccl, size: u32, work: impl Fn(&Rank<'_>) + Sync) {
    let (id, work) = (nccl.unique_id(), &work);
    std::thread::scope(|scope| {
        for rank in 0..size {
            scope.spawn(move || {
                nccl.set_device(rank);
                let (stream, comm) = (nccl.stream(), nccl.init(size, id, rank));
                work(&Rank { nccl, comm, stream, number: rank, size });
                // Unless `work` has aborted it.
                let mut size = 0;
                if nccl!(nccl, ncclCommCount(comm => Comm, &raw mut size => *mut c_int)) == 0 {
                    nccl.destroy(comm);
                }
            });
        }
    });
}
// SAFETY: numbers, and functions that may be called from all threads.
unsafe impl Sync for Nccl {}

/// Ranks that are processes pass the id through a file.
fn meet(nccl: &Nccl, rank: u32, file: &str) -> Id {
    if rank == 0 {
        let id = nccl.unique_id();
        let fresh = format!("{file}.new");
        std::fs::write(&fresh, id).unwrap();
        std::fs::rename(&fresh, file).unwrap();
        return id;
    }
    loop {
        if let Ok(id) = std::fs::read(file) {
            return id.try_into().unwrap();
        }
        #[expect(clippy::disallowed_methods, reason = "processes wait in the machine's time")]
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A file that does not exist yet.
pub(crate) fn file(name: &str) -> String {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("nccl-{name}-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path.to_str().unwrap().to_owned()
}

/// The rank of a process that [`Ranks`] started with a [`file`] for the id.
pub(crate) fn join(role: &Role, settings: &[(&str, &str)]) -> Rank<'static> {
    let nccl: &Nccl = Box::leak(Box::new(Nccl::open(settings)));
    let id = meet(nccl, role.rank, &role.argument);
    let (number, size) = (role.rank, role.size);
    Rank { nccl, comm: nccl.init(size, id, number), stream: nccl.stream(), number, size }
}

/// A rank of a test whose ranks are processes. In the test itself they are started, and there is none when they have passed.
pub(crate) fn on_processes(test: &str, size: u32) -> Option<Rank<'static>> {
    let role = role();
    if role.is_none() {
        Ranks::start(test, size, &file(test)).unwrap().succeed(LIMIT).unwrap();
    }
    role.map(|role| join(&role, &[]))
}

/// The codes of NCCL's element types.
pub(crate) const TYPES: [c_int; 12] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];

pub(crate) fn is_float(data_type: c_int) -> bool {
    data_type >= 6
}

pub(crate) fn bytes_of(data_type: c_int) -> usize {
    [1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1][data_type as usize]
}

/// The element with a value that the type has.
pub(crate) fn encode(data_type: c_int, value: f64) -> Vec<u8> {
    match data_type {
        0 => (value as i8).to_le_bytes().to_vec(),
        1 => (value as u8).to_le_bytes().to_vec(),
        2 => (value as i32).to_le_bytes().to_vec(),
        3 => (value as u32).to_le_bytes().to_vec(),
        4 => (value as i64).to_le_bytes().to_vec(),
        5 => (value as u64).to_le_bytes().to_vec(),
        6 => f16::from_f64(value).to_le_bytes().to_vec(),
        7 => (value as f32).to_le_bytes().to_vec(),
        8 => value.to_le_bytes().to_vec(),
        9 => bf16::from_f64(value).to_le_bytes().to_vec(),
        10 => vec![F8E4m3::from_f32(value as f32).to_bits()],
        _ => vec![F8E5m2::from_f32(value as f32).to_bits()],
    }
}

fn decode(data_type: c_int, bytes: &[u8]) -> f64 {
    match data_type {
        0 => f64::from(bytes[0] as i8),
        1 => f64::from(bytes[0]),
        2 => f64::from(i32::from_le_bytes(bytes.try_into().unwrap())),
        3 => f64::from(u32::from_le_bytes(bytes.try_into().unwrap())),
        4 => i64::from_le_bytes(bytes.try_into().unwrap()) as f64,
        5 => u64::from_le_bytes(bytes.try_into().unwrap()) as f64,
        6 => f16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
        7 => f64::from(f32::from_le_bytes(bytes.try_into().unwrap())),
        8 => f64::from_le_bytes(bytes.try_into().unwrap()),
        9 => bf16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
        10 => f64::from(F8E4m3::from_bits(bytes[0]).to_f32()),
        _ => f64::from(F8E5m2::from_bits(bytes[0]).to_f32()),
    }
}

/// Elements in aligned memory of the process.
#[derive(Clone)]
pub(crate) struct Buffer {
    words: Vec<u128>,
    pub(crate) data_type: c_int,
    pub(crate) count: usize,
}

impl Buffer {
    pub(crate) fn zeros(data_type: c_int, count: usize) -> Self {
        Self { words: vec![0; (count * bytes_of(data_type)).div_ceil(16).max(1)], data_type, count }
    }

    pub(crate) fn of(data_type: c_int, values: &[f64]) -> Self {
        let mut buffer = Self::zeros(data_type, values.len());
        let bytes: Vec<u8> = values.iter().flat_map(|value| encode(data_type, *value)).collect();
        for (place, byte) in buffer.words.iter_mut().flat_map(bytemuck_bytes).zip(bytes) {
            *place = byte;
        }
        buffer
    }

    pub(crate) fn address(&self) -> *mut c_void {
        self.words.as_ptr().cast_mut().cast()
    }

    /// The address of an element.
    pub(crate) fn at(&self, element: usize) -> *mut c_void {
        self.address().wrapping_byte_add(element * bytes_of(self.data_type))
    }

    pub(crate) fn values(&self) -> Vec<f64> {
        let bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes
            .chunks(bytes_of(self.data_type))
            .take(self.count)
            .map(|bytes| decode(self.data_type, bytes))
            .collect()
    }
}

fn bytemuck_bytes(word: &mut u128) -> &mut [u8; 16] {
    // SAFETY: 16 bytes without padding, at a stricter alignment, for as long as the word is borrowed.
    unsafe { &mut *std::ptr::from_mut(word).cast() }
}

/// What rank `rank` gives at place `index`: 0, 1 or 2, so that sums, products and means of four ranks are values of every type.
pub(crate) fn given(rank: u32, index: usize) -> f64 {
    f64::from((rank * 7 + index as u32 * 3 + index as u32 / 5) % 3)
}

pub(crate) fn all_given(rank: u32, count: usize) -> Vec<f64> {
    (0..count).map(|index| given(rank, index)).collect()
}
