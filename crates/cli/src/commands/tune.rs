//! `anabranch tune`: measures what the library chooses from.

use clap::{Args, Subcommand};

use crate::bench::tune::{self, TuneArgs};
use crate::bench::tune_ep::{self, TuneEpArgs};
use crate::ranks;

/// `anabranch tune`: collectives, or what is named.
#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct TuneCommand {
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
}

/// Starts the ranks.
///
/// # Errors
/// See [`ranks::spawn`].
pub(crate) fn spawn(command: &TuneCommand) -> anyhow::Result<()> {
    match &command.what {
        Some(Tuned::Ep(arguments)) => ranks::spawn(
            &arguments.ranks,
            "tune-rank",
            &tune_ep::needed_kernels(arguments),
            |config, ranks| {
                arguments.ranks.refuse_nodes("tune")?;
                tune_ep::check(arguments, config, ranks)
            },
            |context| tune_ep::run(context, arguments),
        ),
        None => {
            let arguments = &command.collectives;
            ranks::spawn(
                &arguments.ranks,
                "tune-rank",
                &tune::needed_kernels(),
                |config, ranks| {
                    arguments.ranks.refuse_nodes("tune")?;
                    tune::check(arguments, config, ranks)
                },
                |context| tune::run(context, arguments),
            )
        }
    }
}

/// Is one of them.
///
/// # Errors
/// See [`ranks::run_rank`].
pub(crate) fn run_rank(command: &TuneCommand) -> anyhow::Result<()> {
    match &command.what {
        Some(Tuned::Ep(arguments)) => {
            ranks::run_rank(&arguments.ranks, |context| tune_ep::run(context, arguments))
        }
        None => {
            let arguments = &command.collectives;
            ranks::run_rank(&arguments.ranks, |context| tune::run(context, arguments))
        }
    }
}
