//! `anabranch jit build`, `list`, `verify` and `clean`.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;

use anabranch::config::Period;
use anabranch::{Environment, compile_jobs, kernel_pipeline};
use anabranch_hip_jit::{
    AheadReport, AheadRow, Cache, CacheEntry, CleanRule, Jit, KernelSpec, Outcome, Target,
};
use anabranch_transport_rdma::{Atomics, Provider};
use anyhow::bail;
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

use anabranch_bench::print::{self, Table};
use anabranch_bench::progress::Progress;
use anabranch_bench::reported::Reported;
use anabranch_bench::settings::SettingsArgs;

/// `anabranch jit`.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum JitCommand {
    /// Compile every kernel for the given targets; no GPU is needed.
    Build(BuildArgs),
    /// List the entries of the cache.
    List(CacheArgs),
    /// Check every entry; exit code 1 if one is broken.
    Verify(CacheArgs),
    /// Remove entries; safe while others use the cache.
    Clean(CleanArgs),
}

#[derive(Clone, Debug, Args)]
pub(crate) struct CacheArgs {
    #[command(flatten)]
    settings: SettingsArgs,
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct BuildArgs {
    #[command(flatten)]
    cache: CacheArgs,
    /// Targets: gfx90a, gfx942, sm_90, host, host:wave32, ...; separated by commas.
    #[arg(long, required = true, value_delimiter = ',', value_name = "TARGET,...")]
    target: Vec<Target>,
    /// Also compile the internode kernels for NICs with these queue entry formats; separated by commas. With `posted` a host thread posts
    /// the requests by verbs, to any NIC.
    #[arg(long, value_delimiter = ',', value_name = "FORMAT,...")]
    nic: Vec<NicFormat>,
    /// Number of concurrent compilers (kernels.jobs).
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    jobs: Option<u32>,
}

/// The NIC format of the queue entries that kernels write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum NicFormat {
    Mlx5,
    #[value(name = "bnxt_re")]
    Bnxt,
    Ionic,
    Posted,
}

impl NicFormat {
    /// The kernels, the library's and the benchmarks', with the atomic operations that NICs of the format have here.
    fn kernels(self) -> Vec<KernelSpec> {
        let (provider, atomics) = match self {
            // Which of the two a ConnectX supports is known only when it is opened.
            Self::Mlx5 => (Provider::Mlx5, &[Atomics::Masked, Atomics::Standard, Atomics::None][..]),
            Self::Bnxt => (Provider::Bnxt, &[Atomics::Standard][..]),
            Self::Ionic => (Provider::Ionic, &[Atomics::Standard][..]),
            Self::Posted => (Provider::Posted, &[Atomics::Standard, Atomics::None][..]),
        };
        atomics.iter().flat_map(|atomics| anabranch_bench::nic_kernels(provider, *atomics)).collect()
    }
}

#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = false, args = ["all", "older_than", "key", "broken"])]
pub(crate) struct CleanArgs {
    #[command(flatten)]
    cache: CacheArgs,
    /// Remove all entries.
    #[arg(long)]
    all: bool,
    /// Remove entries older than this ("48 h"), and broken ones.
    #[arg(long, value_name = "DURATION")]
    older_than: Option<Period>,
    /// Remove the entry whose key begins with this, at least 8 digits.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Remove entries that do not verify.
    #[arg(long)]
    broken: bool,
}

/// Runs one of them.
///
/// # Errors
/// A configuration that does not load, a cache that cannot be read, [`Reported`] for a kernel that does not compile
/// or an entry that does not verify.
pub(crate) fn run(command: &JitCommand) -> anyhow::Result<()> {
    match command {
        JitCommand::Build(arguments) => build(arguments),
        JitCommand::List(arguments) => list(arguments),
        JitCommand::Verify(arguments) => verify(arguments),
        JitCommand::Clean(arguments) => clean(arguments),
    }
}

/// Every kernel of the workspace: the library's, the benchmarks' and the doctor's.
pub(crate) fn all_kernels() -> Vec<KernelSpec> {
    let mut all = anabranch::kernel_registry();
    all.extend(anabranch_bench::kernels());
    all.extend(super::doctor::kernels());
    all
}

