use proptest::prelude::*;

use super::*;
use crate::options::Fp8Format;
use crate::plan::{DeviceLimits, EpShape, Plan};

fn step(up_to: Option<u32>, max_blocks: u32, waves_per_block: u32, segments: u32) -> LaunchStep {
    LaunchStep { up_to, max_blocks, waves_per_block, segments }
}

fn key() -> LaunchKey {
    LaunchKey::new(&EpConfig::new(EpShape { hidden: 7168, experts: 256, top_k: 8, max_tokens: 4096 }), 4)
}

fn table() -> LaunchTable {
    let quantised = LaunchKey { combine_codec: CombineCodec::Fp8Block(Fp8Format::E4m3fn), ..key() };
    LaunchTable {
        device: "a \"quoted\" device".to_owned(),
        launches: vec![
            Launches {
                dispatch: vec![step(Some(8), 16, 8, 14), step(Some(512), 64, 4, 7), step(None, 132, 16, 1)],
                combine_pull: vec![step(None, 96, 8, 14)],
                ..Launches::new(key())
            },
            Launches { combine_push: vec![step(None, 48, 16, 1)], ..Launches::new(quantised) },
        ],
    }
}

/// An H200.
fn limits() -> DeviceLimits {
    DeviceLimits {
        wave_size: 32,
        resident_blocks: 264,
        multiprocessors: 132,
        preferred_waves: 16,
        local_bytes: 48 << 10,
    }
}

fn plan(config: EpConfig) -> Plan {
    Plan::new(config, 4).unwrap().for_device("a \"quoted\" device")
}

fn tuned() -> EpConfig {
    EpConfig::new(EpShape { hidden: 7168, experts: 256, top_k: 8, max_tokens: 4096 }).table(Arc::new(table()))
}

#[test]
fn tables_of_the_crate_can_be_read_and_name_different_devices() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tables");
    let mut devices: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| LaunchTable::read(&entry.unwrap().path()).unwrap().device)
        .collect();
    devices.sort();
    let mut embedded: Vec<_> = EMBEDDED.iter().map(|table| table.device.clone()).collect();
    embedded.sort();
    assert_eq!(devices, embedded);
    devices.dedup();
    assert_eq!(devices.len(), embedded.len());
    assert!(LaunchTable::embedded("no such device").is_none());
}

#[test]
fn a_table_is_read_as_it_was_written() {
    assert_eq!(LaunchTable::parse(&table().to_string()), Ok(table()));
}

#[test]
fn tokens_round_up_and_nothing_else_does() {
    let table = table();
    let found = table.find(&key()).unwrap();
    let blocks = |operation, tokens| found.launch(operation, tokens).map(|launch| launch.max_blocks);
    let dispatch = |tokens| blocks(LaunchOperation::Dispatch, tokens);
    assert_eq!([0, 1, 8, 9, 512, 513, 1 << 20].map(dispatch), [16, 16, 16, 64, 64, 132, 132].map(Some));
    assert_eq!(blocks(LaunchOperation::CombinePull, 7), Some(96));
    assert_eq!(blocks(LaunchOperation::CombinePush, 7), None, "it was not measured");
    for other in [
        LaunchKey { ranks: 2, ..key() },
        LaunchKey { hidden: 7160, ..key() },
        LaunchKey { top_k: 7, ..key() },
        LaunchKey { dispatch_type: DataType::F16, ..key() },
        LaunchKey { combine_type: DataType::F16, ..key() },
        LaunchKey { combine_codec: CombineCodec::Fp4Block, ..key() },
    ] {
        assert_eq!(table.find(&other), None, "{other}");
    }
    let most = |tokens| found.launches_up_to(tokens).map(|launch| launch.max_blocks).max();
    assert_eq!([most(8), most(513)], [Some(96), Some(132)]);
}

