//! Two processes, each with a NIC, do by the rings of [`anabranch_transport_rdma::PostedDriver`] what kernels do: put, get, values, atomic
//! operations, signals behind data, full rings, wrong keys, and a peer that is killed.
//!
//! ```text
//! two_nics NIC NIC      the names of two NICs of this machine whose ports reach one another
//! ```
//!
//! Needs `libibverbs` and two such NICs. `scripts/rdma-vm/run.sh` runs it where there is none:
//!
//! ```text
//! cargo build -p anabranch-transport-rdma --example two_nics
//! scripts/rdma-vm/run.sh target/debug/examples/two_nics rxe0 rxe1
//! ```
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it reports to a terminal")]

mod cases;
mod kernel;
mod link;
mod member;

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail, ensure};

use crate::link::Link;
use crate::member::Member;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("two_nics: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [first, second] => both(first, second),
        // How the first process starts the others.
        ["--first", nic, socket] => active(nic, Path::new(socket)),
        ["--second", nic, socket] => passive(nic, Path::new(socket)),
        _ => bail!("usage: two_nics NIC NIC"),
    }
}

/// Starts a process for each NIC; the first tells how it went, the second ends by being killed.
fn both(first: &str, second: &str) -> Result<()> {
    let socket = std::env::temp_dir().join(format!("two-nics-{}", std::process::id()));
    let program = std::env::current_exe()?;
    let start = |role: &str, nic: &str| Command::new(&program).args([role, nic]).arg(&socket).spawn();
    let mut passive = start("--second", second)?;
    let active = start("--first", first)?.wait()?;
    // Where the first failed, the second may be waiting for it.
    let ended = passive.try_wait()?;
    if ended.is_none() {
        passive.kill()?;
    }
    let status = passive.wait()?;
    // It is there only while it is listened to.
    let _ = std::fs::remove_file(&socket);
    ensure!(active.success(), "the first process ended with {active}, the second with {status}");
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    ensure!(signal == Some(rustix::process::Signal::KILL.as_raw()), "the second process ended with {status}");
    Ok(())
}

fn active(nic: &str, socket: &Path) -> Result<()> {
    let link = Link::connect(socket).context("reaching the second process")?;
    let mut member = Member::join(nic, link, 0, 1)?;
    println!("first: {}", member.describe());
    cases::run_active(&mut member)
}

fn passive(nic: &str, socket: &Path) -> Result<()> {
    let link = Link::listen(socket).context("waiting for the first process")?;
    let mut member = Member::join(nic, link, 1, 0)?;
    println!("second: {}", member.describe());
    cases::run_passive(&mut member)
}
