//! Calls as a framework makes them: while another device is current than the rank's, from threads of its own, and late, when the world was
//! left already.

use core::ffi::c_int;
use std::sync::Arc;
use std::thread;

use crate::common::{
    Case, Uploaded, all_well, jit, judge_output, machine, oracle, round, work, world_config,
};
use anabranch_bootstrap::Rendezvous;
use anabranch_conformance::ep::reference::ReferenceExpert;
use anabranch_ep::{Error, ExpertMajor, ExpertMajorConfig, ExpertOutput, ExpertParallel};
use anabranch_hip::{DeviceOrdinal, HipError, Runtime};
use anabranch_shmem::World;

/// Makes a device current for this thread.
fn make_current(runtime: &Runtime, device: c_int) {
    // SAFETY: no pointers; the machine has the device.
    assert_eq!(unsafe { (runtime.api().hipSetDevice)(device) }, HipError::SUCCESS);
}

fn current(runtime: &Runtime) -> c_int {
    let mut device = -1;
    // SAFETY: the call writes one int.
    assert_eq!(unsafe { (runtime.api().hipGetDevice)(&raw mut device) }, HipError::SUCCESS);
    device
}

#[test]
fn every_call_keeps_the_current_device() {
    for staged in [false, true] {
        let mut case = Case::new(3, 4);
        case.staged = staged;
        all_well(case.on_ranks(&world_config(), |world| {
            let runtime = world.device().runtime();
            // The next rank's: memory of this rank that went there would be missed, or met.
            let others = ((world.rank().get() + 1) % case.ranks) as c_int;
            make_current(runtime, others);
            let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
            let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
            let stream = world.device().create_stream()?;
            assert_eq!(current(runtime), others, "made");
            for number in 0..5 {
                round(&ep, &expert, &stream, world, &case, number)?;
                assert_eq!(current(runtime), others, "round {number}");
            }
            let inputs = case.inputs(9);
            let uploaded = Uploaded::new(world.device(), &case.config, &inputs[ep.rank().index()]);
            stream.begin_capture()?;
            let dispatched = ep.dispatch(&stream, &uploaded.tokens(&case.config))?;
            work(&expert, &stream, &dispatched)?;
            ep.combine(&stream, ExpertOutput::InWindow, dispatched, uploaded.output())?;
            let graph = stream.end_capture()?.instantiate()?;
            assert_eq!(current(runtime), others, "captured");
            // SAFETY: all that the graph uses lives until the stream was waited for.
            unsafe { graph.launch(&stream)? };
            world.synchronize(&stream)?;
            judge_output(&oracle(&case, &inputs), ep.rank(), &uploaded.read_output(&case.config));
            // A call that is refused, and a handle that is not combined.
            let mut wrong = uploaded.tokens(&case.config);
            wrong.count = case.config.max_tokens as usize + 1;
            assert!(ep.dispatch(&stream, &wrong).is_err());
            assert_eq!(current(runtime), others, "refused");
            drop(ep.dispatch(&stream, &uploaded.tokens(&case.config))?);
            world.synchronize(&stream)?;
            drop((graph, ep, expert, stream, uploaded));
            assert_eq!(current(runtime), others, "dropped");
            Ok(())
        }));
    }
}

/// What was made from a world is used and dropped when it was left, from threads that never saw it.
#[test]
fn plans_and_handles_outlive_the_world() {
    let case = Case::new(2, 4);
    let (machine, jit) = (machine(case.ranks, case.wave), jit());
    let runtime = machine.runtime();
    let free = || runtime.device(DeviceOrdinal(1)).unwrap().memory_info().unwrap().0;
    let rounds = |count: u32| {
        for number in 0..count {
            thread::scope(|scope| {
                for rendezvous in anabranch_bootstrap::threads(case.ranks) {
                    let (case, jit, runtime) = (&case, &jit, &runtime);
                    scope.spawn(move || late(case, runtime, jit, &(Arc::new(rendezvous) as _), number));
                }
            });
        }
    };
    // The first round loads the kernels.
    rounds(1);
    let before = free();
    rounds(6);
    assert_eq!(free(), before, "device memory");
}

fn late(
    case: &Case,
    runtime: &Runtime,
    jit: &anabranch_hip_jit::Jit,
    rendezvous: &Arc<dyn Rendezvous>,
    order: u32,
) {
    let device = runtime.device(DeviceOrdinal(rendezvous.rank().get())).unwrap();
    let world = World::join(world_config(), device, jit.clone(), Arc::clone(rendezvous)).unwrap();
    let ep = ExpertParallel::new(&world, world.group(), case.config.clone()).unwrap();
    let expert = ReferenceExpert::new(&world, ep.plan(), ep.rank()).unwrap();
    let layout = ExpertMajor::new(&ep, ExpertMajorConfig::default()).unwrap();
    let stream = world.device().create_stream().unwrap();
    round(&ep, &expert, &stream, &world, case, 1).unwrap();
    let uploaded = Uploaded::new(world.device(), &case.config, &case.input(ep.rank().get(), 2));
    let dispatched = ep.dispatch(&stream, &uploaded.tokens(&case.config)).unwrap();
    world.synchronize(&stream).unwrap();
    world.leave().unwrap();
    let refused = |result: Result<(), Error>| match result {
        Err(Error::Shmem(anabranch_shmem::Error::Left)) => {}
        other => panic!("{other:?}"),
    };
    refused(ep.dispatch(&stream, &uploaded.tokens(&case.config)).map(drop));
    refused(ExpertParallel::new(&world, world.group(), case.config.clone()).map(drop));
    drop(world);
    thread::spawn(move || match order % 3 {
        0 => drop((ep, expert, layout, dispatched, uploaded, stream)),
        1 => drop((stream, uploaded, dispatched, layout, expert, ep)),
        _ => {
            let output = uploaded.output();
            refused(ep.combine(&stream, ExpertOutput::InWindow, dispatched, output));
            thread::spawn(move || drop(ep)).join().unwrap();
            drop((layout, expert));
        }
    })
    .join()
    .unwrap();
    rendezvous.leave().unwrap();
}
