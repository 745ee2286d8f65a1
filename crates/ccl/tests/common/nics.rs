//! Ranks configured as several nodes: peers are not mapped, and software NICs reach them.

use std::sync::Arc;

use anabranch_ccl::Error;
use anabranch_hip::DeviceOrdinal;
use anabranch_shmem::{NicSource, RankError, RankSetup, World, WorldConfig, spawn_threads};
use anabranch_softnic::SoftNics;
use anabranch_transport::{HostIdentity, TransportKind};

use super::{jit, machine};

/// The configuration of a rank on node `machine`.
pub fn config_on(machine: u32, nics: SoftNics, config: &WorldConfig) -> WorldConfig {
    WorldConfig {
        transports: vec![TransportKind::P2p, TransportKind::Rdma],
        nic: NicSource::new(Arc::new(nics)),
        host_identity: Some(HostIdentity(format!("node {machine}"))),
        ..config.clone()
    }
}

/// Runs `work` on ranks that are threads, each on its node.
pub fn on_nodes<T: Send>(
    nodes: &[u32],
    wave: u32,
    nics: &SoftNics,
    config: &WorldConfig,
    work: impl Fn(&World) -> Result<T, Error> + Sync,
) -> Vec<Result<T, RankError<Error>>> {
    let ranks = nodes.len() as u32;
    let (runtime, jit) = (machine(ranks, wave).runtime(), jit());
    spawn_threads(
        ranks,
        |rank| {
            let device = runtime.device(DeviceOrdinal(rank.get()))?;
            let config = config_on(nodes[rank.index()], nics.clone(), config);
            Ok(RankSetup { config, device, jit: jit.clone() })
        },
        work,
    )
}
