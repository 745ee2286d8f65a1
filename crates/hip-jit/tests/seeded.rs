//! The seeded machine apart from its memory model (`litmus.rs`): equal runs, time, refusals, atomics.

use crate::common;

use std::collections::BTreeSet;

use crate::common::Scratch;
use crate::lab::{Lab, RIGHT, THREADS, UNIT, WHOLE};
use anabranch_hip::{DeviceAddress, DeviceOrdinal};
use anabranch_hip_host::{HostConfig, HostMachine};
use anabranch_hip_jit::control::{FaultRecord, WaitControl};
use anabranch_hip_jit::{DevicePointer, Jit, KernelSpec, Target, bytemuck};
use anabranch_weakmem::MemoryProfile::{Cumulative, PerWave};
use anabranch_weakmem::{Owner, SeededConfig, SeededError, SeededKernel, SeededMachine, Shape};

#[test]
fn atomics_of_two_devices_lose_nothing_and_a_kernels_end_shows_all() {
    let lab = Lab::new("seeded-atomic", RIGHT, PerWave);
    let add = lab.kernel("litmus_add");
    for seed in 0..50 {
        let mut bench = lab.bench(2);
        for device in [0, 1, 0] {
            bench.launch(&add, (device, 0), 0, 0, (2, 8));
        }
        bench.run(seed);
        assert_eq!(bench.machine.read(bench.data, 0, 8).unwrap(), 48u64.to_ne_bytes());
    }
}

#[test]
fn equal_seeds_give_equal_runs_and_others_differ() {
    let lab = Lab::new("seeded-equal", RIGHT, PerWave);
    let (send, receive) = (lab.kernel("litmus_send"), lab.kernel("litmus_receive"));
    let run = |seed| {
        let mut bench = lab.bench(2);
        bench.launch(&send, (0, 0), 0, WHOLE, (1, THREADS));
        bench.launch(&receive, (1, 0), 0, WHOLE, (1, THREADS));
        let run = bench.run(seed);
        let text: Vec<String> = run.events.iter().map(ToString::to_string).collect();
        (run.digest, text.join("\n"))
    };
    let first: Vec<_> = (0..20).map(run).collect();
    let again: Vec<_> = (0..20).map(run).collect();
    assert_eq!(first, again);
    let distinct: BTreeSet<_> = first.iter().map(|(digest, _)| digest).collect();
    assert_eq!(distinct.len(), 20);
    assert!(first[0].1.contains("litmus_send block 0 wave 1 thread"), "{}", first[0].1);
}

#[test]
fn unanswered_wait_expires_on_the_virtual_clock() {
    let lab = Lab::new("seeded-wait", RIGHT, PerWave);
    let wait = lab.kernel("litmus_wait");
    let mut bench = lab.bench(1);
    let budget_ns = 30_000_000_000;
    let control = WaitControl {
        abort: 0,
        budget_ns,
        fault: DevicePointer::new(DeviceAddress(bench.record.address())),
        claimed: 0,
        reserved: 0,
        notes: 0,
        noted: 0,
    };
    bench.machine.write(bench.control, 0, bytemuck::bytes_of(&control)).unwrap();
    bench.launch(&wait, (0, 0), 0, 0, (1, 4));
    let run = bench.run(7);
    assert!(run.virtual_ns > budget_ns, "{run:?}");
    assert!(run.steps < 10_000, "{} primitives", run.steps);
    assert_eq!(bench.out(0, 0), 1, "WAIT_FAULT");
    let bytes = bench.machine.read(bench.record, 0, size_of::<FaultRecord>()).unwrap();
    let record: FaultRecord = bytemuck::pod_read_unaligned(&bytes);
    assert_eq!((record.state, record.operation, record.phase, record.peer), (2, 9, 3, 1));
}

#[test]
fn a_poll_without_deadline_is_a_hang() {
    let lab = Lab::new("seeded-hang", RIGHT, PerWave);
    let unpack = lab.kernel("litmus_unpack");
    let mut bench = lab.bench(1);
    bench.launch(&unpack, (0, 0), 0, 0, (1, 4));
    let error = bench.machine.run(1).unwrap_err();
    assert!(matches!(error, SeededError::Hang { lanes: 1, .. }), "{error}");
    assert!(!bench.machine.last_events().is_empty());
}

#[test]
fn wrong_accesses_are_refused_by_name() {
    let lab = Lab::new("seeded-access", RIGHT, PerWave);
    let error_of = |kernel: &str, device, threads| {
        let mut bench = lab.bench(2);
        bench.launch(&lab.kernel(kernel), (device, 0), 0, 0, (1, threads));
        bench.machine.run(3).unwrap_err().to_string()
    };
    let private = error_of("litmus_private", 0, 1);
    assert!(private.contains("data is shared with peers"), "{private}");
    let control = error_of("litmus_wait", 1, 1);
    assert!(control.contains("control is private to device 0"), "{control}");
    let mut bench = lab.bench(1);
    bench.data = bench.machine.allocate("small", Owner::Shared, 16).unwrap();
    bench.launch(&lab.kernel("litmus_send"), (0, 0), 0, 0, (1, 4));
    let outside = bench.machine.run(3).unwrap_err().to_string();
    assert!(outside.contains("is outside its 16 bytes"), "{outside}");
}

#[test]
fn kernels_of_one_machine_are_refused_by_the_other() {
    let lab = Lab::new("seeded-refused", RIGHT, PerWave);
    // SAFETY: as in `Lab::kernel`; another profile is refused before anything runs.
    let error =
        unsafe { SeededKernel::load_for(&lab.object.bytes, "litmus_send", 4, Cumulative) }.unwrap_err();
    assert!(error.to_string().contains("memory profile"), "{error}");
    let mut cumulative =
        SeededMachine::new(SeededConfig { profile: Cumulative, ..SeededConfig::default() }).unwrap();
    let shape = Shape { blocks: 1, block_threads: 4, local_bytes: 64 };
    let error = cumulative.launch(0, 0, &lab.kernel("litmus_send"), shape, &[]).unwrap_err();
    assert!(error.to_string().contains("memory profile"), "{error}");
    // SAFETY: as in `Lab::kernel`; another width is refused before anything runs.
    let error = unsafe { SeededKernel::load(&lab.object.bytes, "litmus_send", 1) }.unwrap_err();
    assert!(error.to_string().contains("must be instrumented"), "{error}");

    let plain = Scratch::new("seeded-plain");
    let jit = Jit::new(plain.config(), common::search(None));
    let free = jit.compile(&KernelSpec::new(&UNIT), &Target::host(4).unwrap()).unwrap();
    // SAFETY: the kernel is refused by its descriptor before anything runs.
    let error = unsafe { SeededKernel::load(&free.bytes, "litmus_send", 4) }.unwrap_err();
    assert!(error.to_string().contains("must be instrumented"), "{error}");

    let machine =
        HostMachine::new(HostConfig { devices: 1, wave_width: 4, ..HostConfig::default() }).unwrap();
    let device = machine.runtime().device(DeviceOrdinal(0)).unwrap();
    let error = jit.load(&device, &KernelSpec::new(&UNIT).with("HOST_INSTRUMENTED", 1)).unwrap_err();
    let text = format!("{error:?}");
    assert!(
        text.contains("INVALID_IMAGE") || text.contains("InvalidImage") || text.contains("200"),
        "{text}"
    );
}
