//! Which memory is which, and who may touch it.

use core::ffi::c_void;
use core::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use anabranch_hip::{DeviceAddress, HipError, Result};
use anabranch_hip_jit::{KernelSpec, Target};
use anabranch_weakmem::{SeededError, SeededSchedule};

use crate::machine::lab::{self, Outcome, Rank, THREADS, UNIT, args, jit, seeded, words, world};

/// Rank 0 makes memory and hands its descriptor over; both map it, at addresses of their own. Rank 1 stores, rank 0 reads.
fn mapped_twice(
    rank: &Rank<'_>,
    descriptor: &std::sync::Mutex<Option<std::os::fd::OwnedFd>>,
) -> Result<Vec<u64>> {
    let gpu = rank.gpu()?;
    let bytes = gpu.device.physical_granularity()?;
    let memory = if rank.number == 0 {
        let memory = gpu.device.create_physical(bytes)?;
        *descriptor.lock().unwrap() = Some(memory.export()?);
        rank.barrier_without_addresses();
        memory
    } else {
        rank.barrier_without_addresses();
        let descriptor = descriptor.lock().unwrap().take().unwrap();
        // SAFETY: the descriptor was exported with these bytes.
        unsafe { gpu.device.import_physical(descriptor.as_fd(), bytes) }?
    };
    let range = gpu.device.reserve(bytes, bytes)?;
    let _mapping = range.map(0, &Arc::new(memory), std::slice::from_ref(&gpu.device))?;
    let (data, flag) = (range.address(), range.address().offset(4096));
    let out = gpu.zeroed(THREADS as usize)?;
    if rank.number == 0 {
        gpu.launch(lab::TAKE, 1, &args(data, flag, out.address(), 70))?;
    } else {
        gpu.launch(lab::PUT, 1, &args(data, flag, out.address(), 70))?;
    }
    gpu.stream.synchronize()?;
    words(&out, THREADS as usize)
}

impl Rank<'_> {
    fn barrier_without_addresses(&self) {
        self.meet(&[DeviceAddress(1)]);
    }
}

#[test]
fn memory_that_is_mapped_twice_is_one_memory() {
    for seed in 0..40 {
        let descriptor = std::sync::Mutex::new(None);
        let outcome = world(2, seeded(seed), |rank| mapped_twice(rank, &descriptor).unwrap());
        assert!(outcome.failure.is_none(), "seed {seed}: {}", outcome.failure.unwrap());
        let expected: Vec<u64> = (70..70 + u64::from(THREADS)).collect();
        assert_eq!(outcome.ranks[0], expected, "seed {seed}");
        assert!(outcome.log().contains("flag store physical0.0+4096"), "both know it by one name");
    }
}

fn refused(outcome: Outcome<Result<()>>) -> String {
    let failure = outcome.failure.expect("the access is refused");
    assert!(matches!(*failure.cause, SeededError::Access { .. }), "{failure}");
    assert!(outcome.ranks.iter().any(Result::is_err), "the device is lost");
    failure.to_string()
}

#[test]
fn accesses_that_hip_forbids_are_refused_by_name() {
    let without_peer = refused(world(2, SeededSchedule::new(1), |rank| {
        let device = rank.runtime.device(anabranch_hip::DeviceOrdinal(rank.number))?;
        // The first to finish keeps it for the other.
        let word = ManuallyDrop::new(device.allocate(64)?);
        let all = rank.meet(&[word.address()]).unwrap();
        if rank.number == 0 {
            let alone = rank.alone();
            let gpu = alone.gpu()?;
            gpu.launch(lab::PUT, 1, &args(all[1][0], all[1][0], all[1][0], 1))?;
            gpu.stream.synchronize()?;
        }
        Ok(())
    }));
    assert!(
        without_peer.contains("is memory of device 1, to which device 0 has no access"),
        "{without_peer}"
    );

    let beyond = refused(world(1, SeededSchedule::new(1), |rank| {
        let gpu = rank.gpu()?;
        let small = gpu.device.allocate(8 * (THREADS as usize - 1))?;
        gpu.launch(lab::ADD, 1, &args(small.address(), small.address(), small.address(), 1))?;
        gpu.stream.synchronize()
    }));
    assert!(beyond.contains("no allocation of this machine is there"), "{beyond}");

    let freed = refused(world(1, SeededSchedule::new(1), |rank| {
        let gpu = rank.gpu()?;
        let gone = gpu.zeroed(8)?;
        let address = gone.address();
        drop(gone);
        gpu.launch(lab::ADD, 1, &args(address, address, address, 1))?;
        gpu.stream.synchronize()
    }));
    assert!(freed.contains("no allocation of this machine is there"), "{freed}");
}

#[test]
fn a_private_primitive_on_memory_that_a_peer_touches_is_refused() {
    let text = refused(world(2, SeededSchedule::new(2), |rank| {
        let gpu = rank.gpu()?;
        let (data, flag, out) = (gpu.zeroed(8)?, gpu.zeroed(1)?, gpu.zeroed(8)?);
        let all = rank.meet(&[data.address(), flag.address()]).unwrap();
        if rank.number == 1 {
            gpu.launch(lab::PUT, 1, &args(all[0][0], all[0][1], out.address(), 1))?;
        } else {
            gpu.launch(lab::TAKE, 1, &args(data.address(), flag.address(), out.address(), 1))?;
            gpu.launch(lab::PRIVATE, 1, &args(data.address(), flag.address(), out.address(), 1))?;
        }
        gpu.stream.synchronize()
    }));
    assert!(text.contains("device0.0+0 is shared with peers"), "{text}");
}