#[derive(Serialize)]
struct BuildRow {
    kernel: String,
    target: String,
    outcome: &'static str,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

fn build(arguments: &BuildArgs) -> anyhow::Result<()> {
    let config = arguments.cache.settings.load(&[])?.config;
    let progress = Progress::to_terminal();
    let observer = Arc::new(progress.clone());
    let jit = kernel_pipeline(&config.kernels, &Environment::of_process(), Some(observer))?;
    let mut targets = arguments.target.clone();
    targets.sort();
    targets.dedup();
    let mut kernels = all_kernels();
    let of_nics: Vec<KernelSpec> = arguments.nic.iter().flat_map(|format| format.kernels()).collect();
    // Some of them are in the list already, or asked for twice.
    for spec in of_nics {
        if !kernels.contains(&spec) {
            kernels.push(spec);
        }
    }
    if kernels.is_empty() {
        bail!("there is no kernel to build");
    }
    let pairs =
        targets.iter().flat_map(|target| kernels.iter().map(move |spec| (spec.clone(), target.clone())));
    let wanted: Vec<(KernelSpec, Target)> = pairs.collect();
    let jobs = arguments.jobs.map_or_else(|| compile_jobs(&config.kernels), |jobs| jobs as usize);
    let report = jit.compile_ahead(&wanted, jobs);
    progress.clear();
    show(&report, arguments.cache.json)?;
    let Some((_, first)) = report.failures().next() else { return Ok(()) };
    let kind = anabranch::Error::from(first.clone()).kind();
    Err(Reported(i32::from(kind.exit_code())).into())
}

fn show(report: &AheadReport, json: bool) -> anyhow::Result<()> {
    let rows = build_rows(report);
    if json {
        return rows.iter().try_for_each(print::json);
    }
    let mut table = Table::new(&["outcome", "seconds", "target", "key", "kernel"]);
    for row in &rows {
        let key = row.key.as_deref().and_then(|key| key.get(..16)).unwrap_or("-");
        let cells = [row.outcome, &format!("{:.2}", row.seconds), &row.target, key, &row.kernel];
        table.row(cells.map(str::to_owned).to_vec());
    }
    table.print("")?;
    // Each cause once: a missing compiler fails every kernel of its targets.
    let mut reported = Vec::new();
    for (_, error) in report.failures() {
        let text = in_short(error);
        if !reported.contains(&text) {
            writeln!(std::io::stderr(), "anabranch: {text}")?;
            reported.push(text);
        }
    }
    print::line(&format!(
        "{} compiled, {} from the cache, {} failed",
        report.count(Outcome::Compiled),
        report.count(Outcome::Hit),
        report.count(Outcome::Failed)
    ))
}

/// The error in one line. Of a missing compiler only the first and the last searched place; the doctor lists all.
fn in_short(error: &anabranch_hip_jit::Error) -> String {
    let anabranch_hip_jit::Error::NoCompiler { target, looked } = error else { return error.to_string() };
    match looked.as_slice() {
        [first, _, _, .., last] => format!(
            "no compiler for {target}; looked in {} places, from {} to {}: `anabranch doctor --verbose` lists them",
            looked.len(),
            first.what,
            last.what
        ),
        few => {
            let few: Vec<_> = few.iter().map(|one| format!("{}: {}", one.what, one.problem)).collect();
            format!("no compiler for {target}; {}", few.join("; "))
        }
    }
}

/// A row for each kernel; of a target without a compiler one for all that need it.
fn build_rows(report: &AheadReport) -> Vec<BuildRow> {
    let lacks = |row: &&AheadRow| matches!(row.result, Err(anabranch_hip_jit::Error::NoCompiler { .. }));
    let mut rows: Vec<BuildRow> = report.rows.iter().filter(|row| !lacks(row)).map(build_row).collect();
    let mut without: BTreeMap<&Target, Vec<&AheadRow>> = BTreeMap::new();
    for row in report.rows.iter().filter(lacks) {
        without.entry(&row.target).or_default().push(row);
    }
    rows.extend(without.values().filter_map(|of_target| {
        let all =
            if of_target.len() == 1 { "1 kernel".to_owned() } else { format!("{} kernels", of_target.len()) };
        Some(BuildRow { kernel: format!("{all}: no compiler"), ..build_row(of_target.first()?) })
    }));
    rows
}

fn build_row(row: &AheadRow) -> BuildRow {
    BuildRow {
        kernel: row.label.clone(),
        target: row.target.to_string(),
        outcome: match row.outcome() {
            Outcome::Hit => "hit",
            Outcome::Compiled => "compiled",
            Outcome::Failed => "FAILED",
        },
        seconds: row.took.as_secs_f64(),
        key: row.result.as_ref().ok().map(|object| object.key.to_string()),
        error: row.result.as_ref().err().map(ToString::to_string),
    }
}

#[derive(Serialize)]
struct EntryRow {
    key: String,
    directory: String,
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kernel: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    compiler: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
}

impl From<CacheEntry> for EntryRow {
    fn from(entry: CacheEntry) -> Self {
        let manifest = entry.manifest.as_ref().ok();
        Self {
            key: entry.key.clone(),
            directory: entry.directory.display().to_string(),
            ok: manifest.is_some(),
            problem: entry.manifest.as_ref().err().cloned(),
            kernel: manifest.map(|manifest| manifest.label.clone()),
            target: manifest.map(|manifest| manifest.target.clone()),
            compiler: manifest.map(|manifest| manifest.compiler.clone()),
            bytes: manifest.map(|manifest| manifest.object_bytes),
            seconds: manifest.map(|manifest| manifest.seconds),
        }
    }
}

/// The pipeline of the configuration, for its cache and prebuilt folders.
fn pipeline(settings: &SettingsArgs) -> anyhow::Result<Jit> {
    let config = settings.load(&[])?.config;
    Ok(kernel_pipeline(&config.kernels, &Environment::of_process(), None)?)
}

fn entries(jit: &Jit) -> anyhow::Result<Vec<EntryRow>> {
    let mut rows = Vec::new();
    for cache in jit.config().prebuilt.iter().map(Cache::new).chain([jit.cache().clone()]) {
        rows.extend(cache.list()?.into_iter().map(EntryRow::from));
    }
    Ok(rows)
}

fn list(arguments: &CacheArgs) -> anyhow::Result<()> {
    let jit = pipeline(&arguments.settings)?;
    let rows = entries(&jit)?;
    if arguments.json {
        return rows.iter().try_for_each(print::json);
    }
    let mut table = Table::new(&["KiB", "seconds", "target", "key", "kernel", "compiler"]);
    for row in &rows {
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        table.row(vec![
            row.bytes.map(|bytes| bytes.div_ceil(1024).to_string()).unwrap_or_default(),
            row.seconds.map(|seconds| format!("{seconds:.2}")).unwrap_or_default(),
            text(&row.target),
            row.key.get(..16).unwrap_or(&row.key).to_owned(),
            row.kernel.clone().unwrap_or_else(|| format!("BROKEN: {}", text(&row.problem))),
            text(&row.compiler),
        ]);
    }
    if !rows.is_empty() {
        table.print("")?;
    }
    print::line(&format!("{} in {}", count(rows.len()), jit.cache().folder().display()))
}

fn verify(arguments: &CacheArgs) -> anyhow::Result<()> {
    let jit = pipeline(&arguments.settings)?;
    let rows = entries(&jit)?;
    let broken: Vec<&EntryRow> = rows.iter().filter(|row| !row.ok).collect();
    if arguments.json {
        rows.iter().try_for_each(print::json)?;
    } else {
        for row in &broken {
            print::line(&format!("{}: {}", row.directory, row.problem.as_deref().unwrap_or_default()))?;
        }
        let good = rows.len() - broken.len();
        print::line(&format!(
            "{} whole, {} broken in {}",
            count(good),
            broken.len(),
            jit.cache().folder().display()
        ))?;
        if !broken.is_empty() {
            print::line(
                "a broken entry is built again when it is next needed; `anabranch jit clean --broken` removes it",
            )?;
        }
    }
    if broken.is_empty() { Ok(()) } else { Err(Reported(1).into()) }
}

#[derive(Serialize)]
struct CleanRow {
    removed: usize,
    kept: usize,
    cache: String,
}

fn clean(arguments: &CleanArgs) -> anyhow::Result<()> {
    let rule = match (&arguments.older_than, &arguments.key) {
        (Some(age), _) => CleanRule::OlderThan(age.duration()),
        (_, Some(key)) if key.len() < 8 => bail!("--key {key}: at least 8 digits of the key are needed"),
        (_, Some(key)) => CleanRule::Key(key.clone()),
        _ if arguments.broken => CleanRule::Broken,
        _ => CleanRule::All,
    };
    let jit = pipeline(&arguments.cache.settings)?;
    let report = jit.cache().clean(&rule)?;
    let row = CleanRow {
        removed: report.removed,
        kept: report.kept,
        cache: jit.cache().folder().display().to_string(),
    };
    if arguments.cache.json {
        return print::json(&row);
    }
    print::line(&format!("{} removed, {} kept in {}", count(row.removed), row.kept, row.cache))
}

fn count(entries: usize) -> String {
    if entries == 1 { "1 entry".to_owned() } else { format!("{entries} entries") }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn kernels_of_a_format_are_for_each_set_of_atomic_operations_and_the_benchmarks() {
        for (format, atomics) in [
            (NicFormat::Mlx5, &[1, 2][..]),
            (NicFormat::Bnxt, &[1]),
            (NicFormat::Ionic, &[1]),
            (NicFormat::Posted, &[1]),
        ] {
            let labels: Vec<String> = format.kernels().iter().map(KernelSpec::label).collect();
            let distinct: BTreeSet<&String> = labels.iter().collect();
            assert_eq!(distinct.len(), labels.len(), "two specs with one label");
            for unit in [
                "ccl_network_move",
                "ep_dispatch_nodes",
                "nic_team",
                "conformance_copy",
                "conformance_message",
                "conformance_atomics",
            ] {
                let of_unit: Vec<&String> = labels.iter().filter(|label| label.starts_with(unit)).collect();
                for number in atomics {
                    let wanted = format!("RDMA_ATOMICS={number}, ");
                    assert!(of_unit.iter().any(|label| label.contains(&wanted)), "{unit}: {of_unit:?}");
                }
            }
        }
    }
}
