//! Functions of communicators that run no collective: how they are made, what they are asked, what is registered; and wrong arguments.

use std::collections::BTreeSet;
use std::ffi::{CStr, c_char, c_int, c_void};

use crate::common::{
    Buffer, Comm, FLOAT, Id, IdValue, Nccl, Rank, SUM, Stream, UniqueId, alone, nccl, on_threads,
};
use crate::functions::{Team, both};
use crate::lifecycle::Config;

type Pointer = *mut c_void;
const NONE: Pointer = std::ptr::null_mut();

/// Checks that a call was refused with its name, the code and a text.
fn refused(nccl: &Nccl, wanted: c_int, what: impl Into<String>) -> impl Fn(&str, c_int) {
    let what = what.into();
    move |name, code| {
        let text = nccl.last_error(NONE);
        let begins = text.starts_with(&format!("{name}: "));
        assert!(code == wanted && begins && text.contains(&what), "{name}: {code} {text}");
    }
}

/// Checks that a call succeeded.
fn done(nccl: &Nccl) -> impl Fn(&str, c_int) {
    |name, code| assert_eq!(code, 0, "{name}: {}", nccl.last_error(NONE))
}

#[test]
fn every_function_refuses_a_communicator_that_is_not_there() {
    alone!("every_function_refuses_a_communicator_that_is_not_there");
    let nccl = Nccl::open(&[]);
    let destroyed = nccl.init(1, nccl.unique_id(), 0);
    nccl.destroy(destroyed);
    let (mut word, mut pointer, buffer) = (0, NONE, Buffer::zeros(FLOAT, 64));
    let (data, stream, counts) = (buffer.address(), nccl.stream(), [1usize]);
    let counts = counts.as_ptr();
    for comm in [destroyed, (1usize << 40) as Comm] {
        let no_communicator = refused(&nccl, 4, "is no communicator, or it was destroyed or aborted");
        both! { nccl, no_communicator;
            ncclCommFinalize(comm => Comm);
            ncclCommDestroy(comm => Comm);
            ncclCommAbort(comm => Comm);
            ncclCommSplit(comm => Comm, 0 => c_int, 0 => c_int, &raw mut pointer => *mut Comm, NONE => Pointer);
            ncclCommGetAsyncError(comm => Comm, &raw mut word => *mut c_int);
            ncclCommCount(comm => Comm, &raw mut word => *mut c_int);
            ncclCommCuDevice(comm => Comm, &raw mut word => *mut c_int);
            ncclCommUserRank(comm => Comm, &raw mut word => *mut c_int);
            ncclCommQueryProperties(comm => Comm, data => Pointer);
            ncclCommRegister(comm => Comm, data => Pointer, 64 => usize, &raw mut pointer => *mut Pointer);
            ncclCommDeregister(comm => Comm, data => Pointer);
            ncclCommWindowRegister(comm => Comm, data => Pointer, 64 => usize, &raw mut pointer => *mut Pointer, 0 => c_int);
            ncclCommWindowDeregister(comm => Comm, 64 as Pointer => Pointer);
            ncclWinGetUserPtr(comm => Comm, 64 as Pointer => Pointer, &raw mut pointer => *mut Pointer);
            ncclRedOpCreatePreMulSum(&raw mut word => *mut c_int, data => Pointer, FLOAT => c_int, 1 => c_int, comm => Comm);
            ncclRedOpDestroy(5 => c_int, comm => Comm);
            ncclAllReduce(data => Pointer, data => Pointer, 1 => usize, FLOAT => c_int, SUM => c_int, comm => Comm, stream => Stream);
            ncclReduce(data => Pointer, data => Pointer, 1 => usize, FLOAT => c_int, SUM => c_int, 0 => c_int, comm => Comm, stream => Stream);
            ncclReduceScatter(data => Pointer, data => Pointer, 1 => usize, FLOAT => c_int, SUM => c_int, comm => Comm, stream => Stream);
            ncclBroadcast(data => Pointer, data => Pointer, 1 => usize, FLOAT => c_int, 0 => c_int, comm => Comm, stream => Stream);
            ncclBcast(data => Pointer, 1 => usize, FLOAT => c_int, 0 => c_int, comm => Comm, stream => Stream);
            ncclAllGather(data => Pointer, data => Pointer, 1 => usize, FLOAT => c_int, comm => Comm, stream => Stream);
            ncclAlltoAll(data => Pointer, data => Pointer, 1 => usize, FLOAT => c_int, comm => Comm, stream => Stream);
            ncclAllToAll(data => Pointer, data => Pointer, 1 => usize, FLOAT => c_int, comm => Comm, stream => Stream);
            ncclAllToAllv(
                data => Pointer, counts => *const usize, counts => *const usize, data => Pointer, counts => *const usize,
                counts => *const usize, FLOAT => c_int, comm => Comm, stream => Stream,
            );
            ncclGather(data => Pointer, data => Pointer, 1 => usize, FLOAT => c_int, 0 => c_int, comm => Comm, stream => Stream);
            ncclScatter(data => Pointer, data => Pointer, 1 => usize, FLOAT => c_int, 0 => c_int, comm => Comm, stream => Stream);
            ncclSend(data => Pointer, 1 => usize, FLOAT => c_int, 0 => c_int, comm => Comm, stream => Stream);
            ncclRecv(data => Pointer, 1 => usize, FLOAT => c_int, 0 => c_int, comm => Comm, stream => Stream);
        }
        both! { nccl, |_: &str, team: Team| assert_eq!(team, Team::default()); ncclTeamWorld(comm => Comm) -> Team; }
    }
    // As in NCCL, nothing is to be ended where a program has no communicator.
    both! { nccl, done(&nccl); ncclCommDestroy(NONE => Comm); ncclCommAbort(NONE => Comm); }
    assert_eq!(word, 0, "no call has written");
}

