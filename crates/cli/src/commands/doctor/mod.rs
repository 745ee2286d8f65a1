//! `anabranch doctor`: what is here, and a hint for what is wrong.

mod cache;
mod finding;
mod kernels;
mod limits;
mod links;
mod nics;
mod runtimes;
mod tools;

use anabranch::RuntimeKind;
use anabranch::config::LoadedConfig;
use clap::Args;

use anabranch_bench::print;
use anabranch_bench::reported::Reported;
use anabranch_bench::settings::RuntimeArgs;
use finding::{Finding, Status};
pub(crate) use kernels::kernels;

/// `anabranch doctor`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    settings: RuntimeArgs,
    /// Print every searched path, also of what is not needed.
    #[arg(long)]
    verbose: bool,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
}

/// Examines, prints, and fails when something is wrong.
///
/// # Errors
/// A configuration that does not load; [`Reported`] when something is wrong.
pub(crate) fn run(arguments: &DoctorArgs) -> anyhow::Result<()> {
    let loaded = arguments.settings.load()?;
    let environment = anabranch::Environment::of_process();
    let mut findings = configuration(&loaded);
    let (mut targets, mut devices, mut links) = (Vec::new(), Vec::new(), Vec::new());
    let (mut heap, mut places, mut opened_devices) = (Vec::new(), Vec::new(), Vec::new());
    for kind in [RuntimeKind::Host, RuntimeKind::Nvidia, RuntimeKind::Amd] {
        let wanted = kind == loaded.config.device.runtime;
        let (runtime, found) = runtimes::open(&loaded.config, kind, wanted, &environment);
        findings.extend(found);
        let Some(runtime) = runtime else { continue };
        let (opened, found) = runtimes::devices(&runtime, wanted);
        devices.extend(found);
        targets.extend(opened.first().map(|device| (device.arch(), wanted)));
        if wanted {
            heap = runtimes::heap(&loaded.config, &opened);
        }
        places.extend(nics::places(&opened));
        links.extend(links::probe(&opened, wanted));
        opened_devices.extend(opened.into_iter().map(|device| (device, wanted)));
    }
    findings.extend(devices);
    findings.extend(heap);
    findings.extend(kernels::probe(&loaded.config, &environment, &opened_devices));
    findings.extend(tools::compilers(&loaded.config, &environment, &targets));
    findings.extend(links);
    findings.extend(nics::nics(&loaded.config, &places));
    findings.extend(limits::limits());
    findings.extend(cache::cache(&loaded.config, &environment));

    show(&findings, arguments)?;
    let wrong = findings.iter().filter(|finding| finding.status == Status::Wrong).count();
    match wrong {
        0 => Ok(()),
        _ => Err(Reported(1).into()),
    }
}

#[expect(clippy::expect_used, reason = "origins are remembered with the values")]
fn configuration(loaded: &LoadedConfig) -> Vec<Finding> {
    let runtime = loaded.config.device.runtime.to_string();
    let origin = loaded.origins.of("device.runtime");
    let mut findings = vec![Finding::ok("configuration", "device.runtime", format!("{runtime} ({origin})"))];
    let (mode, origin) = (loaded.config.heap.mode.word(), loaded.origins.of("heap.mode"));
    findings.push(Finding::ok("configuration", "heap.mode", format!("{mode} ({origin})")));
    for (key, origin) in
        loaded.origins.set_keys().filter(|(key, _)| !["device.runtime", "heap.mode"].contains(key))
    {
        let setting = anabranch::config::setting_named(key).expect("only settings are set");
        let value = setting.value(&loaded.config).expect("what is set has a value");
        let text = if setting.secret { "(set)".to_owned() } else { value.to_string() };
        findings.push(Finding::ok("configuration", key, format!("{text} ({origin})")));
    }
    findings
}

fn show(findings: &[Finding], arguments: &DoctorArgs) -> anyhow::Result<()> {
    if arguments.json {
        return findings.iter().try_for_each(print::json);
    }
    let mut section = "";
    for finding in findings {
        if finding.section != section {
            section = finding.section;
            print::line(section)?;
        }
        for line in finding.lines(arguments.verbose) {
            print::line(&line)?;
        }
    }
    let wrong = findings.iter().filter(|finding| finding.status == Status::Wrong).count();
    match wrong {
        0 => print::line("nothing is wrong"),
        1 => print::line("1 thing is wrong"),
        n => print::line(&format!("{n} things are wrong")),
    }
}
