//! The memory model of the seeded machine: for each litmus test, in each profile, what must be seen in some seed, and what
//! never.

use std::collections::BTreeSet;

use crate::lab::{
    DEVICE_SCOPE, LATE, Lab, Launch, NO_ACQUIRE, NO_RELEASE, ONE_THREAD_RELEASES, RIGHT, SEEDS, THREADS,
    WHOLE,
};
use anabranch_weakmem::MemoryProfile::{self, Cumulative, PerWave};
use anabranch_weakmem::SeededError;

const BOTH: [MemoryProfile; 2] = [PerWave, Cumulative];

/// How often a message passing went wrong: the receiver missed a word.
fn missed(lab: &Lab, send_mode: u32, receive_mode: u32) -> usize {
    let (send, receive) = (lab.kernel("litmus_send"), lab.kernel("litmus_receive"));
    let wrong = |seed: &u64| {
        let mut bench = lab.bench(2);
        bench.launch(&send, (0, 0), 0, send_mode, (1, THREADS));
        bench.launch(&receive, (1, 0), 0, receive_mode, (1, THREADS));
        bench.run(*seed);
        (0..u64::from(THREADS)).any(|thread| bench.out(1, thread) as u32 != thread as u32 + 1)
    };
    (0..SEEDS).filter(wrong).count()
}

fn seen_or_never(what: &str, seeds: usize, seen: bool) {
    println!("{what}: {seeds} of {SEEDS} seeds");
    assert_eq!(seeds > 0, seen, "{what}: {seeds} seeds");
}

#[test]
fn messages_pass_whole_and_only_whole() {
    for profile in BOTH {
        let lab = Lab::new("litmus-message", RIGHT, profile);
        let per_wave = profile == PerWave;
        for (what, send, receive, seen) in [
            ("block_release_system", WHOLE, WHOLE, false),
            ("no release", NO_RELEASE, WHOLE, true),
            ("release by one thread behind the barrier", ONE_THREAD_RELEASES, WHOLE, per_wave),
            ("release at device scope", DEVICE_SCOPE, WHOLE, true),
        ] {
            seen_or_never(&format!("{profile:?}, {what}"), missed(&lab, send, receive), seen);
        }
        // Where the polling load acquires, it takes a mutant to leave that out.
        let lab = Lab::new("litmus-no-acquire", "NO_ACQUIRE_AFTER_WAIT", profile);
        seen_or_never(&format!("{profile:?}, no acquire"), missed(&lab, WHOLE, NO_ACQUIRE), true);
    }
    // A release before the barrier covers what came before the barrier in its own wave alone.
    let lab = Lab::new("litmus-release-early", "RELEASE_BEFORE_BARRIER", Cumulative);
    seen_or_never("Cumulative, release before the barrier", missed(&lab, WHOLE, WHOLE), true);
}

#[test]
fn a_release_passes_on_what_was_acquired_where_fences_are_cumulative() {
    for profile in BOTH {
        let lab = Lab::new("litmus-relay", RIGHT, profile);
        for (what, mode, seen) in [
            ("relayed at system scope", WHOLE, false),
            ("relayed at device scope", DEVICE_SCOPE, profile == PerWave),
        ] {
            let launches: [Launch; 3] = [
                ("litmus_relay_first", 0, 0, 0, mode),
                ("litmus_relay_second", 0, 1, 0, mode),
                ("litmus_relay_third", 1, 0, 0, mode),
            ];
            let seen_data = lab.outcomes(2, &launches);
            let missed = usize::from(seen_data.contains(&vec![0, 0]));
            assert!(seen_data.contains(&vec![0, 7]), "{seen_data:?}");
            seen_or_never(&format!("{profile:?}, {what}"), missed, seen);
        }
    }
}

#[test]
fn store_buffering_is_seen_without_fences() {
    for profile in BOTH {
        let lab = Lab::new("litmus-cross", RIGHT, profile);
        let both =
            |mode| lab.outcomes(2, &[("litmus_cross", 0, 0, 0, mode), ("litmus_cross", 1, 0, 1, mode)]);
        assert_eq!(both(NO_RELEASE), [[0, 0], [0, 1], [1, 0], [1, 1]].map(Vec::from).into());
        // Stronger than PTX and HSA, which want sequentially consistent fences: a release has drained here.
        let strong = both(WHOLE);
        assert!(!strong.contains(&vec![0, 0]) && strong.contains(&vec![1, 1]), "{strong:?}");
    }
}