#[test]
fn a_wrong_table_is_refused_with_the_reason() {
    let text = |fields: &str, steps: &str| {
        let fields = if fields.is_empty() {
            "ranks = 4\ndispatch_type = \"bf16\"\ncombine_type = \"bf16\"\nhidden = 64\ntop_k = 2"
        } else {
            fields
        };
        format!("device = \"x\"\n[[launches]]\n{fields}\n{steps}\n")
    };
    let good = "{ max_blocks = 1, waves_per_block = 1, segments = 1 }";
    let codec = "ranks = 4\ndispatch_type = \"bf16\"\ncombine_type = \"bf16\"\ncombine_codec = \"fp4_block\"\nhidden = 64\ntop_k = 2";
    for (fields, steps, expected) in [
        ("", String::new(), "no steps"),
        ("", "dispatch = []".to_owned(), "no steps"),
        ("", "dispatch = [{ up_to = 5, max_blocks = 1, waves_per_block = 1, segments = 1 }]".to_owned(), "more tokens have no step"),
        ("", format!("dispatch = [{good}, {good}]"), "has no up_to"),
        (
            "",
            "combine_push = [{ up_to = 5, max_blocks = 1, waves_per_block = 1, segments = 1 }, { up_to = 5, max_blocks = 1, \
             waves_per_block = 1, segments = 1 }, { max_blocks = 1, waves_per_block = 1, segments = 1 }]"
                .to_owned(),
            "combine_push: up_to = 5 after 5",
        ),
        ("", "dispatch = [{ max_blocks = 0, waves_per_block = 1, segments = 1 }]".to_owned(), "max_blocks = 0"),
        ("", "dispatch = [{ max_blocks = 1, waves_per_block = 17, segments = 1 }]".to_owned(), "waves 1 to 16"),
        ("", "dispatch = [{ max_blocks = 1, waves_per_block = 1, segments = 0 }]".to_owned(), "segments = 0"),
        ("", "dispatch = [{ max_blocks = 1, waves_per_block = 1 }]".to_owned(), "segments"),
        ("", format!("dispatch = [{good}]\nmore = 1"), "unknown field"),
        (codec, format!("combine_pull = [{good}]"), "rows of the codec fp4_block are not pulled"),
        (
            "ranks = 4\ndispatch_type = \"fp6\"\ncombine_type = \"bf16\"\nhidden = 64\ntop_k = 2",
            format!("dispatch = [{good}]"),
            "fp6",
        ),
        (
            "ranks = 4\ndispatch_type = \"bf16\"\ncombine_type = \"fp4\"\nhidden = 64\ntop_k = 2",
            format!("dispatch = [{good}]"),
            "no type that combine sums",
        ),
        (
            "ranks = 0\ndispatch_type = \"bf16\"\ncombine_type = \"bf16\"\nhidden = 64\ntop_k = 2",
            format!("dispatch = [{good}]"),
            "at least 1",
        ),
    ] {
        let refused = LaunchTable::parse(&text(fields, &steps)).unwrap_err();
        assert!(refused.contains(expected), "{steps}: {refused}");
    }
    let once = text("", &format!("dispatch = [{good}]"));
    let twice = format!("{once}{}", once.replace("device = \"x\"\n", ""));
    assert!(LaunchTable::parse(&twice).unwrap_err().contains("given twice"));
    let missing = LaunchTable::read(Path::new("/nowhere/table.toml")).unwrap_err().to_string();
    assert!(missing.contains("/nowhere/table.toml"), "{missing}");
}

#[test]
fn configuration_overrides_table_overrides_default() {
    let shape = |config: EpConfig, tokens| {
        let plan = plan(config);
        let geometry = plan.dispatch_geometry(tokens, &limits()).unwrap();
        (plan.launch_choice().name(), geometry.blocks, geometry.block_threads / 32)
    };
    assert_eq!(shape(tuned(), 4096), ("table", 132, 16));
    assert_eq!(shape(tuned(), 512), ("table", 64, 4));
    assert_eq!(
        shape(EpConfig::new(EpShape { hidden: 7168, experts: 256, top_k: 8, max_tokens: 4096 }), 4096),
        ("default", 64, 16)
    );
    // Each number by itself: fewer blocks, and waves as measured.
    assert_eq!(shape(tuned().launch(20, 0), 512), ("table", 20, 4));
    assert_eq!(shape(tuned().launch(20, 8), 512), ("configured", 20, 8));
    // Launches of another model are not used.
    assert_eq!(shape(EpConfig { hidden: 7160, ..tuned() }, 512).0, "default");
    let other = Plan::new(tuned(), 4).unwrap().for_device("another device");
    assert!(
        other.launch_choice().to_string().contains("and not of \"another device\""),
        "{}",
        other.launch_choice()
    );
    let missing = plan(EpConfig { top_k: 7, ..tuned() });
    assert!(missing.launch_choice().to_string().contains("top-k 7"), "{}", missing.launch_choice());
    let found = plan(tuned());
    assert!(found.launch_choice().to_string().contains("by the table"), "{}", found.launch_choice());
}

