use super::*;
use crate::types::LocationKind;

fn shape(collective: Collective, members: u32, bytes: u64, location: LocationKind) -> Shape {
    let parts = match collective {
        Collective::AllReduce | Collective::Broadcast | Collective::Reduce => 1,
        _ => u64::from(members),
    };
    Shape { input: location, output: location, ..Shape::of_bytes(collective, members, bytes / parts) }
}

fn table() -> Table {
    let steps = |last: Algorithm| {
        vec![
            Step { up_to: Some(1000), algorithm: Algorithm::Packets, block_bytes: 512, phased: false },
            Step { up_to: None, algorithm: last, block_bytes: 4096, phased: last == Algorithm::Push },
        ]
    };
    let of =
        |collective, members, reached, last| Choices { collective, members, reached, steps: steps(last) };
    Table {
        device: "a \"quoted\" device".to_owned(),
        choices: vec![
            of(Collective::AllReduce, 2, true, Algorithm::Pull),
            of(Collective::AllReduce, 4, true, Algorithm::Push),
            of(Collective::AllReduce, 4, false, Algorithm::TwoShotPackets),
            of(Collective::AllGather, 4, true, Algorithm::Direct),
        ],
    }
}

#[test]
fn embedded_tables_parse_with_distinct_devices() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tables");
    let mut devices: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| Table::read(&entry.unwrap().path()).unwrap().device)
        .collect();
    devices.sort();
    let mut embedded: Vec<_> = EMBEDDED.iter().map(|table| table.device.clone()).collect();
    embedded.sort();
    assert_eq!(devices, embedded);
    devices.dedup();
    assert_eq!(devices.len(), embedded.len());
    assert!(Table::embedded("no such device").is_none());
}

#[test]
fn written_table_parses_to_the_same_table() {
    assert_eq!(Table::parse(&table().to_string()), Ok(table()));
}

#[test]
fn steps_depend_on_size_memory_group_without_extrapolation() {
    let table = table();
    let algorithm = |collective, members, bytes, location| {
        table.step(&shape(collective, members, bytes, location)).map(|step| step.algorithm)
    };
    let (symmetric, local) = (LocationKind::Symmetric, LocationKind::Local);
    let reduce = Collective::AllReduce;
    for (members, bytes, location, expected) in [
        (4, 1000, symmetric, Algorithm::Packets),
        (4, 1001, symmetric, Algorithm::Push),
        (4, 1 << 40, symmetric, Algorithm::Push),
        (3, 1001, symmetric, Algorithm::Pull),
        (2, 1001, symmetric, Algorithm::Pull),
        (4, 1001, local, Algorithm::TwoShotPackets),
    ] {
        assert_eq!(
            algorithm(reduce, members, bytes, location),
            Some(expected),
            "{members} {bytes} {location:?}"
        );
    }
    for (members, location) in [(1, symmetric), (5, symmetric), (2, local), (3, local)] {
        assert_eq!(algorithm(reduce, members, 1001, location), None, "{members} {location:?}");
    }
    assert_eq!(algorithm(Collective::Gather, 4, 1, symmetric), None);
    assert_eq!(algorithm(Collective::AllGather, 4, 1, local), None);
}

#[test]
fn parse_error_describes_the_problem() {
    let text = |steps: &str| {
        format!(
            "device = \"x\"\n[[choices]]\ncollective = \"all_gather\"\nmembers = 4\nreached = false\nsteps = [{steps}]"
        )
    };
    for (steps, expected) in [
        ("", "no steps"),
        ("{ up_to = 5, algorithm = \"packets\", block_bytes = 1 }", "larger messages have no step"),
        ("{ algorithm = \"packets\", block_bytes = 0 }", "block_bytes = 0"),
        ("{ algorithm = \"direct\", block_bytes = 1 }", "peers have to reach the output"),
        ("{ algorithm = \"push\", block_bytes = 1 }", "it is for reductions"),
        ("{ algorithm = \"pipes\", block_bytes = 1 }", "it is for sends and receives"),
        ("{ algorithm = \"tree\", block_bytes = 1 }", "unknown variant"),
        ("{ algorithm = \"packets\", block_bytes = 1, more = 1 }", "unknown field"),
        (
            "{ up_to = 5, algorithm = \"packets\", block_bytes = 1 }, { up_to = 5, algorithm = \"packets\", block_bytes = 1 }, \
             { algorithm = \"packets\", block_bytes = 1 }",
            "sizes must ascend",
        ),
        (
            "{ algorithm = \"packets\", block_bytes = 1 }, { algorithm = \"packets\", block_bytes = 1 }",
            "has no up_to",
        ),
    ] {
        let refused = Table::parse(&text(steps)).unwrap_err();
        assert!(refused.contains(expected), "{steps}: {refused}");
    }
    let twice = format!(
        "{}{}",
        table(),
        text("{ algorithm = \"packets\", block_bytes = 1 }").replace("device = \"x\"\n", "")
    );
    assert!(Table::parse(&twice).is_ok(), "reached is another");
    let twice = format!(
        "{twice}\n{}",
        twice.rsplit_once("[[choices]]").map_or_else(String::new, |last| format!("[[choices]]{}", last.1))
    );
    assert!(Table::parse(&twice).unwrap_err().contains("given twice"));
    let missing = Table::read(Path::new("/nowhere/table.toml")).unwrap_err().to_string();
    assert!(missing.contains("/nowhere/table.toml"), "{missing}");
}
