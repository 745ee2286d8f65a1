//! `anabranch bench ep --plan`: the memory that each rank would allocate, without starting ranks.

use anyhow::bail;
use serde_json::{Map, Value, json};

use super::arguments::{EpArgs, Layout};
use super::{plan_of, workloads};
use crate::print;

/// Prints the memory of each input's plan.
///
/// # Errors
/// Errors of the configuration or the plan; invalid input.
pub(crate) fn print(arguments: &EpArgs) -> anyhow::Result<()> {
    let config = arguments.bench.ranks.runtime.load()?.config;
    let Some(ranks) = arguments.bench.ranks.ranks else { bail!("--plan needs --ranks") };
    if arguments.layout != Layout::TokenMajor {
        bail!(
            "--plan prints the memory of dispatch and combine, without the buffers of --layout expert-major; omit --layout"
        );
    }
    for workload in workloads(arguments, ranks) {
        let workload = workload?;
        let plan = plan_of(&config, arguments, &workload, ranks)?;
        let memory = plan.memory();
        if arguments.bench.ranks.json {
            let parts = memory.items().iter();
            let parts: Map<String, Value> =
                parts.map(|item| (item.name.replace(' ', "_"), item.total().into())).collect();
            print::json(&json!({
                "ranks": ranks,
                "tokens": workload.max_tokens(),
                "hidden": workload.hidden(),
                "experts": workload.experts(),
                "top_k": workload.top_k(),
                "dispatch_type": plan.config().dispatch_type.name(),
                "combine_type": plan.config().combine_type.name(),
                "mode": plan.mode().name(),
                "rows": plan.rows(),
                "slots": memory.slots(),
                "bytes": parts,
                "heap_bytes": memory.bytes_in(anabranch_ep::plan::MemoryPlace::Heap),
                "own_bytes": memory.bytes_in(anabranch_ep::plan::MemoryPlace::Own),
            }))?;
            continue;
        }
        print::line(&format!(
            "each of {ranks} ranks, {} tokens of {} elements, {}, {} rows:\n{memory}",
            workload.max_tokens(),
            workload.hidden(),
            plan.mode(),
            plan.rows()
        ))?;
    }
    Ok(())
}