#[test]
fn load_buffering_is_never_seen() {
    // Stronger than GPUs: a load's value is there before the lane goes on, so no later store can have been its cause.
    for profile in BOTH {
        let lab = Lab::new("litmus-load-buffering", RIGHT, profile);
        let name = "litmus_load_then_store";
        let seen = lab.outcomes(2, &[(name, 0, 0, 0, NO_RELEASE), (name, 1, 0, 1, NO_RELEASE)]);
        assert_eq!(seen, [[0, 0], [0, 1], [1, 0]].map(Vec::from).into());
    }
}

#[test]
fn two_stores_each_cross_without_fences() {
    for profile in BOTH {
        let lab = Lab::new("litmus-two-words", RIGHT, profile);
        let name = "litmus_two_words";
        let ends = |mode| {
            let launches = [(name, 0, 0, 0, mode), (name, 1, 0, 1, mode)];
            lab.outcomes_of(2, &launches, (1, 4), |bench| {
                [bench.word(bench.flags, 0), bench.word(bench.flags, 1)]
            })
        };
        // Each word ends with its owner's first store: each second store came before it.
        let cycle = [1, 1];
        assert!(ends(NO_RELEASE).contains(&cycle));
        let strong = ends(WHOLE);
        assert!(!strong.contains(&cycle) && strong.len() > 1, "{strong:?}");
    }
}

#[test]
fn eight_bytes_are_one_piece_and_sixteen_are_two() {
    for profile in BOTH {
        let lab = Lab::new("litmus-pack", RIGHT, profile);
        let narrow = lab.outcomes(2, &[("litmus_pack", 0, 0, 0, 0), ("litmus_unpack", 1, 0, 0, 0)]);
        assert_eq!(narrow, BTreeSet::from([vec![0, 77]]));
        let wide = lab.outcomes(2, &[("litmus_pack_wide", 0, 0, 0, 0), ("litmus_unpack_wide", 1, 0, 0, 0)]);
        // Whole, the first half alone, the second half alone; never half of a half.
        let expected = BTreeSet::from([0x0101_0101, 0x0000_0101, 0x0101_0000].map(|word| vec![0, word]));
        assert_eq!(wide, expected);
    }
}

#[test]
fn readers_may_disagree_about_independent_writes() {
    for profile in BOTH {
        let lab = Lab::new("litmus-independent", RIGHT, profile);
        let all = |mode| {
            let launches = [
                ("litmus_write_one", 0, 0, 0, 0),
                ("litmus_write_one", 1, 0, 1, 0),
                ("litmus_read_two", 2, 0, 0, mode),
                ("litmus_read_two", 3, 0, 1, mode),
            ];
            lab.outcomes(4, &launches)
        };
        // Each reader saw its first flag and not its second: they disagree about which came first.
        let disagree = vec![0, 0, 1, 1];
        assert!(all(NO_ACQUIRE).contains(&disagree));
        // A store becomes visible to all other devices at once: stronger than PTX and HSA without sequential consistency.
        assert!(!all(WHOLE).contains(&disagree));
    }
}

#[test]
fn a_word_never_goes_back() {
    for profile in BOTH {
        let lab = Lab::new("litmus-coherence", RIGHT, profile);
        let seen = lab.outcomes(2, &[("litmus_count_up", 0, 0, 0, 0), ("litmus_watch", 1, 0, 0, 0)]);
        assert_eq!(seen, BTreeSet::from([vec![0, 0]]));
    }
}

/// In how many seeds the last block missed what another had written.
fn missed_between_blocks(lab: &Lab) -> usize {
    const BLOCKS: u64 = 3;
    let arrive = lab.kernel("litmus_arrive");
    let wrong = |seed: &u64| {
        let mut bench = lab.bench(1);
        bench.launch(&arrive, (0, 0), 0, 0, (BLOCKS as u32, 8));
        bench.run(*seed);
        bench.out(0, BLOCKS) != BLOCKS * (BLOCKS + 1) / 2
    };
    (0..SEEDS).filter(wrong).count()
}