#[test]
fn memory_of_the_caller_works_while_it_is_registered() {
    for seed in 0..20 {
        let outcome = world(1, SeededSchedule::new(seed), |rank| -> Result<u64> {
            let gpu = rank.gpu()?;
            let memory: [AtomicU64; 5] = Default::default();
            let api = gpu.device.runtime().api();
            let base = (&raw const memory[1]).cast_mut().cast::<c_void>();
            // SAFETY: the array lives until it is unregistered.
            assert_eq!(unsafe { (api.hipHostRegister)(base, 24, 0) }, HipError::SUCCESS);
            let at = |index: usize| DeviceAddress((&raw const memory[index]).addr() as u64);
            gpu.launch(lab::ANSWER, 1, &args(at(1), at(2), at(3), 1))?;
            memory[1].store(41, Ordering::Relaxed);
            memory[2].store(1, Ordering::Release);
            gpu.stream.synchronize()?;
            // SAFETY: the stream is idle.
            assert_eq!(unsafe { (api.hipHostUnregister)(base) }, HipError::SUCCESS);
            assert_eq!(memory[3].load(Ordering::Acquire), 1);
            Ok(memory[1].load(Ordering::Relaxed))
        });
        assert!(outcome.failure.is_none(), "{}", outcome.failure.unwrap());
        assert_eq!(*outcome.ranks[0].as_ref().unwrap(), 42);
    }
}

/// Eight aligned bytes of which the last four are registered: a kernel stores to those, the others are the host's alone.
#[test]
fn bytes_before_registered_memory_are_not_touched() {
    for seed in 0..20 {
        let outcome = world(1, SeededSchedule::new(seed), |rank| -> Result<[u32; 4]> {
            let gpu = rank.gpu()?;
            // Aligned to eight bytes as a whole; registered from the fourth byte on.
            let memory: [AtomicU64; 2] = Default::default();
            memory[0].store(u64::from_ne_bytes([7; 8]), Ordering::Relaxed);
            let half = |at: usize| (&raw const memory).cast::<AtomicU32>().wrapping_add(at);
            let api = gpu.device.runtime().api();
            let base = half(1).cast_mut().cast::<c_void>();
            // SAFETY: the array lives until it is unregistered.
            assert_eq!(unsafe { (api.hipHostRegister)(base, 12, 0) }, HipError::SUCCESS);
            let word = DeviceAddress(half(2).addr() as u64);
            let bytes = DeviceAddress(half(1).addr() as u64);
            gpu.launch(lab::BYTES, 1, &args(bytes, word, word, 9))?;
            gpu.stream.synchronize()?;
            // SAFETY: the stream is idle.
            assert_eq!(unsafe { (api.hipHostUnregister)(base) }, HipError::SUCCESS);
            // SAFETY: the four halves of the array.
            Ok([0, 1, 2, 3].map(|at| unsafe { &*half(at) }.load(Ordering::Acquire)))
        });
        assert!(outcome.failure.is_none(), "{}", outcome.failure.unwrap());
        let seven = u32::from_ne_bytes([7; 4]);
        assert_eq!(*outcome.ranks[0].as_ref().unwrap(), [seven, 9, 0, 0], "seed {seed}");
    }
}

#[test]
fn copies_reach_kernels_that_poll_and_peers() {
    for seed in 0..40 {
        let outcome = world(2, SeededSchedule::new(seed), |rank| -> Result<u64> {
            let gpu = rank.gpu()?;
            let (mut flag, out) = (gpu.zeroed(1)?, gpu.zeroed(2)?);
            let all = rank.meet(&[flag.address()]).unwrap();
            gpu.launch(lab::ANSWER, 1, &args(out.address(), flag.address(), out.address().offset(8), 9))?;
            let side = gpu.device.create_stream()?;
            if rank.number == 0 {
                // One flag from the host, the other by a copy from device to device.
                flag.copy_from_host(0, &9_u64.to_ne_bytes())?;
                // SAFETY: both words live until both ranks are done.
                unsafe { side.copy_async(all[1][0], flag.address(), 8) }?;
            }
            gpu.stream.synchronize()?;
            side.synchronize()?;
            let done = words(&out, 2)?;
            rank.barrier();
            Ok(done[0] + done[1])
        });
        assert!(outcome.failure.is_none(), "seed {seed}: {}", outcome.failure.unwrap());
        assert_eq!(outcome.ranks.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [10, 10]);
    }
}

#[test]
fn kernels_that_are_not_instrumented_are_refused() {
    let object =
        jit(Vec::new()).compile(&KernelSpec::new(&UNIT), &Target::host(lab::WIDTH).unwrap()).unwrap();
    let outcome = world(1, SeededSchedule::new(1), |rank| {
        let device = rank.runtime.device(anabranch_hip::DeviceOrdinal(0)).unwrap();
        assert_eq!(device.arch(), "host:wave4:instrumented");
        // SAFETY: a complete object, of which nothing runs.
        let module = unsafe { device.load_module(&object.bytes) }.unwrap();
        module.kernel("machine_add").unwrap_err().code()
    });
    assert_eq!(outcome.ranks, [Some(HipError::INVALID_IMAGE)]);
}
