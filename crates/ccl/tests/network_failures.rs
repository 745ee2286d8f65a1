//! NIC failures during internode collectives: every rank reports an error that names the peer and the syndrome of the NIC. Also the memory
//! of dropped communicators that a NIC still accesses.

use std::time::Duration;

use crate::common::nics::on_nodes;
use crate::common::{all_well, failure, world_config};
use anabranch_ccl::{Across, CclConfig, Choice, Collective, Communicator, DataType, Error};
use anabranch_clock::Moment;
use anabranch_conformance::ccl::{self as conformance, Case, Scratch};
use anabranch_ranks::{GlobalRank, GroupRank};
use anabranch_shmem::{Team, World, WorldConfig};
use anabranch_softnic::{Adversary, NicFaults, SoftNicConfig, SoftNics, Syndrome};

/// Two nodes of two and of four ranks, and three of two, with the form of the calls.
const WIDTHS: [(&[u32], Across); 4] = [
    (&[0, 0, 1, 1], Across::Node),
    (&[0, 0, 1, 1], Across::Direct),
    (&[0, 0, 0, 0, 1, 1, 1, 1], Across::Direct),
    (&[0, 0, 1, 1, 2, 2], Across::Node),
];

fn ccl_config(across: Across) -> CclConfig {
    CclConfig { max_blocks: 2, staging_bytes: 64 << 10, across, ..CclConfig::default() }
}

fn short() -> WorldConfig {
    let mut config = WorldConfig { operation_deadline: Duration::from_secs(4), ..world_config() };
    config.rdma.patience = Duration::from_millis(300);
    config.rdma.queues = 2;
    config
}

/// The errors of all ranks, whose collectives run until the NIC of rank 1 fails.
fn texts_of(nodes: &[u32], across: Across, faults: NicFaults, seed: Option<u64>) -> Vec<String> {
    let soft = SoftNicConfig { adversary: seed.map(Adversary::new), ..SoftNicConfig::default() };
    let nics = SoftNics::in_process(soft).with_faults(GlobalRank::new(1), faults);
    let results = on_nodes(nodes, 4, &nics, &short(), |world| {
        let stream = world.device().create_stream()?;
        let mut communicator = Communicator::new(world, world.group(), ccl_config(across))?;
        let mut scratch = Scratch::new(world, &communicator, 1 << 20)?;
        for number in 0..1000 {
            let collective = [Collective::AllGather, Collective::Broadcast][number % 2];
            let root = GroupRank::new(number as u32 % world.size());
            let case = Case { root, ..Case::new(collective, DataType::F32, 3000) };
            conformance::run(&mut communicator, &mut scratch, &case, &stream)?.unwrap();
        }
        Ok(())
    });
    results.iter().map(|result| failure(result.as_ref().unwrap_err())).collect()
}

#[test]
fn failed_request_is_reported_with_peer_syndrome() {
    for (turn, (nodes, across)) in WIDTHS.into_iter().enumerate() {
        let faults = NicFaults { fails: Some((60, Syndrome::RemoteAccess)), ..NicFaults::default() };
        for text in texts_of(nodes, across, faults, (turn % 2 == 0).then_some(turn as u64)) {
            let peers: Vec<_> = (0..nodes.len()).filter(|peer| nodes[*peer] != nodes[1]).collect();
            let named = peers.iter().any(|peer| text.contains(&format!("to rank {peer}")));
            assert!(named && text.contains("rank 1 found in"), "{nodes:?} {across}: {text}");
            assert!(text.contains("syndrome 0x13"), "{nodes:?} {across}: {text}");
        }
    }
}

#[test]
fn dead_nic_is_reported_on_all_ranks() {
    for (turn, (nodes, across)) in WIDTHS.into_iter().enumerate() {
        let faults = NicFaults { dies_after: Some(60), ..NicFaults::default() };
        for text in texts_of(nodes, across, faults, (turn % 2 == 1).then_some(turn as u64)) {
            let by_peer = text.contains("to rank 1") && text.contains("syndrome 0x15");
            let by_itself = text.contains("rank 1 found in") && text.contains("the NIC has died");
            assert!(by_peer || by_itself, "{nodes:?} {across}: {text}");
        }
    }
}

/// A broadcast, whose root completes when its chunks are in its own slots.
fn broadcast_and_go(world: &World) -> Result<(), Error> {
    let stream = world.device().create_stream()?;
    let mut communicator = Communicator::new(world, world.group(), ccl_config(Across::Direct))?;
    let scratch = Scratch::new(world, &communicator, 1 << 20)?;
    let case = Case { root: GroupRank::new(1), ..Case::new(Collective::Broadcast, DataType::F32, 100) };
    let work = conformance::launch(&mut communicator, &scratch, &case, Choice::default(), &stream)?;
    work.join(Duration::from_secs(30))
}

/// Allocations that this rank holds after it has polled for completions.
fn live(world: &World, kept: &Team) -> Result<usize, Error> {
    drop(kept.table(&[0])?);
    Ok(world.heap_usage().live)
}

#[test]
fn dropped_communicator_keeps_memory_of_pending_puts() {
    // The first read of each queue pair completes, and the chunk of the root. The root gets no further completion.
    let silent = NicFaults { falls_silent_after: Some(3), ..NicFaults::default() };
    let nics = SoftNics::in_process(SoftNicConfig::default()).with_faults(GlobalRank::new(1), silent);
    let results = on_nodes(&[0, 1], 4, &nics, &short(), |world| {
        let kept = world.team(world.group())?;
        let before = live(world, &kept)?;
        broadcast_and_go(world)?;
        // The memory of channels and team, with slots and counters that the NIC still accesses.
        assert!(live(world, &kept)? > before, "given back while the NIC may use it");
        let end = Moment::now().after(Duration::from_secs(15));
        while world.check().is_ok() && !end.remaining().is_zero() {
            anabranch_clock::sleep(Duration::from_millis(10));
        }
        world.check()?;
        Ok(())
    });
    let text = failure(results[1].as_ref().unwrap_err());
    // Rank 0 may be first. It still has a counter update to the root in flight.
    let itself = text.contains("rank 1 found in completion of puts by NIC")
        && text.contains("to rank 0 does not go on");
    let by_peer = text.contains("to rank 1") && text.contains("syndrome 0x15");
    assert!(itself || by_peer || text.contains("for rank 1 in ccl"), "{text}");
}

#[test]
fn dropped_communicator_frees_memory_after_its_puts() {
    for seed in [None, Some(1)] {
        let soft = SoftNicConfig { adversary: seed.map(Adversary::new), ..SoftNicConfig::default() };
        all_well(on_nodes(&[0, 1], 4, &SoftNics::in_process(soft), &world_config(), |world| {
            let kept = world.team(world.group())?;
            let before = live(world, &kept)?;
            for _ in 0..3 {
                broadcast_and_go(world)?;
            }
            let end = Moment::now().after(Duration::from_secs(15));
            while live(world, &kept)? > before && !end.remaining().is_zero() {
                anabranch_clock::sleep(Duration::from_millis(1));
            }
            assert_eq!(live(world, &kept)?, before);
            Ok(())
        }));
    }
}
