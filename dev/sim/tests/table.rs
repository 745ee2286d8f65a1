//! The table of sites against the device sources: a fence, flag, wait or atomic that joins or leaves a kernel changes both.

use crate::common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anabranch_hip_jit::SourceEdit;
use anabranch_sim::mutants::{
    CAUGHT, DEFINITIONS, HeldBy, KERNELS, Mutant, Runs, TESTED, communicates, kernels, mutants, scan, sites,
    units,
};
use anabranch_sim::{Case, Protocol, RunOptions};
use anabranch_testkit::lint::LintRule;
use anabranch_weakmem::Event;

/// Every device source below `crates`, by its path there.
fn sources() -> BTreeMap<String, String> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|kind| kind == "h" || kind == "hip") {
                found.push(path);
            }
        }
    }
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut found = Vec::new();
    for package in ["crates", "dev"].iter().flat_map(|folder| std::fs::read_dir(root.join(folder)).unwrap()) {
        let package = package.unwrap().path();
        walk(&package.join("device"), &mut found);
        walk(&package.join("kernels"), &mut found);
    }
    // The path below `crates/` or `dev/`.
    let name = |path: &Path| {
        let path = path.strip_prefix(root).unwrap();
        path.iter().skip(1).collect::<PathBuf>().to_str().unwrap().to_owned()
    };
    found.iter().map(|path| (name(path), std::fs::read_to_string(path).unwrap())).collect()
}

/// What the table and the sources do not have in common.
fn differences(sources: &BTreeMap<String, String>) -> Vec<String> {
    let mut counts: BTreeMap<(String, String, String), [Vec<usize>; 2]> = BTreeMap::new();
    for (file, text) in sources {
        if DEFINITIONS.iter().any(|(name, _)| name == file) {
            continue;
        }
        for site in scan(text) {
            let lines = counts.entry((file.clone(), site.function, site.call)).or_default();
            lines[0].push(site.line);
        }
    }
    for site in sites() {
        let key = (site.file.to_owned(), site.function.to_owned(), site.call.to_owned());
        counts.entry(key).or_default()[1].push(0);
    }
    let wrong = counts.into_iter().filter(|(_, [lines, rows])| lines.len() != rows.len());
    wrong
        .map(|((file, function, call), [lines, rows])| {
            format!("{file}, {function}: {call} at lines {lines:?}, and {} rows in the table", rows.len())
        })
        .collect()
}

#[test]
fn every_site_has_a_row_and_every_row_a_site() {
    let mut sources = sources();
    let found = differences(&sources);
    assert!(found.is_empty(), "{}", found.join("\n"));
    // A fence that joins, and one that leaves.
    let order = sources.get_mut("shmem/device/shmem/order.h").unwrap();
    let removed = order.replace("    Scope::release_for_all(grid);\n", "");
    assert_ne!(&removed, order);
    *order = removed;
    let joined = "ANABRANCH_DEVICE void more(const Grid& grid) { fence_release_system(grid); }\n";
    sources.insert("ep/kernels/more.h".to_owned(), joined.to_owned());
    let found = differences(&sources);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].contains("more") && found[1].contains("quiet"), "{found:?}");
}

/// The path and text of the source that edits call by this name: a header as kernels include it, or the file of a unit.
fn source_of<'a>(file: &str, sources: &'a BTreeMap<String, String>) -> (&'a str, &'a str) {
    let unit = file.strip_suffix(".hip").and_then(|name| units().find(|unit| unit.name == name));
    let is_named = |path: &str, text: &str| match (unit, path.split_once('/')) {
        (Some(unit), _) => text == unit.source,
        (None, Some((owner, rest))) => {
            rest.strip_prefix("device/") == Some(file)
                || rest.strip_prefix("kernels/").is_some_and(|rest| file == format!("{owner}/{rest}"))
        }
        (None, None) => false,
    };
    let found: Vec<_> = sources.iter().filter(|(path, text)| is_named(path, text)).collect();
    assert_eq!(found.len(), 1, "{file} is the name of one source: {found:?}");
    let (path, text) = found[0];
    (path, text)
}

