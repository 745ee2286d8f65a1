//! Rank, size and the root's address, as launchers give them to processes.
//!
//! [`from_environment`] looks for launchers in this order, by the variable that holds the rank:
//!
//! 1. Any that sets `ANABRANCH_RANK`, `ANABRANCH_WORLD_SIZE`, `ANABRANCH_LOCAL_RANK` and `ANABRANCH_LOCAL_WORLD_SIZE`.
//! 2. torchrun, and `anabranch run`, which sets the same (`RANK`). Before the others, because torchrun is often started
//!    by one of them, whose variables then mean the agent and not the rank.
//! 3. Open MPI (`OMPI_COMM_WORLD_RANK`).
//! 4. Flux (`FLUX_TASK_RANK`), before MPICH, whose variables it sets too. It does not say how many ranks are on this
//!    machine; where `FLUX_JOB_SIZE` is no multiple of `FLUX_JOB_NNODES`, the first form says it.
//! 5. MPICH and what descends from it (`PMI_RANK`), unless SLURM gives the same rank and size: then it was
//!    `srun` that set both, and SLURM's variables say more.
//! 6. SLURM (`SLURM_PROCID`), within a step (`SLURM_STEP_ID`): in the shell of a batch job, `SLURM_PROCID` is 0 too.
//!
//! The root's address is, in this order:
//!
//! 1. `ANABRANCH_BOOTSTRAP` as `host:port`, whatever the launcher.
//! 2. `MASTER_ADDR` and `MASTER_PORT` + [`Options::port_offset`]. The offset is 1 unless chosen otherwise:
//!    torchrun's own store may occupy `MASTER_PORT` itself.
//! 3. With SLURM, the first host of `SLURM_STEP_NODELIST` (or `SLURM_JOB_NODELIST`), and a port between 20000
//!    and 31999, below the ports that systems give out by themselves: 20000 + (31 x `SLURM_JOB_ID` +
//!    `SLURM_STEP_ID`) mod 12000. This presumes that rank 0 runs on the first host, as it does by default.
//!
//! The secret is `ANABRANCH_SECRET`, or what the file `ANABRANCH_SECRET_FILE` holds, without white space around it; the
//! file must belong to this process's user or to root, with mode 0600 or 0400. `anabranch run`
//! sets the first. Other launchers set none: then ranks on one machine use its loopback interface, and ranks on
//! several machines are refused ([`Error::Unprotected`]) unless `ANABRANCH_INSECURE=1` is set.
//!
//! The session distinguishes one run of a job from the next; see [`Launch::session`].

mod session;
mod slurm;

use crate::{Error, Secret, Session};
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// Who started this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Launcher {
    /// Any that sets `ANABRANCH_RANK`.
    Explicit,
    /// torchrun, or another that sets the same variables (`anabranch run` among them).
    Torchrun,
    /// mpirun of Open MPI.
    OpenMpi,
    /// flux run.
    Flux,
    /// mpiexec of MPICH or one of its descendants.
    Mpich,
    /// srun.
    Slurm,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Explicit => "ANABRANCH_RANK",
            Self::Torchrun => "torchrun",
            Self::OpenMpi => "Open MPI",
            Self::Flux => "Flux",
            Self::Mpich => "MPICH",
            Self::Slurm => "SLURM",
        })
    }
}

/// A rank's place, from its launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The rank, below `size`.
    pub rank: u32,
    /// Ranks in the world.
    pub size: u32,
    /// The rank among those on this machine, below `local_size`.
    pub local_rank: u32,
    /// Ranks on this machine.
    pub local_size: u32,
    /// Where the root is, as `host:port`; several, separated by commas, when `ANABRANCH_BOOTSTRAP` names several.
    pub address: String,
    /// The job's secret; [`Secret::none`] when none was handed out.
    pub secret: Secret,
    /// Whether ranks may meet without a secret where other machines reach them.
    pub insecure: bool,
    /// Which run of the job this is, and which start of it, as far as the launcher says: torchrun's run id and, on one machine,
    /// its restart count; SLURM's job and step and how often the job was queued again; Open MPI's and MPICH's job.
    pub session: Session,
    /// The network interface that rank 0 listens on, when `ANABRANCH_IFNAME` names one.
    pub interface: Option<String>,
    /// The launcher whose variables these are.
    pub origin: Launcher,
}

/// What the caller may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Added to `MASTER_PORT`.
    pub port_offset: u16,
}

impl Default for Options {
    /// One port above `MASTER_PORT`.
    fn default() -> Self {
        Self { port_offset: 1 }
    }
}

