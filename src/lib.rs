//! GPU-initiated communication: a symmetric heap, run-time compiled kernels, collectives, expert-parallel dispatch
//! and combine.
//!
//! This crate is the facade: it re-exports the crates below it, loads the [configuration](config), and turns one into
//! an open runtime, the NICs that it names, and a joined world.
//!
//! ```no_run
//! # fn main() -> anabranch::Result<()> {
//! let config = anabranch::Config::load("config/host-4.toml")?;
//! let rank = anabranch::rendezvous_from_launcher(&config)?; // torchrun, srun, mpirun, `anabranch run`
//! let world = anabranch::join(&config, &rank)?;
//! println!("{} of {} ranks", world.rank(), world.size());
//! world.leave()?;
//! # Ok(())
//! # }
//! ```
//!
//! With threads instead of processes, `anabranch::spawn_threads(&config, 4, |world| ...)`.
//!
//! # Cargo features
//!
//! `host`, `nvidia`, `amd` (runtimes), `sdma` and `rdma` (transports besides p2p) are on by default; `libfabric` and `software-nic` (drivers
//! of `rdma`) are not. A configuration that names what a build lacks is an error that names the feature ([`Error::NotBuilt`]).
//!
//! # Who checks what
//!
//! The [`config`] module checks settings before anything happens. Making a plan (a world, a
//! [`Communicator`], an [`ep::ExpertParallel`]) checks shapes and that all ranks agree; a collective checks its call. Kernels check what only they can see.

mod check;
pub mod config;
pub mod environment;

mod error;
mod features;
#[cfg(feature = "rdma")]
mod nics;
mod platform;
mod profile;
mod runtime;
pub mod trace;
mod world;

pub use anabranch_bootstrap as bootstrap;
pub use anabranch_ccl as ccl;
pub use anabranch_ep as ep;
pub use anabranch_hip as hip;
pub use anabranch_hip_jit as jit;
pub use anabranch_ranks as ranks;
pub use anabranch_shmem as shmem;
pub use anabranch_transport as transport;
#[cfg(feature = "libfabric")]
pub use anabranch_transport_ofi as fabric;
#[cfg(feature = "rdma")]
pub use anabranch_transport_rdma as rdma;

pub use anabranch_ccl::{CclConfig, Communicator};
pub use anabranch_ep::{EpConfig, EpShape, ExpertParallel};
pub use anabranch_hip::RuntimeKind;
pub use anabranch_ranks::{ErrorKind, GlobalRank, Group, GroupRank};
pub use anabranch_shmem::RankError;
pub use config::{Config, ccl_config};
pub use environment::Environment;
pub use error::{Error, Result};
pub use platform::{Platform, ProcessLayout, compile_jobs, kernel_pipeline, machine_of, runtime_config};
pub use profile::Profile;
pub use runtime::{RuntimeConfig, open_runtime};
pub use world::{
    JoinedRank, World, join, rendezvous_from, rendezvous_from_launcher, spawn_threads, with_ep_settings,
    world_config,
};

use anabranch_hip_jit::KernelSpec;

/// Every kernel of the library in every variant: what a prebuild compiles, and the only list of them.
pub fn kernel_registry() -> Vec<KernelSpec> {
    let mut all = vec![
        KernelSpec::new(&anabranch_shmem::TEAM_BARRIER_UNIT),
        #[cfg(feature = "sdma")]
        anabranch_shmem::engine_copies_kernel(),
        #[cfg(feature = "rdma")]
        anabranch_shmem::nic_team_kernel(rdma::Provider::Mlx5, rdma::Atomics::Masked),
        #[cfg(feature = "rdma")]
        anabranch_shmem::nic_team_kernel(rdma::Provider::Posted, rdma::Atomics::Standard),
        KernelSpec::new(&anabranch_shmem::p2p::P2P_UNIT),
    ];
    all.extend(anabranch_ep::kernels());
    all.extend(anabranch_ccl::kernels());
    all
}

/// The kernels of [`kernel_registry`] that reach other machines, as worlds load them in which ranks have NICs of this format and with
/// these atomic operations. What a prebuild compiles besides, where such NICs are; the registry's own forms of them know no NIC.
#[cfg(feature = "rdma")]
pub fn nic_kernels(provider: rdma::Provider, atomics: rdma::Atomics) -> Vec<KernelSpec> {
    use anabranch_ccl::kernels::{NETWORK_MOVE_UNIT, NETWORK_REDUCE_UNIT};
    use anabranch_ep::kernels::{COMBINE_NODES_UNIT, DISPATCH_NODES_UNIT};
    let across = [&NETWORK_MOVE_UNIT, &NETWORK_REDUCE_UNIT, &DISPATCH_NODES_UNIT, &COMBINE_NODES_UNIT]
        .map(|unit| unit.name);
    let of_network = kernel_registry().into_iter().filter(|spec| across.contains(&spec.unit().name));
    let as_loaded = of_network.map(|spec| anabranch_shmem::for_nic(spec, provider, atomics));
    std::iter::once(anabranch_shmem::nic_team_kernel(provider, atomics)).chain(as_loaded).collect()
}

/// The examples of the README, compiled as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
