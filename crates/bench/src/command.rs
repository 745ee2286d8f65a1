//! The benchmarks, as one command.

use anabranch::Config;
use anabranch_hip_jit::KernelSpec;
use anabranch_transport_rdma::{Atomics, Provider};
use clap::Subcommand;

use crate::ccl::overlap::{self, OverlapArgs};
use crate::ccl::{self, CclArgs};
use crate::device;
use crate::ep::{self, EpArgs};
use crate::p2p::{self, P2pArgs};
use crate::ranks::{RankArgs, RankContext};
use crate::shmem::{self, ShmemArgs};

/// `anabranch bench`.
#[derive(Clone, Debug, Subcommand)]
pub enum BenchCommand {
    /// Expert-parallel dispatch and combine, by default of a recorded trace.
    Ep(EpArgs),
    /// Collectives: all_reduce, all_gather, reduce_scatter, all_to_all and others; with --compare also NCCL.
    ///
    /// Sizes are bytes as nccl-tests counts them; `GB/s` is its bus bandwidth; `ratio` is the fastest peer's median time by
    /// this library's. `link` is the share of the speed of stores between all ranks, measured in the same run.
    Ccl(CclArgs),
    /// A matrix product concurrent with a collective: how much each slows the other, by copy engine, by kernels, and NCCL with --compare.
    ///
    /// `us` and `GB/s` are of the collective alone; `us_beside` is its time while products run; `product_us` and `product_us_beside` are
    /// the same for the product. Both slow-downs are ratios of medians, of the slowest rank. `covered` is the least share of a measured
    /// time in which the other was running.
    Overlap(OverlapArgs),
    /// The symmetric heap in kernels: every operation at every scope with every byte compared, then the time of single ones by each route.
    ///
    /// In the first part `us` is the launch with all operations of the row; in the second it is one of many operations in a launch of one
    /// block. Operations that some route does not support are left out, with a warning.
    Shmem(ShmemArgs),
    /// Links: copies and stores between devices, and the latency of a flag.
    ///
    /// `link` is a mechanism's speed relative to the fastest one at the same pattern and size. Received bytes are compared with the sent
    /// bytes; for latency rows a separate launch before the timed ones does so. A flag alone has no bytes to compare.
    P2p(P2pArgs),
}

impl BenchCommand {
    /// The flags of its ranks.
    pub fn ranks(&self) -> &RankArgs {
        match self {
            Self::Ccl(arguments) => &arguments.bench.ranks,
            Self::Overlap(arguments) => &arguments.bench.ranks,
            Self::Ep(arguments) => &arguments.bench.ranks,
            Self::P2p(arguments) => &arguments.bench.ranks,
            Self::Shmem(arguments) => &arguments.bench.ranks,
        }
    }

    /// The kernels that the ranks launch, which are compiled before the ranks start.
    ///
    /// # Errors
    /// Invalid input.
    pub fn kernels(&self, config: &Config, ranks: u32) -> anyhow::Result<Vec<KernelSpec>> {
        Ok(match self {
            Self::Ccl(arguments) => ccl::needed_kernels(arguments, ranks),
            Self::Overlap(arguments) => overlap::needed_kernels(arguments, ranks),
            Self::Ep(arguments) => ep::needed_kernels(arguments, config, ranks)?,
            Self::P2p(_) => p2p::needed_kernels(),
            Self::Shmem(_) => shmem::needed_kernels(),
        })
    }

    /// Checks input and sizes before any rank is started.
    ///
    /// # Errors
    /// Invalid input, and sizes that do not fit.
    pub fn check(&self, config: &Config, ranks: u32) -> anyhow::Result<()> {
        match self {
            Self::Ccl(arguments) => ccl::check(arguments, config, ranks),
            Self::Overlap(arguments) => {
                arguments.bench.ranks.refuse_nodes("bench overlap")?;
                overlap::check(arguments, config, ranks)
            }
            Self::Ep(arguments) => ep::check(config, arguments, ranks),
            Self::P2p(arguments) => {
                arguments.bench.ranks.refuse_nodes("bench p2p")?;
                p2p::check(arguments, config, ranks)
            }
            Self::Shmem(arguments) => shmem::check(arguments, config, ranks),
        }
    }

