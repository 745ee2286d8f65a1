//! `anabranch run -n N -- CMD`.

use std::ffi::OsString;

use anabranch::config::Period;
use anyhow::bail;
use clap::{Args, ValueEnum};

use crate::launch::{self, Launch, Output, finish};
use anabranch_bench::settings::SettingsArgs;

/// `anabranch run`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RunArgs {
    /// Number of ranks.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    ranks: u32,
    /// Prefix each output line with its rank.
    #[arg(long, value_enum, default_value_t = Prefix::Auto)]
    prefix: Prefix,
    /// Time for the other ranks to end after one has failed, before they are killed.
    #[arg(long, default_value = "5 s")]
    grace: Period,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Prefix {
    /// In a terminal.
    Auto,
    Always,
    Never,
}

/// Starts the ranks and ends as the first that failed.
///
/// # Errors
/// The error `Reported` with the failing rank's exit code; a program that cannot be started.
pub(crate) fn run(arguments: &RunArgs) -> anyhow::Result<()> {
    run_with(arguments, Vec::new())
}

/// [`run`] with more variables in the environment of the ranks.
///
/// # Errors
/// As [`run`].
pub(crate) fn run_with(
    arguments: &RunArgs,
    environment: Vec<(&'static str, OsString)>,
) -> anyhow::Result<()> {
    let prefix = match arguments.prefix {
        Prefix::Auto => launch::is_terminal(),
        Prefix::Always => true,
        Prefix::Never => false,
    };
    let Some((program, rest)) = arguments.command.split_first() else { bail!("no program to run") };
    let plan = Launch {
        ranks: arguments.ranks,
        program: program.clone(),
        arguments: rest.to_vec(),
        environment,
        output: Output::Forward { prefix },
        grace: arguments.grace.duration(),
    };
    let offset = SettingsArgs::default().load(&[])?.config.bootstrap.port_offset;
    finish(&plan, offset)
}
