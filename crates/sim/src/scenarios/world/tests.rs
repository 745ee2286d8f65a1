use super::*;
use crate::{Protocol, scratch};

#[test]
fn probe() {
    let jit = scratch::jit();
    let world = World::new(Case::new(Protocol::World, 2), &jit).unwrap();
    let start = anabranch_clock::Moment::now();
    for seed in 0..50 {
        let lives = world.live(seed, &[], false).unwrap();
        if seed < 3 {
            println!("{:?} {} {:?} {:?} {:?} {:?}", lives.endings, lives.run.steps, lives.run.virtual_ns, lives.primitives, lives.calls, lives.meetings);
        }
        assert_eq!(judge(&[], &lives), Ok("all right"));
    }
    println!("{:?}", start.elapsed());
}