    /// Prints the memory of each rank if the command is `ep --plan`; `false` for other commands.
    ///
    /// # Errors
    /// Invalid input; standard output is closed.
    pub fn print_plan(&self) -> anyhow::Result<bool> {
        match self {
            Self::Ep(arguments) if arguments.plan => ep::memory::print(arguments).map(|()| true),
            _ => Ok(false),
        }
    }

    /// Measures on one rank. Collective over the world.
    ///
    /// # Errors
    /// Errors of a call or the world; a result that differs from the oracle's.
    pub fn measure(&self, context: &RankContext<'_>) -> anyhow::Result<()> {
        match self {
            Self::Ccl(arguments) => ccl::measure(context, arguments),
            Self::Overlap(arguments) => overlap::measure(context, arguments),
            Self::Ep(arguments) => ep::measure(context, arguments),
            Self::P2p(arguments) => p2p::measure(context, arguments),
            Self::Shmem(arguments) => shmem::measure(context, arguments),
        }
    }
}

/// The benchmarks' own kernels, for prebuilding.
pub fn kernels() -> Vec<KernelSpec> {
    let mut all = device::own_kernels();
    all.extend(overlap::product_kernels());
    all.extend(anabranch_conformance::shmem::kernels());
    all.extend(anabranch_conformance::ep::kernels());
    all
}

/// The library's kernels that reach other nodes, as worlds load them in which ranks have NICs of this format and with these atomic
/// operations. The forms that [`anabranch::kernel_registry`] lists know no NIC.
fn library_nic_kernels(provider: Provider, atomics: Atomics) -> Vec<KernelSpec> {
    use anabranch_ccl::kernels::{NETWORK_MOVE_UNIT, NETWORK_REDUCE_UNIT};
    use anabranch_ep::kernels::{COMBINE_NODES_UNIT, DISPATCH_NODES_UNIT};
    let across = [&NETWORK_MOVE_UNIT, &NETWORK_REDUCE_UNIT, &DISPATCH_NODES_UNIT, &COMBINE_NODES_UNIT]
        .map(|unit| unit.name);
    let of_network =
        anabranch::kernel_registry().into_iter().filter(|spec| across.contains(&spec.unit().name));
    let as_loaded = of_network.map(|spec| anabranch_shmem::for_nic(spec, provider, atomics));
    std::iter::once(anabranch_shmem::nic_team_kernel(provider, atomics)).chain(as_loaded).collect()
}

/// What a prebuild compiles where NICs of this format are: the library's kernels that reach other nodes, and those of benchmarks.
pub fn nic_kernels(provider: Provider, atomics: Atomics) -> Vec<KernelSpec> {
    let of_library = library_nic_kernels(provider, atomics);
    of_library.into_iter().chain(shmem::nic_kernels(provider, atomics)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn kernels_for_nics_are_those_that_reach_other_nodes() {
        for provider in Provider::ALL {
            let all = library_nic_kernels(provider, Atomics::Standard);
            let units: BTreeSet<&str> = all.iter().map(|spec| spec.unit().name).collect();
            let expected = [
                "ccl_network_move",
                "ccl_network_reduce",
                "ep_combine_nodes",
                "ep_dispatch_nodes",
                "nic_team",
            ];
            assert_eq!(units, expected.into());
            let labels: BTreeSet<String> = all.iter().map(KernelSpec::label).collect();
            assert_eq!(labels.len(), all.len(), "two specs with one label");
            let format = format!("RDMA_ATOMICS=1, RDMA_PROVIDER={}, SHMEM_NIC=1", provider.number());
            for spec in &all {
                assert!(spec.label().contains(&format), "{}", spec.label());
                assert!(spec.render(&"host".parse().unwrap(), None).is_ok(), "{}", spec.label());
            }
        }
    }
}
