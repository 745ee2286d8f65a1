//! Calls as frameworks make them: with another current device, from other threads, and after `leave`.

use core::ffi::c_int;
use std::sync::Arc;
use std::thread;

use crate::common::{all_well, jit, machine, on_ranks, world_config};
use anabranch_bootstrap::Rendezvous;
use anabranch_ccl::{Algorithm, Call, CclConfig, Choice, Collective, Communicator, DataType, Error, Tensor};
use anabranch_conformance::ccl::{self as conformance, Captured, Case, Scratch, Trial};
use anabranch_hip::{DeviceOrdinal, HipError, Runtime};
use anabranch_hip_jit::Jit;
use anabranch_shmem::{World, WorldConfig};

const ALGORITHMS: [Algorithm; 4] =
    [Algorithm::Packets, Algorithm::Push, Algorithm::Pull, Algorithm::CopyEngine];

fn config() -> CclConfig {
    CclConfig { max_blocks: 2, staging_bytes: 16 << 10, ..CclConfig::default() }
}

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
fn calls_preserve_the_current_device() {
    const RANKS: u32 = 3;
    all_well(on_ranks(RANKS, 4, &world_config(), &jit(), |world| {
        let runtime = world.device().runtime();
        // The device of the next rank: memory allocated there by mistake would be detected.
        let others = ((world.rank().get() + 1) % RANKS) as c_int;
        make_current(runtime, others);
        let stream = world.device().create_stream()?;
        let mut all = Communicator::new(world, world.group(), config())?;
        let case = Case::new(Collective::AllReduce, DataType::F32, 1009);
        let mut scratch = Scratch::new(world, &all, case.scratch_bytes(RANKS))?;
        for algorithm in ALGORITHMS {
            let choice = Choice { algorithm: Some(algorithm), ..Choice::default() };
            conformance::run_as(&mut all, &mut scratch, &case, choice, &stream)?.unwrap();
            assert_eq!(current(runtime), others, "{algorithm:?}");
        }
        let trials = ALGORITHMS.map(|algorithm| (Trial::from(case.clone()), algorithm)).to_vec();
        let (mut captured, verdict) = Captured::new(&mut all, &stream, trials)?;
        verdict.unwrap();
        for round in 0..3 {
            let filled = captured.refill(&all, round)?;
            captured.launch(&all, &stream)?;
            world.synchronize(&stream)?;
            captured.judge(&filled)?.unwrap();
        }
        assert_eq!(current(runtime), others, "captured");
        // A refused call.
        let few = world.allocate(world.group(), 64, 256, "few")?;
        let tensor = |count| Tensor::symmetric(&few, 0, DataType::F32, count);
        assert!(all.prepare(&Call::AllGather { output: tensor(2)?, input: tensor(2)? }).is_err());
        assert_eq!(current(runtime), others, "refused");
        captured.release()?;
        scratch.release()?;
        drop((all, few, stream));
        assert_eq!(current(runtime), others, "dropped");
        Ok(())
    }));
}

/// Objects of a world are used and dropped after `leave`, from other threads.
#[test]
fn communicators_outlive_the_world() {
    let (machine, jit) = (machine(2, 4), jit());
    let runtime = machine.runtime();
    let free = || runtime.device(DeviceOrdinal(1)).unwrap().memory_info().unwrap().0;
    let rounds = |count: u32| {
        for number in 0..count {
            thread::scope(|scope| {
                for rendezvous in anabranch_bootstrap::threads(2) {
                    let (jit, runtime) = (&jit, &runtime);
                    scope.spawn(move || late(runtime, jit, &(Arc::new(rendezvous) as _), number));
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

fn late(runtime: &Runtime, jit: &Jit, rendezvous: &Arc<dyn Rendezvous>, order: u32) {
    let device = runtime.device(DeviceOrdinal(rendezvous.rank().get())).unwrap();
    let small = WorldConfig { heap_bytes: 4 << 20, ..world_config() };
    let world = World::join(small, device, jit.clone(), Arc::clone(rendezvous)).unwrap();
    let stream = world.device().create_stream().unwrap();
    let mut all = Communicator::new(&world, world.group(), config()).unwrap();
    let mut memory = world.allocate(world.group(), 4096, 256, "halves").unwrap();
    memory.write(0, &1.0f32.to_le_bytes()).unwrap();
    let tensor = |offset| Tensor::symmetric(&memory, offset, DataType::F32, 1).unwrap();
    let call = Call::AllReduce { output: tensor(256), input: tensor(0), op: anabranch_ccl::ReduceOp::Sum };
    let prepared = all.prepare(&call).unwrap();
    let work = all.launch(&prepared, &stream).unwrap();
    work.join(std::time::Duration::from_secs(20)).unwrap();
    let mut sum = [0; 4];
    memory.read(256, &mut sum).unwrap();
    assert_eq!(sum, 2.0f32.to_le_bytes());
    world.leave().unwrap();
    let refused = |result: Result<(), Error>| match result {
        Err(Error::Shmem(anabranch_shmem::Error::Left)) => {}
        other => panic!("{other:?}"),
    };
    refused(all.launch(&prepared, &stream).map(drop));
    refused(Communicator::new(&world, world.group(), config()).map(drop));
    drop(world);
    thread::spawn(move || match order % 3 {
        0 => drop((all, prepared, memory, stream)),
        1 => drop((stream, memory, prepared, all)),
        _ => {
            refused(all.launch(&prepared, &stream).map(drop));
            thread::spawn(move || drop(all)).join().unwrap();
            drop((prepared, memory));
        }
    })
    .join()
    .unwrap();
    rendezvous.leave().unwrap();
}
