//! The contender over a library with NCCL's interface that works on the host's memory: that arguments arrive, that collectives
//! mean what the reference says, that own memory and messages do.
#![expect(unsafe_code, reason = "offers memory to a library")]

use core::ffi::c_void;
use std::mem::ManuallyDrop;
use std::process::Command;

use anabranch::{Config, Environment, Error, Group, GroupRank, World};
use anabranch_ccl::{DataType, ReduceOp};
use clap::ValueEnum as _;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::super::arguments::MemoryKind;
use super::super::collective::Collective;
use super::super::contender::{Case, Contender};
use super::super::member::Member;
use super::super::ours::{Memory, Ours};
use super::super::timing::Timing;
use super::{Nccl, NcclError, NcclLibrary};

const RANKS: u32 = 3;
const BYTES: u64 = 4800;

/// Gives the calling rank's memory to the library's `ncclMemAlloc`.
type Offer = unsafe extern "C" fn(*mut c_void, usize);

/// Compiles the library; each test has its own file, as tests run at once.
fn fake(name: &str) -> (NcclLibrary, Offer) {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake_nccl.cpp");
    let library = std::env::temp_dir().join(format!("fake-nccl-{name}-{}.so", std::process::id()));
    let made = Command::new("c++")
        .args(["-std=c++17", "-O1", "-shared", "-fPIC", "-Wall", "-Werror", "-o"])
        .args([library.as_os_str(), source.as_ref()])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let opened = NcclLibrary::open(Some(&library), &Environment::default());
    // SAFETY: the file was just made and has no initialisers but its standard library's.
    let handle = unsafe { Library::open(Some(&library), RTLD_NOW | RTLD_LOCAL) }.unwrap();
    let handle = ManuallyDrop::new(handle);
    // SAFETY: the type is the function's.
    let offer = *unsafe { handle.get::<Offer>("fakeNcclOffer") }.unwrap();
    std::fs::remove_file(library).unwrap();
    (opened.unwrap(), offer)
}

fn on_ranks<T: Send>(work: impl Fn(&World) -> anyhow::Result<T> + Sync) -> Vec<T> {
    let text = "[device]\nruntime = \"host\"\n[heap]\nbytes = \"64 MiB\"\n";
    let config = Config::from_toml("test", text).unwrap().config;
    let results = anabranch::spawn_threads(&config, RANKS, &work).unwrap();
    results.into_iter().map(|result| result.unwrap()).collect()
}

fn case(collective: Collective, data_type: DataType, group: &Group, me: GroupRank) -> Case {
    let element = u64::from(data_type.bytes());
    Case {
        collective,
        data_type,
        reduce: ReduceOp::Sum,
        elements: collective.elements(BYTES, element, group.size()).unwrap(),
        in_place: false,
        root: GroupRank::new(1),
        group: group.clone(),
        me,
    }
}

fn measure_all(
    library: &NcclLibrary,
    world: &World,
    offer: Option<Offer>,
) -> anyhow::Result<Vec<(String, Option<bool>)>> {
    // Not the world's order: group ranks are what NCCL has to get.
    let group = world.group().subset(&[2, 0, 1].map(GroupRank::new))?;
    let me = group.rank_of(world.rank()).unwrap();
    let memory = Memory::allocate(world, &group, MemoryKind::Local, 4 * BYTES)?;
    let ours = Ours::new(world, &group, anabranch::CclConfig::default(), None, &memory)?;
    let own = world.device().allocate(4 * BYTES as usize).map_err(Error::from)?;
    let peer = if let Some(offer) = offer {
        // SAFETY: the buffer outlives the contender, which gives it back when it is finished.
        unsafe { offer(own.address().as_ptr(), own.len()) };
        Nccl::symmetric(world, &group, me, library.clone(), 4 * BYTES)?
    } else {
        Nccl::on(world, &group, me, library.clone(), memory.area())?
    };
    let contenders: Vec<Box<dyn Contender + '_>> = vec![Box::new(ours), Box::new(peer)];
    let team = world.team(&group).map_err(Error::from)?;
    let stream = world.device().create_stream().map_err(Error::from)?;
    let mut member = Member { world, team, stream, contenders };
    let mut found = Vec::new();
    for collective in Collective::value_variants() {
        let moved_as_bytes = [DataType::I16].into_iter().filter(|_| !collective.reduces());
        for data_type in [DataType::F32].into_iter().chain(moved_as_bytes) {
            let timing = Timing { graph: false, operations: 2, per_round: 1 };
            for finding in member.measure(&case(*collective, data_type, &group, me), timing)? {
                assert_eq!(finding.times.len(), timing.samples() as usize);
                found.push((format!("{} {collective} {data_type}", finding.name), finding.right));
            }
        }
    }
    member.finish()?;
    memory.free()?;
    Ok(found)
}

#[test]
fn every_collective_of_nccl_is_right_on_shared_buffers() {
    let (library, _) = fake("shared");
    for found in on_ranks(|world| measure_all(&library, world, None)) {
        assert_eq!(found.len(), 2 * (8 + 5));
        assert!(found.iter().all(|(_, right)| *right == Some(true)), "{found:?}");
    }
}

#[test]
fn every_collective_of_nccl_is_right_in_its_own_window() {
    let (library, offer) = fake("own");
    for found in on_ranks(|world| measure_all(&library, world, Some(offer))) {
        assert!(found.iter().any(|(name, _)| name.starts_with("nccl_sym")), "{found:?}");
        assert!(found.iter().all(|(_, right)| *right == Some(true)), "{found:?}");
    }
}

#[test]
fn failing_call_is_named_with_its_reason() {
    let (library, _) = fake("failing");
    for text in on_ranks(|world| {
        let group = world.group().clone();
        let me = group.rank_of(world.rank()).unwrap();
        let memory = Memory::allocate(world, &group, MemoryKind::Local, 4 * BYTES)?;
        let mut nccl = Nccl::on(world, &group, me, library.clone(), memory.area())?;
        let stream = world.device().create_stream().map_err(Error::from)?;
        let unprepared = nccl.enqueue(&stream).unwrap_err().to_string();
        assert!(unprepared.contains("not prepared"), "{unprepared}");
        let mut wrong = case(Collective::AllReduce, DataType::F64, &group, me);
        nccl.prepare(&wrong)?;
        let refused = nccl.enqueue(&stream).unwrap_err();
        assert!(matches!(
            refused.downcast_ref(),
            Some(NcclError::Call { call: "ncclAllReduce", code: 4, .. })
        ));
        wrong.data_type = DataType::I16;
        assert!(nccl.prepare(&wrong).is_err());
        let large = Case { elements: Collective::AllReduce.elements(1 << 20, 4, RANKS)?, ..wrong };
        let outside = nccl.prepare(&Case { data_type: DataType::F32, ..large }).unwrap_err().to_string();
        assert!(outside.contains("the buffer has"), "{outside}");
        drop(nccl);
        Ok(refused.to_string())
    }) {
        assert!(text.contains("invalid argument (4): not a sum of float"), "{text}");
        assert!(text.contains("of 3 ranks"), "{text}");
    }
}
