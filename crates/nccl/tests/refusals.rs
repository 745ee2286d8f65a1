//! Functions of NCCL that this library does not have: each is refused by its name, also with the prefix `p`.

use std::ffi::{c_char, c_int, c_void};

use crate::common::{Buffer, Comm, INT32, Nccl, SUM, Stream, alone, nccl, on_threads};
use crate::functions::{Team, both};

/// Any pointer: no refused function reads one.
const NONE: *mut c_void = std::ptr::null_mut();

type Pointer = *mut c_void;

fn is_refused(nccl: &Nccl, name: &str) {
    let text = nccl.last_error(NONE);
    assert!(text.starts_with(&format!("{name}: not supported: ")), "{name}: {text}");
    // The next function has to write a text of its own.
    assert_eq!(nccl!(nccl, ncclMemFree(64 as Pointer => Pointer)), 4);
}

#[test]
fn every_function_that_is_not_there_is_refused_by_its_name() {
    alone!("every_function_that_is_not_there_is_refused_by_its_name");
    let nccl = Nccl::open(&[]);
    let refused = |name: &str, code: c_int| {
        assert_eq!(code, 5, "{name}");
        is_refused(&nccl, name);
    };
    both! { nccl, refused;
        ncclCommShrink(NONE => Comm, NONE => Pointer, 0 => c_int, NONE => Pointer, NONE => Pointer, 0 => c_int);
        ncclCommGrow(NONE => Comm, 2 => c_int, NONE => Pointer, 0 => c_int, NONE => Pointer, NONE => Pointer);
        ncclCommGetUniqueId(NONE => Comm, NONE => Pointer);
        ncclCommRevoke(NONE => Comm, 0 => c_int);
        ncclCommSuspend(NONE => Comm, 0 => c_int);
        ncclCommResume(NONE => Comm);
        ncclCommMemStats(NONE => Comm, 0 => c_int, NONE => Pointer);
        ncclPutSignal(
            NONE => Pointer, 1 => usize, INT32 => c_int, 0 => c_int, NONE => Pointer, 0 => usize, 0 => c_int, 0 => c_int,
            0 => u32, NONE => Comm, NONE => Stream,
        );
        ncclSignal(0 => c_int, 0 => c_int, 0 => c_int, 0 => u32, NONE => Comm, NONE => Stream);
        ncclWaitSignal(0 => c_int, NONE => Pointer, NONE => Comm, NONE => Stream);
        ncclDevCommCreate(NONE => Comm, NONE => Pointer, NONE => Pointer);
        ncclDevCommDestroy(NONE => Comm, NONE => Pointer);
        ncclGetLsaMultimemDevicePointer(NONE => Pointer, 0 => usize, NONE => Pointer);
        ncclGetMultimemDevicePointer(NONE => Pointer, 0 => usize, NONE => Pointer, NONE => Pointer);
        ncclGetLsaDevicePointer(NONE => Pointer, 0 => usize, 0 => c_int, NONE => Pointer);
        ncclGetPeerDevicePointer(NONE => Pointer, 0 => usize, 0 => c_int, NONE => Pointer);
        ncclGetMultimemDeviceLeInfo(NONE => Pointer, 0 => usize, NONE => Pointer, NONE => Pointer);
        ncclGetCftDeviceLeInfo(
            NONE => Pointer, 0 => usize, 0 => c_int, Team::default() => Team, NONE => Pointer, NONE => Pointer,
        );
        ncclGetPeerDeviceLeInfo(NONE => Pointer, 0 => usize, 0 => c_int, NONE => Pointer, NONE => Pointer);
        ncclLsaBarrierCreateRequirement(Team::default() => Team, 1 => c_int, NONE => Pointer, NONE => Pointer);
        ncclGinBarrierCreateRequirement(
            NONE => Comm, Team::default() => Team, 1 => c_int, NONE => Pointer, NONE => Pointer,
        );
        ncclCftBarrierCreateRequirement(Team::default() => Team, 1 => c_int, NONE => Pointer, NONE => Pointer);
        ncclLLA2ACreateRequirement(1 => c_int, 1 => c_int, NONE => Pointer, NONE => Pointer);
        ncclGinOutboxCreateRequirement(1 => c_int, 1 => c_int, NONE => Pointer, NONE => Pointer);
        ncclGinInboxA2ACreateRequirement(
            Team::default() => Team, 1 => c_int, 1 => c_int, NONE => Pointer, NONE => Pointer,
        );
        // Those that a library of the user could do: there is none.
        ncclSetEncryption(NONE => Pointer);
        ncclParamBind(NONE => Pointer, c"NCCL_DEBUG".as_ptr() => *const c_char);
        ncclParamGet(NONE => Pointer, NONE => Pointer, 8 => c_int, NONE => Pointer);
        ncclParamGetI8(NONE => Pointer, NONE => Pointer);
        ncclParamGetI16(NONE => Pointer, NONE => Pointer);
        ncclParamGetI32(NONE => Pointer, NONE => Pointer);
        ncclParamGetI64(NONE => Pointer, NONE => Pointer);
        ncclParamGetU8(NONE => Pointer, NONE => Pointer);
        ncclParamGetU16(NONE => Pointer, NONE => Pointer);
        ncclParamGetU32(NONE => Pointer, NONE => Pointer);
        ncclParamGetU64(NONE => Pointer, NONE => Pointer);
        ncclParamGetStr(NONE => Pointer, NONE => Pointer);
        ncclParamGetParameter(c"NCCL_DEBUG".as_ptr() => *const c_char, NONE => Pointer, NONE => Pointer);
        ncclParamGetAllParameterKeys(NONE => Pointer, NONE => Pointer);
    }
}

