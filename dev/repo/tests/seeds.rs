//! `docs/seeds.md` against the tree: every requirement has a row, and what a row says holds it is there.

use crate::common::root;

use std::fs;

/// The groups of requirements with their numbers of rows.
const GROUPS: [(&str, usize); 5] = [("S0", 25), ("S1", 41), ("S2", 18), ("S3", 46), ("S4", 17)];
/// What a row may say of its requirement.
const VERDICTS: [&str; 3] = ["yes", "in part", "not yet"];
/// Where a path in the page may begin: whatever else stands between backticks is code.
const ROOTS: [&str; 8] = [".ci/", "config/", "crates/", "dev/", "docs/", "scripts/", "src/", "tests/"];

fn page() -> String {
    text("docs/seeds.md").unwrap_or_default()
}

/// A file of the repository.
fn text(path: &str) -> Option<String> {
    fs::read_to_string(root().join(path)).ok()
}

/// Whether a Rust source has a test of this name: a function with `#[test]` among the attributes right above it.
fn has_test(source: &str, name: &str) -> bool {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let begins = format!("fn {name}(");
    let is_test = |at: usize| {
        let above = lines[..at].iter().rev();
        // Attributes of several lines have no empty line, and no end of a block or statement.
        let mut attributes = above.take_while(|line| !line.is_empty() && !line.ends_with(['{', '}', ';']));
        attributes.any(|line| *line == "#[test]")
    };
    (0..lines.len()).any(|at| lines[at].starts_with(&begins) && is_test(at))
}

/// Why what stands between backticks is not in the tree.
fn problem(reference: &str) -> Option<String> {
    if !ROOTS.iter().any(|root| reference.starts_with(root)) {
        return None;
    }
    let (path, name) =
        reference.split_once("::").map_or((reference, None), |(path, name)| (path, Some(name)));
    let Some(source) = text(path) else { return Some(format!("{reference}: there is no file {path}")) };
    let is_there = match name {
        None => true,
        Some(step) if path == ".ci/run" => source.contains(&format!("\nstep \"{step}\"\n")),
        Some(name) => has_test(&source, name),
    };
    (!is_there).then(|| format!("{reference}: {path} has no such test or step"))
}

/// What stands between backticks in a line.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Everything that is wrong with the page.
fn problems(page: &str) -> Vec<String> {
    let mut found: Vec<String> = page.lines().flat_map(quoted).filter_map(problem).collect();
    // A lost one would turn code and prose round for the rest of its line.
    let odd = page.lines().filter(|line| line.matches('`').count() % 2 == 1);
    found.extend(odd.map(|line| format!("a backtick without its other: {line}")));
    let mut numbers = Vec::new();
    for row in page.lines().filter(|line| line.starts_with("| S")) {
        let cells: Vec<&str> = row[1..row.len() - 1].split('|').map(str::trim).collect();
        let [number, requirement, verdict, by_what, missing] = cells[..] else {
            found.push(format!("five cells expected: {row}"));
            continue;
        };
        numbers.push(number.to_owned());
        if requirement.is_empty() {
            found.push(format!("{number}: an empty cell"));
        }
        if !VERDICTS.contains(&verdict) {
            found.push(format!("{number}: {verdict:?} is none of {VERDICTS:?}"));
        }
        let holds = quoted(by_what).any(|reference| ROOTS.iter().any(|root| reference.starts_with(root)));
        if verdict != "not yet" && !holds {
            found.push(format!("{number}: {verdict}, and nothing is named"));
        }
        if (verdict == "yes") != missing.is_empty() {
            found.push(format!("{number}: {verdict}, and missing is {missing:?}"));
        }
    }
    let expected: Vec<String> = GROUPS
        .iter()
        .flat_map(|(group, rows)| (1..=*rows).map(move |row| format!("{group}.{row}")))
        .collect();
    if numbers != expected {
        found.push(format!("rows are {numbers:?}"));
    }
    found
}

#[test]
fn the_page_is_about_this_tree() {
    let found = problems(&page());
    assert!(found.is_empty(), "{}", found.join("\n"));
    let tests = page().lines().flat_map(quoted).filter(|reference| reference.contains(".rs::")).count();
    assert!(tests > 100, "only {tests} tests are named");
}

#[test]
fn other_pages_name_what_is_there() {
    let path = "docs/operations.md";
    let page = text(path).unwrap_or_default();
    let found: Vec<String> = page.lines().flat_map(quoted).filter_map(problem).collect();
    assert!(found.is_empty(), "{path}: {}", found.join("\n"));
    assert!(
        page.lines().flat_map(quoted).filter(|reference| reference.contains(".rs::")).count() > 20,
        "{path}"
    );
}

#[test]
fn invented_references_are_found() {
    const REAL: &str = "`dev/repo/tests/registry.rs::every_kernel_is_listed_once_and_renders`";
    let page = page();
    assert!(page.contains(REAL));
    // A missing file, a missing test, a part of a name, a function that is no test, a step that CI lacks.
    for made_up in [
        "`tests/registries.rs::every_kernel_is_listed_once_and_renders`",
        "`dev/repo/tests/registry.rs::every_kernel_is_listed_twice`",
        "`dev/repo/tests/registry.rs::every_kernel_is_listed_once`",
        "`dev/repo/tests/registry.rs::sources`",
        "`.ci/run::wishes`",
        "`crates/nowhere/src/lib.rs`",
    ] {
        let found = problems(&page.replacen(REAL, made_up, 1));
        assert_eq!(found.len(), 1, "{made_up}: {found:?}");
        assert!(found[0].starts_with(made_up.trim_matches('`')), "{found:?}");
    }
}

#[test]
fn rows_that_are_wrong_are_found() {
    let page = page();
    let row = |number: &str| {
        let begins = format!("| {number} |");
        page.lines().find(|line| line.starts_with(&begins)).unwrap()
    };
    let (first, last) = (row("S0.1"), row("S4.17"));
    let partial = page.lines().find(|line| line.contains("| in part |")).unwrap();
    for (old, new, words) in [
        (last.to_owned(), String::new(), "rows are"),
        (first.to_owned(), format!("{first}\n{first}"), "rows are"),
        (first.to_owned(), "| S0.1 | One pipeline | yes | no test | |".to_owned(), "nothing is named"),
        (first.to_owned(), first.replacen("| yes |", "| perhaps |", 1), "\"perhaps\" is none of"),
        (first.to_owned(), first.replacen("| yes |", "| in part |", 1), "in part, and missing is"),
        (first.to_owned(), first.replacen('`', "", 1), "a backtick without"),
        (partial.to_owned(), partial.replacen("| in part |", "|", 1), "five cells expected"),
    ] {
        let found = problems(&page.replacen(&old, &new, 1));
        assert!(found.iter().any(|problem| problem.contains(words)), "{words}: {found:?}");
    }
}

#[test]
fn tests_are_distinguished_from_other_functions() {
    let source = "#[test]\nfn plain() {}\n\n    #[test]\n    #[expect(\n        unused,\n        reason = \"said\"\n    )]\n    \
        fn with_attributes() {}\nfn helper() {}\n\nproptest! {\n    #[test]\n    fn drawn(value in any()) {}\n}\n";
    for name in ["plain", "with_attributes", "drawn"] {
        assert!(has_test(source, name), "{name}");
    }
    for name in ["helper", "plai", "lain", "absent"] {
        assert!(!has_test(source, name), "{name}");
    }
}
