//! The kernels of `bench ep`.

use anabranch::Config;
use anabranch_ep::{DispatchCast, Payload};
use anabranch_hip_jit::KernelSpec;

use super::expert_major;
use super::{EpArgs, plan_of, workloads};
use crate::device;

/// The kernels that a run launches.
///
/// # Errors
/// Input that no plan can have.
pub(crate) fn needed_kernels(
    arguments: &EpArgs,
    config: &Config,
    ranks: u32,
) -> anyhow::Result<Vec<KernelSpec>> {
    let mut all = vec![KernelSpec::new(&anabranch_shmem::TEAM_BARRIER_UNIT)];
    all.extend(device::kernels());
    all.extend([
        anabranch_ep::kernels::save_routing(),
        anabranch_conformance::ep::reference::reference_expert(
            arguments.sent_type(),
            arguments.combine_type(),
        ),
    ]);
    all.extend(expert_major::general_kernels(arguments));
    for workload in workloads(arguments, ranks) {
        let plan = plan_of(config, arguments, &workload?, ranks)?;
        for spec in kernels_of_plans(arguments).into_iter().map(|spec| plan.known_to(spec)) {
            if !all.contains(&spec) {
                all.push(spec);
            }
        }
    }
    Ok(all)
}

/// The kernels that are compiled for each plan.
fn kernels_of_plans(arguments: &EpArgs) -> Vec<KernelSpec> {
    let mut all = vec![
        anabranch_ep::kernels::count(),
        anabranch_ep::kernels::dispatch_cast(arguments.dispatch_dtype, arguments.dispatch_cast),
        anabranch_ep::kernels::dispatch_replay(),
        anabranch_ep::kernels::combine(arguments.combine_type()),
    ];
    if arguments.dispatch_cast != DispatchCast::None {
        all.push(anabranch_ep::kernels::dispatch());
    }
    if arguments.payload == Payload::CopyEngine {
        all.push(anabranch_ep::kernels::dispatch_engine(arguments.dispatch_dtype, arguments.dispatch_cast));
        all.push(anabranch_ep::kernels::combine_engine(arguments.combine_type()));
    } else if arguments.combine_source().pushes() {
        all.push(anabranch_ep::kernels::combine_push(arguments.combine_type(), arguments.combine_quant));
    }
    all.extend(expert_major::kernels_of_plans(arguments));
    all
}
