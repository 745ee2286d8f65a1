//! What NICs in software have written in a dispatch and its combine, against what the plan's hops say: every byte and every request, of
//! each rank.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Case, all_well, jit, machine, run_expert, world_config};
use crate::nodes_common::{WAYS, map};
use crate::split_common::Rank;
use anabranch_clock::{Moment, sleep};
use anabranch_ep::plan::{Hop, NicTraffic};
use anabranch_ep::{Error, Plan};
use anabranch_hip::DeviceOrdinal;
use anabranch_ranks::{GlobalRank, GroupRank};
use anabranch_shmem::{NicSource, RankSetup, World, WorldConfig, spawn_threads};
use anabranch_softnic::{SoftNicConfig, SoftNics, Traffic};
use anabranch_transport::{HostIdentity, TransportKind};

/// Writes that are done, bytes that they wrote, and other requests.
type Written = [u64; 3];

fn written(nics: &SoftNics, rank: GlobalRank) -> Written {
    let traffic = nics.of(rank).unwrap().traffic();
    let add = |sum: Written, one: &Traffic| {
        [sum[0] + one.writes, sum[1] + one.written_bytes, sum[2] + one.reads + one.atomics]
    };
    traffic.values().fold([0; 3], add)
}

/// What was written since, when there are as many requests as expected: a NIC counts one when its peer has said that it is done.
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

fn sum(all: impl IntoIterator<Item = NicTraffic>) -> Written {
    all.into_iter().fold([0; 3], |sum, one| [sum[0] + one.requests(), sum[1] + one.bytes(), 0])
}

/// All copies of a round, by source.
fn hops(plan: &Plan, case: &Case, number: u64) -> Vec<Vec<Hop>> {
    let inputs = case.inputs(number);
    let of = |source| plan.hops(GroupRank::new(source), &inputs[source as usize].ids);
    (0..case.ranks).map(of).collect()
}

/// What a rank's NIC writes in a combine: for each source its share of what the source's tokens get back.
fn combined_by(plan: &Plan, rank: GroupRank, hops: &[Vec<Hop>]) -> Written {
    let here = |hops: &Vec<Hop>| {
        let here: Vec<_> = hops.iter().filter(|hop| hop.arrives && hop.to == rank).copied().collect();
        (plan.returned_between_nodes(&here), here.len() as u64)
    };
    let (nodes, _) = plan.across().unwrap();
    let far = (0..nodes.size()).map(GroupRank::new).filter(|source| !nodes.are_together(*source, rank));
    far.map(|source| here(&hops[source.index()]))
        .fold([0; 3], |sum, (bytes, rows)| [sum[0] + 1 + u64::from(rows > 0), sum[1] + 8 + bytes, 0])
}

#[test]
fn nic_writes_match_the_hops() {
    for sizes in [&[2, 2][..], &[2, 2, 2], &[3, 1]] {
        for way in WAYS {
            let nodes = map(sizes);
            let mut case = Case::new(nodes.size(), 4);
            case.config = case.config.across(way);
            let nics = SoftNics::in_process(SoftNicConfig::default());
            let machine = machine(nodes.size(), 4);
            let (runtime, jit) = (machine.runtime(), jit());
            let results = spawn_threads(
                nodes.size(),
                |rank| {
                    let device = runtime.device(DeviceOrdinal(rank.get()))?;
                    let config = WorldConfig {
                        transports: vec![TransportKind::P2p, TransportKind::Rdma],
                        nic: NicSource::new(Arc::new(nics.clone())),
                        host_identity: Some(HostIdentity(format!(
                            "machine {}",
                            nodes.numbers()[rank.index()]
                        ))),
                        ..world_config()
                    };
                    Ok(RankSetup { config, device, jit: jit.clone() })
                },
                |world| rounds(world, &case, &nics),
            );
            let crossed: u64 = all_well(results).into_iter().sum();
            assert!(crossed > 10_000, "{sizes:?} {way}: {crossed}");
        }
    }
}

/// Rounds of which the second has no rows at all; the payload that this rank's tokens moved between nodes.
fn rounds(world: &World, case: &Case, nics: &SoftNics) -> Result<u64, Error> {
    let mut rank = Rank::new(world, case)?;
    let stream = world.device().create_stream()?;
    let (me, here) = (rank.ep.rank(), world.rank());
    let mut crossed = 0;
    for (number, like) in [(0, 0), (3, 3), (5, 0)] {
        let case = case.varied(like);
        rank.case = case.clone();
        rank.refill(number)?;
        let hops = hops(rank.ep.plan(), &case, number);
        let traffic = |source: u32| {
            let (source, plan) = (GroupRank::new(source), rank.ep.plan());
            let hops = &hops[source.index()];
            (plan.dispatch_traffic(source, hops), plan.combine_traffic(source, hops))
        };

        let before = written(nics, here);
        world.barrier(world.group(), "before the dispatch")?;
        let dispatched = rank.ep.dispatch(&stream, &rank.uploaded.tokens(&case.config))?;
        world.synchronize(&stream)?;
        let counted = sum([traffic(me.get()).0]);
        assert_eq!(written_since(nics, here, before, counted), counted, "dispatch {number} of {me}");
        world.barrier(world.group(), "after the dispatch")?;

        let before = written(nics, here);
        let experts = run_expert(&rank.expert, &stream, &dispatched, &case, &rank.staging)?;
        world.barrier(world.group(), "before the combine")?;
        rank.ep.combine(&stream, experts, dispatched, rank.uploaded.output())?;
        world.synchronize(&stream)?;
        let counted = combined_by(rank.ep.plan(), me, &hops);
        assert_eq!(written_since(nics, here, before, counted), counted, "combine {number} of {me}");
        world.barrier(world.group(), "after the combine")?;
        rank.judge(number);

        // What all ranks' NICs write is what comes back for all ranks' tokens.
        let by_rank = (0..case.ranks).map(|one| combined_by(rank.ep.plan(), GroupRank::new(one), &hops));
        let by_rank = by_rank.fold([0; 3], |sum, one| [sum[0] + one[0], sum[1] + one[1], 0]);
        assert_eq!(by_rank, sum((0..case.ranks).map(|source| traffic(source).1)));
        let (dispatch, combine) = traffic(me.get());
        assert_eq!(
            number == 3,
            sum((0..case.ranks).map(|one| traffic(one).0))[1] == 8 * flags(&traffic, case.ranks)
        );
        crossed += dispatch.payload_bytes + combine.payload_bytes;
    }
    Ok(crossed)
}

fn flags(traffic: &impl Fn(u32) -> (NicTraffic, NicTraffic), ranks: u32) -> u64 {
    (0..ranks).map(|source| traffic(source).0.flags).sum()
}
