//! Two worlds at once in one process.

use crate::common::{Case, all_well, failure, on_ranks, round, run, world_config};
use anabranch_conformance::ep::reference::ReferenceExpert;
use anabranch_ep::ExpertParallel;

#[test]
fn two_worlds_of_different_wave_widths_at_once() {
    std::thread::scope(|scope| {
        let narrow = scope.spawn(|| run(&Case::new(3, 1), 25));
        let wide = scope.spawn(|| run(&Case::new(4, 32), 15));
        narrow.join().unwrap();
        wide.join().unwrap();
    });
}

#[test]
fn failure_of_one_world_does_not_affect_another() {
    let case = Case::new(2, 1);
    std::thread::scope(|scope| {
        let healthy = scope.spawn(|| run(&case, 40));
        let failing = scope.spawn(|| {
            on_ranks(2, 4, &world_config(), |world| {
                let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
                let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
                let stream = world.device().create_stream()?;
                for number in 0..100 {
                    if number == 3 && world.rank().get() == 1 {
                        world.poison("an experiment");
                    }
                    round(&ep, &expert, &stream, world, &case, number)?;
                }
                Ok(())
            })
        });
        healthy.join().unwrap();
        for result in &failing.join().unwrap() {
            let text = failure(result);
            assert!(text.contains("rank 1 gave the world up: an experiment"), "{text}");
        }
    });
    all_well(on_ranks(1, 1, &world_config(), |_| Ok(())));
}