/// Finds this process's place with the default [`Options`]. `lookup` gives a variable's value; a variable
/// that is set to nothing counts as not set.
///
/// # Errors
/// [`Error::NoLauncher`], [`Error::Variable`], [`Error::Secret`].
pub fn from_environment(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Launch, Error> {
    from_environment_with(lookup, Options::default())
}

/// Finds this process's place; see [`from_environment`].
///
/// # Errors
/// [`Error::NoLauncher`], [`Error::Variable`], [`Error::Secret`].
pub fn from_environment_with(
    lookup: &dyn Fn(&str) -> Option<String>,
    options: Options,
) -> Result<Launch, Error> {
    let launcher = find(&Variables { lookup, launcher: Launcher::Torchrun })?;
    let variables = Variables { lookup, launcher };
    let names = names(&variables);
    let size: u32 = variables.number(names[1], "the number of ranks")?;
    if size == 0 {
        return Err(malformed(names[1], "0", "a world has at least one rank"));
    }
    let rank = variables.below(names[0], "the rank", size, names[1])?;
    let local_size = match launcher {
        Launcher::Slurm => slurm::local_size(&variables)?,
        Launcher::Flux => flux_local_size(&variables, size)?,
        _ => variables.number(names[3], "the number of ranks on this machine")?,
    };
    if local_size == 0 || local_size > size {
        let expected = format!("between 1 and {}={size}", names[1]);
        return Err(malformed(names[3], &local_size.to_string(), &expected));
    }
    let local_rank = variables.below(names[2], "the rank on this machine", local_size, names[3])?;
    let mut address = address(&variables, options)?;
    let secret = secret(&variables)?;
    let insecure = switch(&variables, INSECURE)?;
    let one_machine = local_size == size;
    let interface = variables.get("ANABRANCH_IFNAME");
    let chosen = variables.get(BOOTSTRAP).is_some() || interface.is_some();
    // All ranks are on this machine: the loopback interface is enough, and keeps others out.
    if one_machine
        && secret.is_none()
        && !insecure
        && !chosen
        && let Some((_, port)) = address.rsplit_once(':')
    {
        address = host_and_port("127.0.0.1", port);
    }
    let session = session::of(&variables, one_machine)?;
    let origin = launcher;
    Ok(Launch { rank, size, local_rank, local_size, address, secret, insecure, session, interface, origin })
}

/// The variables of rank, size, local rank and local size.
fn names(variables: &Variables<'_>) -> [&'static str; 4] {
    let first = |names: &[&'static str; 2]| match variables.get(names[1]) {
        Some(_) if variables.get(names[0]).is_none() => names[1],
        _ => names[0],
    };
    match variables.launcher {
        Launcher::Explicit => {
            ["ANABRANCH_RANK", "ANABRANCH_WORLD_SIZE", "ANABRANCH_LOCAL_RANK", "ANABRANCH_LOCAL_WORLD_SIZE"]
        }
        Launcher::Torchrun => ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"],
        Launcher::OpenMpi => [
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
        ],
        Launcher::Flux => ["FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", "FLUX_JOB_NNODES"],
        Launcher::Mpich => [
            "PMI_RANK",
            "PMI_SIZE",
            first(&["MPI_LOCALRANKID", "PMI_LOCAL_RANK"]),
            first(&["MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"]),
        ],
        Launcher::Slurm => [
            "SLURM_PROCID",
            first(&["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"]),
            "SLURM_LOCALID",
            "SLURM_STEP_TASKS_PER_NODE",
        ],
    }
}

/// Flux spreads tasks evenly where that is possible, and says how many machines there are.
fn flux_local_size(variables: &Variables<'_>, size: u32) -> Result<u32, Error> {
    let nodes: u32 = variables.number("FLUX_JOB_NNODES", "the number of machines")?;
    match size.checked_div(nodes) {
        Some(each) if each * nodes == size => Ok(each),
        _ => {
            let expected = format!(
                "FLUX_JOB_SIZE={size} is no multiple of it, so it does not say how many ranks are on this machine: set \
                 ANABRANCH_RANK, ANABRANCH_WORLD_SIZE, ANABRANCH_LOCAL_RANK and ANABRANCH_LOCAL_WORLD_SIZE"
            );
            Err(malformed("FLUX_JOB_NNODES", &nodes.to_string(), &expected))
        }
    }
}

const BOOTSTRAP: &str = "ANABRANCH_BOOTSTRAP";
const SECRET: &str = "ANABRANCH_SECRET";
const SECRET_FILE: &str = "ANABRANCH_SECRET_FILE";
const INSECURE: &str = "ANABRANCH_INSECURE";

fn secret(variables: &Variables<'_>) -> Result<Secret, Error> {
    match (variables.get(SECRET), variables.get(SECRET_FILE)) {
        (None, None) => Ok(Secret::none()),
        (None, Some(path)) => Secret::read_file(Path::new(&path)),
        (Some(secret), None) if secret.len() < Secret::MIN_BYTES => {
            let problem = format!(
                "the secret has {} bytes, and at least {} are needed",
                secret.len(),
                Secret::MIN_BYTES
            );
            Err(Error::Secret { origin: SECRET.to_owned(), problem, source: None })
        }
        (Some(secret), None) => Ok(Secret::new(secret)),
        (Some(_), Some(path)) => Err(malformed(
            SECRET_FILE,
            &path,
            "ANABRANCH_SECRET is set as well; one of the two says the secret",
        )),
    }
}

fn switch(variables: &Variables<'_>, name: &str) -> Result<bool, Error> {
    match variables.get(name).as_deref() {
        None | Some("0") => Ok(false),
        Some("1") => Ok(true),
        Some(other) => Err(malformed(name, other, "0 or 1")),
    }
}

/// Finds the launcher, in the order that the module states.
fn find(variables: &Variables<'_>) -> Result<Launcher, Error> {
    const NAMES: [(&str, Launcher); 6] = [
        ("ANABRANCH_RANK", Launcher::Explicit),
        ("RANK", Launcher::Torchrun),
        ("OMPI_COMM_WORLD_RANK", Launcher::OpenMpi),
        ("FLUX_TASK_RANK", Launcher::Flux),
        ("PMI_RANK", Launcher::Mpich),
        ("SLURM_PROCID", Launcher::Slurm),
    ];
    let found = NAMES.iter().find(|(name, _)| variables.get(name).is_some());
    let (_, launcher) =
        found.ok_or_else(|| Error::NoLauncher { looked_for: NAMES.map(|(name, _)| name).to_vec() })?;
    let same = |a: &str, b: &str| variables.get(a).is_some() && variables.get(a) == variables.get(b);
    let by_srun = same("PMI_RANK", "SLURM_PROCID")
        && (same("PMI_SIZE", "SLURM_STEP_NUM_TASKS") || same("PMI_SIZE", "SLURM_NTASKS"));
    let launcher = if *launcher == Launcher::Mpich && by_srun { Launcher::Slurm } else { *launcher };
    if launcher == Launcher::Slurm {
        let variables = Variables { launcher, ..*variables };
        variables.need("SLURM_STEP_ID", "which srun sets for the ranks that it starts")?;
    }
    Ok(launcher)
}

fn address(variables: &Variables<'_>, options: Options) -> Result<String, Error> {
    if let Some(given) = variables.get(BOOTSTRAP) {
        let is_address = |candidate: &str| {
            let parts = candidate.trim().rsplit_once(':').filter(|(host, _)| !host.is_empty());
            matches!(parts.map(|(_, port)| port.parse::<u16>()), Some(Ok(1..)))
        };
        return if given.split(',').all(is_address) {
            Ok(given)
        } else {
            Err(malformed(BOOTSTRAP, &given, "host:port, with a port from 1 to 65535"))
        };
    }
    if let Some(host) = variables.get("MASTER_ADDR") {
        let port: u16 = variables.number("MASTER_PORT", "the port of the root")?;
        let chosen = port.checked_add(options.port_offset).filter(|port| *port > 0).ok_or_else(|| {
            let expected = format!("with the port offset {} it is no port (1 to 65535)", options.port_offset);
            malformed("MASTER_PORT", &port.to_string(), &expected)
        })?;
        return Ok(host_and_port(&host, chosen));
    }
    match variables.launcher {
        Launcher::Slurm => {
            let (host, port) = slurm::root(variables)?;
            Ok(host_and_port(&host, port))
        }
        Launcher::Torchrun => Err(variables.missing("MASTER_ADDR", "the host of the root")),
        Launcher::Explicit | Launcher::OpenMpi | Launcher::Flux | Launcher::Mpich => Err(variables
            .missing("ANABRANCH_BOOTSTRAP or MASTER_ADDR", "where the root is, as host:port or a host")),
    }
}

fn host_and_port(host: &str, port: impl fmt::Display) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// Looks variables up and words what is wrong with them.
struct Variables<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
    launcher: Launcher,
}

