//! Dispatch and combine across machines whose ranks reach each other by NICs in software, and nothing else: memory of another machine is
//! not mapped. Judged bit by bit.

use crate::common;
use crate::nodes_common;

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Case, all_well, jit, machine, round, world_config};
use crate::nodes_common::{GROUPS, WAYS};
use crate::split_common::Rank;
use anabranch_conformance::ep::reference::ReferenceExpert;
use anabranch_ep::{Across, Error, ExpertParallel, Mode};
use anabranch_hip::DeviceOrdinal;
use anabranch_ranks::GlobalRank;
use anabranch_shmem::{NicSource, RankError, RankSetup, RdmaConfig, World, WorldConfig, spawn_threads};
use anabranch_softnic::{Adversary, NicFaults, SoftNicConfig, SoftNics, Syndrome};
use anabranch_transport::{HostIdentity, TransportKind};

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
#[ignore = "extended"]
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
fn consecutive_replays_need_no_wait() {
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
fn options_without_nic_support_are_refused() {
    let results = on_machines(&[1, 1], 4, &config(nics(None)), |world| {
        let config = case(&[1, 1], 4, Across::Auto).config.mode(Mode::Compact);
        ExpertParallel::new(world, world.group(), config).map(|_| ())
    });
    for result in &results {
        let text = common::failure(result);
        assert!(text.contains("2 nodes, and mode is compact; allowed then is slotted"), "{text}");
    }
}

/// Two nodes of two and of four ranks, and three of two.
const WIDTHS: [&[u32]; 3] = [&[2, 2], &[4, 4], &[2, 2, 2]];

/// How long NICs wait for an answer: where one dies, and where none has to give up, however busy the machine is.
const SHORT: Duration = Duration::from_millis(300);
const PATIENT: Duration = Duration::from_secs(4);

/// A NIC that goes wrong in the midst of operations, of a rank of the second node: what every rank says, within the deadline.
fn errors_of(
    sizes: &[u32],
    faults: NicFaults,
    patience: Duration,
    way: Across,
    seed: Option<u64>,
) -> Vec<String> {
    let nics = nics(seed).with_faults(GlobalRank::new(sizes[0]), faults);
    let mut config = WorldConfig { operation_deadline: Duration::from_secs(5), ..config(nics) };
    config.rdma.patience = patience;
    let case = case(sizes, 4, way);
    let results = on_machines(sizes, 4, &config, |world| rounds(world, &case, 50));
    results.iter().map(common::failure).collect()
}

#[test]
fn failed_request_is_named_with_peer_and_syndrome() {
    for way in WAYS {
        for (turn, sizes) in WIDTHS.into_iter().enumerate() {
            let faults = NicFaults { fails: Some((40, Syndrome::RemoteAccess)), ..NicFaults::default() };
            for text in errors_of(sizes, faults, PATIENT, way, (turn == 1).then_some(9)) {
                let by = format!("rank {} found in", sizes[0]);
                assert!(text.contains(&by) && text.contains("syndrome 0x13"), "{sizes:?} {way}: {text}");
                let far =
                    (0..sizes.iter().sum()).filter(|rank| !(sizes[0]..sizes[0] + sizes[1]).contains(rank));
                let named = far.into_iter().any(|rank: u32| text.contains(&format!("to rank {rank}")));
                assert!(named, "{sizes:?} {way}: {text}");
            }
        }
    }
}

#[test]
#[ignore = "extended"]
fn dead_nic_is_named_by_all_ranks() {
    for way in WAYS {
        for (turn, sizes) in WIDTHS.into_iter().enumerate() {
            let faults = NicFaults { dies_after: Some(40), ..NicFaults::default() };
            for text in errors_of(sizes, faults, SHORT, way, (turn == 2).then_some(9)) {
                let victim = sizes[0];
                let by_peer = text.contains(&format!("to rank {victim}")) && text.contains("syndrome 0x15");
                let by_itself =
                    text.contains(&format!("rank {victim} found in")) && text.contains("the NIC has died");
                assert!(by_peer || by_itself, "{sizes:?} {way}: {text}");
            }
        }
    }
}