/// The beginning of `ncclCommProperties_t`, and what follows it.
#[repr(C)]
#[derive(Debug, PartialEq)]
struct Properties {
    size: usize,
    magic: u32,
    version: u32,
    rank: c_int,
    ranks: c_int,
    device: c_int,
    nvml_device: c_int,
    has_device_api: u8,
    has_multimem: u8,
    later: [u8; 46],
    beyond: u64,
}

impl Properties {
    fn new(magic: u32, size: usize) -> Self {
        let (number, beyond) = (-7, 0x5a5a);
        Self {
            size,
            magic,
            version: 23203,
            rank: number,
            ranks: number,
            device: number,
            nvml_device: number,
            has_device_api: 1,
            has_multimem: 1,
            later: [1; 46],
            beyond,
        }
    }
}

#[test]
fn communicators_of_listed_devices_answer_queries() {
    alone!("communicators_of_listed_devices_answer_queries");
    let nccl = Nccl::open(&[]);
    let (devices, mut comms) = ([3, 0, 2], [NONE; 3]);
    nccl.ok(nccl!(nccl, ncclCommInitAll(comms.as_mut_ptr() => *mut Comm, 3 => c_int, devices.as_ptr() => *const c_int)));
    for ((number, comm), device) in (0..).zip(comms).zip(devices) {
        let mut answer = -1;
        let place = &raw mut answer;
        let is = |wanted: c_int| {
            move |name: &str, code: c_int| {
                // SAFETY: the call wrote this number, or left it.
                let found = unsafe { place.replace(-1) };
                assert_eq!((code, found), (0, wanted), "{name}");
            }
        };
        both! { nccl, is(3); ncclCommCount(comm => Comm, place => *mut c_int); }
        both! { nccl, is(number); ncclCommUserRank(comm => Comm, place => *mut c_int); }
        both! { nccl, is(device); ncclCommCuDevice(comm => Comm, place => *mut c_int); }
        both! { nccl, is(0); ncclCommGetAsyncError(comm => Comm, place => *mut c_int); }
        let world = Team { ranks: 3, rank: number, stride: 1 };
        both! { nccl, |_: &str, team: Team| assert_eq!(team, world); ncclTeamWorld(comm => Comm) -> Team; }
        let bytes = std::mem::offset_of!(Properties, beyond);
        let mut properties = Properties::new(0xcafe_beef, bytes);
        let place = &raw mut properties;
        both! { nccl, done(&nccl); ncclCommQueryProperties(comm => Comm, place => *mut Properties); }
        let wanted = Properties {
            rank: number,
            ranks: 3,
            device,
            nvml_device: device,
            has_device_api: 0,
            has_multimem: 0,
            later: [0; 46],
            ..Properties::new(0xcafe_beef, bytes)
        };
        assert_eq!(properties, wanted);
        for (magic, size) in [(1, bytes), (0xcafe_beef, 32)] {
            let mut wrong = Properties::new(magic, size);
            let place = &raw mut wrong;
            let text =
                format!("rank {number} of 3: ncclCommProperties_t has size {size} and magic {magic:#x}");
            both! { nccl, refused(&nccl, 4, &text); ncclCommQueryProperties(comm => Comm, place => *mut Properties); }
            assert_eq!(wrong, Properties::new(magic, size), "nothing is written");
        }
        let null = |what: &str| refused(&nccl, 4, format!("rank {number} of 3: {what} is null"));
        both! { nccl, null("count"); ncclCommCount(comm => Comm, NONE => Pointer); }
        both! { nccl, null("rank"); ncclCommUserRank(comm => Comm, NONE => Pointer); }
        both! { nccl, null("device"); ncclCommCuDevice(comm => Comm, NONE => Pointer); }
        both! { nccl, null("asyncError"); ncclCommGetAsyncError(comm => Comm, NONE => Pointer); }
        both! { nccl, null("props"); ncclCommQueryProperties(comm => Comm, NONE => Pointer); }
        both! { nccl, null("newcomm"); ncclCommSplit(comm => Comm, 0 => c_int, 0 => c_int, NONE => Pointer, NONE => Pointer); }
        both! { nccl, null("op"); ncclRedOpCreatePreMulSum(NONE => Pointer, NONE => Pointer, FLOAT => c_int, 1 => c_int, comm => Comm); }
        both! { nccl, null("scalar"); ncclRedOpCreatePreMulSum(&raw mut answer => *mut c_int, NONE => Pointer, FLOAT => c_int, 1 => c_int, comm => Comm); }
    }
    for comm in comms {
        nccl.destroy(comm);
    }
    // Places are needed, and devices.
    for (place, number) in [(NONE, 2), (comms.as_mut_ptr().cast(), 0)] {
        let text = format!("ndev is {number}");
        both! { nccl, refused(&nccl, 4, &text); ncclCommInitAll(place => Pointer, number => c_int, devices.as_ptr() => *const c_int); }
    }
}

