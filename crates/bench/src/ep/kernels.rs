//! The kernels of `bench ep`.

use anabranch_ep::{DispatchCast, Payload};
use anabranch_hip_jit::KernelSpec;

use super::EpArgs;
use super::expert_major;
use crate::device;

/// The kernels that a run launches.
pub(crate) fn needed_kernels(arguments: &EpArgs) -> Vec<KernelSpec> {
    let mut all = vec![KernelSpec::new(&anabranch_shmem::TEAM_BARRIER_UNIT)];
    all.extend(device::kernels());
    all.extend([
        anabranch_ep::kernels::count(),
        anabranch_ep::kernels::dispatch(),
        anabranch_ep::kernels::save_routing(),
        anabranch_ep::kernels::dispatch_replay(),
        anabranch_ep::kernels::combine(arguments.combine_type()),
        anabranch_conformance::ep::reference::reference_expert(
            arguments.sent_type(),
            arguments.combine_type(),
        ),
    ]);
    if arguments.dispatch_cast != DispatchCast::None {
        all.push(anabranch_ep::kernels::dispatch_cast(arguments.dispatch_dtype, arguments.dispatch_cast));
    }
    if arguments.payload == Payload::CopyEngine {
        all.push(anabranch_ep::kernels::dispatch_engine(arguments.dispatch_dtype, arguments.dispatch_cast));
        all.push(anabranch_ep::kernels::combine_engine(arguments.combine_type()));
    } else if arguments.combine_source().pushes() {
        all.push(anabranch_ep::kernels::combine_push(arguments.combine_type(), arguments.combine_quant));
    }
    all.extend(expert_major::needed_kernels(arguments));
    all
}
