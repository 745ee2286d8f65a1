//! A group of ranks on the host runtime.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]

pub mod mismatch;
pub mod nics;
pub mod processes;

use std::sync::Arc;
use std::time::Duration;

use anabranch_ccl::{Across, Algorithm, Communicator, DATA_TYPES, DataType, Error, kernels};
use anabranch_conformance::ccl::{self as conformance, Case, Scratch};
use anabranch_hip::{DeviceOrdinal, Stream, with_causes};
use anabranch_hip_host::{HostConfig, HostMachine};
use anabranch_hip_jit::{Jit, JitConfig, ParameterValue, SourceEdit, ToolSearch};
use anabranch_shmem::{RankError, RankSetup, World, WorldConfig, spawn_threads};

/// One cache for all tests of the crate, so that a kernel is compiled once.
pub fn cache() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels")
}

pub fn tools() -> ToolSearch {
    #[expect(clippy::disallowed_methods, reason = "a test finds compilers as a user's shell does")]
    let folders = |name: &str| std::env::var_os(name).map(|list| std::env::split_paths(&list).collect());
    let [path, python_site] = ["PATH", "PYTHONPATH"].map(|name| folders(name).unwrap_or_default());
    ToolSearch { path, python_site, ..ToolSearch::default() }
}

pub fn jit() -> Jit {
    jit_with(Vec::new(), Vec::new())
}

/// [`jit`], with parameters for every kernel and changes of their sources.
pub fn jit_with(parameters: Vec<(&'static str, ParameterValue)>, edits: Vec<SourceEdit>) -> Jit {
    jit_of(|config| (config.parameters, config.edits) = (parameters, edits))
}

/// [`jit`] with other settings.
pub fn jit_of(set: impl FnOnce(&mut JitConfig)) -> Jit {
    let mut config = JitConfig::new(cache());
    // A busy machine needs minutes to compile a large kernel.
    config.compile_deadline = Duration::from_secs(600);
    set(&mut config);
    Jit::new(config, tools())
}

/// Compiles every kernel of collectives for this wave width, `jobs` at a time, so that ranks do not wait for compilations.
pub fn build_ahead(jit: &Jit, wave_width: u32, jobs: usize) {
    build_ahead_of(jit, wave_width, jobs, &DATA_TYPES);
}

/// [`build_ahead`] for these types.
pub fn build_ahead_of(jit: &Jit, wave_width: u32, jobs: usize, types: &[DataType]) {
    let device = machine(1, wave_width).runtime().device(DeviceOrdinal(0)).unwrap();
    let target = jit.device_target(&device).unwrap();
    let of_types = |of: &DataType| {
        [&kernels::PACKET_REDUCE_UNIT, &kernels::BULK_REDUCE_UNIT, &kernels::PUSH_TO_ROOT_UNIT]
            .map(|unit| kernels::spec(unit, *of))
    };
    let of_bytes =
        [&kernels::MOVE_UNIT, &kernels::TWO_HOP_UNIT, &kernels::GATHER_MANY_UNIT, &kernels::PIPES_UNIT];
    let of_bytes = of_bytes.map(|unit| kernels::spec(unit, DataType::U8));
    let wanted = of_bytes.into_iter().chain(types.iter().flat_map(of_types));
    let wanted: Vec<_> = wanted.map(|spec| (spec, target.clone())).collect();
    jit.compile_ahead(&wanted, jobs).into_result().unwrap();
}

pub fn machine(ranks: u32, wave_width: u32) -> Arc<HostMachine> {
    HostMachine::new(HostConfig { devices: ranks, wave_width, ..HostConfig::default() }).unwrap()
}

pub fn world_config() -> WorldConfig {
    WorldConfig {
        heap_bytes: 64 << 20,
        operation_deadline: Duration::from_secs(20),
        ..WorldConfig::default()
    }
}

/// Runs `work` on every rank of a world of threads, and fails with every rank's error.
pub fn on_ranks<T: Send>(
    ranks: u32,
    wave_width: u32,
    config: &WorldConfig,
    jit: &Jit,
    work: impl Fn(&World) -> Result<T, Error> + Sync,
) -> Vec<Result<T, RankError<Error>>> {
    let machine = machine(ranks, wave_width);
    let runtime = machine.runtime();
    spawn_threads(
        ranks,
        |rank| {
            let device = runtime.device(DeviceOrdinal(rank.get()))?;
            Ok(RankSetup { config: config.clone(), device, jit: jit.clone() })
        },
        work,
    )
}

/// Runs cases without synchronization between ranks. Returns the number of cases, and of those by node. With [`Across::Node`], cases that
/// cannot run by node are left out.
pub fn run_all(
    communicator: &mut Communicator,
    scratch: &mut Scratch,
    cases: &[Case],
    across: Across,
    stream: &Stream,
) -> Result<(usize, usize), Error> {
    let members = communicator.group().size();
    let mut done = (0, 0);
    for case in cases {
        let plan = match communicator.explain(&case.shape(members)) {
            Ok(plan) => plan,
            Err(Error::Algorithm { .. }) if across == Across::Node => continue,
            Err(error) => return Err(error),
        };
        conformance::run(communicator, scratch, case, stream)?
            .unwrap_or_else(|failure| panic!("{case} by {}: {failure}", plan.algorithm));
        done.0 += 1;
        done.1 += usize::from(plan.algorithm == Algorithm::NetworkByNode);
    }
    Ok(done)
}

/// The values of all ranks; panics with the error of every failed rank.
pub fn all_well<T>(results: Vec<Result<T, RankError<Error>>>) -> Vec<T> {
    let failures: Vec<_> =
        results.iter().filter_map(|result| Some(failure(result.as_ref().err()?))).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    results.into_iter().map(Result::unwrap).collect()
}

pub fn failure(error: &RankError<Error>) -> String {
    match error {
        RankError::World { rank, error } => format!("{rank}: {}", with_causes(error)),
        RankError::Work { rank, error } => format!("{rank}: {}", with_causes(error)),
        other => other.to_string(),
    }
}
