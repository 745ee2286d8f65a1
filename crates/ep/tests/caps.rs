//! Receive caps: which copies are dropped, that everything else comes, and that nothing is written outside its place.

use crate::common;

use std::ops::Range;
use std::time::Duration;

use crate::common::{
    Case, Routing, Uploaded, all_well, judge_dropped, judge_output, judge_rows, on_ranks, oracle, run,
    run_expert, window_bytes, world_config,
};
use anabranch_conformance::ep::oracle::Oracle;
use anabranch_conformance::ep::reference::ReferenceExpert;
use anabranch_ep::{CombineSource, DataType, EpConfig, EpShape, Error, ExpertParallel, Mode, Plan};
use anabranch_hip::{Device, DeviceAddress, Stream};
use anabranch_ranks::GroupRank;
use anabranch_shmem::{Team, World, WorldConfig};
use proptest::prelude::*;

/// What stands where no block writes.
const CANARY: u8 = 0xc5;
const GUARD: u64 = 4096;

fn capped(ranks: u32, wave: u32, max_recv: u32) -> Case {
    let mut case = Case::new(ranks, wave);
    case.config = case.config.max_recv(max_recv);
    case
}

prop_compose! {
    fn any_case()(
        ranks in 1u32..=9, wave in prop_oneof![Just(1u32), Just(4), Just(32)], top_k in 1u32..=8,
        experts in 1u32..40, max_tokens in 1u32..70, share in 0.0f64..=1.0, hot in prop::bool::ANY,
        staged in prop::bool::ANY, tokens in proptest::collection::vec(0u32..70, 1..4),
        blocks in 0u32..6, scales in 0u32..3, compact in prop::bool::ANY,
        capped in prop::bool::weighted(0.8),
    ) -> Case {
        let mut case = Case::new(ranks, wave);
        let most = (ranks - 1) + (f64::from(ranks * max_tokens - ranks + 1) * share) as u32;
        case.config = EpConfig::new(EpShape { hidden: 16, experts, top_k, max_tokens })
            .max_recv(if capped { most.max(ranks) } else { 0 })
            .scale_bytes(scales * 4)
            .mode(if compact { Mode::Compact } else { Mode::Slotted })
            .launch(blocks, 0);
        case.routing = if hot { Routing::Hot } else { Routing::Random };
        case.tokens = tokens;
        case.staged = staged;
        case
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    #[ignore = "extended"]
    fn under_any_cap_the_rest_arrives_and_is_summed(case in any_case()) {
        run(&case, 2);
    }
}

#[test]
#[ignore = "extended"]
fn every_wave_width_under_a_cap() {
    for wave in [1, 4, 32, 64] {
        for (staged, mode) in
            [(false, Mode::Slotted), (true, Mode::Slotted), (false, Mode::Compact), (true, Mode::Compact)]
        {
            let mut case = capped(4, wave, 37);
            case.config = case.config.mode(mode);
            run(&Case { staged, ..case }, 3);
        }
    }
}

#[test]
fn the_first_tokens_of_each_source_are_kept() {
    let mut case = capped(3, 1, 6);
    case.routing = Routing::Hot;
    case.tokens = vec![4, 2, 3];
    all_well(on_ranks(3, 1, &world_config(), |world| {
        let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
        let stream = world.device().create_stream()?;
        let uploaded = Uploaded::new(world.device(), &case.config, &case.input(ep.rank().get(), 1));
        let dispatched = ep.dispatch(&stream, &uploaded.tokens(&case.config))?;
        let dropped = ep.dropped(&stream, &dispatched)?;
        // Two rows a source; every token goes to rank 0.
        let expected: &[u32] = [&[2, 3], [].as_slice(), &[2]][ep.rank().index()];
        assert!(dropped.iter().all(|copy| copy.destination == GroupRank::new(0)));
        assert_eq!(dropped.iter().map(|copy| copy.token).collect::<Vec<_>>(), expected);
        ep.release(&stream, dispatched)?;
        world.synchronize(&stream).map_err(Error::from)
    }));
}

#[test]
fn hot_spot_with_one_row_per_source_ends_promptly() {
    // The longest wait.
    let config = WorldConfig { operation_deadline: Duration::from_secs(2), ..world_config() };
    for (mode, stride) in [(Mode::Slotted, 1), (Mode::Compact, 0)] {
        let mut case = capped(8, 1, 8);
        case.config = case.config.mode(mode);
        case.config.max_tokens = 400;
        case.tokens = vec![400];
        case.routing = Routing::Hot;
        all_well(on_ranks(8, 1, &config, |world| {
            let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
            assert_eq!((ep.plan().row_stride(), ep.plan().rows()), (stride, 8));
            let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
            let stream = world.device().create_stream()?;
            (0..3).try_for_each(|number| common::round(&ep, &expert, &stream, world, &case, number))
        }));
    }
}

#[test]
fn a_cap_above_the_worst_case_is_the_worst_case() {
    let case = capped(3, 4, 100_000);
    all_well(on_ranks(3, 4, &world_config(), |world| {
        let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
        assert!(ep.plan().is_max_recv_clamped());
        assert_eq!(ep.plan().rows(), 3 * u64::from(case.config.max_tokens));
        Ok(())
    }));
    run(&case, 2);
}

/// A slot whose windows hold canaries, between two guards in the heap.
struct Guarded<'a> {
    device: &'a Device,
    /// The guard before. What lies between it and the slot is the plan's team's.
    before: DeviceAddress,
    slot: DeviceAddress,
    /// The windows, bytes from the slot's start; the guard after follows.
    windows: Range<u64>,
}

