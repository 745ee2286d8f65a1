//! The names of the library.

use std::process::Command;

use anabranch_testkit::{Ranks, role, test_path};

use crate::common::{LIMIT, Nccl, alone, nccl, path};

/// `nm -D --defined-only` of NCCL 2.32.3 (wheel nvidia-nccl-cu13), without the prefixes `nccl` and `pnccl`; with RCCL's `AllToAll` and
/// `AllToAllv`, and a name that only the header has. torch 2.9 to 2.15, nccl-tests and rccl-tests bind no others.
const NAMES: &str = "\
    AllGather AllGatherConfig AllReduce AllReduceConfig AllToAll AllToAllv AlltoAll AlltoAllConfig Bcast Broadcast \
    BroadcastConfig CftBarrierCreateRequirement CommAbort CommCount CommCuDevice CommDeregister CommDestroy \
    CommFinalize CommGetAsyncError CommGetUniqueId CommGrow CommInitAll CommInitRank CommInitRankConfig \
    CommInitRankScalable CommMemStats CommQueryProperties CommRegister CommResume CommRevoke CommShrink \
    CommSplit CommSuspend CommUserRank CommWindowDeregister CommWindowRegister DevCommCreate DevCommDestroy \
    Gather GatherConfig GetCftDeviceLeInfo GetErrorString GetLastError GetLsaDevicePointer \
    GetLsaMultimemDevicePointer GetMultimemDeviceLeInfo GetMultimemDevicePointer GetPeerDeviceLeInfo \
    GetPeerDevicePointer GetUniqueId GetVersion GinBarrierCreateRequirement GinInboxA2ACreateRequirement \
    GinOutboxCreateRequirement GroupEnd GroupSimulateEnd GroupStart LLA2ACalcSlots LLA2ACreateRequirement \
    LsaBarrierCreateRequirement MemAlloc MemFree ParamBind ParamDumpAll ParamGet ParamGetAllParameterKeys \
    ParamGetI16 ParamGetI32 ParamGetI64 ParamGetI8 ParamGetParameter ParamGetStr ParamGetU16 ParamGetU32 \
    ParamGetU64 ParamGetU8 PutSignal Recv RedOpCreatePreMulSum RedOpDestroy Reduce ReduceConfig \
    ReduceScatter ReduceScatterConfig ResetDebugInit Scatter ScatterConfig Send SetEncryption Signal TeamCft \
    TeamCftMultimem TeamLsa TeamRail TeamRankToLsa TeamRankToWorld TeamWorld WaitSignal WinGetUserPtr";

fn names() -> impl Iterator<Item = String> {
    NAMES.split_whitespace().map(|name| format!("nccl{name}"))
}

#[test]
fn every_name_of_the_newest_library_is_exported() {
    alone!("every_name_of_the_newest_library_is_exported");
    let nccl = Nccl::open(&[]);
    let missing: Vec<_> =
        names().flat_map(|name| [format!("p{name}"), name]).filter(|name| !nccl.has(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(!nccl.has("ncclNoSuchName"));
}

#[test]
fn the_soname_is_the_one_that_programs_ask_for() {
    let output = Command::new("readelf").arg("-d").arg(path()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("SONAME") && text.contains("[libnccl.so.2]"), "{text}");
}

#[test]
fn a_function_that_is_not_there_is_refused_with_its_name() {
    if role().is_none() {
        let test = test_path!("a_function_that_is_not_there_is_refused_with_its_name");
        let outcomes = Ranks::start(test, 1, "").unwrap().succeed(LIMIT).unwrap();
        let logged = outcomes[0].output.matches("ncclCommRevoke: not supported").count();
        assert_eq!(logged, 1, "{}", outcomes[0].output);
        return;
    }
    let nccl = Nccl::open(&[]);
    for _ in 0..2 {
        assert_eq!(nccl!(nccl, ncclCommRevoke(std::ptr::null_mut() => *mut std::ffi::c_void, 0 => i32)), 5);
        assert!(nccl.last_error(std::ptr::null_mut()).starts_with("ncclCommRevoke: not supported"));
    }
}

#[test]
fn documentation_lists_every_name() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/nccl.md")).unwrap();
    let words: std::collections::BTreeSet<_> =
        text.split(|letter: char| !letter.is_ascii_alphanumeric()).collect();
    let missing: Vec<_> = names().filter(|name| !words.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "docs/nccl.md lacks {missing:?}");
}

/// Whether a source calls a function, with or without the prefix `p`.
fn calls(source: &str, name: &str) -> bool {
    source.match_indices(&format!("{name}(")).any(|(place, _)| {
        let before = source[..place].strip_suffix('p').unwrap_or(&source[..place]);
        !before.ends_with(|letter: char| letter.is_ascii_alphanumeric() || letter == '_')
    })
}

#[test]
fn every_name_is_called_by_a_test() {
    // This file has names in texts.
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests")).unwrap();
    let files = files
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "rs") && !path.ends_with("names.rs"));
    let sources: Vec<String> = files.map(|path| std::fs::read_to_string(path).unwrap()).collect();
    assert!(sources.len() > 5, "the tests were found");
    let missing: Vec<_> = names().filter(|name| !sources.iter().any(|source| calls(source, name))).collect();
    assert!(missing.is_empty(), "no test calls {missing:?}");
}

#[test]
fn calls_are_told_from_mentions() {
    assert!(calls("nccl!(nccl, ncclSend(1 => c_int))", "ncclSend") && calls("pncclSend()", "ncclSend"));
    for mention in ["`ncclSend`", "ncclSendConfig(1)", "ncclSend", "my_ncclSend(1)", "AncclSend(1)"] {
        assert!(!calls(mention, "ncclSend"), "{mention}");
    }
}
