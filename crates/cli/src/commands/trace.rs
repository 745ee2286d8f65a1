//! `anabranch trace -n N [-o FILE] -- CMD`.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use anabranch::Environment;
use anyhow::{Context, bail};
use clap::Args;

use super::run::{RunArgs, run_with};

/// The setting `kernels.note_waits` of the ranks.
const NOTE_WAITS: &str = "ANABRANCH__KERNELS__NOTE_WAITS";

/// `anabranch trace`.
#[derive(Clone, Debug, Args)]
pub(crate) struct TraceArgs {
    /// The file: trace events in JSON, which <https://ui.perfetto.dev> and chrome://tracing open.
    #[arg(short, long, value_name = "FILE", default_value = "trace.json")]
    output: PathBuf,
    #[command(flatten)]
    run: RunArgs,
}

/// Starts the ranks, and merges the parts that they and their child processes have written, however they ended.
///
/// # Errors
/// As [`super::run::run`]; files that cannot be written; ranks of which none has joined a world.
pub(crate) fn run(arguments: &TraceArgs) -> anyhow::Result<()> {
    let scratch = Environment::of_process().scratch_folder();
    let folder = std::path::absolute(scratch.join(format!("anabranch-trace-{}", std::process::id())))?;
    fs::create_dir(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let mut variables = vec![("ANABRANCH_TRACE", folder.clone().into_os_string())];
    if Environment::of_process().get(NOTE_WAITS).is_none() {
        variables.push((NOTE_WAITS, "true".into()));
    }
    let ended = run_with(&arguments.run, variables);
    let shown = arguments.output.display();
    let parts = || format!("the parts stay in {}", folder.display());
    let merged = anabranch::trace::merge(&folder).with_context(parts)?;
    if let Some(picture) = &merged {
        fs::write(&arguments.output, picture)
            .with_context(|| format!("cannot write {shown}; {}", parts()))?;
    }
    if let Err(error) = fs::remove_dir_all(&folder) {
        tracing::warn!(folder = %folder.display(), %error, "the parts of the trace stay");
    }
    match merged {
        Some(_) => {
            // A closed standard error cannot be reported anywhere.
            let _ = writeln!(
                std::io::stderr(),
                "anabranch: {shown} is written; open it at https://ui.perfetto.dev"
            );
            ended
        }
        None if ended.is_ok() => bail!("no rank has joined a world, so {shown} is not written"),
        None => ended,
    }
}
