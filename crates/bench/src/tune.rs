//! `anabranch tune`: measures what the library chooses from.

mod links;
mod nic;

use anabranch::Config;
use anabranch_hip_jit::KernelSpec;
use clap::{Args, Subcommand};

use self::links::TuneLinksArgs;
use crate::ccl::tune::{self as tune_ccl, TuneArgs};
use crate::ep::tune::{self as tune_ep, TuneEpArgs};
use crate::ranks::{RankArgs, RankContext};

/// `anabranch tune`: collectives, or what is named.
#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct TuneCommand {
    #[command(subcommand)]
    what: Option<Tuned>,
    #[command(flatten)]
    collectives: TuneArgs,
}

#[derive(Clone, Debug, Subcommand)]
enum Tuned {
    /// Launch shapes of expert-parallel dispatch and combine by number of tokens; `ep.table` names the table.
    ///
    /// Each shape is timed as `bench ep` does, dispatch with the combine that pulls and the combine that pushes, by graph replay on
    /// GPUs; results are compared with the oracle, and of all other shapes bit by bit with those.
    Ep(TuneEpArgs),
    /// Speeds of links, as the `[links]` table of a configuration, by which routes are chosen where no table was measured.
    ///
    /// Inside a node: stores of each rank to all others, a flag from one rank to another, a launch. Between nodes, where ranks are on
    /// several: large puts, small puts, and messages to and fro, by one block from rank 0 to a rank of another node.
    Links(TuneLinksArgs),
}

impl TuneCommand {
    /// The flags of its ranks.
    pub fn ranks(&self) -> &RankArgs {
        match &self.what {
            Some(Tuned::Ep(arguments)) => &arguments.ranks,
            Some(Tuned::Links(arguments)) => &arguments.ranks,
            None => &self.collectives.ranks,
        }
    }

    /// What its ranks will launch, so that it is compiled before they start.
    ///
    /// # Errors
    /// Invalid input.
    pub fn kernels(&self, config: &Config, ranks: u32) -> anyhow::Result<Vec<KernelSpec>> {
        Ok(match &self.what {
            Some(Tuned::Ep(arguments)) => tune_ep::needed_kernels(arguments, config, ranks)?,
            Some(Tuned::Links(_)) => links::needed_kernels(),
            None => tune_ccl::needed_kernels(ranks),
        })
    }

    /// Checks the arguments before any rank is started.
    ///
    /// # Errors
    /// The first argument that cannot be used.
    pub fn check(&self, config: &Config, ranks: u32) -> anyhow::Result<()> {
        if !matches!(self.what, Some(Tuned::Links(_))) {
            self.ranks().refuse_nodes("tune")?;
        }
        match &self.what {
            Some(Tuned::Ep(arguments)) => tune_ep::check(arguments, config, ranks),
            Some(Tuned::Links(_)) => links::check(config, ranks),
            None => tune_ccl::check(&self.collectives, config, ranks),
        }
    }

    /// Measures on one rank. Collective over the world.
    ///
    /// # Errors
    /// What a call or the world fails with; a file that cannot be written.
    pub fn measure(&self, context: &RankContext<'_>) -> anyhow::Result<()> {
        match &self.what {
            Some(Tuned::Ep(arguments)) => tune_ep::run(context, arguments),
            Some(Tuned::Links(arguments)) => links::run(context, arguments),
            None => tune_ccl::run(context, &self.collectives),
        }
    }
}
