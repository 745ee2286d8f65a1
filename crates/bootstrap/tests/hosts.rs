//! Ranks on two hosts: network namespaces, joined by a cable, in which this binary starts itself again. Needs root and iproute2;
//! without them, it says so and tests nothing.
#![expect(
    clippy::disallowed_methods,
    reason = "tests of real processes run on the machine's time, and their children learn their role from the environment"
)]

use crate::common::{Barrier, soon};
use anabranch_bootstrap::{
    Deadline, Error, Heartbeat, LossKind, Rendezvous, Secret, TcpConfig, TcpRendezvous,
};
use anabranch_ranks::{GlobalRank, Group};
use anabranch_testkit::test_path;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

/// Tells a child what to do, as `what rank address interface secret`, with `-` for none.
const ROLE: &str = "RENDEZVOUS_HOSTS_ROLE";
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/two-hosts.sh");
/// Nothing else is in the namespaces.
const PORT: u16 = 29_400;
/// What a child says when it is told that the other one is lost.
const LOST: &str = "it is lost";

/// Two hosts, until dropped.
struct Hosts(String);

impl Hosts {
    /// `None`, with the reason printed, where this process may not make them.
    fn new(name: &str) -> Option<Self> {
        let name = format!("anabranch-{}-{name}", std::process::id());
        let made = Command::new(SCRIPT).args(["up", &name]).output().unwrap();
        if made.status.success() {
            return Some(Self(name));
        }
        println!(
            "skipped: no network namespaces here, which take root and iproute2: {}",
            String::from_utf8_lossy(&made.stderr).trim()
        );
        None
    }

    fn on(&self, host: &str, program: &str) -> Command {
        let mut command = Command::new(SCRIPT);
        command.args([host, &self.0, program]);
        command
    }

    /// Starts a rank on a host; it says `joined` when it has.
    fn rank(&self, host: &str, role: &str) -> Rank {
        let mut child = self
            .on(host, std::env::current_exe().unwrap().to_str().unwrap())
            .args(["--exact", test_path!("child_rank"), "--ignored", "--nocapture"])
            .env(ROLE, role)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Rank { child, output }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let _ = Command::new(SCRIPT).args(["down", &self.0]).status();
    }
}

/// A rank's process, ended whatever happens to the test.
struct Rank {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Rank {
    fn wait_for(&mut self, words: &str) {
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            if line.contains(words) {
                return;
            }
            line.clear();
        }
        panic!("it ended before it said {words:?}");
    }

    /// What else it says, when it has ended well.
    fn finish(mut self) -> String {
        let mut said = String::new();
        self.output.read_to_string(&mut said).unwrap();
        assert!(self.child.wait().unwrap().success(), "{said}");
        said
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "not a test by itself: the others start it as a rank"]
fn child_rank() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let [what, rank, address, interface, secret] = role.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{role}")
    };
    let given = |value: &str| (value != "-").then(|| value.to_owned());
    let config = TcpConfig {
        secret: given(secret).map_or_else(Secret::none, Secret::new),
        interface: given(interface),
        heartbeat: Heartbeat { interval: Duration::from_millis(100), limit: Duration::from_secs(1) },
        linger: Duration::from_secs(1),
        ..TcpConfig::new(address, GlobalRank::new(rank.parse().unwrap()), 2, soon())
    };
    if what == "unprotected" {
        let error = TcpRendezvous::join(config).unwrap_err();
        assert!(matches!(error, Error::Unprotected { .. }), "{error}");
        println!("{error}");
        return;
    }
    let rendezvous = TcpRendezvous::join(config).unwrap();
    println!("\njoined");
    let world = Group::world(2).unwrap();
    match what {
        "exchange" => {
            let mine = vec![rendezvous.rank().get() as u8; 300_000];
            let all = rendezvous.all_gather(&world, "rows", &mine, soon()).unwrap();
            assert_eq!(all, [vec![0; 300_000], vec![1; 300_000]]);
            // Rank 0 stays until the test has looked at where it listens.
            if rendezvous.rank().get() == 0 {
                std::io::stdin().read_line(&mut String::new()).unwrap();
            }
            rendezvous.barrier(&world, "end", soon()).unwrap();
            rendezvous.leave().unwrap();
        }
        "lose" => {
            let end = Deadline::after(Duration::from_secs(8));
            let loss = loop {
                match rendezvous.losses().pop() {
                    Some(loss) => break loss,
                    None => assert!(!end.expired(), "nobody noticed"),
                }
                thread::sleep(Duration::from_millis(10));
            };
            assert_eq!((loss.rank.get(), loss.kind), (1 - rendezvous.rank().get(), LossKind::Died));
            // The host whose own interface went down may hear of it from its system first.
            assert!(["silent", "failed"].iter().any(|word| loss.detail.contains(word)), "{loss}");
            println!("{LOST}: {loss}");
        }
        other => panic!("{other}"),
    }
}

