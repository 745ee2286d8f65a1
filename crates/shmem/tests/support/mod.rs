//! What the tests of worlds share.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub(crate) mod altered;
pub(crate) mod counted;
pub(crate) mod driven;
pub(crate) mod engines;
pub(crate) mod nics;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anabranch_hip::{DeviceOrdinal, Runtime, Stream};
use anabranch_hip_host::{HostConfig, HostMachine};
use anabranch_hip_jit::{Jit, JitConfig, ToolSearch};
use anabranch_ranks::GlobalRank;
use anabranch_shmem::{Error, HeapMode, RankError, RankSetup, Team, World, WorldConfig};

/// A team of the world and a stream, after a first barrier on both.
pub(crate) fn met(world: &World) -> Result<(Team, Stream), Error> {
    let (team, stream) = (world.team(world.group())?, world.device().create_stream()?);
    team.barrier(&stream)?;
    world.synchronize(&stream)?;
    Ok((team, stream))
}

/// A host machine with a device for each rank.
pub(crate) struct Bench {
    machine: Arc<HostMachine>,
    runtime: Runtime,
    jit: Jit,
    pub(crate) config: WorldConfig,
}

impl Bench {
    pub(crate) fn new(devices: u32) -> Self {
        Self::with_wave(devices, 1)
    }

    pub(crate) fn in_mode(devices: u32, mode: HeapMode) -> Self {
        Self::new(devices).with_mode(mode)
    }

    pub(crate) fn with_mode(mut self, mode: HeapMode) -> Self {
        self.config.heap_mode = mode;
        self
    }

    pub(crate) fn with_wave(devices: u32, wave_width: u32) -> Self {
        let config = HostConfig { devices, wave_width, ..HostConfig::default() };
        let machine = HostMachine::new(config).unwrap();
        let runtime = machine.runtime();
        // One cache for all tests, so that each kernel is compiled once.
        let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kernels");
        let path = ["/usr/local/bin", "/usr/bin", "/bin"].map(PathBuf::from).into();
        // A busy machine takes minutes for a large kernel, and no test is about that.
        let mut jit = JitConfig::new(cache);
        jit.compile_deadline = Duration::from_secs(600);
        let jit = Jit::new(jit, ToolSearch { path, ..ToolSearch::default() });
        let config = WorldConfig {
            heap_bytes: 4 << 20,
            rendezvous_deadline: Duration::from_secs(20),
            operation_deadline: Duration::from_secs(5),
            ..WorldConfig::default()
        };
        Self { machine, runtime, jit, config }
    }

    pub(crate) fn runtime(&self) -> Runtime {
        self.runtime.clone()
    }

    pub(crate) fn setup(&self, rank: GlobalRank) -> Result<RankSetup, Error> {
        self.setup_on(rank.get())
    }

    pub(crate) fn setup_on(&self, device: u32) -> Result<RankSetup, Error> {
        let device = self.runtime.device(DeviceOrdinal(device))?;
        Ok(RankSetup { config: self.config.clone(), device, jit: self.jit.clone() })
    }
}

/// Every rank's heap is where the mode says.
pub(crate) fn check_flat(world: &World) {
    let flat = world.flat_heap();
    assert_eq!(flat.is_some(), world.config().heap_mode == HeapMode::Flat);
    let Some(flat) = flat else { return };
    assert_eq!(flat.ranks, world.size());
    assert!(flat.stride >= world.config().heap_bytes);
    for rank in (0..world.size()).map(GlobalRank::new) {
        let base = world.peer_base(rank).unwrap();
        assert_eq!(base, flat.base.offset(u64::from(rank.get()) * flat.stride));
        assert_eq!(flat.address(rank, 8), Some(base.offset(8)));
        assert_eq!(flat.address(rank, flat.stride), None);
    }
    assert_eq!(flat.address(GlobalRank::new(world.size()), 0), None);
}

/// The values of ranks that all succeeded.
pub(crate) fn all<T, E: std::fmt::Debug>(results: Vec<Result<T, RankError<E>>>) -> Vec<T> {
    results.into_iter().map(Result::unwrap).collect()
}

/// The errors, in words, of worlds that no rank could join.
pub(crate) fn error_texts<T: std::fmt::Debug>(results: Vec<Result<T, RankError<Error>>>) -> Vec<String> {
    results
        .into_iter()
        .map(|result| match result.unwrap_err() {
            RankError::World { error, .. } => error.to_string(),
            other => panic!("{other:?}"),
        })
        .collect()
}
