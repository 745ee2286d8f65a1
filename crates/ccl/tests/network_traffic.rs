//! Writes of software NICs in a call, compared with `call_traffic`: every byte and request of each rank.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{all_well, jit, machine, world_config};
use anabranch_ccl::{
    Across, CclConfig, Choice, Collective, Communicator, DataType, Error, LinkCapacity, MemberTraffic,
    call_traffic,
};
use anabranch_clock::{Moment, sleep};
use anabranch_conformance::ccl::{self as conformance, Case, Scratch};
use anabranch_hip::DeviceOrdinal;
use anabranch_ranks::GlobalRank;
use anabranch_shmem::{NicSource, RankSetup, World, WorldConfig, spawn_threads};
use anabranch_softnic::{SoftNicConfig, SoftNics, Traffic};
use anabranch_transport::{HostIdentity, TransportKind};

/// Completed writes, their bytes, and other requests.
type Written = [u64; 3];

fn written(nics: &SoftNics, rank: GlobalRank) -> Written {
    let traffic = nics.of(rank).unwrap().traffic();
    let add = |sum: Written, one: &Traffic| {
        [sum[0] + one.writes, sum[1] + one.written_bytes, sum[2] + one.reads + one.atomics]
    };
    traffic.values().fold([0; 3], add)
}

/// The writes since `before`, once there are as many requests as expected: a NIC counts a request at its completion.
fn written_since(nics: &SoftNics, rank: GlobalRank, before: Written, expected: Written) -> Written {
    let end = Moment::now().after(Duration::from_secs(10));
    loop {
        let now = written(nics, rank);
        let since = [0, 1, 2].map(|index| now[index] - before[index]);
        if since[0] >= expected[0] || end.remaining().is_zero() {
            return since;
        }
        sleep(Duration::from_millis(1));
    }
}

fn expected(case: &Case, nodes: &[u32], across: Across, room: LinkCapacity) -> Option<Vec<MemberTraffic>> {
    match call_traffic(&case.shape(nodes.len() as u32), nodes, across, room) {
        Ok(traffic) => Some(traffic.members),
        Err(Error::Algorithm { .. }) => None,
        Err(error) => panic!("{case}: {error}"),
    }
}

/// Runs calls and compares the bytes of every rank with the count. Returns the internode bytes.
fn check(nodes: &[u32], across: Across, data_type: DataType) -> u64 {
    let ranks = nodes.len() as u32;
    let (host, jit) = (machine(ranks, 4), jit());
    let runtime = host.runtime();
    let nics = SoftNics::in_process(SoftNicConfig::default());
    let ccl = CclConfig { max_blocks: 2, staging_bytes: 64 << 10, across, ..CclConfig::default() };
    let results = spawn_threads(
        ranks,
        |rank| {
            let device = runtime.device(DeviceOrdinal(rank.get()))?;
            let config = WorldConfig {
                transports: vec![TransportKind::P2p, TransportKind::Rdma],
                nic: NicSource::new(Arc::new(nics.clone())),
                host_identity: Some(HostIdentity(format!("node {}", nodes[rank.index()]))),
                ..world_config()
            };
            Ok(RankSetup { config, device, jit: jit.clone() })
        },
        |world: &World| {
            let stream = world.device().create_stream()?;
            let mut communicator = Communicator::new(world, world.group(), ccl.clone())?;
            let room = LinkCapacity {
                channels: Some(communicator.channels()),
                staging_bytes: ccl.staging_bytes,
                ..LinkCapacity::default()
            };
            let mut scratch = Scratch::new(world, &communicator, 2 << 20)?;
            let mut between = 0;
            for collective in Collective::ALL {
                for count in [1, 1021, 30_000] {
                    let case = Case::new(collective, data_type, count);
                    if !case.is_defined() || collective == Collective::SendReceive {
                        continue;
                    }
                    let Some(members) = expected(&case, nodes, across, room) else { continue };
                    let mine = members[world.rank().index()];
                    let filled = conformance::fill(&communicator, &mut scratch, &case)?;
                    let before = written(&nics, world.rank());
                    world.barrier(world.group(), "before the call")?;
                    let work =
                        conformance::launch(&mut communicator, &scratch, &case, Choice::default(), &stream)?;
                    work.join(Duration::from_secs(30))?;
                    let counted = [mine.requests, mine.nic_bytes(), 0];
                    let written = written_since(&nics, world.rank(), before, counted);
                    assert_eq!(written, counted, "{}: {case} {across}: {mine:?}", world.rank());
                    between += mine.given_between.bytes;
                    // No rank starts the next call before all have checked that no further writes arrived.
                    world.barrier(world.group(), "after the call")?;
                    assert_eq!(written_since(&nics, world.rank(), before, counted), counted);
                    filled.judge(&scratch)?.unwrap_or_else(|failure| panic!("{case}: {failure}"));
                }
            }
            scratch.release()?;
            Ok::<_, Error>(between)
        },
    );
    all_well(results).into_iter().sum()
}

#[test]
#[ignore = "extended"]
fn nic_writes_match_call_traffic() {
    for nodes in [&[0, 0, 1, 1][..], &[0, 0, 1, 1, 2, 2]] {
        for across in [Across::Direct, Across::Node] {
            let between = check(nodes, across, DataType::Bf16);
            assert!(between > 1 << 20, "{nodes:?} {across}: {between}");
        }
    }
}

#[test]
#[ignore = "extended"]
fn nic_writes_match_call_traffic_on_uneven_nodes() {
    assert!(check(&[0, 1, 1], Across::Direct, DataType::F32) > 1 << 20);
    assert!(check(&[0, 1, 1], Across::Node, DataType::F32) > 1 << 20);
    assert!(check(&[0, 0, 0, 1, 1], Across::Node, DataType::Bf16) > 1 << 20);
    assert!(check(&[0, 0, 1, 1], Across::Node, DataType::F64) > 1 << 20);
}
