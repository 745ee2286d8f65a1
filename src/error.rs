//! One error for programs that use the facade, and what kind of trouble each is.

use std::fmt;
use std::path::PathBuf;

use anabranch_bootstrap::Error as Bootstrap;
use anabranch_ccl::Error as Ccl;
use anabranch_ep::Error as Ep;
use anabranch_hip::RuntimeKind;
use anabranch_hip_jit::Error as Jit;
use anabranch_ranks::{ErrorKind, GlobalRank};
use anabranch_shmem::{Error as Shmem, Fault};

use crate::config::ConfigError;

/// The result of calls in this crate.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Anything that can go wrong between a configuration and the end of a world.
///
/// `Debug` prints the sentence with all causes, as `fn main() -> anabranch::Result<()>` prints what it returns.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(Box<ConfigError>),
    /// The configuration names what this build lacks.
    #[error("{setting}: {}", crate::features::not_built(feature))]
    NotBuilt {
        /// The setting that names it.
        setting: &'static str,
        /// The cargo feature of this crate that has it.
        feature: &'static str,
    },
    /// There is no place for compiled kernels.
    #[error("no directory for compiled kernels: set kernels.cache, XDG_CACHE_HOME or HOME")]
    NoCacheDirectory,
    /// More ranks on this machine than devices.
    #[error(
        "{ranks} ranks on this machine, but {available}; start at most that many; processes share a GPU, in tests, where device.devices lists it more than once"
    )]
    TooManyRanks {
        /// Ranks on this machine.
        ranks: u32,
        /// What limits them, with its number: the runtime's devices, `device.devices`, `device.host.count`.
        available: String,
    },
    /// A runtime could not be opened.
    #[error("cannot open the {kind} runtime")]
    Runtime {
        /// Which.
        kind: RuntimeKind,
        /// The loader's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A seeded machine for ranks in processes of their own.
    #[error(
        "device.host.schedule = \"seeded\" runs ranks that are threads of one process, and {ranks} processes were asked \
         for; use --threads, or the free schedule"
    )]
    SeededProcesses {
        /// Ranks on this machine, one a process.
        ranks: u32,
    },
    /// A rank on this machine that does not exist.
    #[error("local rank {local_rank} does not exist: {ranks} ranks run on this machine")]
    NoSuchLocalRank {
        /// The local rank.
        local_rank: u32,
        /// How many there are.
        ranks: u32,
    },
    /// Ranks of one world have different configurations.
    #[error("{field} differs: {rank} has {value}, but {other} has {other_value}; all ranks need the same")]
    Differs {
        /// The setting.
        field: String,
        /// The first rank that differs.
        rank: GlobalRank,
        /// Its value.
        value: String,
        /// A rank that it was compared with.
        other: GlobalRank,
        /// That rank's value.
        other_value: String,
    },
    /// A thread could not be started.
    #[error("the thread of rank {rank} could not be started")]
    Thread {
        /// The rank.
        rank: u32,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// A file of a trace.
    #[error("trace: {} cannot be read or written", path.display())]
    Trace {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The HIP layer.
    #[error(transparent)]
    Hip(#[from] anabranch_hip::Error),
    /// The kernel pipeline.
    #[error(transparent)]
    Jit(Box<Jit>),
    /// The rendezvous.
    #[error(transparent)]
    Bootstrap(Box<Bootstrap>),
    /// The world and its heap.
    #[error(transparent)]
    Shmem(Box<Shmem>),
    /// Collectives.
    #[error(transparent)]
    Ccl(Box<Ccl>),
    /// Expert parallelism.
    #[error(transparent)]
    Ep(Box<Ep>),
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&anabranch_hip::with_causes(self))
    }
}

/// The causes are boxed, so that results stay small on the way that succeeds.
macro_rules! boxed_cause {
    ($($variant:ident: $cause:ty),* $(,)?) => {$(
        impl From<$cause> for Error {
            fn from(cause: $cause) -> Self {
                Self::$variant(Box::new(cause))
            }
        }
    )*};
}

