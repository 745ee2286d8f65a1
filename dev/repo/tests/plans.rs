//! What is launched for a call does not change unnoticed: algorithms, blocks and threads of collectives, launches and memory of dispatch
//! and combine, for devices like those that are out there, as `UPDATE_EXPECT=1 cargo test -p anabranch-repo --test it -- plans::` writes them.

use std::fmt::Write as _;

use anabranch::GroupRank;
use anabranch_ccl::Shape;
use anabranch_ccl::plan::Limits;
use anabranch_ccl::{Collective, DataType, LocationKind, Plan as CollectivePlan, ReduceOp, Table};
use anabranch_ep::plan::{DeviceLimits, Geometry};
use anabranch_ep::{CombineSource, EpConfig, EpShape, Mode, Nodes, Plan};
use expect_test::expect_file;

/// A GPU with 132 multiprocessors and waves of 32 lanes.
const LANES_OF_32: DeviceLimits = limits(32, 132, 8);
/// A GPU with 304 compute units and waves of 64 lanes.
const LANES_OF_64: DeviceLimits = limits(64, 304, 8);

const fn limits(wave_size: u32, multiprocessors: u32, preferred_waves: u32) -> DeviceLimits {
    DeviceLimits {
        wave_size,
        resident_blocks: multiprocessors,
        multiprocessors,
        preferred_waves,
        local_bytes: 65_536 - 64,
    }
}

fn shape(collective: Collective, members: u32, bytes: u64, kind: LocationKind) -> Shape {
    let whole = matches!(collective, Collective::AllReduce | Collective::Broadcast | Collective::Reduce);
    let rooted = matches!(
        collective,
        Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter
    );
    let count = if whole { bytes / 2 } else { bytes / 2 / u64::from(members) };
    Shape {
        collective,
        data_type: DataType::Bf16,
        op: collective.reduces().then_some(ReduceOp::Sum),
        members,
        count,
        uneven: false,
        root: rooted.then_some(GroupRank::new(0)),
        input: kind,
        output: kind,
        norm_row: None,
    }
}

const LIMITS: Limits = Limits {
    channels: 128,
    block_threads: 256,
    barrier_threads: 32,
    row_channels: 32,
    row_threads: 512,
    row_bytes: 100 << 10,
};

/// A table of what would be done for a sum of rows with RMSNorm.
fn norms(table: Option<&Table>) -> String {
    const ROWS: [u64; 7] = [1, 4, 16, 32, 64, 128, 256];
    let mut text = String::from("| memory | members |");
    for rows in ROWS {
        write!(text, " {rows} |").unwrap();
    }
    text.push_str("\n|---|---|---|---|---|---|---|---|---|");
    for kind in [LocationKind::Local, LocationKind::Symmetric] {
        for members in [2, 4, 8] {
            let memory = if kind.is_reached() { "symmetric" } else { "local" };
            write!(text, "\n| {memory} | {members} |").unwrap();
            for rows in ROWS {
                let sum = shape(Collective::AllReduce, members, rows * 7168 * 2, kind);
                let sum = Shape { norm_row: Some(7168), ..sum };
                let plan = CollectivePlan::new(&sum, &LIMITS, table, None).unwrap();
                let then = if plan.norms { "" } else { ", then the norm" };
                write!(text, " {} {} x {}{then} |", plan.algorithm, plan.blocks, plan.threads).unwrap();
            }
        }
    }
    text.push('\n');
    text
}

/// A table of what would be done for messages of these sizes.
fn collectives(table: Option<&Table>) -> String {
    const SIZES: [(&str, u64); 6] = [
        ("64 B", 64),
        ("4 KiB", 4 << 10),
        ("64 KiB", 64 << 10),
        ("1 MiB", 1 << 20),
        ("16 MiB", 16 << 20),
        ("256 MiB", 256 << 20),
    ];
    let mut text = String::from("| collective | memory | members |");
    for (size, _) in &SIZES {
        write!(text, " {size} |").unwrap();
    }
    text.push_str("\n|---|---|---|");
    for _ in &SIZES {
        text.push_str("---|");
    }
    for collective in Collective::ALL {
        for kind in [LocationKind::Local, LocationKind::Symmetric] {
            for members in [2, 4, 8] {
                let memory = if kind.is_reached() { "symmetric" } else { "local" };
                write!(text, "\n| {collective} | {memory} | {members} |").unwrap();
                for (_, bytes) in SIZES {
                    let shape = shape(collective, members, bytes, kind);
                    let plan = CollectivePlan::new(&shape, &LIMITS, table, None).unwrap();
                    let phased = if plan.phased { " phased" } else { "" };
                    write!(text, " {}{phased} {} x {} |", plan.algorithm, plan.blocks, plan.threads).unwrap();
                }
            }
        }
    }
    text.push('\n');
    text
}

