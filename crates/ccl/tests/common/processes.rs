//! Ranks that are processes, each with a host machine that shares its memory.
#![expect(clippy::disallowed_methods, reason = "processes are waited for in the machine's time")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_bootstrap::{Deadline, TcpConfig, TcpRendezvous, TcpRoot, Token};
use anabranch_hip::DeviceOrdinal;
use anabranch_ranks::GlobalRank;
use anabranch_shmem::World;
use anabranch_testkit::Role;

use super::{jit, machine, world_config};

const LIMIT: Duration = Duration::from_secs(30);

/// A file by which rank 0 tells where it listens.
pub fn address_file(test: &str) -> PathBuf {
    let name = format!("{test}-{}-address", std::process::id());
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_file(&file);
    file
}

/// The world of the processes that were started with the file as their argument.
pub fn process_world(role: &Role) -> World {
    let rendezvous = Arc::new(rendezvous(role, Path::new(&role.argument)));
    let device = machine(role.size, 4).runtime().device(DeviceOrdinal(role.rank)).unwrap();
    World::join(world_config(), device, jit(), rendezvous).unwrap()
}

fn rendezvous(role: &Role, file: &Path) -> TcpRendezvous {
    let config = |address: String| {
        let rank = GlobalRank::new(role.rank);
        let mut config = TcpConfig::new(address, rank, role.size, Deadline::after(LIMIT));
        config.token = Token::new("test");
        config
    };
    if role.rank == 0 {
        let root = TcpRoot::bind("127.0.0.1:0").unwrap();
        let address = root.address().to_string();
        let partial = file.with_extension("partial");
        std::fs::write(&partial, &address).unwrap();
        std::fs::rename(&partial, file).unwrap();
        return TcpRendezvous::join_with_root(config(address), root).unwrap();
    }
    let end = Instant::now() + LIMIT;
    let address = loop {
        match std::fs::read_to_string(file) {
            Ok(address) => break address,
            Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
            Err(error) => panic!("{error}"),
        }
    };
    TcpRendezvous::join(config(address)).unwrap()
}
