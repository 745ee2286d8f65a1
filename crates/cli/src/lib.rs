//! The `anabranch` command, for its own program and for `python -m anabranch`.
#![deny(unsafe_code)]

mod capture_beside;
mod commands;
mod exit;
mod invocation;
mod launch;
mod ranks;

use std::ffi::OsString;
use std::io::Write;

use clap::{Parser, Subcommand};

/// GPU-initiated communication: run ranks, measure links, collectives and expert parallelism, and manage compiled kernels.
#[derive(Debug, Parser)]
#[command(name = "anabranch", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run benchmarks; every result is verified bit by bit.
    #[command(subcommand)]
    Bench(anabranch_bench::BenchCommand),
    /// One rank of a benchmark; started by `bench`.
    #[command(subcommand, hide = true)]
    BenchRank(anabranch_bench::BenchCommand),
    /// Show or check the configuration.
    #[command(subcommand)]
    Config(commands::config::ConfigCommand),
    /// Check runtimes, devices, tool chains, links, limits and the cache, with a hint for each problem.
    Doctor(commands::doctor::DoctorArgs),
    /// Compile kernels ahead of time, and manage the cache.
    #[command(subcommand)]
    Jit(commands::jit::JitCommand),
    /// Compute the bytes and time of a rank for up to 1024 ranks from a cost model, without running them.
    #[command(subcommand)]
    Model(anabranch_bench::ModelCommand),
    /// Start N ranks of a program; if one fails, end the others.
    Run(commands::run::RunArgs),
    /// Run a protocol's kernels under seeds that decide every interleaving; shrink and show the first failure.
    Sim(commands::sim::SimArgs),
    /// Show the route to every peer and the reason for it.
    Topo(commands::topo::TopoArgs),
    /// One rank of `topo`; started by it.
    #[command(hide = true)]
    TopoRank(commands::topo::TopoArgs),
    /// Start N ranks of a program as `run` does, and write what they did to a file for Perfetto.
    Trace(commands::trace::TraceArgs),
    /// Measure the fastest algorithms of collectives, or with `ep` the fastest launches of dispatch and combine, and write the table from
    /// which the library chooses.
    Tune(anabranch_bench::TuneCommand),
    /// One rank of `tune`; started by it.
    #[command(hide = true)]
    TuneRank(anabranch_bench::TuneCommand),
}

/// Runs the command and returns its exit code.
///
/// `program` starts this command again: the path of the program, and what comes before the command's own arguments. Ranks that the
/// command starts are processes of it. `arguments` are the command's own. To be called once in a process.
pub fn run(program: Vec<OsString>, arguments: Vec<OsString>) -> u8 {
    let name = OsString::from("anabranch");
    let cli = match Cli::try_parse_from(std::iter::once(&name).chain(&arguments)) {
        Ok(cli) => cli,
        Err(error) => {
            // Nothing can be done where standard output is gone.
            let _ = error.print();
            return u8::try_from(error.exit_code()).unwrap_or(2);
        }
    };
    invocation::set(program, arguments);
    // Fault-injection runs always warn.
    let least = if matches!(cli.command, Command::Sim(_)) { "error" } else { "warn" };
    start_log(least);
    let result = match cli.command {
        Command::Bench(command) => commands::bench::spawn(&command),
        Command::BenchRank(command) => commands::bench::run_rank(&command),
        Command::Config(command) => commands::config::run(&command),
        Command::Doctor(arguments) => commands::doctor::run(&arguments),
        Command::Jit(command) => commands::jit::run(&command),
        Command::Model(command) => command.print(),
        Command::Run(arguments) => commands::run::run(&arguments),
        Command::Sim(arguments) => commands::sim::run(&arguments),
        Command::Topo(arguments) => commands::topo::spawn(&arguments),
        Command::TopoRank(arguments) => commands::topo::run_rank(&arguments),
        Command::Trace(arguments) => commands::trace::run(&arguments),
        Command::Tune(arguments) => commands::tune::spawn(&arguments),
        Command::TuneRank(arguments) => commands::tune::run_rank(&arguments),
    };
    match result {
        Ok(()) => 0,
        Err(error) => {
            if !error.chain().any(<dyn std::error::Error>::is::<anabranch_bench::reported::Reported>) {
                // A closed standard error cannot be reported anywhere.
                let _ = writeln!(std::io::stderr(), "anabranch: {}", exit::text_of(&error));
            }
            u8::try_from(exit::code_of(&error)).unwrap_or(1)
        }
    }
}

/// Logs to standard error; `ANABRANCH_LOG` is the filter, by default `least` and above.
fn start_log(least: &str) {
    use tracing_subscriber::EnvFilter;
    let wanted = anabranch::Environment::of_process();
    let filter = EnvFilter::new(wanted.get("ANABRANCH_LOG").unwrap_or(least));
    let subscriber =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    // Without colours: the library is built without them, and panics where it is asked for them.
    let subscriber = subscriber.without_time().with_ansi(false);
    // Only a second start can fail, and there is none.
    let _ = subscriber.try_init();
}
