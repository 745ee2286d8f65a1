//! A group of ranks on the host runtime.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of tests fails the test")]

pub mod processes;

use std::sync::Arc;
use std::time::Duration;

use anabranch_ccl::conformance::{Case, Form};
use anabranch_ccl::{Algorithm, DataType, Error, LocationKind, ReduceOp, kernels};
use anabranch_hip::{DeviceOrdinal, with_causes};
use anabranch_hip_host::{HostConfig, HostMachine};
use anabranch_hip_jit::{Jit, JitConfig, ParameterValue, ToolSearch};
use anabranch_ranks::GroupRank;
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
    jit_with(Vec::new())
}

/// [`jit`], with parameters for every kernel.
pub fn jit_with(parameters: Vec<(&'static str, ParameterValue)>) -> Jit {
    let mut config = JitConfig::new(cache());
    config.parameters = parameters;
    Jit::new(config, tools())
}

/// A sequence that all ranks draw alike from one seed: splitmix64.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize].clone()
    }
}

/// A case of a form and type that all ranks draw alike, and an algorithm that can do it.
pub fn any_case(numbers: &mut Numbers, members: u32, types: &[DataType], most: u64) -> (Case, Algorithm) {
    let form = numbers.pick(&Form::all());
    let data_type = numbers.pick(types);
    let ops = ReduceOp::all(0.5).into_iter().filter(|op| op.supports(data_type)).collect::<Vec<_>>();
    let mut case = Case {
        uneven: form.uneven,
        op: numbers.pick(&ops),
        root: GroupRank::new(numbers.below(members.into()) as u32),
        offset: numbers.below(4),
        seed: numbers.next(),
        location: numbers.pick(&[LocationKind::Symmetric, LocationKind::Local, LocationKind::Registered]),
        in_place: numbers.below(2) == 1,
        ..Case::new(form.collective, data_type, numbers.below(most))
    };
    case.in_place = case.in_place && case.is_defined();
    let shape = case.shape(members);
    let algorithms: Vec<_> =
        Algorithm::ALL.into_iter().filter(|algorithm| algorithm.allows(&shape).is_ok()).collect();
    (case, numbers.pick(&algorithms))
}

/// Compiles every kernel of collectives for a machine of this wave width, some at once: ranks would wait for each other with
/// every one.
pub fn build_ahead(jit: &Jit, wave_width: u32, jobs: usize) {
    build_ahead_of(jit, wave_width, jobs, &DataType::ALL);
}

/// [`build_ahead`] for these types.
pub fn build_ahead_of(jit: &Jit, wave_width: u32, jobs: usize, types: &[DataType]) {
    let device = machine(1, wave_width).runtime().device(DeviceOrdinal(0)).unwrap();
    let target = jit.device_target(&device).unwrap();
    let of_types = types.iter().flat_map(|of| [kernels::packet_reduce(*of), kernels::bulk_reduce(*of)]);
    let wanted = [kernels::move_bytes()].into_iter().chain(of_types);
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

/// The values of ranks that all succeeded; fails with every rank's error.
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
