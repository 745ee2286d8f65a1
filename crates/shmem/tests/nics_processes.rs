//! Worlds across machines whose ranks are processes: NICs in software that talk over sockets; a process that is killed.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::support::engines::exchange;
use crate::support::nics::{Machines, soft};
use anabranch_bootstrap::Deadline;
use anabranch_ranks::GlobalRank;
use anabranch_shmem::World;
use anabranch_softnic::{Listen, NicFaults, SoftNics, Syndrome};
use anabranch_testkit::{Ranks, Role, meet, role, test_path};

const LIMIT: Duration = Duration::from_secs(120);
/// Two machines of two ranks.
const SIZES: [u32; 2] = [2, 2];

fn address_file(test: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join(format!("{test}-{}-address", std::process::id()));
    let _ = std::fs::remove_file(&file);
    file
}

fn join(role: &Role, listen: Listen, file: &Path, deadline: Duration) -> World {
    join_with(role, SoftNics::by_sockets(listen, soft(None)), &SIZES, file, deadline)
}

fn join_with(role: &Role, nics: SoftNics, sizes: &[u32], file: &Path, deadline: Duration) -> World {
    let mut machines = Machines::new(sizes, 4, nics);
    machines.bench.config.operation_deadline = deadline;
    machines.bench.config.rdma.patience = Duration::from_secs(2);
    let setup = machines.setup(GlobalRank::new(role.rank)).unwrap();
    let own = Role { rank: role.rank, size: role.size, argument: String::new() };
    let rendezvous = meet(&own, file, Duration::from_secs(30), || ()).unwrap();
    World::join(setup.config, setup.device, setup.jit, Arc::new(rendezvous)).unwrap()
}

#[test]
fn processes_reach_other_machines_by_nics() {
    if let Some(role) = role() {
        let (kind, file) = role.argument.split_once(' ').unwrap();
        let listen = match kind {
            "tcp" => Listen::Tcp(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            _ => Listen::Abstract,
        };
        let world = join(&role, listen, Path::new(file), Duration::from_secs(60));
        exchange(&world, 5).unwrap();
        for route in world.routes() {
            println!("{route}");
        }
        world.leave().unwrap();
        world.rendezvous().leave().unwrap();
        return;
    }
    for kind in ["unix", "tcp"] {
        let file = address_file(&format!("nics-{kind}"));
        let argument = format!("{kind} {}", file.display());
        let ranks = Ranks::start(test_path!("processes_reach_other_machines_by_nics"), 4, &argument).unwrap();
        let outcomes = ranks.succeed(LIMIT).unwrap();
        let output = &outcomes[0].output;
        assert!(output.contains("rank 1: p2p (same host, IPC handle"), "{output}");
        assert!(output.contains("rank 2: rdma (2 queue pairs, mlx5, by a NIC in software"), "{output}");
    }
}

#[test]
fn a_killed_process_is_named() {
    if let Some(role) = role() {
        let world = join(&role, Listen::Abstract, Path::new(&role.argument), Duration::from_secs(20));
        let first = exchange(&world, 1);
        if role.rank == 3 {
            first.unwrap();
            println!("ready");
            // Until it is killed.
            let _ = world.rendezvous().wait("nobody sets this", Deadline::after(LIMIT));
            return;
        }
        // It may be killed while others are still at the end of the first.
        let error = first.and_then(|()| exchange(&world, 1000)).unwrap_err();
        println!("{error}");
        return;
    }
    let file = address_file("nics-killed");
    let mut ranks =
        Ranks::start(test_path!("a_killed_process_is_named"), 4, &file.display().to_string()).unwrap();
    ranks.processes()[3].wait_for("ready", LIMIT).unwrap();
    ranks.processes()[3].kill().unwrap();
    let outcomes = ranks.wait(LIMIT).unwrap();
    for outcome in &outcomes[..3] {
        assert!(outcome.output.contains("rank 3 "), "{}", outcome.output);
    }
}

/// A request of one rank fails, and both processes end with the first error, at once: the other names the rank, the syndrome and the
/// operation all the same. Rank 0 has the store of what was said in its process.
#[test]
fn the_cause_outlives_the_process_whose_request_failed() {
    if let Some(role) = role() {
        let (victim, file) = role.argument.split_once(' ').unwrap();
        let faults = NicFaults { fails: Some((40, Syndrome::RemoteAccess)), ..NicFaults::default() };
        let victim = GlobalRank::new(victim.parse().unwrap());
        let nics = SoftNics::by_sockets(Listen::Abstract, soft(None)).with_faults(victim, faults);
        let world = join_with(&role, nics, &[1, 1], Path::new(file), Duration::from_secs(20));
        println!("{}", exchange(&world, 1000).unwrap_err());
        return;
    }
    for victim in [0, 1] {
        let file = address_file(&format!("nics-cause-{victim}"));
        let argument = format!("{victim} {}", file.display());
        let ranks =
            Ranks::start(test_path!("the_cause_outlives_the_process_whose_request_failed"), 2, &argument)
                .unwrap();
        for outcome in &ranks.wait(LIMIT).unwrap() {
            let text = &outcome.output;
            assert!(text.contains(&format!("rank {victim} found in ")), "{text}");
            assert!(text.contains("syndrome 0x13"), "{text}");
            let operation = ["operation 0x1001 of the user", "requests by NIC", "team barrier"];
            assert!(operation.iter().any(|words| text.contains(words)), "{text}");
        }
    }
}
