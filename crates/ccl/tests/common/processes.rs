//! Ranks that are processes, each with a host machine that shares its memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anabranch_bootstrap::Rendezvous;
use anabranch_hip::DeviceOrdinal;
use anabranch_shmem::{World, WorldConfig};
use anabranch_testkit::{Role, meet};

use super::{jit, machine, world_config};

const LIMIT: Duration = Duration::from_secs(30);

/// The file with the address of rank 0.
pub fn address_file(test: &str) -> PathBuf {
    let name = format!("{test}-{}-address", std::process::id());
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_file(&file);
    file
}

/// The world of the processes that were started with the file as their argument.
pub fn process_world(role: &Role) -> World {
    let rendezvous = Arc::new(meet(role, Path::new(&role.argument), LIMIT, || ()).unwrap());
    join(role, world_config(), rendezvous)
}

/// The world of processes with this configuration, whose rendezvous is this file.
pub fn world_by(role: &Role, file: &Path, config: WorldConfig) -> World {
    let own = Role { rank: role.rank, size: role.size, argument: String::new() };
    let rendezvous = Arc::new(meet(&own, file, LIMIT, || ()).unwrap());
    join(role, config, rendezvous)
}

fn join(role: &Role, config: WorldConfig, rendezvous: Arc<dyn Rendezvous>) -> World {
    let device = machine(role.size, 4).runtime().device(DeviceOrdinal(role.rank)).unwrap();
    World::join(config, device, jit(), rendezvous).unwrap()
}