#[test]
fn scalable_initialisation_meets_by_the_first_id() {
    alone!("scalable_initialisation_meets_by_the_first_id");
    let nccl = Nccl::open(&[]);
    let ids: Vec<[Id; 2]> = (0..2).map(|_| [nccl.unique_id(), nccl.unique_id()]).collect();
    std::thread::scope(|scope| {
        for number in 0..2 {
            let (nccl, ids) = (&nccl, &ids);
            scope.spawn(move || {
                nccl.set_device(number);
                let config = Config::new(1);
                let (mut next, stream) = (ids.iter(), nccl.stream());
                let mut comm = NONE;
                let place = &raw mut comm;
                let check = |name: &str, code: c_int| {
                    assert_eq!(code, 0, "{name}: {}", nccl.last_error(NONE));
                    // SAFETY: the call wrote the communicator.
                    let comm = unsafe { place.read() };
                    nccl.count_ranks(&Rank { nccl, comm, stream, number, size: 2 });
                    nccl.destroy(comm);
                };
                // Each of the two names takes other ids.
                both! { nccl, check; ncclCommInitRankScalable(place => *mut Comm, 2 => c_int, number as c_int => c_int, 2 => c_int, next.next().unwrap().as_ptr() => *const Id, &raw const config => *const Config); }
            });
        }
    });
    let (mut comm, id) = (64 as Comm, nccl.unique_id());
    let place = &raw mut comm;
    for (number, ids) in [(0, &raw const id), (2, std::ptr::null())] {
        let text = format!("nId is {number}; at least one id is needed");
        both! { nccl, refused(&nccl, 4, &text); ncclCommInitRankScalable(place => *mut Comm, 1 => c_int, 0 => c_int, number => c_int, ids => *const Id, NONE => Pointer); }
    }
    let rank = refused(&nccl, 4, "rank is 2 and nranks 2");
    both! { nccl, rank; ncclCommInitRankScalable(place => *mut Comm, 2 => c_int, 2 => c_int, 1 => c_int, &raw const id => *const Id, NONE => Pointer); }
    let id = IdValue::from(id);
    both! { nccl, refused(&nccl, 4, "comm is null"); ncclCommInitRank(NONE => Pointer, 1 => c_int, id => UniqueId, 0 => c_int); }
    both! { nccl, refused(&nccl, 4, "comm is null"); ncclCommInitRankConfig(NONE => Pointer, 1 => c_int, id => UniqueId, 0 => c_int, NONE => Pointer); }
}

