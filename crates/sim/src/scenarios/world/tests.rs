use super::*;
use crate::{Protocol, scratch};
use anabranch_hip_host::seeded::Fault as MachineFault;
use std::collections::BTreeMap;

#[test]
fn probe() {
    let jit = scratch::jit();
    let world = World::new(Case::new(Protocol::World, 2), &jit).unwrap();
    let lives = world.live(0, &[], true).unwrap();
    for rank in 0..2u32 {
        let start = format!("rank {rank} ");
        let names: Vec<String> = lives.run.events.iter().map(ToString::to_string).filter_map(|line| {
            let (_, rest) = line.split_once(' ')?;
            let name = rest.starts_with(&start).then(|| rest.rsplit(' ').next())??;
            name.starts_with("hip").then(|| name.to_owned())
        }).collect();
        println!("{} {}", names.len(), lives.calls[rank as usize]);
        let mut right: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (nth, name) in names.iter().enumerate() {
            for code in [anabranch_hip::HipError::OUT_OF_MEMORY, anabranch_hip::HipError::LAUNCH_FAILURE] {
            let f = Fault::Machine(MachineFault::FailCall { rank, nth: nth as u64, code });
            let (said, _) = world.run_and_judge(0, &[f], false);
            match said {
                Ok("all right") => right.entry(format!("{code:?} {name}")).or_default().push(nth),
                Err(e) => println!("{nth} {name} {e}"),
                _ => {}
            }}
        }
        println!("{rank} {right:#?}");
    }
}
