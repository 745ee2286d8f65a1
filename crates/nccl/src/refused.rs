//! NCCL's functions that are not there. `docs/nccl.md` has the same list.
#![expect(non_snake_case, reason = "NCCL's names")]

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::abi::{Handle, RawStream, ResultCode, Team, WindowHandle};
use crate::fallback::{function, refuse};

/// Functions that name no communicator of this library: a real library can do them, if the user names one.
macro_rules! handed {
    ($reason:literal: $(fn $name:ident($($argument:ident: $kind:ty),* $(,)?);)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $kind),*) -> ResultCode {
                crate::process::start_log();
                // SAFETY: the type is that of NCCL's header.
                match unsafe { function::<unsafe extern "C" fn($($kind),*) -> ResultCode>(stringify!($name)) } {
                    // SAFETY: the caller's contract is that of the real function.
                    Some(real) => unsafe { real($($argument),*) },
                    None => refuse(stringify!($name), $reason),
                }
            }
        )*
        mod handed_with_prefix {
            use super::*;
            $(
                #[unsafe(export_name = concat!("p", stringify!($name)))]
                unsafe extern "C" fn $name($($argument: $kind),*) -> ResultCode {
                    // SAFETY: the caller's contract is the same.
                    unsafe { super::$name($($argument),*) }
                }
            )*
        }
    };
}

/// Functions of communicators and windows, which only this library knows.
macro_rules! refused {
    ($(
        $module:ident, $reason:literal: {
            $(fn $name:ident($($argument:ident: $kind:ty),* $(,)?) -> $result:ty = $value:expr;)*
        }
    )*) => {
        $(mod $module {
            use super::*;
            $(
                #[unsafe(no_mangle)]
                extern "C" fn $name($($argument: $kind),*) -> $result {
                    crate::process::start_log();
                    let _ = ($($argument,)*);
                    let code = refuse(stringify!($name), $reason);
                    $value(code)
                }
            )*
            mod with_prefix {
                #[allow(unused_imports, reason = "some functions name no type of NCCL")]
                use super::*;
                $(
                    #[unsafe(export_name = concat!("p", stringify!($name)))]
                    extern "C" fn $name($($argument: $kind),*) -> $result {
                        super::$name($($argument),*)
                    }
                )*
            }
        })*
    };
}

handed! {
    "NCCL's parameters and encryption; this library has settings (ANABRANCH__...) and always encrypts its rendezvous":
    fn ncclSetEncryption(config: *const c_void);
    fn ncclParamBind(out: *mut *mut c_void, key: *const c_char);
    fn ncclParamGetI8(handle: *mut c_void, out: *mut i8);
    fn ncclParamGetI16(handle: *mut c_void, out: *mut i16);
    fn ncclParamGetI32(handle: *mut c_void, out: *mut i32);
    fn ncclParamGetI64(handle: *mut c_void, out: *mut i64);
    fn ncclParamGetU8(handle: *mut c_void, out: *mut u8);
    fn ncclParamGetU16(handle: *mut c_void, out: *mut u16);
    fn ncclParamGetU32(handle: *mut c_void, out: *mut u32);
    fn ncclParamGetU64(handle: *mut c_void, out: *mut u64);
    fn ncclParamGetStr(handle: *mut c_void, out: *mut *const c_char);
    fn ncclParamGet(handle: *mut c_void, out: *mut c_void, most: c_int, length: *mut c_int);
    fn ncclParamGetParameter(key: *const c_char, value: *mut *const c_char, length: *mut c_int);
    fn ncclParamGetAllParameterKeys(table: *mut *mut *const c_char, length: *mut c_int);
}

fn same(code: ResultCode) -> ResultCode {
    code
}

fn no_team(_: ResultCode) -> Team {
    Team { ranks: 0, rank: 0, stride: 0 }
}

fn minus_one(_: ResultCode) -> c_int {
    -1
}

fn nothing(_: ResultCode) {}

/// `ncclGroupSimulateEnd` ends the group in any case.
fn after_the_group(code: ResultCode) -> ResultCode {
    crate::group::discard();
    code
}