boxed_cause!(Config: ConfigError, Jit: Jit, Bootstrap: Bootstrap, Shmem: Shmem, Ccl: Ccl, Ep: Ep);

impl Error {
    /// What kind of trouble it is, whichever crate it came from.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Config(_)
            | Self::NotBuilt { .. }
            | Self::TooManyRanks { .. }
            | Self::SeededProcesses { .. }
            | Self::Differs { .. } => ErrorKind::Config,
            Self::NoCacheDirectory | Self::Runtime { .. } | Self::Thread { .. } | Self::Trace { .. } => {
                ErrorKind::Environment
            }
            Self::NoSuchLocalRank { .. } => ErrorKind::Usage,
            Self::Hip(error) => error.kind(),
            Self::Jit(error) => error.kind(),
            Self::Bootstrap(error) => error.kind(),
            Self::Shmem(error) => error.kind(),
            Self::Ccl(error) => error.kind(),
            Self::Ep(error) => error.kind(),
        }
    }
}

impl Error {
    /// The ranks that it is about, ascending: lost, late, or the one that refused or differs. Empty where no rank is known.
    pub fn ranks(&self) -> Vec<GlobalRank> {
        let mut ranks = match self {
            Self::Differs { rank, other, .. } => vec![*rank, *other],
            Self::Bootstrap(error) => of_rendezvous(error),
            _ => match (self.of_world(), self) {
                (Some(error), _) => of_world(error),
                (None, Self::Ep(error)) => match **error {
                    Ep::Unreachable { peer, .. } => vec![peer],
                    _ => Vec::new(),
                },
                (None, _) => Vec::new(),
            },
        };
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// Whether a deadline expired before other ranks came.
    pub fn is_timeout(&self) -> bool {
        let expired = |error: &Bootstrap| {
            matches!(
                error,
                Bootstrap::Expired { .. } | Bootstrap::KeyNotSet { .. } | Bootstrap::Connect { .. }
            )
        };
        match self {
            Self::Bootstrap(error) => expired(error),
            _ => self.of_world().is_some_and(|error| match error {
                Shmem::Fault(Fault::DeadlineExpired(_)) => true,
                Shmem::Rendezvous { source, .. } => expired(source),
                _ => false,
            }),
        }
    }

    /// Whether a wait ended by its own limit, and the work goes on.
    pub fn is_busy(&self) -> bool {
        matches!(self.of_world(), Some(Shmem::StreamBusy { .. }))
    }

    /// The world's error in it.
    fn of_world(&self) -> Option<&Shmem> {
        match self {
            Self::Shmem(error) => Some(error),
            Self::Ccl(error) => match error.as_ref() {
                Ccl::Shmem(error) => Some(error),
                _ => None,
            },
            Self::Ep(error) => match error.as_ref() {
                Ep::Shmem(error) => Some(error),
                _ => None,
            },
            _ => None,
        }
    }
}

/// The ranks that a world's error is about.
fn of_world(error: &Shmem) -> Vec<GlobalRank> {
    match error {
        Shmem::Fault(Fault::DeadlineExpired(wait)) => vec![wait.peer],
        Shmem::Fault(
            Fault::PeerLost { rank, .. } | Fault::Reported { rank, .. } | Fault::Poisoned { rank, .. },
        )
        | Shmem::FailedOn { rank, .. }
        | Shmem::Differs { rank, .. }
        | Shmem::OutOfStep { rank, .. }
        | Shmem::Malformed { rank, .. }
        | Shmem::Unreachable { peer: rank, .. }
        | Shmem::Probe { peer: rank, .. } => vec![*rank],
        Shmem::Fault(Fault::CollectiveFailed { missing, .. }) => missing.clone(),
        Shmem::Rendezvous { source, .. } => of_rendezvous(source),
        _ => Vec::new(),
    }
}

/// The ranks that an error of the rendezvous is about.
fn of_rendezvous(error: &Bootstrap) -> Vec<GlobalRank> {
    match error {
        Bootstrap::PeerLost { loss, .. } | Bootstrap::GivenUp { loss, .. } => vec![loss.rank],
        Bootstrap::KeyNotSet { losses, .. } => losses.iter().map(|loss| loss.rank).collect(),
        Bootstrap::CannotForm { by, .. } => vec![*by],
        Bootstrap::StillJoined { ranks, .. } => ranks.clone(),
        _ => error.missing().to_vec(),
    }
}

impl Error {
    /// The error for more ranks than a runtime has devices.
    pub(crate) fn too_few_devices(ranks: u32, runtime: RuntimeKind, devices: u32) -> Self {
        let plural = if devices == 1 { "" } else { "s" };
        Self::TooManyRanks {
            ranks,
            available: format!("the {runtime} runtime shows {devices} device{plural}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_found_through_every_layer() {
        let expired =
            || Bootstrap::LeaveUnconfirmed { rank: GlobalRank::new(1), waited: std::time::Duration::ZERO };
        let failed =
            || Shmem::FailedOn { step: "join".into(), rank: GlobalRank::new(1), cause: "no memory".into() };
        let shape = Jit::Shape { entry: "a_kernel".into(), problem: "no blocks" };
        let cases: Vec<(Error, ErrorKind, u8)> = vec![
            (Error::NoCacheDirectory, ErrorKind::Environment, 3),
            (Error::too_few_devices(8, RuntimeKind::Nvidia, 4), ErrorKind::Config, 2),
            (Bootstrap::NoLauncher { looked_for: vec!["RANK"] }.into(), ErrorKind::Environment, 3),
            (expired().into(), ErrorKind::Peer, 5),
            (Shmem::Rendezvous { step: "join".into(), source: expired() }.into(), ErrorKind::Peer, 5),
            (failed().into(), ErrorKind::Peer, 5),
            (Ccl::Foreign { what: "a tensor" }.into(), ErrorKind::Usage, 1),
            (
                Ccl::Config { field: "ccl.max_blocks", given: 4096, allowed: "0 to 1024" }.into(),
                ErrorKind::Config,
                2,
            ),
            (Ccl::Shmem(failed()).into(), ErrorKind::Peer, 5),
            (Ep::Shmem(Shmem::Jit(shape)).into(), ErrorKind::Usage, 1),
            (
                Ep::Hip(anabranch_hip::Error::Runtime {
                    call: "hipInit",
                    runtime: RuntimeKind::Amd,
                    code: anabranch_hip::HipError(999),
                })
                .into(),
                ErrorKind::Device,
                6,
            ),
        ];
        for (error, kind, code) in cases {
            assert_eq!((error.kind(), error.kind().exit_code()), (kind, code), "{error}");
        }
    }

    #[test]
    fn what_main_returns_is_printed_as_a_sentence_with_its_causes() {
        let lost = Fault::PeerLost {
            rank: GlobalRank::new(1),
            kind: anabranch_bootstrap::LossKind::Died,
            detail: "its connection closed".into(),
        };
        let error = Error::from(Shmem::from(lost));
        assert_eq!(
            format!("{error:?}"),
            "rank 1 died (its connection closed); the world cannot be used any more"
        );
        let error = Error::Thread { rank: 2, source: std::io::Error::other("no room") };
        assert_eq!(format!("{error:?}"), "the thread of rank 2 could not be started: no room");
    }

    #[test]
    fn too_many_ranks_names_both_numbers() {
        let text = Error::too_few_devices(8, RuntimeKind::Nvidia, 4).to_string();
        assert!(text.contains("8 ranks") && text.contains("the nvidia runtime shows 4 devices"), "{text}");
    }
}
