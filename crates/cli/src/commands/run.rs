//! `anabranch run -n N -- CMD`.

use std::ffi::OsString;

use anabranch::config::Period;
use anyhow::{Context, bail};
use clap::{Args, ValueEnum};

use crate::exit::Reported;
use crate::launch::{self, Ended, Launch, Meeting, Output, ReservedPort};
use crate::settings::SettingsArgs;

/// `anabranch run`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RunArgs {
    /// How many ranks.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    ranks: u32,
    /// Whether output lines begin with their rank.
    #[arg(long, value_enum, default_value_t = Prefix::Auto)]
    prefix: Prefix,
    /// How long the other ranks may take to end when one has failed.
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
/// [`Reported`] with the failing rank's exit code; a program that cannot be started.
pub(crate) fn run(arguments: &RunArgs) -> anyhow::Result<()> {
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
        output: Output::Forward { prefix },
        grace: arguments.grace.duration(),
    };
    let offset = SettingsArgs::default().load(&[])?.config.bootstrap.port_offset;
    finish(&plan, offset)
}

/// Runs the ranks and turns their end into the command's.
///
/// # Errors
/// As [`run`].
pub(crate) fn finish(plan: &Launch, port_offset: u16) -> anyhow::Result<()> {
    let reserved = ReservedPort::new(port_offset).context("no free port for the rendezvous")?;
    let ended = launch::supervise(plan, &Meeting { port: reserved.port(), secret: secret()? })?;
    // Held until no rank is left: rank 0 may come late.
    drop(reserved);
    if let Ended::Failed(failure) = &ended {
        launch::report(failure, plan.ranks);
    }
    match ended.code() {
        0 => Ok(()),
        code => Err(Reported(code).into()),
    }
}

/// A fresh secret for one world, as hexadecimal digits.
fn secret() -> anyhow::Result<String> {
    let mut bytes = [0_u8; 32];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).context("no random bytes")?;
    let digit = |value: u8| char::from_digit(u32::from(value), 16).unwrap_or_default();
    Ok(bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect())
}
