//! One rank's process.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group, set_parent_process_death_signal};

use super::{Launch, Output};

/// What other launchers set. A rank must see one launcher only.
const FOREIGN: &[&str] = &[
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_LOCALID",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
    "PMIX_RANK",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    "GROUP_RANK",
    "NODE_RANK",
    "FLUX_TASK_RANK",
    "ANABRANCH_RANK",
    "ANABRANCH_BOOTSTRAP",
    "ANABRANCH_SECRET_FILE",
    "ANABRANCH_INSECURE",
    "ANABRANCH_IFNAME",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
];

/// A started rank, in a process group of its own.
#[derive(Debug)]
pub(crate) struct RankProcess {
    pub(crate) rank: u32,
    pub(crate) child: Child,
}

/// The rendezvous of one world. Not printable: it contains the secret.
#[derive(Clone)]
pub(crate) struct Meeting {
    pub(crate) port: u16,
    pub(crate) secret: String,
}

impl RankProcess {
    /// Starts one rank. Call it on the thread that lives as long as the launcher: the kernel sends the
    /// parent-death signal when that *thread* ends.
    pub(crate) fn start(launch: &Launch, rank: u32, meeting: &Meeting) -> io::Result<Self> {
        let mut command = Command::new(&launch.program);
        command.args(&launch.arguments);
        for name in FOREIGN {
            command.env_remove(name);
        }
        for (name, value) in [
            ("RANK", rank),
            ("WORLD_SIZE", launch.ranks),
            ("LOCAL_RANK", rank),
            ("LOCAL_WORLD_SIZE", launch.ranks),
            ("MASTER_PORT", u32::from(meeting.port)),
        ] {
            command.env(name, value.to_string());
        }
        command.envs(launch.environment.iter().map(|(name, value)| (name, value)));
        command.env("MASTER_ADDR", "127.0.0.1").env("ANABRANCH_SECRET", &meeting.secret);
        // A rank in another process group that read the terminal would be stopped by it.
        command.stdin(Stdio::null()).process_group(0);
        if launch.output != Output::RootOnly || rank != 0 {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        die_with_parent(&mut command);
        Ok(Self { rank, child: command.spawn()? })
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> Option<Pid> {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Sends a signal to the rank and everything it started. It must not have been reaped yet.
    pub(crate) fn signal(&self, signal: Signal) {
        let sent = self.pid().map(|pid| kill_process_group(pid, signal));
        if let Some(Err(error)) = sent {
            tracing::debug!(rank = self.rank, ?signal, %error, "the signal reached no process");
        }
    }
}

#[expect(unsafe_code, reason = "there is no safe way to ask for the parent-death signal of a child")]
fn die_with_parent(command: &mut Command) {
    let launcher = rustix::process::getpid();
    let ask = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The launcher may have ended before the request was made; then no signal would come.
        match rustix::process::getppid() {
            Some(parent) if parent == launcher => Ok(()),
            _ => Err(io::Error::from(io::ErrorKind::BrokenPipe)),
        }
    };
    // SAFETY: pre_exec's closure runs between fork and exec, where only async-signal-safe calls are allowed:
    // this one makes the system calls prctl and getppid directly, allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(ask);
    }
}
