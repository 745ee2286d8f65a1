//! A world joined, used and left many times leaves nothing after. Alone in its process, so that no other threads and
//! files are counted.

use crate::common::{Case, Uploaded, all_well, jit, machine, round, work, world_config};
use anabranch_conformance::ep::reference::ReferenceExpert;
use anabranch_ep::{Error, ExpertOutput, ExpertParallel};
use anabranch_hip::{DeviceOrdinal, Runtime};
use anabranch_hip_jit::Jit;
use anabranch_shmem::{RankSetup, World, spawn_threads};
use anabranch_testkit::{Resources, is_alone, test_path};

fn use_world(world: &World, case: &Case) -> Result<(), Error> {
    let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
    let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
    let stream = world.device().create_stream()?;
    round(&ep, &expert, &stream, world, case, 1)?;
    let uploaded = Uploaded::new(world.device(), &case.config, &case.input(ep.rank().get(), 2));
    stream.begin_capture()?;
    let dispatched = ep.dispatch(&stream, &uploaded.tokens(&case.config))?;
    work(&expert, &stream, &dispatched)?;
    ep.combine(&stream, ExpertOutput::InWindow, dispatched, uploaded.output())?;
    let graph = stream.end_capture()?.instantiate()?;
    for _ in 0..3 {
        // SAFETY: all that the graph uses lives until the stream was waited for.
        unsafe { graph.launch(&stream)? };
    }
    world.synchronize(&stream)?;
    // A handle that is not combined.
    drop(ep.dispatch(&stream, &uploaded.tokens(&case.config))?);
    Ok(world.synchronize(&stream)?)
}

fn once(runtime: &Runtime, jit: &Jit, case: &Case) {
    all_well(spawn_threads(
        case.ranks,
        |rank| {
            let device = runtime.device(DeviceOrdinal(rank.get()))?;
            Ok(RankSetup { config: world_config(), device, jit: jit.clone() })
        },
        |world: &World| use_world(world, case),
    ));
}

#[test]
fn joining_using_and_leaving_leaks_nothing() {
    if !is_alone(test_path!("joining_using_and_leaving_leaks_nothing")) {
        return;
    }
    let mut case = Case::new(3, 1);
    case.config = case.config.slots(2);
    let machine = machine(case.ranks, case.wave);
    let (runtime, jit) = (machine.runtime(), jit());
    let free = |ordinal| runtime.device(DeviceOrdinal(ordinal)).unwrap().memory_info().unwrap().0;
    // The first rounds start the machine's threads and load the kernels.
    for _ in 0..5 {
        once(&runtime, &jit, &case);
    }
    let before = (Resources::at_rest().unwrap(), free(0), free(2));
    for _ in 0..30 {
        once(&runtime, &jit, &case);
    }
    let after = (Resources::at_rest().unwrap(), free(0), free(2));
    assert!(after.0.files <= before.0.files, "{before:?} {after:?}");
    assert!(after.0.threads <= before.0.threads, "{before:?} {after:?}");
    // Stacks of ended threads are kept for the next ones, so a few mappings come and go; 30 leaks would show.
    assert!(after.0.mappings < before.0.mappings + 20, "{before:?} {after:?}");
    assert!(after.0.address_space_kib < before.0.address_space_kib + (200 << 10), "{before:?} {after:?}");
    assert_eq!((after.1, after.2), (before.1, before.2), "device memory");
}