#[test]
#[ignore = "extended"]
fn the_last_block_sees_all_blocks_and_each_fence_for_it_is_needed() {
    let profiles: [(MemoryProfile, &[&str]); 2] = [
        (
            PerWave,
            &["RELEASE_BY_ONE_THREAD", "NO_RELEASE", "COUNT_BEFORE_RELEASE", "NO_ACQUIRE_BETWEEN_BLOCKS"],
        ),
        (
            Cumulative,
            &["NO_RELEASE", "COUNT_BEFORE_RELEASE", "NO_RELEASE_BEFORE_COUNT", "LAST_DOES_NOT_RELEASE"],
        ),
    ];
    for (profile, mutants) in profiles {
        seen_or_never("whole", missed_between_blocks(&Lab::new("litmus-arrive", RIGHT, profile)), false);
        for mutant in mutants {
            let lab = Lab::new("litmus-arrive", mutant, profile);
            seen_or_never(&format!("{profile:?}, mutant {mutant}"), missed_between_blocks(&lab), true);
        }
    }
}

/// The race of the first seed that has one.
fn race(lab: &Lab, launches: &[Launch], shape: (u32, u32)) -> Option<String> {
    let kernels: Vec<_> = launches.iter().map(|(name, ..)| lab.kernel(name)).collect();
    (0..60).find_map(|seed| {
        let mut bench = lab.bench(2);
        for (kernel, (_, device, stream, me, mode)) in kernels.iter().zip(launches) {
            bench.launch(kernel, (*device, *stream), *me, *mode, shape);
        }
        match bench.machine.run(seed) {
            Err(SeededError::Race(race)) => Some(race.to_string()),
            other => other.map_or_else(|error| panic!("seed {seed}: {error}"), |_| None),
        }
    })
}

#[test]
fn what_goes_wrong_in_some_seed_is_a_race_and_what_never_does_is_none() {
    for profile in BOTH {
        let lab = Lab::new("litmus-races", RIGHT, profile).that_finds_races();
        let message = |send| {
            let launches = [("litmus_send", 0, 0, 0, send), ("litmus_receive", 1, 0, 0, WHOLE | LATE)];
            race(&lab, &launches, (1, THREADS))
        };
        let per_wave = profile == PerWave;
        for (mode, races) in
            [(WHOLE, false), (NO_RELEASE, true), (ONE_THREAD_RELEASES, per_wave), (DEVICE_SCOPE, true)]
        {
            let found = message(mode);
            assert_eq!(found.is_some(), races, "{profile:?}, mode {mode}: {found:?}");
        }
        let relay = |mode| {
            let launches = [
                ("litmus_relay_first", 0, 0, 0, mode),
                ("litmus_relay_second", 0, 1, 0, mode),
                ("litmus_relay_third", 1, 0, 0, mode),
            ];
            race(&lab, &launches, (1, 4))
        };
        assert_eq!(relay(WHOLE), None);
        assert_eq!(relay(DEVICE_SCOPE).is_some(), per_wave);
        assert_eq!(race(&lab, &[("litmus_arrive", 0, 0, 0, 0)], (3, 8)), None);
        // Words of a protocol, unordered on purpose, are flags and do not race; data would.
        assert_eq!(race(&lab, &[("litmus_cross", 0, 0, 0, 1), ("litmus_cross", 1, 0, 1, 1)], (1, 4)), None);
        let counts = [("litmus_count_up", 0, 0, 0, 0), ("litmus_watch", 1, 0, 0, 0)];
        let text = race(&lab, &counts, (1, 4)).unwrap_or_default();
        assert!(text.starts_with("race on data+0: ") && text.contains("litmus_watch block 0"), "{text}");
    }
    let lab = Lab::new("litmus-races", "NO_ACQUIRE_BETWEEN_BLOCKS", PerWave).that_finds_races();
    let text = race(&lab, &[("litmus_arrive", 0, 0, 0, 0)], (3, 8)).unwrap_or_default();
    assert!(text.contains("has not acquired it"), "{text}");
}
