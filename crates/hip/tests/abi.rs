//! The HIP declarations of this crate against two public bindings, without ROCm.
//!
//! * `cubecl-hip-sys`, **new**: the headers of ROCm 7. Every value, layout and signature must agree.
//! * `hip-sys`, **old**: the headers of HIP 5.4, by another author. What differs there is listed item by item, each
//!   with the old value, so that a difference that nobody looked at fails.
//!
//! Types and constants are used, and functions only for their types, in closures that are never called: no
//! symbol of HIP gets into this binary. The build script of `hip-sys` is switched off in `.cargo/config.toml`. That
//! of `cubecl-hip-sys` takes its newest declarations, unless it finds `hipconfig` on `PATH`; then it takes those of the
//! installed version, and none if it does not know that version. On a machine with a ROCm before 7.1, or one that the
//! crate does not know, hide `hipconfig` from `PATH`, or this file does not compile.

#[path = "abi/absent.rs"]
mod absent;
#[path = "abi/constants.rs"]
mod constants;
#[path = "abi/errors.rs"]
mod errors;
#[path = "abi/layouts.rs"]
mod layouts;
#[path = "abi/signatures.rs"]
mod signatures;

/// Bindings of the version that our values follow.
use cubecl_hip_sys as new;
/// Bindings of HIP 5.4.
use hip_sys::hiprt as old;

/// What the old witness says about a constant or a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Old<T> {
    /// The same as we do.
    Same(T),
    /// Something else, and this is what.
    Differs { said: T, expected: T },
    /// Nothing: it came later.
    Absent,
}

#[test]
fn the_witnesses_are_the_versions_that_the_differences_are_listed_for() {
    assert_eq!((old::HIP_VERSION_MAJOR, old::HIP_VERSION_MINOR), (5, 4));
    assert_eq!(new::HIP_VERSION_MAJOR, 7, "see the top of this file for how the version is chosen");
}
