//! Internode collectives between processes, by software NICs over sockets, against the oracle; and a process that is killed during them.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::Duration;

use crate::common::nics::config_on;
use crate::common::processes::{address_file, world_by};
use crate::common::world_config;
use anabranch_ccl::{Across, CclConfig, Collective, Communicator, DataType, Error};
use anabranch_conformance::ccl::{self as conformance, Case, Scratch};
use anabranch_hip::with_causes;
use anabranch_ranks::GroupRank;
use anabranch_shmem::{World, WorldConfig};
use anabranch_softnic::{Adversary, Listen, SoftNicConfig, SoftNics};
use anabranch_testkit::{Ranks, Role, role, said, say, test_path};

const LIMIT: Duration = Duration::from_secs(120);

/// Ranks per node in a group of this size: two nodes of two or of four, or three of two.
const fn each(size: u32) -> u32 {
    if size == 8 { 4 } else { 2 }
}

fn join(role: &Role, kind: &str, seed: u64, file: &Path) -> World {
    let listen = match kind {
        "tcp" => Listen::Tcp(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        _ => Listen::Abstract,
    };
    let adversary = (seed > 0).then(|| Adversary::new(seed));
    let nics = SoftNics::by_sockets(listen, SoftNicConfig { adversary, ..SoftNicConfig::default() });
    let config = WorldConfig { heap_bytes: 16 << 20, ..world_config() };
    let mut config = config_on(role.rank / each(role.size), nics, &config);
    config.rdma.patience = Duration::from_secs(2);
    world_by(role, file, config)
}

/// Collectives that move bytes and one that reduces, in both forms, `rounds` times.
fn calls(world: &World, rounds: u64) -> Result<(), Error> {
    let stream = world.device().create_stream()?;
    let collectives =
        [Collective::AllGather, Collective::AllToAll, Collective::Broadcast, Collective::AllReduce];
    for across in [Across::Direct, Across::Node] {
        let config = CclConfig { max_blocks: 2, staging_bytes: 64 << 10, across, ..CclConfig::default() };
        let mut communicator = Communicator::new(world, world.group(), config)?;
        let mut scratch = Scratch::new(world, &communicator, 1 << 20)?;
        for seed in 0..rounds {
            for collective in collectives {
                let root = GroupRank::new(seed as u32 % world.size());
                let case =
                    Case { seed, root, ..Case::new(collective, DataType::F32, 700 + 900 * (seed % 3)) };
                match communicator.explain(&case.shape(world.size())) {
                    // None of its data is for several members of a node.
                    Err(Error::Algorithm { .. }) if across == Across::Node => continue,
                    explained => drop(explained?),
                }
                conformance::run(&mut communicator, &mut scratch, &case, &stream)?
                    .unwrap_or_else(|failure| panic!("{case}: {failure}"));
            }
        }
        scratch.release()?;
    }
    Ok(())
}

#[test]
#[ignore = "extended"]
fn processes_on_several_nodes() {
    if let Some(role) = role() {
        let mut words = role.argument.splitn(3, ' ');
        let (kind, seed) = (words.next().unwrap(), words.next().unwrap().parse().unwrap());
        let world = join(&role, kind, seed, Path::new(words.next().unwrap()));
        calls(&world, 3).unwrap();
        world.leave().unwrap();
        world.rendezvous().leave().unwrap();
        return;
    }
    for (kind, size, seed) in [("unix", 4, 0), ("tcp", 4, 7), ("unix", 8, 0), ("unix", 6, 8)] {
        let file = address_file(&format!("ccl-network-{kind}-{size}"));
        let argument = format!("{kind} {seed} {}", file.display());
        Ranks::start(test_path!("processes_on_several_nodes"), size, &argument)
            .unwrap()
            .succeed(LIMIT)
            .unwrap();
    }
}

#[test]
fn killed_process_is_named_on_all_ranks() {
    if let Some(role) = role() {
        let world = join(&role, "unix", 0, Path::new(&role.argument));
        // The process may be killed while others still end the first call.
        let first = calls(&world, 1);
        say("ready", "");
        let error = first.and_then(|()| calls(&world, 10_000)).unwrap_err();
        say("failed", &with_causes(&error));
        return;
    }
    let file = address_file("ccl-network-killed");
    let mut ranks =
        Ranks::start(test_path!("killed_process_is_named_on_all_ranks"), 4, &file.display().to_string())
            .unwrap();
    ranks.processes()[3].wait_for("@ready", LIMIT).unwrap();
    ranks.processes()[3].kill().unwrap();
    for outcome in &ranks.wait(LIMIT).unwrap()[..3] {
        let (_, text) = said(&outcome.output, "failed").unwrap_or_else(|| panic!("{}", outcome.output));
        assert!(text.contains("rank 3 died") || text.contains("to rank 3"), "{text}");
    }
}