impl Variables<'_> {
    fn get(&self, name: &str) -> Option<String> {
        (self.lookup)(name).filter(|value| !value.is_empty())
    }

    fn need(&self, name: &str, purpose: &'static str) -> Result<String, Error> {
        self.get(name).ok_or_else(|| self.missing(name, purpose))
    }

    fn missing(&self, name: &str, purpose: &'static str) -> Error {
        let problem = format!("{} is the launcher, but {name} ({purpose}) is not set", self.launcher);
        Error::Variable { variable: name.to_owned(), problem }
    }

    fn number<N: FromStr + fmt::Display>(&self, name: &str, purpose: &'static str) -> Result<N, Error> {
        let value = self.need(name, purpose)?;
        value.trim().parse().map_err(|_| {
            let bits = 8 * size_of::<N>();
            malformed(name, &value, &format!("a whole number of at most {bits} bits, not negative"))
        })
    }

    fn below(&self, name: &str, purpose: &'static str, bound: u32, bound_name: &str) -> Result<u32, Error> {
        let number: u32 = self.number(name, purpose)?;
        if number < bound {
            Ok(number)
        } else {
            Err(malformed(name, &number.to_string(), &format!("below {bound_name}={bound}")))
        }
    }
}

fn malformed(variable: &str, value: &str, expected: &str) -> Error {
    Error::Variable { variable: variable.to_owned(), problem: format!("{variable}={value}: {expected}") }
}
