//! Collectives with configurations, and with the prefix `p`.

use std::ffi::{c_char, c_int, c_void};

use crate::common::{Buffer, Comm, FLOAT, Nccl, Rank, SUM, Stream, all_given, alone, given, on_threads};

/// `ncclTeam_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Team {
    pub(crate) ranks: c_int,
    pub(crate) rank: c_int,
    pub(crate) stride: c_int,
}

/// Calls functions with and without the prefix `p`, and gives each result to a check, with the name.
macro_rules! both {
    (@ $nccl:expr, $check:expr, $name:ident($($argument:expr => $kind:ty),*) -> $result:ty) => {
        for prefix in ["", "p"] {
            let name = stringify!($name);
            // SAFETY: the types are those of NCCL's header; the arguments are valid for the call.
            let result = unsafe {
                let call = $nccl.function::<unsafe extern "C" fn($($kind),*) -> $result>(&format!("{prefix}{name}"));
                call($($argument),*)
            };
            $check(name, result);
        }
    };
    ($nccl:expr, $check:expr; $($name:ident($($argument:expr => $kind:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        $(crate::functions::both!(@@ $nccl, $check, $name($($argument => $kind),*) $($result)?);)*
    };
    (@@ $nccl:expr, $check:expr, $name:ident($($argument:expr => $kind:ty),*)) => {
        crate::functions::both!(@ $nccl, $check, $name($($argument => $kind),*) -> std::ffi::c_int)
    };
    (@@ $nccl:expr, $check:expr, $name:ident($($argument:expr => $kind:ty),*) $result:ty) => {
        crate::functions::both!(@ $nccl, $check, $name($($argument => $kind),*) -> $result)
    };
}
pub(crate) use both;

/// `ncclCollConfig_t` of NCCL 2.32, up to the event.
#[repr(C)]
struct CallConfig {
    size: usize,
    magic: u32,
    version: u32,
    extension: *const c_void,
    resources: [c_int; 4],
    algorithm: *const c_char,
    policy: [c_int; 2],
    tag: u64,
    launch_event: *const c_void,
}

impl CallConfig {
    fn new() -> Self {
        let null = std::ptr::null();
        Self {
            size: size_of::<Self>(),
            magic: 0xcafe_beef,
            version: 23203,
            extension: null,
            resources: [c_int::MIN; 4],
            algorithm: std::ptr::null(),
            policy: [c_int::MIN; 2],
            tag: 0,
            launch_event: null,
        }
    }
}

const RANKS: u32 = 3;
const ROOT: u32 = 1;
const COUNT: usize = 37;

/// The output of one call.
#[derive(Clone, Copy)]
enum Output {
    Sums,
    SumsAtTheRoot,
    PartOfTheSums,
    OfTheRoot,
    PartOfTheRoot,
    All,
    AllAtTheRoot,
    PartOfEach,
}

impl Output {
    /// The element at a place of the output; 0 where the call writes nothing.
    fn at(self, me: u32, index: usize) -> f64 {
        let (other, element, own) = ((index / COUNT) as u32, index % COUNT, me as usize * COUNT);
        let sum = |index| (0..RANKS).map(|rank| given(rank, index)).sum();
        let (is_first, is_root) = (other == 0, me == ROOT);
        match self {
            Self::Sums if is_first => sum(index),
            Self::SumsAtTheRoot if is_first && is_root => sum(index),
            Self::PartOfTheSums if is_first => sum(own + index),
            Self::OfTheRoot if is_first => given(ROOT, index),
            Self::PartOfTheRoot if is_first => given(ROOT, own + index),
            Self::All => given(other, element),
            Self::AllAtTheRoot if is_root => given(other, element),
            Self::PartOfEach => given(other, own + element),
            _ => 0.0,
        }
    }
}

/// An input and an output of a rank.
struct Buffers<'a, 'b> {
    rank: &'a Rank<'b>,
    send: Buffer,
    receive: Buffer,
}

impl<'a, 'b> Buffers<'a, 'b> {
    fn new(rank: &'a Rank<'b>) -> Self {
        let count = COUNT * RANKS as usize;
        Self {
            rank,
            send: Buffer::of(FLOAT, &all_given(rank.number, count)),
            receive: Buffer::zeros(FLOAT, count),
        }
    }

    /// Checks a call that returned, and clears the output for the next one.
    fn check(&self, output: Output, name: &str, code: c_int) {
        let Rank { nccl, stream, number, .. } = *self.rank;
        assert_eq!(code, 0, "{name}: {}", nccl.last_error(std::ptr::null_mut()));
        nccl.synchronize(stream);
        let wanted: Vec<f64> = (0..self.receive.count).map(|index| output.at(number, index)).collect();
        assert_eq!(self.receive.values(), wanted, "{name} on rank {number}");
        // SAFETY: the bytes of the output; no call is in flight.
        unsafe { self.receive.address().cast::<u8>().write_bytes(0, 4 * self.receive.count) };
    }
}

/// Functions by what their outputs are.
macro_rules! table {
    ($nccl:expr, $check:expr; $($output:ident: $name:ident $arguments:tt;)*) => {
        $(both! { $nccl, |name: &str, code: c_int| $check(Output::$output, name, code); $name $arguments; })*
    };
}

/// Calls each function that takes a configuration.
fn configured(buffers: &Buffers<'_, '_>, config: *const CallConfig, check: &dyn Fn(Output, &str, c_int)) {
    let Rank { nccl, comm, stream, .. } = *buffers.rank;
    let (send, receive, root) = (buffers.send.address(), buffers.receive.address(), ROOT as c_int);
    table! { nccl, check;
        Sums: ncclAllReduceConfig(send => *const c_void, receive => *mut c_void, COUNT => usize, FLOAT => c_int, SUM => c_int, comm => Comm, stream => Stream, config => *const CallConfig);
        SumsAtTheRoot: ncclReduceConfig(send => *const c_void, receive => *mut c_void, COUNT => usize, FLOAT => c_int, SUM => c_int, root => c_int, comm => Comm, stream => Stream, config => *const CallConfig);
        PartOfTheSums: ncclReduceScatterConfig(send => *const c_void, receive => *mut c_void, COUNT => usize, FLOAT => c_int, SUM => c_int, comm => Comm, stream => Stream, config => *const CallConfig);
        OfTheRoot: ncclBroadcastConfig(send => *const c_void, receive => *mut c_void, COUNT => usize, FLOAT => c_int, root => c_int, comm => Comm, stream => Stream, config => *const CallConfig);
        PartOfTheRoot: ncclScatterConfig(send => *const c_void, receive => *mut c_void, COUNT => usize, FLOAT => c_int, root => c_int, comm => Comm, stream => Stream, config => *const CallConfig);
        All: ncclAllGatherConfig(send => *const c_void, receive => *mut c_void, COUNT => usize, FLOAT => c_int, comm => Comm, stream => Stream, config => *const CallConfig);
        AllAtTheRoot: ncclGatherConfig(send => *const c_void, receive => *mut c_void, COUNT => usize, FLOAT => c_int, root => c_int, comm => Comm, stream => Stream, config => *const CallConfig);
        PartOfEach: ncclAlltoAllConfig(send => *const c_void, receive => *mut c_void, COUNT => usize, FLOAT => c_int, comm => Comm, stream => Stream, config => *const CallConfig);
    }
}

#[test]
fn calls_with_configurations_have_the_same_values() {
    alone!("calls_with_configurations_have_the_same_values");
    let nccl = Nccl::open(&[]);
    on_threads(&nccl, RANKS, |rank| {
        let (buffers, config) = (Buffers::new(rank), CallConfig::new());
        for config in [std::ptr::null(), &raw const config] {
            configured(&buffers, config, &|output, name, code| buffers.check(output, name, code));
        }
        let event = CallConfig { launch_event: std::ptr::from_ref(rank).cast(), ..CallConfig::new() };
        let magic = CallConfig { magic: 1, ..CallConfig::new() };
        let short = CallConfig { size: size_of::<CallConfig>() - 8, ..CallConfig::new() };
        for (wrong, wanted, what) in [
            (event, 5, "launchCompletionEvent"),
            (magic, 4, "magic 0x1"),
            (short, 4, "ncclCollConfig_t has size"),
        ] {
            configured(&buffers, &raw const wrong, &|_, name, code| {
                let text = nccl.last_error(std::ptr::null_mut());
                assert!(
                    code == wanted && text.starts_with(name) && text.contains(what),
                    "{name}: {code} {text}"
                );
            });
        }
        nccl.synchronize(rank.stream);
        assert!(buffers.receive.values().iter().all(|value| *value == 0.0), "no refused call has run");
    });
}

#[test]
fn calls_with_the_prefix_have_the_same_values() {
    alone!("calls_with_the_prefix_have_the_same_values");
    let nccl = Nccl::open(&[]);
    on_threads(&nccl, RANKS, |rank| {
        let buffers = Buffers::new(rank);
        let Rank { comm, stream, .. } = *rank;
        let (send, receive, root) = (buffers.send.address(), buffers.receive.address(), ROOT as c_int);
        let check = |output, name: &str, code| buffers.check(output, name, code);
        table! { nccl, check;
            Sums: ncclAllReduce(send => *const c_void, receive => *mut c_void, COUNT => usize, FLOAT => c_int, SUM => c_int, comm => Comm, stream => Stream);
            SumsAtTheRoot: ncclReduce(send => *const c_void, receive => *mut c_void, COUNT => usize, FLOAT => c_int, SUM => c_int, root => c_int, comm => Comm, stream => Stream);
            PartOfTheSums: ncclReduceScatter(send => *const c_void, receive => *mut c_void, COUNT => usize, FLOAT => c_int, SUM => c_int, comm => Comm, stream => Stream);
            OfTheRoot: ncclBroadcast(send => *const c_void, receive => *mut c_void, COUNT => usize, FLOAT => c_int, root => c_int, comm => Comm, stream => Stream);
            PartOfTheRoot: ncclScatter(send => *const c_void, receive => *mut c_void, COUNT => usize, FLOAT => c_int, root => c_int, comm => Comm, stream => Stream);
            All: ncclAllGather(send => *const c_void, receive => *mut c_void, COUNT => usize, FLOAT => c_int, comm => Comm, stream => Stream);
            AllAtTheRoot: ncclGather(send => *const c_void, receive => *mut c_void, COUNT => usize, FLOAT => c_int, root => c_int, comm => Comm, stream => Stream);
            PartOfEach: ncclAlltoAll(send => *const c_void, receive => *mut c_void, COUNT => usize, FLOAT => c_int, comm => Comm, stream => Stream);
            // RCCL's spelling.
            PartOfEach: ncclAllToAll(send => *const c_void, receive => *mut c_void, COUNT => usize, FLOAT => c_int, comm => Comm, stream => Stream);
        }
    });
}
