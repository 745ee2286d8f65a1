//! Epochs with flags of four bits, which wrap every few calls: random calls of random algorithms and grids.

use std::time::Duration;

use crate::common::{all_well, failure, jit_with, on_ranks, world_config};
use anabranch_ccl::{Algorithm, CclConfig, Choice, Collective, Communicator, DataType};
use anabranch_conformance::ccl::{self as conformance, Case, Numbers, Scratch};
use anabranch_hip_jit::{Jit, ParameterValue, SourceEdit};
use anabranch_shmem::WorldConfig;
use anabranch_testkit::mutant;

const RANKS: u32 = 4;
const CHANNELS: u32 = 3;
const CALLS: u64 = 2800;
const EPOCH_BITS: i64 = 4;

/// Kernels with short epochs and edited sources.
fn jit_of(edits: Vec<SourceEdit>) -> Jit {
    jit_with(vec![("CCL_EPOCH_BITS", ParameterValue::Int(EPOCH_BITS))], edits)
}

fn config() -> CclConfig {
    CclConfig { max_blocks: CHANNELS, staging_bytes: 32 << 10, ..CclConfig::default() }
}

#[test]
#[ignore = "extended"]
fn random_calls_wrap_epochs_many_times() {
    let jit = jit_of(Vec::new());
    let uses = all_well(on_ranks(RANKS, 4, &world_config(), &jit, |world| {
        let stream = world.device().create_stream()?;
        let mut communicator = Communicator::new(world, world.group(), config())?;
        let mut scratch = Scratch::new(world, &communicator, 1 << 20)?;
        let mut numbers = Numbers(2026);
        // Lower bounds of the epochs and barriers of the first channel: each call takes one, and most other channels skip some.
        let (mut packets, mut meetings) = (0u64, 0u64);
        for call in 0..CALLS {
            let most = numbers.pick(&[4, 40, 700, 6000]);
            let (case, algorithm) = Case::any(&mut numbers, RANKS, &[DataType::F32, DataType::I16], most);
            let blocks = 1 + numbers.below(u64::from(communicator.channels())) as u32;
            let phased = Some(numbers.below(2) == 1);
            let choice =
                Choice { algorithm: Some(algorithm), blocks: Some(blocks), phased, ..Choice::default() };
            let verdict = conformance::run_as(&mut communicator, &mut scratch, &case, choice, &stream)?;
            verdict
                .unwrap_or_else(|failure| panic!("call {call} by {algorithm} on {blocks} blocks: {failure}"));
            let has_epoch = case.count > 64 && case.collective != Collective::Barrier;
            packets += u64::from(algorithm.is_packets() && has_epoch);
            meetings += u64::from(!algorithm.is_packets());
        }
        scratch.release()?;
        Ok((packets, meetings))
    }));
    let (packets, meetings) = uses[0];
    println!(
        "{CALLS} calls: more than {packets} epochs of packets and {meetings} meetings of the first channel"
    );
    let wraps = 20 << EPOCH_BITS;
    assert!(packets > wraps && meetings > wraps, "{packets} {meetings}");
}

/// Alternates small and large messages, so that most packets keep the data of an epoch until its flag wraps.
fn alternating(edits: Vec<SourceEdit>) -> Result<Vec<u64>, String> {
    let config_of_world = WorldConfig { operation_deadline: Duration::from_secs(5), ..world_config() };
    let results = on_ranks(2, 4, &config_of_world, &jit_of(edits), |world| {
        let stream = world.device().create_stream()?;
        let mut communicator = Communicator::new(world, world.group(), config())?;
        let mut scratch = Scratch::new(world, &communicator, 1 << 20)?;
        let choice = Choice { algorithm: Some(Algorithm::Packets), blocks: Some(1), ..Choice::default() };
        let mut wrong = 0;
        for call in 0..150 {
            // Fifteen flags, as zero is no flag: all large messages have the same one.
            let count = if call % 15 == 3 { 4000 } else { 8 };
            let case = Case { seed: call, ..Case::new(Collective::AllGather, DataType::U8, count) };
            let verdict = conformance::run_as(&mut communicator, &mut scratch, &case, choice, &stream)?;
            wrong += u64::from(verdict.is_err());
        }
        scratch.release()?;
        Ok(wrong)
    });
    let texts: Vec<_> = results.iter().filter_map(|result| Some(failure(result.as_ref().err()?))).collect();
    if texts.is_empty() {
        Ok(results.into_iter().map(Result::unwrap).collect())
    } else {
        Err(texts.join("\n"))
    }
}

#[test]
fn uncleared_packets_after_a_wrap_are_detected() {
    assert_eq!(alternating(Vec::new()), Ok(vec![0, 0]));
    let broken = alternating(mutant("PACKETS_NOT_CLEARED"));
    assert!(broken.as_ref().is_ok_and(|wrong| wrong.iter().sum::<u64>() > 0), "{broken:?}");
}