refused! {
    elastic, "communicators do not change their ranks; make a new one": {
        fn ncclCommShrink(comm: Handle, list: *mut c_int, count: c_int, result: *mut Handle, config: *mut c_void, flags: c_int) -> ResultCode = same;
        fn ncclCommGrow(comm: Handle, ranks: c_int, id: *const c_void, rank: c_int, result: *mut Handle, config: *mut c_void) -> ResultCode = same;
        fn ncclCommGetUniqueId(comm: Handle, id: *mut c_void) -> ResultCode = same;
        fn ncclCommRevoke(comm: Handle, flags: c_int) -> ResultCode = same;
    }
    memory, "the memory of a communicator is one part of the heap, and stays": {
        fn ncclCommSuspend(comm: Handle, flags: c_int) -> ResultCode = same;
        fn ncclCommResume(comm: Handle) -> ResultCode = same;
        fn ncclCommMemStats(comm: Handle, stat: c_int, value: *mut u64) -> ResultCode = same;
    }
    one_sided, "one-sided operations on windows are in this library's own interface": {
        fn ncclPutSignal(
            buffer: *const c_void, count: usize, data_type: c_int, peer: c_int, window: WindowHandle, offset: usize, index: c_int,
            context: c_int, flags: c_uint, comm: Handle, stream: RawStream,
        ) -> ResultCode = same;
        fn ncclSignal(peer: c_int, index: c_int, context: c_int, flags: c_uint, comm: Handle, stream: RawStream) -> ResultCode = same;
        fn ncclWaitSignal(number: c_int, list: *mut c_void, comm: Handle, stream: RawStream) -> ResultCode = same;
    }
    simulation, "there is no model of NCCL's times": {
        fn ncclGroupSimulateEnd(info: *mut c_void) -> ResultCode = after_the_group;
    }
    device, "kernels that communicate use this library's own device interface": {
        fn ncclDevCommCreate(comm: Handle, requirements: *const c_void, result: *mut c_void) -> ResultCode = same;
        fn ncclDevCommDestroy(comm: Handle, dev_comm: *const c_void) -> ResultCode = same;
        fn ncclGetLsaMultimemDevicePointer(window: WindowHandle, offset: usize, result: *mut *mut c_void) -> ResultCode = same;
        // The handle of a multicast object is one pointer, by value.
        fn ncclGetMultimemDevicePointer(window: WindowHandle, offset: usize, handle: *mut c_void, result: *mut *mut c_void) -> ResultCode = same;
        fn ncclGetLsaDevicePointer(window: WindowHandle, offset: usize, rank: c_int, result: *mut *mut c_void) -> ResultCode = same;
        fn ncclGetPeerDevicePointer(window: WindowHandle, offset: usize, peer: c_int, result: *mut *mut c_void) -> ResultCode = same;
        fn ncclGetMultimemDeviceLeInfo(window: WindowHandle, offset: usize, id: *mut u32, at: *mut usize) -> ResultCode = same;
        fn ncclGetCftDeviceLeInfo(
            window: WindowHandle, offset: usize, peer: c_int, team: Team, id: *mut u32, at: *mut usize,
        ) -> ResultCode = same;
        fn ncclGetPeerDeviceLeInfo(window: WindowHandle, offset: usize, peer: c_int, id: *mut u32, at: *mut usize) -> ResultCode = same;
        fn ncclLsaBarrierCreateRequirement(team: Team, number: c_int, handle: *mut c_void, result: *mut c_void) -> ResultCode = same;
        fn ncclGinBarrierCreateRequirement(
            comm: Handle, team: Team, number: c_int, handle: *mut c_void, result: *mut c_void,
        ) -> ResultCode = same;
        fn ncclCftBarrierCreateRequirement(team: Team, number: c_int, handle: *mut c_void, result: *mut c_void) -> ResultCode = same;
        fn ncclLLA2ACreateRequirement(blocks: c_int, slots: c_int, handle: *mut c_void, result: *mut c_void) -> ResultCode = same;
        fn ncclGinOutboxCreateRequirement(blocks: c_int, size: c_int, handle: *mut c_void, result: *mut c_void) -> ResultCode = same;
        fn ncclGinInboxA2ACreateRequirement(
            peers: Team, blocks: c_int, size: c_int, handle: *mut c_void, result: *mut c_void,
        ) -> ResultCode = same;
        fn ncclTeamLsa(comm: Handle) -> Team = no_team;
        fn ncclTeamCft(comm: Handle, mode: c_int) -> Team = no_team;
        fn ncclTeamCftMultimem(comm: Handle) -> Team = no_team;
        fn ncclTeamRail(comm: Handle) -> Team = no_team;
        fn ncclTeamRankToWorld(comm: Handle, team: Team, rank: c_int) -> c_int = minus_one;
        fn ncclTeamRankToLsa(comm: Handle, team: Team, rank: c_int) -> c_int = minus_one;
        fn ncclLLA2ACalcSlots(elements: c_int, size: c_int) -> c_int = minus_one;
    }
    parameters, "this library's settings are listed by `anabranch config show`": {
        fn ncclParamDumpAll() -> () = nothing;
    }
}
