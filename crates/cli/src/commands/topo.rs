//! `anabranch topo`: the route to every peer with its reason, and the NIC of each rank.

use std::path::Path;

use anabranch_hip::with_distinct_causes;
use anabranch_transport_rdma::nics::{ChosenPort, SYSTEM_FOLDER};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::ranks;
use anabranch_bench::print::{self, Table};
use anabranch_bench::ranks::{RankArgs, RankContext};

/// `anabranch topo`.
#[derive(Clone, Debug, Args)]
pub(crate) struct TopoArgs {
    #[command(flatten)]
    ranks: RankArgs,
}

/// One direction between two ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RouteRow {
    from: u32,
    to: u32,
    device: String,
    peer_device: String,
    /// The heap's mode, equal on all ranks.
    heap: String,
    transport: String,
    reason: String,
    /// Transports earlier in the order, with the reason against each.
    not_taken: Vec<String>,
    /// The description of the NIC of `from`; of the port that it would use if it has no route by NIC. `None` without a NIC.
    nic: Option<String>,
    /// The reason for that NIC, or for none.
    nic_reason: String,
}

/// Starts the ranks.
///
/// # Errors
/// See [`ranks::spawn`].
pub(crate) fn spawn(arguments: &TopoArgs) -> anyhow::Result<()> {
    ranks::spawn(&arguments.ranks, "topo-rank", |_, _| Ok(Vec::new()), |_, _| Ok(()), report)
}

/// Is one of them.
///
/// # Errors
/// See [`ranks::run_rank`].
pub(crate) fn run_rank(arguments: &TopoArgs) -> anyhow::Result<()> {
    ranks::run_rank(&arguments.ranks, report)
}

fn report(context: &RankContext<'_>) -> anyhow::Result<()> {
    let world = context.world;
    let mine = serde_json::to_vec(&own_routes(context))?;
    let all = world.exchange(world.group(), "exchange routes", &mine).map_err(anabranch::Error::from)?;
    if !context.is_root() {
        return Ok(());
    }
    let mut rows: Vec<RouteRow> = Vec::new();
    for bytes in &all {
        rows.extend(serde_json::from_slice::<Vec<RouteRow>>(bytes)?);
    }
    context.progress.clear();
    if context.json {
        return rows.iter().try_for_each(print::json);
    }
    let mut table = Table::new(&["from", "to", "transport", "device", "peer's device", "why"]);
    for row in &rows {
        let why =
            std::iter::once(row.reason.clone()).chain(row.not_taken.iter().map(|text| format!("not {text}")));
        table.row(vec![
            row.from.to_string(),
            row.to.to_string(),
            row.transport.clone(),
            row.device.clone(),
            row.peer_device.clone(),
            why.collect::<Vec<_>>().join("; "),
        ]);
    }
    print::line(&heap_line(world))?;
    table.print("")?;
    let mut nics = Table::new(&["rank", "NIC", "why"]);
    for row in rows.iter().filter(|row| row.from == row.to) {
        let nic = row.nic.clone().unwrap_or_else(|| "none".to_owned());
        nics.row(vec![row.from.to_string(), nic, row.nic_reason.clone()]);
    }
    print::line("")?;
    nics.print("")
}

/// The NIC of this rank, and the reason: the opened NIC's own description, or, where no route needed one, the port that the settings
/// would choose.
fn own_nic(world: &anabranch::World) -> (Option<String>, String) {
    let by_nic = world.group().members().iter().copied().find(|peer| world.is_by_nic(*peer));
    if let Some(peer) = by_nic {
        return match world.queues_to(peer).into_iter().next() {
            Some((opened, stopped)) => {
                let state = stopped.map_or_else(|| "opened".to_owned(), |why| format!("stopped: {why}"));
                (Some(opened), format!("{state}; kernels reach {peer} by it"))
            }
            None => (None, format!("{peer} is reached by a NIC, and no queue pair to it is left")),
        };
    }
    let config = world.config();
    let Some(driver) = config.nic.machine_driver() else {
        return (None, "no rank is reached by a NIC, and it would be one in software".to_owned());
    };
    match ChosenPort::of_rank(Path::new(SYSTEM_FOLDER), world.rank(), world.peers(), &config.rdma) {
        Ok(chosen) => (
            Some(format!("{}:{}", chosen.nic.name, chosen.port.number)),
            format!(
                "not used, as no rank is reached by a NIC; would be, by the driver {driver}: {}",
                chosen.why()
            ),
        ),
        Err(error) => (None, format!("by the driver {driver}: {}", with_distinct_causes(&error))),
    }
}

/// The fields that all rows share.
fn heap_line(world: &anabranch::World) -> String {
    let config = world.config();
    let mode = format!("heap.mode = {}, heap.bytes = {}", config.heap_mode, config.heap_bytes);
    match world.flat_heap() {
        None => mode,
        Some(flat) => format!("{mode}; rank r's heap at base + r * {}", flat.stride),
    }
}

fn own_routes(context: &RankContext<'_>) -> Vec<RouteRow> {
    let world = context.world;
    let device_of = |rank: usize| {
        let info = world.peers().get(rank);
        info.map(|info| format!("{} {} {}", info.runtime, info.arch, info.pci)).unwrap_or_default()
    };
    let (nic, nic_reason) = own_nic(world);
    let row = |route: &anabranch_transport::Route| RouteRow {
        from: world.rank().get(),
        to: route.peer.get(),
        device: device_of(world.rank().index()),
        peer_device: device_of(route.peer.index()),
        heap: world.config().heap_mode.to_string(),
        transport: route.kind.to_string(),
        reason: route.reason.clone(),
        not_taken: route.considered.iter().map(|(kind, why)| format!("{kind}: {why}")).collect(),
        nic: nic.clone(),
        nic_reason: nic_reason.clone(),
    };
    world.routes().iter().map(row).collect()
}