#[test]
fn ranks_on_two_hosts_meet_over_either_family_and_listen_on_one_interface() {
    let Some(hosts) = Hosts::new("meet") else { return };
    // The first of several candidates is on an interface that has no cable in it.
    let candidates = format!("10.78.0.1:{PORT},10.77.0.1:{PORT}");
    for (listens, reached) in [
        (format!("10.77.0.1:{PORT}"), format!("10.77.0.1:{PORT}")),
        (format!("[fd77::1]:{PORT}"), format!("[fd77::1]:{PORT}")),
        (format!("10.77.0.1:{PORT}"), candidates),
    ] {
        let secret = "one-for-both-hosts";
        let mut root = hosts
            .on("a", std::env::current_exe().unwrap().to_str().unwrap())
            .args(["--exact", test_path!("child_rank"), "--ignored", "--nocapture"])
            .env(ROLE, format!("exchange 0 {listens} cable {secret}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(root.stdout.take().unwrap());
        let go_on = root.stdin.take();
        let mut root = Rank { child: root, output };
        let mut other = hosts.rank("b", &format!("exchange 1 {reached} - {secret}"));
        root.wait_for("joined");
        other.wait_for("joined");
        for (address, listened) in
            [("10.77.0.1", true), ("fd77::1", true), ("10.78.0.1", false), ("127.0.0.1", false)]
        {
            let probe = hosts.rank_probe(address);
            assert_eq!(probe, listened, "{address}");
        }
        drop(go_on);
        root.finish();
        other.finish();
    }
}

impl Hosts {
    /// Whether a socket listens at this address of host a, as host a itself sees it.
    fn rank_probe(&self, address: &str) -> bool {
        let probe = self
            .on("a", std::env::current_exe().unwrap().to_str().unwrap())
            .args(["--exact", test_path!("child_probe"), "--ignored", "--nocapture"])
            .env(ROLE, address)
            .output()
            .unwrap();
        assert!(probe.status.success());
        String::from_utf8(probe.stdout).unwrap().contains("listens: true")
    }
}

#[test]
#[ignore = "not a test by itself: the others start it on a host"]
fn child_probe() {
    let Ok(address) = std::env::var(ROLE) else { return };
    let connected = TcpStream::connect((address.as_str(), PORT));
    if let Err(error) = &connected {
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
    }
    println!("\nlistens: {}", connected.is_ok());
}

#[test]
fn hosts_without_a_secret_do_not_meet() {
    let Some(hosts) = Hosts::new("open") else { return };
    for (host, rank) in [("a", 0), ("b", 1)] {
        let said = hosts.rank(host, &format!("unprotected {rank} 10.77.0.1:{PORT} - -")).finish();
        assert!(
            said.contains("no secret keeps them out") && said.contains("ANABRANCH_SECRET_FILE"),
            "{said}"
        );
    }
}

#[test]
fn a_cable_that_is_pulled_is_noticed_on_both_hosts() {
    let Some(hosts) = Hosts::new("pull") else { return };
    let role = |rank| format!("lose {rank} 10.77.0.1:{PORT} - one-for-both-hosts");
    let mut ranks = [hosts.rank("a", &role(0)), hosts.rank("b", &role(1))];
    for rank in &mut ranks {
        rank.wait_for("joined");
    }
    let pulled = hosts.on("b", "ip").args(["link", "set", "cable", "down"]).status().unwrap();
    assert!(pulled.success());
    for rank in ranks {
        let said = rank.finish();
        assert!(said.contains(LOST), "{said}");
    }
}
