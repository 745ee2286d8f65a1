//! `docs/operations.md` against worlds: its table of operations, scopes and transports is generated from `World::support`, and every
//! operation of a transport has tests.

use crate::common::root;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anabranch::config::LoadOptions;
use anabranch::shmem::Error;
use anabranch::transport::{Operation, Scope, Support, TransportKind};
use anabranch::{Config, GlobalRank};

const BEGIN: &str = "<!-- operations: generated from World::support -->\n";
const END: &str = "<!-- end of operations -->";

fn page() -> PathBuf {
    root().join("docs/operations.md")
}

/// `World::support` for every operation and scope, in a world of two ranks with a route of this kind.
fn support(kind: TransportKind) -> BTreeMap<(Operation, Scope), Support> {
    let order = match kind {
        TransportKind::Sdma => "transport.order=sdma,p2p".to_owned(),
        kind => format!("transport.order={kind}"),
    };
    let set = ["heap.bytes=1 MiB", "transport.rdma.driver=software", &order].map(str::to_owned).to_vec();
    let config = Config::load_with(&LoadOptions { set, ..LoadOptions::default() }).unwrap().config;
    let said = anabranch::spawn_threads(&config, 2, |world| {
        let peer = GlobalRank::new(1 - world.rank().get());
        let route = world.routes().iter().find(|route| route.peer == peer).map(|route| route.kind);
        assert_eq!(route, Some(kind));
        let cells =
            Operation::ALL.iter().flat_map(|operation| Scope::ALL.iter().map(|scope| (*operation, *scope)));
        Ok::<_, Error>(
            cells.map(|cell| (cell, world.support(peer, cell.0, cell.1))).collect::<BTreeMap<_, _>>(),
        )
    });
    let mut said: Vec<_> = said.unwrap().into_iter().map(Result::unwrap).collect();
    assert_eq!(said[0], said[1]);
    said.remove(0)
}

/// Scopes by the first letters of their words; an empty cell is `Unsupported`.
fn cell(said: &BTreeMap<(Operation, Scope), Support>, operation: Operation) -> String {
    let words = Scope::ALL.iter().filter_map(|scope| match said[&(operation, *scope)] {
        Support::Implemented => Some(scope.word().to_owned()),
        Support::Words64 => Some(format!("{scope} (64-bit words)")),
        Support::SetOnly => Some(format!("{scope} (set only)")),
        Support::Unsupported => None,
    });
    words.collect::<Vec<_>>().join(", ")
}

fn table(said: &[BTreeMap<(Operation, Scope), Support>]) -> String {
    let mut text = String::from("| operation |");
    for kind in TransportKind::ALL {
        write!(text, " {kind} |").unwrap();
    }
    text.push_str("\n|---|---|---|---|\n");
    for operation in Operation::ALL {
        let cells: Vec<String> = said.iter().map(|said| cell(said, *operation)).collect();
        writeln!(text, "| `{operation}` | {} |", cells.join(" | ")).unwrap();
    }
    text
}

/// Rows of a table whose first cell names operations: those, and how many tests the cell of each transport names.
fn tested(page: &str) -> Vec<(Vec<String>, Vec<usize>)> {
    let after = page.split("## What holds each cell").nth(1).unwrap_or_default();
    let rows = after.lines().filter(|line| line.starts_with("| `"));
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').collect();
        let names = cells[0].split('`').skip(1).step_by(2).map(str::to_owned).collect();
        (names, cells[1..].iter().map(|cell| cell.matches(".rs::").count()).collect())
    };
    rows.map(row).collect()
}

/// Operations that a transport has without a test on the page, and listed operations that no transport has.
fn untested(page: &str, said: &[BTreeMap<(Operation, Scope), Support>]) -> Vec<String> {
    let rows = tested(page);
    let mut found = Vec::new();
    for operation in Operation::ALL {
        let named: Vec<_> =
            rows.iter().filter(|(names, _)| names.iter().any(|name| name == operation.word())).collect();
        let [(_, counts)] = named[..] else {
            found.push(format!("{operation} is in {} rows", named.len()));
            continue;
        };
        for (kind, said) in TransportKind::ALL.iter().zip(said) {
            let exists = Scope::ALL.iter().any(|scope| said[&(*operation, *scope)] != Support::Unsupported);
            let tests =
                TransportKind::ALL.iter().position(|other| other == kind).and_then(|at| counts.get(at));
            if exists != tests.is_some_and(|tests| *tests > 0) {
                found.push(format!("{operation} over {kind}: there {exists}, tests {tests:?}"));
            }
        }
    }
    let known = |name: &String| Operation::ALL.iter().any(|operation| operation.word() == name);
    found.extend(rows.iter().flat_map(|(names, _)| names).filter(|name| !known(name)).cloned());
    found
}

/// `UPDATE=1 cargo test -p anabranch-repo --test it -- operations::` writes the table.
#[test]
fn the_page_agrees_with_worlds_and_every_cell_has_a_test() {
    let said = TransportKind::ALL.map(support);
    let text = fs::read_to_string(page()).unwrap();
    let head = text.find(BEGIN).expect("the begin mark") + BEGIN.len();
    let tail = text.find(END).expect("the end mark");
    let wanted = table(&said);
    if text[head..tail] != wanted {
        #[expect(clippy::disallowed_methods, reason = "the switch by which a snapshot is rewritten")]
        let update = std::env::var_os("UPDATE").is_some();
        assert!(
            update,
            "docs/operations.md differs from the support that worlds report; run UPDATE=1 cargo test -p anabranch-repo --test it -- operations::"
        );
        fs::write(page(), format!("{}{wanted}{}", &text[..head], &text[tail..])).unwrap();
    }
    assert_eq!(untested(&text, &said), [""; 0]);

    // A cell without a test, an operation that is forgotten, and one that is made up are found.
    let row =
        text.lines().find(|line| line.starts_with("| `signal_wait`") && line.contains(".rs::")).unwrap();
    let last = row.trim_end_matches('|').rsplit('|').next().unwrap();
    for (old, new, expected) in [
        (row.to_owned(), row.replacen(last, " none ", 1), 2),
        (row.to_owned(), String::new(), 2),
        ("`signal_wait`, ".to_owned(), "`signal_wait`, `signal_weight`, ".to_owned(), 1),
    ] {
        let at = text.rfind(&old).unwrap_or_else(|| panic!("{old} is there"));
        let changed = format!("{}{new}{}", &text[..at], &text[at + old.len()..]);
        assert_eq!(untested(&changed, &said).len(), expected, "{old}");
    }
}
