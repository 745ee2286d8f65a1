//! The libraries by which NICs are driven, looked for at run time: nothing links them.

use std::mem::ManuallyDrop;

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};

/// A library that some NIC needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicLibrary {
    /// The name that the loader is asked for.
    pub soname: &'static str,
    /// What it is for.
    pub purpose: &'static str,
    /// How to get it.
    pub hint: &'static str,
    /// The kernel driver of the NICs that need it; `None` for one that all need.
    pub driver: Option<&'static str>,
}

/// A library, and whether it opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryStatus {
    /// The library.
    pub library: NicLibrary,
    /// The loader's words, if it does not.
    pub problem: Option<String>,
}

/// Every library that is looked for.
const LIBRARIES: [NicLibrary; 4] = [
    NicLibrary {
        soname: "libibverbs.so.1",
        purpose: "verbs: memory keys, and requests posted by the host",
        hint: "install libibverbs (Debian: apt install libibverbs1 ibverbs-providers; Fedora: dnf install libibverbs)",
        driver: None,
    },
    NicLibrary {
        soname: "libmlx5.so.1",
        purpose: "queues of NVIDIA ConnectX that kernels write",
        hint: "install the providers of rdma-core (Debian: apt install ibverbs-providers; Fedora: dnf install libibverbs)",
        driver: Some("mlx5_core"),
    },
    NicLibrary {
        soname: "libbnxt_re.so",
        purpose: "queues of Broadcom Thor that kernels write",
        hint: "install libbnxt_re of Broadcom's driver bundle: rdma-core's own has no calls for such queues",
        driver: Some("bnxt_en"),
    },
    NicLibrary {
        soname: "libionic.so.1",
        purpose: "queues of AMD Pollara that kernels write",
        hint: "install libionic of AMD's driver bundle: rdma-core's own has no calls for such queues",
        driver: Some("ionic"),
    },
];

/// Asks the loader for each library. Those that open stay mapped. Not collective.
pub fn find_libraries() -> Vec<LibraryStatus> {
    LIBRARIES
        .iter()
        .map(|library| LibraryStatus { library: *library, problem: problem(library.soname) })
        .collect()
}

#[expect(unsafe_code, reason = "opening a library runs its initialisers")]
fn problem(soname: &str) -> Option<String> {
    // SAFETY: these libraries' initialisers register a provider with libibverbs and do nothing else (rdma-core, `PROVIDER_DRIVER`).
    match unsafe { Library::open(Some(soname), RTLD_LAZY | RTLD_LOCAL) } {
        // A provider has left its table with libibverbs, which would go on using it.
        Ok(library) => {
            let _ = ManuallyDrop::new(library);
            None
        }
        Err(error) => Some(anabranch_hip::with_distinct_causes(&error)),
    }
}
