//! Protocols with their judges: the real kernels on seeded machines.

mod atomics;
mod barrier;
mod bench;
mod ccl;
mod ccl_fingerprint;
mod ccl_network;
mod ccl_pipes;
mod device_barrier;
mod ep;
mod gather;
mod messages;
mod ping;
mod sdma;
mod stream_signal;
pub(crate) mod world;

use std::collections::BTreeSet;
use std::sync::Arc;

use anabranch_hip_jit::Jit;

use crate::mutants::mutant;
use crate::{Case, CaseError, Protocol, Scenario, ScenarioError};
use bench::Kernels;

/// Makes the scenario of a case. Its kernels come from the `jit`'s cache, or are compiled into it.
///
/// # Errors
/// A case out of range; kernels that do not compile; a machine that cannot be made.
pub fn scenario(case: Case, jit: &Jit) -> Result<Box<dyn Scenario>, ScenarioError> {
    check(&case)?;
    let mut kernels = Kernels::new(jit, &case);
    build(case, &mut kernels, jit)
}

/// Refuses a case whose mistake changes none of the kernels that its scenario runs: such a search proves nothing.
///
/// # Errors
/// [`CaseError::Mutant`], and those of [`scenario`].
pub fn check_mutant(case: &Case, jit: &Jit) -> Result<(), ScenarioError> {
    let Some(name) = case.mutant else { return Ok(()) };
    let right = Case { mutant: None, ..case.clone() };
    if objects(case, jit)? != objects(&right, jit)? {
        return Ok(());
    }
    Err(CaseError::no_mutant(case.protocol, name).into())
}

/// The objects that the case's scenario runs.
fn objects(case: &Case, jit: &Jit) -> Result<BTreeSet<Arc<[u8]>>, ScenarioError> {
    check(case)?;
    if matches!(case.protocol, Protocol::Sdma | Protocol::Rdma) {
        return Ok(BTreeSet::from([sdma::object(case, jit)?]));
    }
    let mut kernels = Kernels::new(jit, case);
    build(case.clone(), &mut kernels, jit)?;
    Ok(kernels.into_objects())
}

fn build(case: Case, kernels: &mut Kernels<'_>, jit: &Jit) -> Result<Box<dyn Scenario>, ScenarioError> {
    Ok(match case.protocol {
        Protocol::Ep
        | Protocol::EpCompact
        | Protocol::EpSplit
        | Protocol::EpMask
        | Protocol::EpExperts
        | Protocol::EpReplay
        | Protocol::EpNodes
        | Protocol::EpRelay => Box::new(ep::Ep::new(case, kernels)?),
        Protocol::Barrier => Box::new(barrier::Barrier::new(case, kernels)?),
        Protocol::StreamSignal => Box::new(stream_signal::StreamSignal::new(case, kernels)?),
        Protocol::PutSignal | Protocol::PutQuiet => Box::new(messages::Messages::new(case, kernels)?),
        Protocol::Gather => Box::new(gather::Gather::new(case, kernels)?),
        Protocol::DeviceBarrier => Box::new(device_barrier::DeviceBarrier::new(case, kernels)?),
        Protocol::Atomics => Box::new(atomics::Atomics::new(case, kernels)?),
        Protocol::Ccl
        | Protocol::CclMove
        | Protocol::CclPackets
        | Protocol::CclBulk
        | Protocol::CclHops
        | Protocol::CclNorm
        | Protocol::CclEngine => Box::new(ccl::Collectives::new(case, kernels)?),
        Protocol::CclFingerprint => Box::new(ccl_fingerprint::CclFingerprint::new(case, kernels)?),
        Protocol::Ping => Box::new(ping::Ping::new(case, kernels)?),
        Protocol::CclPipes => Box::new(ccl_pipes::Exchange::new(case, kernels)?),
        Protocol::CclNetwork => Box::new(ccl_network::Network::new(case, kernels)?),
        Protocol::CclGatherMany => Box::new(ccl::GatherMany::new(case, kernels)?),
        Protocol::Sdma | Protocol::Rdma => Box::new(sdma::Sdma::new(case, jit)?),
        Protocol::World => Box::new(world::World::new(case, jit)?),
    })
}

/// The most of each number: what runs at once stays below the machine's lanes, and a run below a second.
pub(crate) fn check(case: &Case) -> Result<(), CaseError> {
    let ranges = [
        ("ranks", case.ranks, 1, if case.protocol == Protocol::Sdma { 16 } else { 8 }),
        ("rounds", case.rounds, 1, 64),
        ("tokens", case.tokens, 1, 64),
        ("blocks", case.blocks, 1, 8),
        ("waves", case.waves, 1, 4),
    ];
    for (what, given, least, most) in ranges {
        if !(least..=most).contains(&given) {
            return Err(CaseError::Range { protocol: case.protocol, what, given, least, most });
        }
    }
    if let Some(name) = case.mutant.filter(|name| mutant(name).is_none()) {
        return Err(CaseError::no_mutant(case.protocol, name));
    }
    if case.protocol != Protocol::World && !case.faults.is_empty() {
        return Err(CaseError::Lacks { protocol: case.protocol, what: "faults" });
    }
    Ok(())
}
