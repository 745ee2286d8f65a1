//! Tiny cases in all their runs within bounds, and the least number of switches with which a seed fails.

use anabranch_clock::Moment;
use std::collections::BTreeSet;
use std::ops::ControlFlow;

use crate::lab::{Bench, LATE, Lab, Launch, NO_ACQUIRE, NO_RELEASE, RIGHT, WHOLE};
use anabranch_weakmem::MemoryProfile::{self, Cumulative, PerWave};
use anabranch_weakmem::{Bounds, Explored, SeededKernel};

const BOTH: [MemoryProfile; 2] = [PerWave, Cumulative];

fn bounds(switches: u64, landings: u64) -> Bounds {
    Bounds { switches, landings, runs: 1_000_000 }
}

/// Zeroes memory and queues launches of one lane each.
fn queue(bench: &mut Bench, kernels: &[SeededKernel], launches: &[Launch]) {
    for zeroed in [bench.data, bench.flags, bench.outs[0], bench.outs[1]] {
        bench.machine.fill(zeroed, 0);
    }
    for (kernel, (_, device, stream, me, mode)) in kernels.iter().zip(launches) {
        bench.launch(kernel, (*device, *stream), *me, *mode, (1, 1));
    }
}

/// All values of the devices' first words.
fn all(lab: &Lab, bounds: Bounds, launches: &[Launch]) -> (BTreeSet<[u64; 2]>, Explored<()>) {
    let kernels: Vec<_> = launches.iter().map(|(name, ..)| lab.kernel(name)).collect();
    let mut bench = lab.bench(2);
    let outs = bench.outs.clone();
    let mut machine = std::mem::replace(&mut bench.machine, lab.bench(2).machine);
    let (start, mut seen) = (Moment::now(), BTreeSet::new());
    let explored = machine.explore(
        bounds,
        |machine| {
            std::mem::swap(machine, &mut bench.machine);
            queue(&mut bench, &kernels, launches);
            std::mem::swap(machine, &mut bench.machine);
            Ok(())
        },
        |machine, outcome| {
            outcome.unwrap();
            let word = |device: usize| {
                u64::from_ne_bytes(machine.read(outs[device], 0, 8).unwrap().try_into().unwrap())
            };
            seen.insert([word(0), word(1)]);
            ControlFlow::Continue(())
        },
    );
    let explored = explored.unwrap();
    println!("{launches:?}: {} runs in {:.2?}: {seen:?}", explored.runs, start.elapsed());
    (seen, explored)
}

fn message(send: u32, receive: u32) -> [Launch; 2] {
    [("litmus_send", 0, 0, 0, send), ("litmus_receive", 1, 0, 0, receive | LATE)]
}

#[test]
#[ignore = "extended"]
fn a_message_with_both_fences_is_right_in_every_run_and_without_one_it_is_not() {
    for profile in BOTH {
        let lab = Lab::new("explore-message", RIGHT, profile);
        let (seen, explored) = all(&lab, bounds(2, 3), &message(WHOLE, WHOLE));
        assert!(explored.complete && explored.runs > 100, "{explored:?}");
        assert_eq!(seen, BTreeSet::from([[0, 1]]));
        let (seen, explored) = all(&lab, bounds(2, 3), &message(NO_RELEASE, WHOLE));
        assert!(explored.complete, "{explored:?}");
        assert_eq!(seen, BTreeSet::from([[0, 0], [0, 1]]));
    }
    let lab = Lab::new("explore-message", RIGHT, PerWave);
    // The old value has to have been there to be kept: a store that was visible before cannot be missed.
    let (seen, explored) = all(&lab, bounds(2, 3), &message(WHOLE, NO_ACQUIRE));
    assert!(explored.complete, "{explored:?}");
    assert_eq!(seen, BTreeSet::from([[0, 0], [0, 1]]));
}

#[test]
#[ignore = "extended"]
fn store_buffering_and_load_buffering_have_these_outcomes_and_no_others() {
    for profile in BOTH {
        let lab = Lab::new("explore-buffering", RIGHT, profile);
        for (name, mode, never) in [
            ("litmus_cross", NO_RELEASE, None),
            ("litmus_cross", WHOLE, Some([0, 0])),
            ("litmus_load_then_store", NO_RELEASE, Some([1, 1])),
        ] {
            let (seen, explored) = all(&lab, bounds(2, 2), &[(name, 0, 0, 0, mode), (name, 1, 0, 1, mode)]);
            assert!(explored.complete, "{explored:?}");
            let mut expected = BTreeSet::from([[0, 0], [0, 1], [1, 0], [1, 1]]);
            if let Some(never) = never {
                expected.remove(&never);
            }
            assert_eq!(seen, expected, "{profile:?} {name} {mode}");
        }
    }
}

#[test]
fn the_first_run_that_goes_wrong_can_be_run_again() {
    let lab = Lab::new("explore-replay", RIGHT, PerWave);
    let launches = message(NO_RELEASE, WHOLE);
    let kernels: Vec<_> = launches.iter().map(|(name, ..)| lab.kernel(name)).collect();
    let mut bench = lab.bench(2);
    let out = bench.outs[1];
    let mut machine = std::mem::replace(&mut bench.machine, lab.bench(2).machine);
    let mut set = |machine: &mut _| {
        std::mem::swap(machine, &mut bench.machine);
        queue(&mut bench, &kernels, &launches);
        std::mem::swap(machine, &mut bench.machine);
        Ok(())
    };
    let bounds = bounds(2, 3);
    let explored = machine.explore(bounds, &mut set, |machine, outcome| {
        let run = outcome.unwrap();
        let missed = machine.read(out, 0, 1).unwrap() == [0];
        if missed { ControlFlow::Break(run) } else { ControlFlow::Continue(()) }
    });
    let Explored { complete, stopped, .. } = explored.unwrap();
    let (run, choices) = stopped.unwrap();
    assert!(!complete);
    set(&mut machine).unwrap();
    assert_eq!(machine.replay(bounds, &choices).unwrap(), run);
    // Given up early, an exploration says so.
    let few = Bounds { runs: 3, ..bounds };
    let explored = machine.explore(few, set, |_, _| ControlFlow::<()>::Continue(())).unwrap();
    assert_eq!((explored.runs, explored.complete), (3, false));
}

#[test]
fn with_fewer_switches_a_run_begins_as_it_was() {
    let lab = Lab::new("explore-fewer", RIGHT, PerWave);
    let (send, receive) = (lab.kernel("litmus_send"), lab.kernel("litmus_receive"));
    let mut counts = BTreeSet::new();
    for seed in 0..30 {
        let run = |most: Option<u64>| {
            let mut bench = lab.bench_with(2, |config| config.most_switches = most);
            bench.launch(&send, (0, 0), 0, WHOLE, (1, 8));
            bench.launch(&receive, (1, 0), 0, WHOLE, (1, 8));
            bench.run(seed)
        };
        let whole = run(None);
        assert_eq!(run(Some(whole.switches)), whole);
        for most in 0..whole.switches.min(4) {
            let part = run(Some(most));
            assert_eq!(part.switches, most, "seed {seed}");
            let same =
                part.events.iter().zip(&whole.events).take_while(|(part, whole)| part == whole).count();
            counts.insert(same);
        }
    }
    assert!(counts.len() > 10, "prefixes of many lengths are kept: {counts:?}");
}