#[test]
fn every_edit_of_a_mutant_has_its_place_and_changes_something() {
    let sources = sources();
    for Mutant { name, edits, .. } in mutants() {
        for edit in edits {
            let (path, text) = source_of(&edit.file, &sources);
            let times = text.matches(&edit.line).count();
            assert_eq!(times, 1, "{name}: in {path} this occurs {times} times: {}", edit.line);
            assert_ne!(edit.line.trim(), edit.replace.trim(), "{name}: an edit of {path} changes nothing");
            SourceEdit::apply(edits, &edit.file, text).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}

/// How often a function of a source has a site, by function and call.
fn counted(text: &str) -> BTreeMap<(String, String), usize> {
    let mut counts = BTreeMap::new();
    for site in scan(text) {
        *counts.entry((site.function, site.call)).or_default() += 1;
    }
    counts
}

/// By file, function and call: the mutants that leave such a site out.
fn left_out(
    sources: &BTreeMap<String, String>,
) -> BTreeMap<(String, String, String), BTreeSet<&'static str>> {
    let mut found: BTreeMap<_, BTreeSet<&str>> = BTreeMap::new();
    for mutant in mutants() {
        for edit in &mutant.edits {
            let (path, text) = source_of(&edit.file, sources);
            let edited = counted(&SourceEdit::apply(&mutant.edits, &edit.file, text).unwrap());
            for ((function, call), count) in counted(text) {
                let site = (function, call);
                if edited.get(&site).copied().unwrap_or_default() < count {
                    let (function, call) = site;
                    found.entry((path.to_owned(), function, call)).or_default().insert(&mutant.name);
                }
            }
        }
    }
    found
}

/// A line that some mutant leaves out is held by such a mutant; and a row of it says so.
#[test]
fn a_row_names_a_mutant_that_leaves_its_line_out_where_there_is_one() {
    let left_out = left_out(&sources());
    assert!(left_out.len() > 80, "{}", left_out.len());
    for ((file, function, call), mutants) in &left_out {
        let rows: Vec<_> =
            sites().filter(|row| row.file == file && row.function == function && row.call == call).collect();
        let held = |held_by: &HeldBy| match held_by {
            HeldBy::Mutants(names) => names.iter().any(|name| mutants.contains(name)),
            // By a test that runs mutants of its own, or none is of this row's line.
            _ => true,
        };
        let named = rows.iter().any(|row| held(&row.held_by));
        assert!(
            named,
            "{file}, {function}: {call} is left out by {mutants:?}, and no row names one: {rows:#?}"
        );
    }
}

#[test]
fn every_mutant_is_caught_as_the_table_states() {
    let all: BTreeSet<&str> = mutants().iter().map(|mutant| mutant.name.as_str()).collect();
    let searched: BTreeSet<&str> = CAUGHT.iter().map(|caught| caught.name).collect();
    let tested = TESTED.iter().map(|(name, _)| *name);
    assert_eq!(all, searched.iter().copied().chain(tested).collect());
    assert_eq!(searched.len(), CAUGHT.len(), "a mutant stands twice");
    assert!(CAUGHT.iter().all(|caught| !caught.caught_by.is_empty()));
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().parent().unwrap();
    for (name, test) in TESTED {
        let text = std::fs::read_to_string(crates.join(test)).unwrap();
        assert!(text.contains(&format!("\"{name}\"")), "{test} does not run {name}");
    }
    for site in sites() {
        match site.held_by {
            HeldBy::Mutants(names) => {
                assert!(!names.is_empty(), "{site:?}");
                for name in names {
                    assert!(searched.contains(name), "{site:?}: {name} is no mutant");
                }
            }
            HeldBy::CodeCheck(why)
            | HeldBy::Test(why)
            | HeldBy::OtherMemory(why)
            | HeldBy::NotNeeded(why) => {
                assert!(why.len() > 20, "{site:?} is held by nothing");
            }
        }
    }
    let page = include_str!("../../../docs/memory-model.md");
    for caught in CAUGHT {
        assert!(
            page.contains(&format!("| `{}` |", caught.name)),
            "{} is not in docs/memory-model.md",
            caught.name
        );
    }
}

/// The headers that a source includes, and those that they include; but for the primitives' definitions, which have words of
/// their own.
fn headers_of<'a>(text: &str, sources: &'a BTreeMap<String, String>) -> Vec<&'a str> {
    let mut found: Vec<(&str, &str)> = Vec::new();
    let mut texts = vec![text];
    while let Some(text) = texts.pop() {
        for line in text.lines() {
            let Some(name) = line.strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"')) else {
                continue;
            };
            let (folder, file) = name.split_once('/').unwrap();
            // `anabranch/`, `shmem/`, `ep/` and `ccl/` are folders of `device` or, of a crate, its `kernels`.
            let header = sources.iter().find(|(path, _)| {
                path.ends_with(&format!("/{name}")) || **path == format!("{folder}/kernels/{file}")
            });
            let Some((path, header)) = header else { continue };
            let known = found.iter().any(|(other, _)| *other == path);
            if !known && !DEFINITIONS.iter().any(|(definition, _)| definition == path) {
                found.push((path, header));
                texts.push(header);
            }
        }
    }
    found.into_iter().map(|(_, text)| text).collect()
}

