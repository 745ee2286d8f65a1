//! Queue pairs that share one doorbell register, whose value says which is meant: every store to it counts.

use std::time::Duration;

use anabranch_softnic::SoftNicConfig;
use anabranch_testkit::mutant;
use anabranch_transport_rdma::{Provider, device};

use crate::device::pair::{AskedRequest, FETCH_ADD, Pair, Setup, Side};
use crate::device::requests::{configs, count, every_request};

const PROVIDERS: [Provider; 3] = [Provider::Mlx5, Provider::Bnxt, Provider::Ionic];

#[test]
#[ignore = "extended"]
fn requests_do_what_they_say_by_one_register() {
    for provider in PROVIDERS {
        for (config, wave) in configs(2).into_iter().zip([1, 4, 32, 32]) {
            let config = SoftNicConfig { provider, shared_doorbell: true, ..config };
            every_request(config.clone());
            count(config, wave);
        }
    }
}

/// Lanes of a wave with queues of their own add to a word of the peer's. Why that was not well, if so: what queue pairs stopped for, and
/// the phases of faults.
fn each_with_its_queue(provider: Provider, broken: bool) -> Option<(Vec<String>, Vec<u32>)> {
    let wave = 4;
    let config = SoftNicConfig {
        provider,
        shared_doorbell: true,
        doorbell_patience: Duration::from_millis(100),
        ..SoftNicConfig::default()
    };
    let budget = if broken { Duration::from_secs(1) } else { Duration::from_secs(40) };
    let pair = Pair::new(Setup { queues: wave, wave, budget, ..Setup::new(config) });
    let requests: Vec<_> = (0..4 * u64::from(wave))
        .map(|index| AskedRequest {
            queue: index as u32 / 4,
            ..pair.word(0, FETCH_ADD, 8 * (index / 4), 8, 1, 0)
        })
        .collect();
    let spec = if broken { pair.spec().edited(&mutant("RDMA_RUNG_TOGETHER")) } else { pair.spec() };
    let outcomes = pair.run(&spec, [&requests, &[]], 4, wave);
    let stopped = pair.sides.iter().flat_map(Side::stopped).collect::<Vec<_>>();
    let faults =
        pair.sides.iter().filter_map(|side| side.fault().map(|fault| fault.phase)).collect::<Vec<_>>();
    if outcomes[0].iter().all(|outcome| outcome.status == 0) && stopped.is_empty() && faults.is_empty() {
        assert!(
            (0..wave as usize).all(|lane| pair.sides[1].load_64(8 * lane) == 4),
            "each lane adds four times"
        );
        return None;
    }
    Some((stopped, faults))
}

/// Lanes of a wave that ring different queues in one instruction ring one of them.
#[test]
#[ignore = "extended"]
fn doorbells_that_are_one_store_are_missed() {
    for provider in PROVIDERS {
        assert_eq!(each_with_its_queue(provider, false), None, "{provider}");
        let (stopped, faults) = each_with_its_queue(provider, true).unwrap();
        match provider {
            // The record tells of entries that no doorbell told of.
            Provider::Mlx5 => {
                assert!(
                    stopped.iter().all(|why| why.contains("the doorbell record announces")),
                    "{stopped:?}"
                );
                assert_eq!(faults, [device::PHASE_NIC_ERROR]);
            }
            _ => assert_eq!((stopped, faults), (Vec::new(), vec![device::PHASE_NIC_POST]), "{provider}"),
        }
    }
}