#[test]
fn registrations_of_memory_are_checked() {
    alone!("registrations_of_memory_are_checked");
    let nccl = Nccl::open(&[]);
    on_threads(&nccl, 1, |rank| {
        let (comm, buffer, mut handle) = (rank.comm, Buffer::zeros(FLOAT, 64), NONE);
        let (data, place) = (buffer.address(), &raw mut handle);
        let some = |name: &str, code: c_int| {
            // SAFETY: the call wrote this pointer, or left it.
            assert!(code == 0 && !unsafe { place.replace(NONE) }.is_null(), "{name}: {code}");
        };
        both! { nccl, some; ncclCommRegister(comm => Comm, data => Pointer, 256 => usize, place => *mut Pointer); }
        both! { nccl, done(&nccl); ncclCommDeregister(comm => Comm, data => Pointer); }
        for (data, bytes) in [(NONE, 256), (data, 0)] {
            let text = format!("rank 0 of 1: buff is {data:p} of {bytes} bytes");
            let wrong = refused(&nccl, 4, &text);
            both! { nccl, wrong;
                ncclCommRegister(comm => Comm, data => Pointer, bytes => usize, place => *mut Pointer);
                ncclCommWindowRegister(comm => Comm, data => Pointer, bytes => usize, place => *mut Pointer, 1 => c_int);
            }
        }
        both! { nccl, refused(&nccl, 4, "handle is null"); ncclCommRegister(comm => Comm, data => Pointer, 256 => usize, NONE => Pointer); }
        both! { nccl, refused(&nccl, 4, "win is null"); ncclCommWindowRegister(comm => Comm, data => Pointer, 256 => usize, NONE => Pointer, 1 => c_int); }
        both! { nccl, refused(&nccl, 4, "outUserPtr is null"); ncclWinGetUserPtr(comm => Comm, NONE => Pointer, NONE => Pointer); }
        both! { nccl, refused(&nccl, 4, "ptr is null"); ncclMemAlloc(NONE => Pointer, 64 => usize); }
        both! { nccl, refused(&nccl, 4, "is no address that ncclMemAlloc returned"); ncclMemFree(data => Pointer); }
        // As in NCCL a null pointer is no memory and no window.
        both! { nccl, done(&nccl); ncclMemFree(NONE => Pointer); ncclCommWindowDeregister(comm => Comm, NONE => Pointer); }
        handle = data;
        let none = |name: &str, code: c_int| {
            // SAFETY: the call wrote this pointer, or left it.
            assert!(code == 0 && unsafe { place.replace(data) }.is_null(), "{name}: {code}");
        };
        both! { nccl, none; ncclWinGetUserPtr(comm => Comm, 64 as Pointer => Pointer, place => *mut Pointer); ncclMemAlloc(place => *mut Pointer, 0 => usize); }
        let too_much = |name: &str, code: c_int| {
            let text = nccl.last_error(NONE);
            assert!(code != 0 && text.starts_with(name), "{name}: {code} {text}");
        };
        both! { nccl, too_much; ncclMemAlloc(place => *mut Pointer, 1 << 60 => usize); }
        assert_eq!(handle, data, "an allocation that fails writes nothing");
    });
}

#[test]
fn operators_belong_to_their_communicator() {
    alone!("operators_belong_to_their_communicator");
    let nccl = Nccl::open(&[]);
    let number = nccl.init(1, nccl.unique_id(), 0) as usize;
    on_threads(&nccl, 1, |rank| {
        let other = number as Comm;
        let (scalar, mut op) = (Buffer::of(FLOAT, &[3.0]), -1);
        let (data, place) = (scalar.address(), &raw mut op);
        let check = |name: &str, code: c_int| {
            // SAFETY: the call wrote this number.
            let op = unsafe { place.read() };
            assert_eq!(code, 0, "{name}");
            let (input, mut output) = (Buffer::of(FLOAT, &[2.0; 5]), Buffer::zeros(FLOAT, 5));
            nccl.ok(nccl.all_reduce(rank, &input, &mut output, op));
            nccl.synchronize(rank.stream);
            assert_eq!(output.values(), [6.0; 5], "{name}");
            let text = format!("{op} is no operator of this communicator");
            assert_eq!(nccl.all_reduce(&Rank { comm: other, ..*rank }, &input, &mut output, op), 4);
            both! { nccl, refused(&nccl, 4, &text); ncclRedOpDestroy(op => c_int, other => Comm); }
            nccl.ok(nccl!(nccl, pncclRedOpDestroy(op => c_int, rank.comm => Comm)));
            both! { nccl, refused(&nccl, 4, &text); ncclRedOpDestroy(op => c_int, rank.comm => Comm); }
        };
        both! { nccl, check; ncclRedOpCreatePreMulSum(place => *mut c_int, data => Pointer, FLOAT => c_int, 1 => c_int, rank.comm => Comm); }
        for (data_type, residence, what) in [(12, 1, "datatype is 12"), (FLOAT, 2, "residence is 2")] {
            both! { nccl, refused(&nccl, 4, what); ncclRedOpCreatePreMulSum(place => *mut c_int, data => Pointer, data_type => c_int, residence => c_int, rank.comm => Comm); }
        }
        // The built-in ones stay.
        both! { nccl, refused(&nccl, 4, "0 is no operator"); ncclRedOpDestroy(SUM => c_int, rank.comm => Comm); }
    });
    nccl.destroy(number as Comm);
}

