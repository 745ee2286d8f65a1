//! `anabranch model ep`.

use anabranch::GroupRank;
use anabranch_ep::{Across, DataType, EpConfig, EpShape, Mode, Moved, Nodes, Plan};
use clap::Args;

use super::links::{LinkArgs, Links};
use super::row::{self, CostRow};
use super::scale::{Scale, ScaleArgs};
use crate::types::row_type;
use crate::workload::{Routing, Synthetic};

/// Experts of a small group; a larger one has one a rank.
const LEAST_EXPERTS: u32 = 256;

/// `anabranch model ep`.
#[derive(Clone, Debug, Args)]
pub struct ModelEpArgs {
    #[command(flatten)]
    scale: ScaleArgs,
    #[command(flatten)]
    links: LinkArgs,
    /// Tokens a rank.
    #[arg(long, value_delimiter = ',', value_name = "N,...", default_values_t = [128, 4096])]
    tokens: Vec<u32>,
    /// Elements of a token.
    #[arg(long, value_name = "N", default_value_t = 7168)]
    hidden: u32,
    /// Experts of the whole group [default: 256, or one a rank if that is more].
    #[arg(long, value_name = "N")]
    experts: Option<u32>,
    /// Experts of a token.
    #[arg(long, value_name = "N", default_value_t = 8)]
    top_k: u32,
    /// Where tokens go.
    #[arg(long, value_enum, default_value_t = Routing::Random)]
    routing: Routing,
    /// Another seed, other experts.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Element type of the rows that dispatch sends: bf16, f16, f32, float8_e4m3fn, float8_e4m3fnuz or fp4.
    #[arg(long, value_parser = row_type, default_value_t = DataType::Bf16, value_name = "TYPE")]
    dispatch_dtype: DataType,
    /// Element type of the rows that combine sums: bf16, f16 or f32.
    #[arg(long, value_parser = row_type, default_value_t = DataType::Bf16, value_name = "TYPE")]
    combine_dtype: DataType,
    /// By which way a dispatch goes between nodes: direct, node or auto.
    #[arg(long, value_delimiter = ',', value_name = "WAY,...", default_values_t = [Across::Direct, Across::Node])]
    across: Vec<Across>,
}

/// Prints the costs of dispatch and combine.
///
/// # Errors
/// What cannot be modelled: ranks, and what the plan refuses; standard output is gone.
pub(super) fn run(arguments: &ModelEpArgs) -> anyhow::Result<()> {
    let links = arguments.links.links();
    row::print_rows(&rows(arguments, &links)?, &links, arguments.scale.json)
}

fn rows(arguments: &ModelEpArgs, links: &Links) -> anyhow::Result<Vec<CostRow>> {
    let scales = arguments.scale.all()?;
    let (mut dispatches, mut combines) = (Vec::new(), Vec::new());
    for tokens in &arguments.tokens {
        for scale in &scales {
            let (plan_of, ids) =
                (|way| plan(arguments, *tokens, *scale, (way, links)), ids(arguments, *tokens, *scale)?);
            for across in &arguments.across {
                let plan = plan_of(*across)?;
                let (dispatch, combine) = costs(&plan, &ids, *scale, *tokens, links);
                // On one node there is one way, and all combines are the same.
                if !dispatches.contains(&dispatch) {
                    dispatches.push(dispatch);
                }
                if !combines.contains(&combine) {
                    combines.push(combine);
                }
            }
        }
    }
    dispatches.append(&mut combines);
    Ok(dispatches)
}

fn experts(arguments: &ModelEpArgs, scale: Scale) -> u32 {
    arguments.experts.unwrap_or(scale.ranks.max(LEAST_EXPERTS))
}

fn plan(
    arguments: &ModelEpArgs,
    tokens: u32,
    scale: Scale,
    (way, links): (Across, &Links),
) -> anyhow::Result<Plan> {
    let config = EpConfig::new(EpShape {
        hidden: arguments.hidden,
        experts: experts(arguments, scale),
        top_k: arguments.top_k,
        max_tokens: tokens,
    })
    .dispatch_type(arguments.dispatch_dtype)
    .combine_type(arguments.combine_dtype)
    .mode(Mode::Slotted)
    .nodes(Nodes::new(&scale.node_of_ranks()))
    .across(way)
    .links(links.speeds().into());
    Ok(Plan::new(config, scale.ranks).map_err(anabranch::Error::from)?)
}

/// The experts of rank 0's tokens.
fn ids(arguments: &ModelEpArgs, tokens: u32, scale: Scale) -> anyhow::Result<Vec<i32>> {
    let synthetic = Synthetic {
        tokens: vec![tokens; scale.ranks as usize],
        hidden: arguments.hidden as usize,
        experts: experts(arguments, scale),
        top_k: arguments.top_k as usize,
        routing: arguments.routing,
        masked: 0.0,
        seed: arguments.seed,
    };
    Ok(synthetic.ids(0)?)
}

/// A dispatch stores what stays inside and stages the rest, then puts that, then, by node, forwards; a combine puts, then pulls. So
/// what is inside and what is between follow each other.
fn costs(plan: &Plan, ids: &[i32], scale: Scale, tokens: u32, links: &Links) -> (CostRow, CostRow) {
    let source = GroupRank::new(0);
    let hops = plan.hops(source, ids);
    let way = plan.across().map(|(_, way)| way);
    let (sent, returned) = (plan.dispatch_traffic(source, &hops), plan.combine_traffic(source, &hops));
    let across = u32::from(way.is_some());
    let dispatch = Moved {
        inside_bytes: (plan.bytes_inside_nodes(&hops) + plan.forwarded_inside_nodes(&hops)) as f64,
        between_bytes: sent.payload_bytes as f64,
        messages: sent.requests() as f64,
        between_hops: across,
        inside_hops: u32::from(way != Some(Across::Direct)),
        launches: 1 + u32::from(way == Some(Across::Node)),
    };
    let combine = Moved {
        inside_bytes: plan.returned_inside_nodes(&hops) as f64,
        between_bytes: returned.payload_bytes as f64,
        messages: returned.requests() as f64,
        between_hops: across,
        inside_hops: 1 - across,
        launches: 1,
    };
    let row = |op: &str, dtype: DataType, across: &str, moved: Moved| {
        let parts = links.speeds().parts(&moved);
        let costs = (parts.in_turn(), parts, links);
        CostRow::new(op, scale, row::Size::Tokens(tokens), dtype.name(), across, moved, costs)
    };
    let config = plan.config();
    (
        row("dispatch", config.dispatch_type, way.map_or("none", Across::name), dispatch),
        // Rows come straight back, whichever way they went.
        row("combine", config.combine_type, Across::Direct.name(), combine),
    )
}