impl Guarded<'_> {
    fn fill(&self) {
        let windows = vec![CANARY; (self.windows.end - self.windows.start + GUARD) as usize];
        // SAFETY: the windows and guards are this test's, and no work is in flight on any rank.
        unsafe {
            self.device.write_memory(self.before, &windows[..GUARD as usize]).unwrap();
            self.device.write_memory(self.slot.offset(self.windows.start), &windows).unwrap();
        }
    }

    /// Every byte outside `written`, ranges from the slot's start, is a canary.
    fn check(&self, written: &[Range<u64>], when: &str) {
        let mut before = vec![0; GUARD as usize];
        let mut seen = vec![0; (self.windows.end - self.windows.start + GUARD) as usize];
        // SAFETY: as above; the work was waited for.
        unsafe {
            self.device.read_memory(self.before, &mut before).unwrap();
            self.device.read_memory(self.slot.offset(self.windows.start), &mut seen).unwrap();
        }
        let place = |offset: u64| (offset - self.windows.start) as usize;
        for range in written {
            seen[place(range.start)..place(range.end)].fill(CANARY);
        }
        let hit = seen.iter().position(|byte| *byte != CANARY);
        assert_eq!(hit, None, "{when}: a byte of the windows was written, of {:?}", self.windows);
        assert!(before.iter().all(|byte| *byte == CANARY), "{when}: the guard before was written");
    }
}

/// The rows of a window that a rank gets, as ranges of the slot.
fn received(oracle: &Oracle<'_>, me: GroupRank, window: u64, row_bytes: u32) -> Vec<Range<u64>> {
    let delivery = oracle.dispatch(me).unwrap();
    let range = |row: usize| {
        let start = window + row as u64 * u64::from(row_bytes);
        start..start + u64::from(row_bytes)
    };
    delivery.rows().map(|row| range(row.index)).collect()
}

/// The rows of the push window that a rank's tokens get back, as ranges of the slot: `[place][token]`, a place for each copy that
/// was sent, whatever the cap.
fn pushed(oracle: &Oracle<'_>, me: GroupRank, plan: &Plan, window: u64, row: u32) -> Vec<Range<u64>> {
    let combination = oracle.combine(me).unwrap();
    let (tokens, row) = (u64::from(plan.config().max_tokens), u64::from(row));
    let of = |token: u64| {
        (0..combination.copies(token as usize).count() as u64).map(move |place| {
            let start = window + (place * tokens + token) * row;
            start..start + row
        })
    };
    (0..tokens).flat_map(of).collect()
}

fn meet(world: &World, team: &Team, stream: &Stream) -> Result<(), Error> {
    team.barrier(stream)?;
    world.synchronize(stream)?;
    Ok(())
}