#[test]
fn every_kernel_has_a_row_and_those_that_are_quiet_are() {
    let sources = sources();
    let mut named = BTreeSet::new();
    for (file, text) in &sources {
        for kernel in kernels(text) {
            let Some((_, runs)) = KERNELS.iter().find(|(name, _)| *name == kernel) else {
                panic!("{file}: {kernel} is in no row: say which protocol runs it, or that it is quiet");
            };
            let tells = communicates(&kernel, text, &headers_of(text, &sources));
            let quiet = matches!(runs, Runs::Quiet | Runs::QuietIn(_));
            assert_eq!(!quiet, tells, "{file}: {kernel} communicates: {tells}");
            named.insert(kernel);
        }
    }
    let rows: BTreeSet<String> = KERNELS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(named, rows);
}

#[test]
fn every_embedded_unit_is_among_the_sources() {
    let sources = sources();
    for unit in units() {
        assert!(sources.values().any(|text| text == unit.source), "{}", unit.name);
        for entry in unit.entries {
            assert!(KERNELS.iter().any(|(name, _)| name == entry), "{}: {entry} has no row", unit.name);
        }
    }
}

#[test]
fn protocols_run_the_kernels_of_the_table() {
    let jit = common::jit();
    let mut options = RunOptions::default();
    options.keep_events = true;
    // A world runs the kernels of ep, and no mistake of a kernel is looked for in it.
    for protocol in Protocol::ALL.iter().filter(|protocol| **protocol != Protocol::World) {
        // Staged, some run others.
        let events: Vec<Event> = [false, true]
            .into_iter()
            .flat_map(|staged| {
                let mut case = Case::new(*protocol, 2);
                case.staged = staged;
                common::make(&jit, &case).run(1, &options).unwrap().run.events
            })
            .collect();
        let ran: BTreeSet<&str> = events.iter().map(|event| &*event.kernel).collect();
        for (kernel, runs) in KERNELS {
            let (Runs::In(protocols) | Runs::QuietIn(protocols)) = runs else { continue };
            assert_eq!(protocols.contains(protocol), ran.contains(kernel), "{protocol}: {kernel}");
        }
    }
}

#[test]
fn kernels_of_searches_conformance_and_the_ping_keep_the_rules() {
    let own = |name: &str| {
        name.starts_with("sim/")
            || name.starts_with("conformance/kernels/shmem_")
            || name == "shmem/kernels/p2p.hip"
    };
    for (file, text) in sources().iter().filter(|(name, _)| own(name)) {
        let found: Vec<_> = anabranch_testkit::lint::lint_source(file, text)
            .into_iter()
            // The device API's functions of that name say their scope in the primitive.
            .filter(|lint| !(lint.rule == LintRule::UnscopedAtomic && lint.text.contains("shmem::atomic_")))
            .collect();
        assert!(found.is_empty(), "{file}: {found:#?}");
    }
}