#[test]
fn plans_reserve_the_largest_launch() {
    let most = |config| plan(config).most_blocks(&limits());
    assert_eq!(most(tuned()), 132);
    assert_eq!(most(EpConfig { max_tokens: 8, ..tuned() }), 96, "no call has as many tokens");
    assert_eq!(most(tuned().launch(20, 0)), 20);
    assert_eq!(most(EpConfig { top_k: 7, ..tuned() }), 64);
    assert_eq!(
        (plan(tuned()).most_waves(), plan(EpConfig { max_tokens: 512, ..tuned() }).most_waves()),
        (16, 8)
    );
    // A device that lets fewer blocks be there at once gets no more.
    let small = DeviceLimits { resident_blocks: 30, ..limits() };
    assert_eq!(plan(tuned()).dispatch_geometry(4096, &small).unwrap().blocks, 30);
}

#[test]
fn digest_covers_exactly_the_entries_in_use() {
    let digest = |table: LaunchTable| compared(&tuned().table(Arc::new(table)), 4, "a \"quoted\" device");
    let mut other_rows = table();
    other_rows.launches.pop();
    assert_eq!(digest(table()), digest(other_rows));
    let mut changed = table();
    changed.launches[0].dispatch[1].segments += 1;
    assert_ne!(digest(table()), digest(changed));
    assert_eq!(digest(LaunchTable { device: "another".to_owned(), ..table() }), "none");
    // Numbers of the configuration may differ among members.
    assert_eq!(compared(&tuned().launch(1, 1), 4, "a \"quoted\" device"), digest(table()));
}

#[test]
fn put_keeps_entries_of_other_keys() {
    let mut table = table();
    table.put(Launches { dispatch: vec![step(None, 1, 1, 1)], ..Launches::new(key()) });
    table.put(Launches {
        dispatch: vec![step(None, 2, 2, 2)],
        ..Launches::new(LaunchKey { ranks: 2, ..key() })
    });
    assert_eq!(table.launches.len(), 3);
    assert_eq!(table.find(&key()).unwrap().dispatch.len(), 1);
}

proptest! {
    /// Laws of the plan hold for any launch a table may have: grids are resident, and each unit of a row is copied once.
    #[test]
    fn any_launch_makes_a_whole_geometry(
        max_blocks in 1u32..400, waves_per_block in 1u32..=16, segments in 1u32..2000, tokens in 0u32..5000,
        wave_size in prop_oneof![Just(1u32), Just(4), Just(32), Just(64)], resident_blocks in 1u32..300,
    ) {
        let steps = vec![step(None, max_blocks, waves_per_block, segments)];
        let all = Launches {
            dispatch: steps.clone(), combine_pull: steps.clone(), combine_push: steps, ..Launches::new(key())
        };
        let table = LaunchTable { device: "a \"quoted\" device".to_owned(), launches: vec![all] };
        let plan = plan(tuned().table(Arc::new(table)));
        let limits = DeviceLimits { wave_size, resident_blocks, preferred_waves: plan.most_waves(), ..limits() };
        let tokens = tokens.min(4096);
        let dispatch = plan.dispatch_geometry(tokens, &limits).unwrap();
        let shapes = [dispatch, plan.combine_geometry(tokens, &limits), plan.combine_push_geometry(tokens, &limits)];
        for geometry in shapes {
            prop_assert!((1..=max_blocks.min(resident_blocks)).contains(&geometry.blocks), "{geometry:?}");
            prop_assert_eq!(geometry.blocks % geometry.parts, 0);
            prop_assert_eq!(geometry.block_threads % wave_size, 0);
            prop_assert!(geometry.block_threads <= waves_per_block.min(1024 / wave_size) * wave_size);
            prop_assert!((1..=896).contains(&geometry.segments));
        }
        prop_assert!(plan.most_blocks(&limits) == max_blocks.min(resident_blocks));
    }
}
