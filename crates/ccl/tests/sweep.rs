//! Every collective, type, operator and algorithm over all ordered groups of four ranks: `conformance::sweep`.

use std::collections::BTreeMap;

use crate::common::{all_well, build_ahead, build_ahead_of, jit, on_ranks, world_config};
use anabranch_ccl::{CclConfig, Choice, Collective, Communicator, DataType};
use anabranch_conformance::ccl::oracle::Data;
use anabranch_conformance::ccl::{self as conformance, Case, Level, Point, Scratch, Sweep, Tally, Trial};
use anabranch_hip_jit::Jit;
use anabranch_ranks::GroupRank;

const RANKS: u32 = 4;
const WAVE: u32 = 4;
const CHANNELS: u32 = 2;
/// Small, so that a few thousand bytes take several steps.
const STAGING_BYTES: u64 = 16 << 10;

fn config() -> CclConfig {
    CclConfig { max_blocks: CHANNELS, staging_bytes: STAGING_BYTES, ..CclConfig::default() }
}

fn swept(ranks: u32, level: Level) -> Sweep {
    Sweep { ranks, channels: CHANNELS, staging_bytes: STAGING_BYTES, most_bytes: 1 << 20, level }
}

#[test]
#[ignore = "extended"]
fn every_collective_in_every_group() {
    let jit = jit();
    build_ahead(&jit, WAVE, 2);
    let points = conformance::sweep(&swept(RANKS, Level::Full));
    let mut counts: BTreeMap<_, usize> = BTreeMap::new();
    for point in &points {
        *counts.entry(point.trial.name()).or_default() += 1;
    }
    println!("{} calls in {} groups: {counts:?}", points.len(), conformance::ordered_subsets(RANKS).len());
    let tallies = run(RANKS, WAVE, &jit, &points);
    // 1 + 2 * 3 + 3 * 6 + 4 * 6 ordered groups have a given member.
    assert!(tallies.iter().all(|tally| tally.groups == 49));
}

/// Runs points on every rank; all results must be right.
fn run(ranks: u32, wave: u32, jit: &Jit, points: &[Point]) -> Vec<Tally> {
    let tallies = all_well(on_ranks(ranks, wave, &world_config(), jit, |world| {
        let stream = world.device().create_stream()?;
        conformance::run_points(world, &config(), points, &stream)
    }));
    for (rank, tally) in tallies.iter().enumerate() {
        println!("rank {rank}: {} calls in {} groups", tally.calls, tally.groups);
        let wrong = tally.failures.iter().map(|(subset, failure)| format!("{subset}: {failure}"));
        let first: Vec<_> = wrong.take(20).collect();
        assert!(first.is_empty(), "rank {rank}: {} wrong:\n{}", tally.failures.len(), first.join("\n"));
    }
    let members: u64 = points.iter().map(|point| u64::from(point.subset.len())).sum();
    assert_eq!(tallies.iter().map(|tally| tally.calls).sum::<u64>(), members);
    let in_lists = points.iter().filter(|point| matches!(point.trial, Trial::List(_)));
    let members: u64 = in_lists.map(|point| u64::from(point.subset.len())).sum();
    assert_eq!(tallies.iter().flat_map(|tally| tally.lists).sum::<u64>(), members);
    assert!(tallies.iter().all(|tally| tally.lists.iter().all(|count| *count > 0)));
    tallies
}

/// The sample of `bench ccl --check`, at other wave widths than the full sweep, of two types to limit compilations.
#[test]
#[ignore = "extended"]
fn sample_at_all_wave_widths() {
    const TYPES: [DataType; 2] = [DataType::F32, DataType::U8];
    for wave in [1, 32, 64] {
        let jit = jit();
        build_ahead_of(&jit, wave, 2, &TYPES);
        let mut points = conformance::sweep(&swept(3, Level::Sample));
        for point in &mut points {
            let Trial::Collective(case) = &mut point.trial else { continue };
            if case.collective.reduces() {
                case.data_type = if case.op.supports(DataType::F32) { DataType::F32 } else { DataType::U8 };
            }
            assert!(case.is_defined());
        }
        run(3, wave, &jit, &points);
    }
}

/// Cases whose results depend on the order of members. Sums of normal inputs do, by rounding.
fn cases_with_places() -> Vec<Case> {
    let moves = Collective::ALL.into_iter().filter(|collective| !collective.reduces());
    let moves = moves.filter(|collective| *collective != Collective::Barrier);
    let moves = moves.map(|collective| Case::new(collective, DataType::I32, 999));
    let uneven = [Collective::AllGather, Collective::AllToAll]
        .map(|collective| Case { uneven: true, ..Case::new(collective, DataType::I32, 999) });
    let sums = [Collective::AllReduce, Collective::ReduceScatter, Collective::Reduce]
        .map(|collective| Case { data: Data::Normal, ..Case::new(collective, DataType::F32, 999) });
    let uneven_sum = Case { uneven: true, ..sums[1].clone() };
    moves.chain(uneven).chain(sums).chain([uneven_sum]).collect()
}

/// The order of members is right, and any two swapped members are detected.
#[test]
fn swapped_members_are_detected() {
    let found = all_well(on_ranks(RANKS, WAVE, &world_config(), &jit(), |world| {
        let stream = world.device().create_stream()?;
        let group = conformance::Subset::new([2, 0, 3, 1]).group(world.group()).unwrap();
        let mut communicator = Communicator::new(world, &group, config())?;
        let mut scratch = Scratch::new(world, &communicator, 256 << 10)?;
        let mut found = Vec::new();
        for case in cases_with_places() {
            for (first, second) in [(0, 1), (0, 2), (1, 3), (2, 3)] {
                let filled = conformance::fill(&communicator, &mut scratch, &case)?;
                let work =
                    conformance::launch(&mut communicator, &scratch, &case, Choice::default(), &stream)?;
                work.join(world.operation_deadline())?;
                assert_eq!(filled.judge(&scratch)?, Ok(()));
                let swapped = filled.with_swapped(GroupRank::new(first), GroupRank::new(second));
                found.push((case.to_string(), (first, second), swapped.judge(&scratch)?.is_err()));
            }
        }
        scratch.release()?;
        Ok(found)
    }));
    // Not on every rank: a rank whose data does not depend on the swapped members sees no difference.
    for (index, (case, swapped, _)) in found[0].iter().enumerate() {
        let refused = found.iter().filter(|found| found[index].2).count();
        // Always equal: x0 + x1 = x1 + x0 in a sum, and a broadcast between two receivers.
        let is_equal = case.starts_with("all_reduce") && *swapped == (0, 1)
            || case.starts_with("broadcast") && swapped.0 != 0;
        assert_eq!(refused == 0, is_equal, "{swapped:?} swapped: {refused} noticed in {case}");
    }
}