#[test]
fn refused_functions_without_a_code_return_nothing_usable() {
    alone!("refused_functions_without_a_code_return_nothing_usable");
    let nccl = Nccl::open(&[]);
    on_threads(&nccl, 1, |rank| {
        let no_team = |name: &str, team: Team| {
            assert_eq!(team, Team::default(), "{name}");
            is_refused(&nccl, name);
        };
        both! { nccl, no_team;
            ncclTeamLsa(rank.comm => Comm) -> Team;
            ncclTeamRail(rank.comm => Comm) -> Team;
            ncclTeamCft(rank.comm => Comm, 0 => c_int) -> Team;
            ncclTeamCftMultimem(rank.comm => Comm) -> Team;
        }
        let minus_one = |name: &str, number: c_int| {
            assert_eq!(number, -1, "{name}");
            is_refused(&nccl, name);
        };
        let world = Team { ranks: 1, rank: 0, stride: 1 };
        both! { nccl, minus_one;
            ncclTeamRankToWorld(rank.comm => Comm, world => Team, 0 => c_int);
            ncclTeamRankToLsa(rank.comm => Comm, world => Team, 0 => c_int);
            ncclLLA2ACalcSlots(8 => c_int, 4 => c_int);
        }
        both! { nccl, |name: &str, (): ()| is_refused(&nccl, name); ncclParamDumpAll() -> (); }
    });
}

#[test]
fn simulated_group_ends_without_its_calls() {
    alone!("simulated_group_ends_without_its_calls");
    let nccl = Nccl::open(&[]);
    on_threads(&nccl, 1, |rank| {
        let (input, mut output) = (Buffer::of(INT32, &[7.0]), Buffer::zeros(INT32, 1));
        for _ in 0..2 {
            nccl.ok(nccl!(nccl, ncclGroupStart()));
            nccl.ok(nccl.all_reduce(rank, &input, &mut output, SUM));
        }
        let refused = |name: &str, code: c_int| {
            assert_eq!(code, 5);
            is_refused(&nccl, name);
        };
        both! { nccl, refused; ncclGroupSimulateEnd(NONE => Pointer); }
        nccl.synchronize(rank.stream);
        assert_eq!(output.values(), [0.0]);
        assert_eq!(nccl!(nccl, ncclGroupEnd()), 5, "no group is open");
        nccl.count_ranks(rank);
    });
}