#[test]
fn plans_of_collectives() {
    let measured = Table::embedded("NVIDIA H200").unwrap();
    let text = format!(
        "# Plans of collectives\n\nAlgorithm, blocks x threads, of sums and moves of bf16 by the size of the message. Written by\n\
         `UPDATE_EXPECT=1 cargo test -p anabranch-repo --test it -- plans::`.\n\n## Where nothing was measured\n\n{}\n## By the table of the H200\n\n{}\n\
         ## All-reduce and RMSNorm of rows of 7168, by rows, with the table of the H200\n\n{}",
        collectives(None),
        collectives(Some(&measured)),
        norms(Some(&measured))
    );
    expect_file!["plans/collectives.md"].assert_eq(&text);
}

fn launch(geometry: Geometry) -> String {
    let Geometry { blocks, block_threads, parts, segments, local_bytes } = geometry;
    format!("{blocks} x {block_threads}, {parts} parts, {segments} segments, {local_bytes} B")
}

/// Launches of dispatch and combine, and what each rank allocates.
fn exchanges(limits: &DeviceLimits) -> String {
    let mut text = String::from(
        "| plan | ranks | heap bytes | tokens | dispatch | receive | combine |\n|---|---|---|---|---|---|---|\n",
    );
    let base = || EpConfig::new(EpShape { hidden: 7168, experts: 256, top_k: 8, max_tokens: 4096 });
    let two_nodes = |mut config: EpConfig| {
        config.nodes = Some(Nodes::new(&[0, 0, 0, 0, 1, 1, 1, 1]));
        config
    };
    let compact = base().mode(Mode::Compact);
    let mut pushed = base();
    pushed.combine_source = CombineSource::Buffer;
    for (name, config, ranks) in [
        ("slotted", base().mode(Mode::Slotted), 8),
        ("compact", compact.clone(), 8),
        ("compact, capped", compact.clone().max_recv(8192), 8),
        ("pushed", pushed, 8),
        ("few tokens", EpConfig::new(EpShape { hidden: 7168, experts: 256, top_k: 8, max_tokens: 128 }), 8),
        ("two ranks", EpConfig::new(EpShape { hidden: 7168, experts: 256, top_k: 8, max_tokens: 128 }), 2),
        (
            "two nodes, few tokens",
            two_nodes(EpConfig::new(EpShape { hidden: 7168, experts: 256, top_k: 8, max_tokens: 128 })),
            8,
        ),
        ("two nodes", two_nodes(base()), 8),
    ] {
        let most = config.max_tokens;
        let plan = Plan::new(config, ranks).unwrap();
        for tokens in [1, 8, 128, 4096].into_iter().filter(|tokens| *tokens <= most) {
            writeln!(
                text,
                "| {name} | {ranks} | {} | {tokens} | {} | {} | {} |",
                plan.heap_bytes(),
                launch(plan.dispatch_geometry(tokens, limits).unwrap()),
                launch(plan.receive_geometry(limits)),
                launch(plan.combine_geometry(tokens, limits)),
            )
            .unwrap();
        }
    }
    text
}

#[test]
fn plans_of_dispatch_and_combine() {
    let text = format!(
        "# Plans of dispatch and combine\n\nBlocks x threads, parts of a run of tokens, segments of a row, bytes of local memory a block; hidden 7168,\n\
         256 experts, top-8, bf16. Written by `UPDATE_EXPECT=1 cargo test -p anabranch-repo --test it -- plans::`.\n\n## 132 multiprocessors, waves of 32\n\n{}\n\
         ## 304 compute units, waves of 64\n\n{}",
        exchanges(&LANES_OF_32),
        exchanges(&LANES_OF_64)
    );
    expect_file!["plans/exchanges.md"].assert_eq(&text);
}
