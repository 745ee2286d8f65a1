//! Ranks as real processes, one of which is killed or stopped: this binary starts itself again.
#![expect(
    clippy::disallowed_methods,
    reason = "tests of real threads and processes run on the machine's time"
)]

use crate::common::{Barrier, config, soon};
use anabranch_bootstrap::{
    Deadline, Error, Heartbeat, LossKind, Rendezvous, TcpConfig, TcpRendezvous, TcpRoot,
};
use anabranch_ranks::{GlobalRank, Group};
use anabranch_testkit::test_path;
use rustix::process::{Pid, Signal, kill_process};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Tells a child its rank and the root's address, as `rank@address`.
const ROLE: &str = "RENDEZVOUS_TEST_ROLE";

/// Ends a child whatever happens to the test.
struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn spawn(rank: u32, address: &str) -> Reaped {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test_path!("child_rank"), "--ignored", "--nocapture"])
        .env(ROLE, format!("{rank}@{address}"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    Reaped(child)
}

fn heartbeat() -> Heartbeat {
    Heartbeat { interval: Duration::from_millis(100), limit: Duration::from_secs(2) }
}

#[test]
#[ignore = "not a test by itself: the others start it as a rank"]
#[expect(clippy::disallowed_methods, reason = "a child of this test has no other way to learn its role")]
fn child_rank() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (rank, address) = role.split_once('@').unwrap();
    let rank: u32 = rank.parse().unwrap();
    let config = TcpConfig { heartbeat: heartbeat(), ..config(rank, 3, address) };
    let rendezvous = TcpRendezvous::join(config).unwrap();
    let world = Group::world(3).unwrap();
    rendezvous.set(&format!("pid {rank}"), &std::process::id().to_le_bytes()).unwrap();
    // Ranks 1 and 2 wait for what never comes, until a rank is lost.
    let error = rendezvous.barrier(&world, "never", Deadline::after(Duration::from_secs(20))).unwrap_err();
    let Error::PeerLost { loss, .. } = error else { panic!("{error}") };
    let report = format!("{} {}", loss.rank.get(), loss.kind);
    // When the root is lost, only the parent can get the report.
    let exit = i32::from(rendezvous.set(&format!("report {rank}"), report.as_bytes()).is_err()) * 7;
    if exit == 0 {
        rendezvous.leave().unwrap();
    } else {
        assert_eq!(report, "0 died");
    }
}

/// Rank 0 is this process; ranks 1 and 2 are children. Rank 2 gets the signal.
fn lose_rank_2_by(signal: Signal, within: Duration) {
    let root = TcpRoot::bind("127.0.0.1:0").unwrap();
    let address = root.address().to_string();
    let mut children = [1, 2].map(|rank| spawn(rank, &address));
    let config = TcpConfig { heartbeat: heartbeat(), ..config(0, 3, &address) };
    let rendezvous = TcpRendezvous::join_with_root(config, root).unwrap();
    let world = Group::world(3).unwrap();
    let pid = rendezvous.wait("pid 2", soon()).unwrap();
    assert_eq!(pid, children[1].0.id().to_le_bytes());
    kill_process(Pid::from_child(&children[1].0), signal).unwrap();
    let started = Instant::now();
    let error = rendezvous.barrier(&world, "rows", soon()).unwrap_err();
    assert!(started.elapsed() < within, "{:?}", started.elapsed());
    let Error::PeerLost { loss, .. } = &error else { panic!("{error}") };
    assert_eq!((loss.rank, loss.kind), (GlobalRank::new(2), LossKind::Died), "{error}");
    assert_eq!(rendezvous.wait("report 1", soon()).unwrap(), b"2 died");
    rendezvous.leave().unwrap();
    assert!(children[0].0.wait().unwrap().success());
}

#[test]
fn a_killed_process_is_noticed_by_all() {
    lose_rank_2_by(Signal::KILL, Duration::from_millis(1500));
}

#[test]
fn a_stopped_process_is_noticed_by_its_silence() {
    lose_rank_2_by(Signal::STOP, Duration::from_secs(8));
}

#[test]
fn a_killed_root_process_is_noticed_by_all() {
    // The port is chosen here and free again; the child that is rank 0 binds it next.
    let address = TcpRoot::bind("127.0.0.1:0").unwrap().address().to_string();
    let mut root = spawn(0, &address);
    let mut other = spawn(1, &address);
    let config = TcpConfig { heartbeat: heartbeat(), ..config(2, 3, &address) };
    let rendezvous = TcpRendezvous::join(config).unwrap();
    rendezvous.wait("pid 1", soon()).unwrap();
    root.0.kill().unwrap();
    let error = rendezvous.barrier(&Group::world(3).unwrap(), "rows", soon()).unwrap_err();
    let Error::PeerLost { loss, .. } = &error else { panic!("{error}") };
    assert_eq!((loss.rank, loss.kind), (GlobalRank::new(0), LossKind::Died), "{error}");
    assert!(other.0.wait().unwrap().success(), "the other child saw rank 0 die too");
}
