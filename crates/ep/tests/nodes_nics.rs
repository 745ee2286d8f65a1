//! Dispatch and combine across machines whose ranks reach each other by NICs in software, and nothing else: memory of another machine is
//! not mapped. Judged bit by bit.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;
mod nodes_common;
mod split_common;

use std::sync::Arc;
use std::time::Duration;

use anabranch_ep::reference::ReferenceExpert;
use anabranch_ep::{Across, Error, ExpertParallel, Mode};
use anabranch_hip::DeviceOrdinal;
use anabranch_ranks::GlobalRank;
use anabranch_shmem::{NicSource, RankError, RankSetup, RdmaConfig, World, WorldConfig, spawn_threads};
use anabranch_softnic::{Adversary, NicFaults, SoftNicConfig, SoftNics, Syndrome};
use anabranch_transport::{HostIdentity, TransportKind};
use common::{Case, all_well, jit, machine, round, world_config};
use nodes_common::{GROUPS, WAYS};
use split_common::Rank;

/// NICs of small frames and messages; with an adversary where there is a seed for it.
fn nics(seed: Option<u64>) -> SoftNics {
    let adversary = seed.map(Adversary::new);
    SoftNics::in_process(SoftNicConfig {
        frame_bytes: 256,
        most_message_bytes: 4096,
        adversary,
        ..SoftNicConfig::default()
    })
}

fn config(nics: SoftNics) -> WorldConfig {
    WorldConfig {
        transports: vec![TransportKind::P2p, TransportKind::Rdma],
        rdma: RdmaConfig { queues: 2, entries: 16, ..RdmaConfig::default() },
        nic: NicSource::new(Arc::new(nics)),
        ..world_config()
    }
}

/// Runs `work` on ranks of machines of these sizes.
fn on_machines<T: Send>(
    sizes: &[u32],
    wave: u32,
    config: &WorldConfig,
    work: impl Fn(&World) -> Result<T, Error> + Sync,
) -> Vec<Result<T, RankError<Error>>> {
    let map = nodes_common::map(sizes);
    let machine = machine(map.size(), wave);
    let (runtime, jit) = (machine.runtime(), jit());
    spawn_threads(
        map.size(),
        |rank| {
            let device = runtime.device(DeviceOrdinal(rank.get()))?;
            let host = HostIdentity(format!("machine {}", map.numbers()[rank.index()]));
            let config = WorldConfig { host_identity: Some(host), ..config.clone() };
            Ok(RankSetup { config, device, jit: jit.clone() })
        },
        work,
    )
}

fn case(sizes: &[u32], wave: u32, way: Across) -> Case {
    let mut case = Case::new(sizes.iter().sum(), wave);
    case.config = case.config.across(way);
    case
}

fn rounds(world: &World, case: &Case, rounds: u64) -> Result<(), Error> {
    let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
    assert!(ep.plan().across().is_some());
    let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
    let stream = world.device().create_stream()?;
    for number in 0..rounds {
        round(&ep, &expert, &stream, world, &case.varied(number), number)?;
    }
    Ok(())
}

#[test]
fn whole_operations_over_machines_of_all_shapes_at_every_wave_width() {
    for way in WAYS {
        for (turn, (sizes, wave)) in GROUPS.into_iter().zip([1, 4, 32, 64, 4]).enumerate() {
            let mut case = case(sizes, wave, way);
            case.staged = wave == 4;
            let seed = (turn % 2 == 0).then_some(turn as u64);
            all_well(on_machines(sizes, wave, &config(nics(seed)), |world| rounds(world, &case, 5)));
        }
    }
}

/// The nodes are found out: where peers are not mapped, nothing has to be said.
#[test]
fn caps_scales_and_many_rounds_under_an_adversary() {
    for seed in 0..3 {
        let mut case = case(&[2, 2], 4, Across::Auto);
        case.config = case.config.max_recv(60).scale_bytes(12).launch(3, 2);
        all_well(on_machines(&[2, 2], 4, &config(nics(Some(seed))), |world| rounds(world, &case, 12)));
    }
}

#[test]
fn replays_in_a_row_need_no_wait_between_them() {
    for way in WAYS {
        let case = case(&[2, 1], 4, way);
        all_well(on_machines(&[2, 1], 4, &config(nics(Some(5))), |world| {
            let mut rank = Rank::new(world, &case)?;
            let stream = world.device().create_stream()?;
            rank.refill(3)?;
            stream.begin_capture()?;
            rank.whole(&stream)?;
            let sent = rank.send(&stream)?;
            let dispatched = rank.ep.dispatch_recv(&stream, sent)?;
            let sent = rank.offer(&stream, dispatched)?;
            rank.sum(&stream, sent)?;
            let graph = stream.end_capture()?.instantiate()?;
            for _ in 0..20 {
                // SAFETY: buffers, plan and world live until the stream was waited for.
                unsafe { graph.launch(&stream)? };
            }
            world.synchronize(&stream)?;
            rank.judge(3);
            Ok(())
        }));
    }
}

/// What needs mapped memory is refused when the plan is made, on all ranks, with the way that there is.
#[test]
fn what_does_not_go_across_machines_is_refused() {
    let results = on_machines(&[1, 1], 4, &config(nics(None)), |world| {
        let config = case(&[1, 1], 4, Across::Auto).config.mode(Mode::Compact);
        ExpertParallel::new(world, world.group(), config).map(|_| ())
    });
    for result in &results {
        let text = common::failure(result);
        assert!(text.contains("2 nodes, and mode is compact; allowed across nodes is slotted"), "{text}");
    }
}

/// A NIC that goes wrong in the midst of operations: every rank ends with an error within the deadline, and the ranks of the other
/// machine name the one whose rows do not come.
fn errors_of(faults: NicFaults, way: Across) -> Vec<String> {
    let nics = nics(None).with_faults(GlobalRank::new(2), faults);
    let mut config = WorldConfig { operation_deadline: Duration::from_secs(3), ..config(nics) };
    config.rdma.patience = Duration::from_millis(300);
    let case = case(&[2, 1], 4, way);
    let results = on_machines(&[2, 1], 4, &config, |world| rounds(world, &case, 20));
    results.iter().map(common::failure).collect()
}

#[test]
fn a_request_that_fails_is_named() {
    for way in WAYS {
        let texts =
            errors_of(NicFaults { fails: Some((40, Syndrome::RemoteAccess)), ..NicFaults::default() }, way);
        // In a dispatch its peers miss the rows first; in a combine the rank itself waits for its NIC.
        let named =
            |text: &String| text.contains("access refused by the peer's NIC") || text.contains("for rank 2");
        assert!(texts.iter().any(named), "{texts:#?}");
    }
}

#[test]
fn a_peer_whose_nic_dies_is_named() {
    for way in WAYS {
        let texts = errors_of(NicFaults { dies_after: Some(40), ..NicFaults::default() }, way);
        assert!(texts[..2].iter().any(|text| text.contains("rank 2")), "{texts:#?}");
    }
}
