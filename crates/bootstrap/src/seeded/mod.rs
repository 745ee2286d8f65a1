//! The rendezvous of threads under seeds: any order of its ranks, deadlines that expire, ranks that go at any point.

mod check;
mod program;
mod run;

use check::check;
use program::{How, Program, Victim};
use run::run;

/// The program and the order of a seed, run and checked.
fn try_seed(seed: u64) -> Result<(), String> {
    let program = Program::draw(seed);
    check(&program, &run(&program, seed))
}

#[test]
fn random_calls_end_as_they_should() {
    #[expect(clippy::disallowed_methods, reason = "how many seeds run in a second of the machine's time")]
    let begun = std::time::Instant::now();
    let seeds = 4000;
    for seed in 0..seeds {
        try_seed(seed).unwrap_or_else(|problem| panic!("seed {seed}: {problem}"));
    }
    println!("{:.0} seeds/s", f64::from(seeds as u32) / begun.elapsed().as_secs_f64());
}

/// Each rank goes before each call, in each way.
#[test]
fn a_rank_may_go_at_any_point() {
    let mut runs = 0;
    for seed in 0..60 {
        let drawn = Program::draw(seed);
        for rank in 0..drawn.size {
            for before in 0..drawn.calls.len() {
                for how in [How::Leaves, How::Drops, How::Panics] {
                    let victims = vec![Victim { rank, before, how }];
                    let program = Program { victims, ..drawn.clone() };
                    check(&program, &run(&program, seed)).unwrap_or_else(|problem| {
                        panic!("seed {seed}, rank {rank} {how:?} before call {before}: {problem}")
                    });
                    runs += 1;
                }
            }
        }
    }
    println!("{runs} runs");
}

#[test]
fn a_seed_gives_one_run() {
    let mut orders = std::collections::HashSet::new();
    for seed in 0..50 {
        let program = Program::draw(seed);
        let runs = [(); 2].map(|()| run(&program, seed));
        let [one, two] = runs.map(|run| (format!("{:?}", run.trace), format!("{:?}", run.ranks)));
        assert_eq!(one, two, "seed {seed}");
        orders.insert(one.0);
    }
    assert!(orders.len() > 40, "{} orders of 50 seeds", orders.len());
}