#[test]
fn functions_without_a_communicator_answer() {
    alone!("functions_without_a_communicator_answer");
    let nccl = Nccl::open(&[("ANABRANCH_NCCL_VERSION", "22809")]);
    let mut version = -1;
    let place = &raw mut version;
    let is = |wanted| {
        move |name: &str, code: c_int| {
            // SAFETY: the call wrote this number, or left it.
            let found = unsafe { place.replace(-1) };
            assert_eq!((code, found), (0, wanted), "{name}");
        }
    };
    both! { nccl, is(22809); ncclGetVersion(place => *mut c_int); }
    // SAFETY: this process has one thread that runs: the test's.
    unsafe { std::env::set_var("ANABRANCH_NCCL_VERSION", "2.28") };
    both! { nccl, refused(&nccl, 5, "ANABRANCH_NCCL_VERSION is \"2.28\""); ncclGetVersion(place => *mut c_int); }
    // SAFETY: as above.
    unsafe { std::env::remove_var("ANABRANCH_NCCL_VERSION") };
    both! { nccl, is(23203); ncclGetVersion(place => *mut c_int); }
    both! { nccl, refused(&nccl, 4, "version is null"); ncclGetVersion(NONE => Pointer); }
    both! { nccl, refused(&nccl, 4, "uniqueId is null"); ncclGetUniqueId(NONE => Pointer); }

    let mut ids = BTreeSet::new();
    let mut id: Id = [0; 128];
    let place = &raw mut id;
    let mut fresh = |name: &str, code: c_int| {
        // SAFETY: the call wrote these bytes.
        assert!(code == 0 && ids.insert(unsafe { place.read() }), "{name}: {code}");
    };
    both! { nccl, fresh; ncclGetUniqueId(place => *mut Id); }

    let mut texts = BTreeSet::new();
    for code in -1..=9 {
        let mut text = |name: &str, text: *const c_char| {
            // SAFETY: the library's own constant.
            let text = unsafe { CStr::from_ptr(text) }.to_str().unwrap();
            assert_eq!(text == "unknown result code", [-1, 9].contains(&code), "{name} of {code}: {text}");
            texts.insert(text);
        };
        both! { nccl, text; ncclGetErrorString(code => c_int) -> *const c_char; }
    }
    assert_eq!(texts.len(), 10, "{texts:?}");

    // The last error of a thread, also with a communicator that is not there; other threads have none.
    assert_eq!(nccl!(nccl, ncclCommDestroy(64 as Comm => Comm)), 4);
    let last = |wanted: &'static str| {
        move |name: &str, text: *const c_char| {
            // SAFETY: the thread's own place.
            let text = unsafe { CStr::from_ptr(text) }.to_str().unwrap();
            assert!(
                if wanted.is_empty() { text.is_empty() } else { text.contains(wanted) },
                "{name}: {text}"
            );
        }
    };
    both! { nccl, last("ncclCommDestroy: 0x40 is no communicator"); ncclGetLastError(NONE => Comm) -> *const c_char; }
    std::thread::scope(|scope| {
        let nccl = &nccl;
        scope.spawn(move || {
            both! { nccl, last(""); ncclGetLastError(NONE => Comm) -> *const c_char; }
        });
    });
    // It changes nothing.
    both! { nccl, |_: &str, (): ()| (); ncclResetDebugInit() -> (); }
    both! { nccl, last("ncclCommDestroy: 0x40 is no communicator"); ncclGetLastError(NONE => Comm) -> *const c_char; }
    both! { nccl, done(&nccl); ncclGroupStart(); ncclGroupEnd(); }
    both! { nccl, refused(&nccl, 5, "ncclGroupEnd without ncclGroupStart"); ncclGroupEnd(); }
}

#[test]
fn forked_process_is_refused() {
    alone!("forked_process_is_refused");
    let nccl = Nccl::open(&[]);
    let comm = nccl.init(1, nccl.unique_id(), 0);
    // SAFETY: the child calls one function, whose locks no other thread holds, and ends without destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut count = -1;
        let code = nccl!(nccl, ncclCommCount(comm => Comm, &raw mut count => *mut c_int));
        let is_named = nccl.last_error(NONE).contains("was forked from it");
        // SAFETY: as above.
        unsafe { libc::_exit(c_int::from(code != 5 || !is_named || count != -1)) };
    }
    let mut status = -1;
    // SAFETY: the call writes the status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    nccl.destroy(comm);
}
