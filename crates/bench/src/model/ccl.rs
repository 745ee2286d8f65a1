//! `anabranch model ccl`.

use anabranch::GroupRank;
use anabranch_ccl as ccl;
use anabranch_ccl::Shape;
use anabranch_ccl::{
    Across, CallTraffic, DataType, Error, LinkCapacity, LocationKind, ReduceOp, call_traffic,
};
use anyhow::{Context as _, bail};
use clap::Args;

use super::links::{LinkArgs, Links};
use super::row::{self, CostRow};
use super::scale::{Scale, ScaleArgs};
use crate::ccl::{collective::Collective, sizes::Size};
use crate::types::collective_type;

/// `anabranch model ccl`.
#[derive(Clone, Debug, Args)]
pub struct ModelCclArgs {
    #[command(flatten)]
    scale: ScaleArgs,
    #[command(flatten)]
    links: LinkArgs,
    /// Collectives [default: all_reduce,all_gather,reduce_scatter,all_to_all].
    #[arg(long = "op", value_enum, value_delimiter = ',', value_name = "OP,...")]
    collectives: Vec<Collective>,
    /// Bytes, as `bench ccl` counts them.
    #[arg(long, value_delimiter = ',', value_name = "SIZE,...", default_value = "1M,256M")]
    sizes: Vec<Size>,
    /// Element type: bf16, f16, f32, f64, float8_e4m3fn, float8_e5m2, i8, u8, ..., or torch's names.
    #[arg(long, value_parser = collective_type, default_value = "bf16", value_name = "TYPE")]
    dtype: DataType,
    /// By which way between nodes: direct, node or auto [default: direct, and node where that can be].
    #[arg(long, value_delimiter = ',', value_name = "WAY,...")]
    across: Vec<Across>,
    /// The most blocks of a launch, `ccl.max_blocks` [default: that of a large GPU, fewer the more ranks there are].
    #[arg(long, alias = "lanes", value_name = "N")]
    channels: Option<u32>,
    /// Bytes of staging, `ccl.staging_bytes`: chunks are smaller, and messages more, the more ranks share it [default: that of a large
    /// GPU whose heap has 4 GiB].
    #[arg(long, value_name = "SIZE")]
    staging: Option<Size>,
}

/// Prints the costs of all collectives.
///
/// # Errors
/// What cannot be modelled: ranks, sizes, ways; standard output is gone.
pub(super) fn run(arguments: &ModelCclArgs) -> anyhow::Result<()> {
    let links = arguments.links.links();
    row::print_rows(&rows(arguments, &links)?, &links, arguments.scale.json)
}

fn rows(arguments: &ModelCclArgs, links: &Links) -> anyhow::Result<Vec<CostRow>> {
    let usual = LinkCapacity::default();
    let room = LinkCapacity {
        channels: arguments.channels.or(usual.channels),
        staging_bytes: arguments.staging.map_or(usual.staging_bytes, |size| size.0),
        speeds: links.speeds(),
    };
    let collectives = match arguments.collectives.as_slice() {
        [] => Collective::DEFAULT.to_vec(),
        given => given.to_vec(),
    };
    let (ways, is_given) = match arguments.across.as_slice() {
        [] => (vec![Across::Direct, Across::Node], false),
        given => (given.to_vec(), true),
    };
    let scales = arguments.scale.all()?;
    let mut rows = Vec::new();
    for collective in &collectives {
        for Size(bytes) in &arguments.sizes {
            for scale in &scales {
                for across in &ways {
                    let shape = shape(*collective, *bytes, arguments.dtype, *scale)?;
                    match call_traffic(&shape, &scale.node_of_ranks(), *across, room) {
                        // A way that was not requested and does not exist.
                        Err(Error::Algorithm { .. }) if !is_given => {}
                        Err(error) => return Err(anabranch::Error::from(error).into()),
                        Ok(traffic) => rows.push(cost(&traffic, &shape, *scale, links)),
                    }
                }
            }
        }
    }
    Ok(rows)
}

fn shape(collective: Collective, bytes: u64, data_type: DataType, scale: Scale) -> anyhow::Result<Shape> {
    if bytes == 0 {
        bail!("--sizes: 0 bytes leave nothing to move");
    }
    let elements = collective
        .elements(bytes, data_type.bytes().into(), scale.ranks)
        .with_context(|| format!("{collective} of --sizes {bytes}"))?;
    let op = collective.reduces().then_some(ReduceOp::Sum);
    op.map_or(Ok(()), |op| op.check(data_type)).map_err(anabranch::Error::from)?;
    Ok(Shape {
        norm_row: None,
        collective: collective.library(),
        data_type,
        op,
        members: scale.ranks,
        count: elements.count,
        uneven: false,
        root: collective.has_root().then_some(GroupRank::new(0)),
        input: LocationKind::Symmetric,
        output: LocationKind::Symmetric,
    })
}

fn cost(traffic: &CallTraffic, shape: &Shape, scale: Scale, links: &Links) -> CostRow {
    let parts = traffic.parts(&links.speeds());
    let across =
        if traffic.algorithm == ccl::Algorithm::NetworkByNode { Across::Node } else { Across::Direct };
    let (size, dtype) = (row::Size::Bytes(shape.message_bytes()), shape.data_type.to_string());
    let op = shape.collective.to_string();
    CostRow::new(&op, scale, size, &dtype, across.name(), traffic.moved(), (parts.at_once(), parts, links))
}