fn guarded_round(world: &World, case: &Case) -> Result<(), Error> {
    let device = world.device();
    let team = world.team(world.group())?;
    let before = world.allocate(world.group(), GUARD, 256, "the guard before")?;
    let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
    let after = world.allocate(world.group(), GUARD, 256, "the guard after")?;
    let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
    let stream = device.create_stream()?;
    let me = ep.rank();
    let layout = *ep.plan().layout();
    let inputs = case.inputs(3);
    let uploaded = Uploaded::new(device, &case.config, &inputs[me.index()]);
    let first = ep.dispatch(&stream, &uploaded.tokens(&case.config))?;
    let slot = DeviceAddress(first.rows().0 - layout.rows);
    assert_eq!(slot.0 + layout.bytes, after.address().0, "the guard after is not after");
    ep.release(&stream, first)?;
    meet(world, &team, &stream)?;
    let guarded = Guarded { device, before: before.address(), slot, windows: layout.rows..layout.bytes };
    guarded.fill();
    meet(world, &team, &stream)?;

    let oracle = oracle(case, &inputs);
    let dispatched = ep.dispatch(&stream, &uploaded.tokens(&case.config))?;
    world.synchronize(&stream)?;
    let mut written = received(&oracle, me, layout.rows, ep.plan().row_bytes());
    written.extend(received(&oracle, me, layout.meta, ep.plan().meta_bytes()));
    let weight_bytes = 4 * case.config.top_k;
    if case.config.combine_weights {
        written.extend(received(&oracle, me, layout.combine_weights, weight_bytes));
    }
    guarded.check(&written, "dispatch");
    judge_rows(&oracle, me, device, &ep, &dispatched);
    judge_dropped(&oracle, device, &ep, &stream, &dispatched)?;
    // No rank pushes before all have compared.
    meet(world, &team, &stream)?;
    let staging = device.allocate(window_bytes(&ep))?;
    let experts = run_expert(&expert, &stream, &dispatched, case, &staging)?;
    ep.combine(&stream, experts, dispatched, uploaded.combine_output(&case.config))?;
    world.synchronize(&stream)?;
    if case.staged && case.config.combine_weights {
        written.extend(pushed(&oracle, me, ep.plan(), layout.pushed_weights, weight_bytes));
    }
    written.extend(if case.staged {
        pushed(&oracle, me, ep.plan(), layout.combine_rows, ep.plan().combine_wire_bytes())
    } else {
        received(&oracle, me, layout.combine_rows, ep.plan().combine_row_bytes())
    });
    guarded.check(&written, "combine");
    judge_output(&oracle, me, &uploaded.read_output(&case.config));
    // No rank gives its memory back while another may still look at it.
    meet(world, &team, &stream)
}

#[test]
#[ignore = "extended"]
fn nothing_is_written_outside_the_rows_that_are_received() {
    for (wave, max_recv, mode, routing, staged) in [
        (1, 4, Mode::Slotted, Routing::Hot, false),
        (4, 4, Mode::Slotted, Routing::Random, true),
        (32, 21, Mode::Slotted, Routing::Random, false),
        (64, 60, Mode::Slotted, Routing::Hot, true),
        (1, 0, Mode::Slotted, Routing::Random, true),
        (1, 4, Mode::Compact, Routing::Hot, false),
        (4, 21, Mode::Compact, Routing::Random, true),
        (32, 5, Mode::Compact, Routing::Random, true),
        (64, 60, Mode::Compact, Routing::Hot, false),
        (1, 0, Mode::Compact, Routing::Random, true),
    ] {
        let mut case = capped(4, wave, max_recv);
        case.config = case.config.mode(mode);
        // Rows of an odd number of units, so that the windows end anywhere.
        case.config.hidden = 24;
        case.config = case.config.combine_type(DataType::F32).scale_bytes(4);
        (case.routing, case.staged) = (routing, staged);
        // Of pushed rows, in the one window of a plan for both ways, then in a window of their own.
        for source in if staged {
            [CombineSource::Any, CombineSource::Buffer]
        } else {
            [CombineSource::Any, CombineSource::Window]
        } {
            let config = case.config.clone().combine_source(source);
            let case = Case { config: config.combine_weights(wave != 4), ..case.clone() };
            all_well(on_ranks(4, wave, &world_config(), |world| guarded_round(world, &case)));
        }
    }
}
