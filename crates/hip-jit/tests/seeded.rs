//! The memory model of the seeded machine: for each litmus test what must be seen in some seed, and what never.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    missing_docs,
    reason = "helpers of tests fail by panicking"
)]

mod common;

use std::collections::BTreeSet;

use anabranch_hip::{DeviceAddress, DeviceOrdinal};
use anabranch_hip_host::seeded::{
    Allocation, Owner, Run, SeededConfig, SeededError, SeededKernel, SeededMachine, Shape,
};
use anabranch_hip_host::{HostConfig, HostMachine};
use anabranch_hip_jit::control::{FaultRecord, WaitControl};
use anabranch_hip_jit::{
    CodeObject, DevicePointer, DeviceStruct as _, Jit, KernelSpec, KernelUnit, PRELUDE, Target, bytemuck,
    device_struct,
};
use common::Scratch;

device_struct! {
    /// Arguments of every litmus kernel.
    pub struct LitmusArgs {
        pub data: DevicePointer<u64>,
        pub flags: DevicePointer<u64>,
        pub out: DevicePointer<u64>,
        pub counter: DevicePointer<u32>,
        pub control: DevicePointer<WaitControl>,
        pub me: u32,
        pub mode: u32,
    }
}

static UNIT: KernelUnit = KernelUnit {
    name: "litmus",
    source: include_str!("device/litmus.hip"),
    headers: &[PRELUDE],
    entries: &[
        "litmus_send",
        "litmus_receive",
        "litmus_cross",
        "litmus_pack",
        "litmus_unpack",
        "litmus_pack_wide",
        "litmus_unpack_wide",
        "litmus_write_one",
        "litmus_read_two",
        "litmus_count_up",
        "litmus_watch",
        "litmus_arrive",
        "litmus_add",
        "litmus_wait",
        "litmus_private",
    ],
    layouts: &[LitmusArgs::c_declaration],
};

const WHOLE: u32 = 0;
const NO_RELEASE: u32 = 1;
const ONE_THREAD_RELEASES: u32 = 2;
const NO_ACQUIRE: u32 = 3;
const SEEDS: u64 = 400;
const THREADS: u32 = 12;

fn compile(scratch: &Scratch, mutant: u32) -> CodeObject {
    let jit = Jit::new(scratch.config(), common::search(None));
    let spec = KernelSpec::new(&UNIT).with("HOST_INSTRUMENTED", 1).with("PRELUDE_MUTANT", mutant);
    jit.compile(&spec, &Target::host(4).unwrap()).unwrap()
}

/// Kernels of the object, and a machine for each seed.
struct Lab {
    object: CodeObject,
    _scratch: Scratch,
}

/// One run's machine and its memory.
struct Bench {
    machine: SeededMachine,
    data: Allocation,
    flags: Allocation,
    control: Allocation,
    record: Allocation,
    outs: Vec<Allocation>,
}

impl Lab {
    fn new(name: &str, mutant: u32) -> Self {
        let scratch = Scratch::new(name);
        Self { object: compile(&scratch, mutant), _scratch: scratch }
    }

    fn kernel(&self, name: &str) -> SeededKernel {
        // SAFETY: the object was compiled from the prelude with HOST_INSTRUMENTED.
        unsafe { SeededKernel::load(&self.object.bytes, name, 4) }.unwrap()
    }
}

impl Bench {
    fn new(devices: u32) -> Self {
        let mut machine = SeededMachine::new(SeededConfig {
            keep_events: true,
            find_races: false,
            ..SeededConfig::default()
        })
        .unwrap();
        let mut zeroed = |name: &str, owner, bytes| {
            let made = machine.allocate(name, owner, bytes).unwrap();
            machine.fill(made, 0);
            made
        };
        let data = zeroed("data", Owner::Shared, 512);
        let flags = zeroed("flags", Owner::Shared, 512);
        let control = zeroed("control", Owner::Device(0), size_of::<WaitControl>() as u64);
        let record = zeroed("record", Owner::Shared, size_of::<FaultRecord>() as u64);
        let outs = (0..devices).map(|device| zeroed("out", Owner::Device(device), 512)).collect();
        Self { machine, data, flags, control, record, outs }
    }

    fn launch(&mut self, kernel: &SeededKernel, device: u32, me: u32, mode: u32, shape: (u32, u32)) {
        let (blocks, block_threads) = shape;
        let out = self.outs[device as usize].address();
        let pointer = |address| DevicePointer::new(DeviceAddress(address));
        let args = LitmusArgs {
            data: pointer(self.data.address()),
            flags: pointer(self.flags.address()),
            out: pointer(out),
            counter: DevicePointer::new(DeviceAddress(out + 256)),
            control: DevicePointer::new(DeviceAddress(self.control.address())),
            me,
            mode,
        };
        let mut bytes = bytemuck::bytes_of(&[blocks, block_threads, 0, 0]).to_vec();
        bytes.extend_from_slice(bytemuck::bytes_of(&args));
        let shape = Shape { blocks, block_threads, local_bytes: 64 };
        self.machine.launch(device, 0, kernel, shape, &bytes).unwrap();
    }

    fn run(&mut self, seed: u64) -> Run {
        self.machine.run(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"))
    }

    fn out(&self, device: u32, index: u64) -> u64 {
        let bytes = self.machine.read(self.outs[device as usize], index * 8, 8).unwrap();
        u64::from_ne_bytes(bytes.try_into().unwrap())
    }
}

/// The seeds of a message passing in which the receiver missed a word.
fn missed(lab: &Lab, send_mode: u32, receive_mode: u32) -> Vec<u64> {
    let (send, receive) = (lab.kernel("litmus_send"), lab.kernel("litmus_receive"));
    let wrong = |seed: &u64| {
        let mut bench = Bench::new(2);
        bench.launch(&send, 0, 0, send_mode, (1, THREADS));
        bench.launch(&receive, 1, 0, receive_mode, (1, THREADS));
        bench.run(*seed);
        (0..u64::from(THREADS)).any(|thread| bench.out(1, thread) as u32 != thread as u32 + 1)
    };
    (0..SEEDS).filter(wrong).collect()
}

#[test]
fn messages_pass_whole_and_only_whole() {
    let lab = Lab::new("seeded-message", 0);
    assert_eq!(missed(&lab, WHOLE, WHOLE), [0; 0], "released by every wave, acquired by one thread");
    for (what, send, receive) in [
        ("no release", NO_RELEASE, WHOLE),
        ("release by one thread behind the barrier", ONE_THREAD_RELEASES, WHOLE),
        ("no acquire", WHOLE, NO_ACQUIRE),
    ] {
        let seeds = missed(&lab, send, receive);
        println!("{what}: {} of {SEEDS} seeds, first {:?}", seeds.len(), seeds.first());
        assert!(!seeds.is_empty(), "{what}: no seed shows it");
    }
}

/// All outcomes of two or more kernels that each put a word into `out[0]`.
fn outcomes(lab: &Lab, devices: u32, launches: &[(&str, u32, u32, u32)]) -> BTreeSet<Vec<u64>> {
    let kernels: Vec<_> = launches.iter().map(|(name, ..)| lab.kernel(name)).collect();
    let run = |seed| {
        let mut bench = Bench::new(devices);
        for (kernel, (_, device, me, mode)) in kernels.iter().zip(launches) {
            bench.launch(kernel, *device, *me, *mode, (1, 4));
        }
        bench.run(seed);
        (0..devices).map(|device| bench.out(device, 0)).collect()
    };
    (0..SEEDS).map(run).collect()
}

#[test]
fn stores_wait_in_buffers_until_a_release() {
    let lab = Lab::new("seeded-cross", 0);
    let weak = outcomes(&lab, 2, &[("litmus_cross", 0, 0, NO_RELEASE), ("litmus_cross", 1, 1, NO_RELEASE)]);
    let all: BTreeSet<_> = [[0, 0], [0, 1], [1, 0], [1, 1]].map(Vec::from).into();
    assert_eq!(weak, all);
    // A release that has drained, then an acquire: here the model is stronger than PTX, which would need fence.sc.
    let strong = outcomes(&lab, 2, &[("litmus_cross", 0, 0, WHOLE), ("litmus_cross", 1, 1, WHOLE)]);
    assert!(!strong.contains(&vec![0, 0]), "{strong:?}");
}

#[test]
fn eight_bytes_are_one_piece_and_sixteen_are_two() {
    let lab = Lab::new("seeded-pack", 0);
    let narrow = outcomes(&lab, 2, &[("litmus_pack", 0, 0, 0), ("litmus_unpack", 1, 0, 0)]);
    assert_eq!(narrow, BTreeSet::from([vec![0, 77]]));
    let wide = outcomes(&lab, 2, &[("litmus_pack_wide", 0, 0, 0), ("litmus_unpack_wide", 1, 0, 0)]);
    // Whole, the first half alone, the second half alone; never half of a half.
    let expected = BTreeSet::from([0x0101_0101, 0x0000_0101, 0x0101_0000].map(|word| vec![0, word]));
    assert_eq!(wide, expected);
}

#[test]
fn readers_may_disagree_about_independent_writes() {
    let lab = Lab::new("seeded-independent", 0);
    let all = |mode| {
        let launches = [
            ("litmus_write_one", 0, 0, 0),
            ("litmus_write_one", 1, 1, 0),
            ("litmus_read_two", 2, 0, mode),
            ("litmus_read_two", 3, 1, mode),
        ];
        outcomes(&lab, 4, &launches)
    };
    // Each reader saw its first flag and not its second: they disagree about which came first.
    let disagree = vec![0, 0, 1, 1];
    assert!(all(NO_ACQUIRE).contains(&disagree));
    // A store becomes visible to all other devices at once: stronger than PTX and HSA without sequential consistency.
    assert!(!all(WHOLE).contains(&disagree));
}

#[test]
fn a_word_never_goes_back() {
    let lab = Lab::new("seeded-coherence", 0);
    let seen = outcomes(&lab, 2, &[("litmus_count_up", 0, 0, 0), ("litmus_watch", 1, 0, 0)]);
    assert_eq!(seen, BTreeSet::from([vec![0, 0]]));
}

/// Seeds in which the last block missed what another had written.
fn missed_between_blocks(lab: &Lab) -> Vec<u64> {
    const BLOCKS: u64 = 3;
    let arrive = lab.kernel("litmus_arrive");
    let wrong = |seed: &u64| {
        let mut bench = Bench::new(1);
        bench.launch(&arrive, 0, 0, 0, (BLOCKS as u32, 8));
        bench.run(*seed);
        bench.out(0, BLOCKS) != BLOCKS * (BLOCKS + 1) / 2
    };
    (0..SEEDS).filter(wrong).collect()
}

#[test]
fn the_last_block_sees_all_blocks_and_its_acquire_is_needed() {
    assert_eq!(missed_between_blocks(&Lab::new("seeded-arrive", 0)), [0; 0]);
    let mutants = [
        (1, "release by one thread"),
        (2, "no release"),
        (3, "counted before the release"),
        (6, "no acquire between blocks"),
    ];
    for (mutant, what) in mutants {
        let seeds = missed_between_blocks(&Lab::new(&format!("seeded-arrive-{mutant}"), mutant));
        println!("{what}: {} of {SEEDS} seeds, first {:?}", seeds.len(), seeds.first());
        assert!(!seeds.is_empty(), "{what}: no seed shows it");
    }
}

#[test]
fn atomics_of_two_devices_lose_nothing_and_a_kernels_end_shows_all() {
    let lab = Lab::new("seeded-atomic", 0);
    let add = lab.kernel("litmus_add");
    for seed in 0..50 {
        let mut bench = Bench::new(2);
        for device in [0, 1, 0] {
            bench.launch(&add, device, 0, 0, (2, 8));
        }
        bench.run(seed);
        assert_eq!(bench.machine.read(bench.data, 0, 8).unwrap(), 48u64.to_ne_bytes());
    }
}

#[test]
fn equal_seeds_give_equal_runs_and_others_differ() {
    let lab = Lab::new("seeded-equal", 0);
    let (send, receive) = (lab.kernel("litmus_send"), lab.kernel("litmus_receive"));
    let run = |seed| {
        let mut bench = Bench::new(2);
        bench.launch(&send, 0, 0, WHOLE, (1, THREADS));
        bench.launch(&receive, 1, 0, WHOLE, (1, THREADS));
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
fn a_wait_that_nobody_ends_expires_on_the_virtual_clock() {
    let lab = Lab::new("seeded-wait", 0);
    let wait = lab.kernel("litmus_wait");
    let mut bench = Bench::new(1);
    let budget_ns = 30_000_000_000;
    let control = WaitControl {
        abort: 0,
        budget_ns,
        fault: DevicePointer::new(DeviceAddress(bench.record.address())),
        claimed: 0,
        reserved: 0,
    };
    bench.machine.write(bench.control, 0, bytemuck::bytes_of(&control)).unwrap();
    bench.launch(&wait, 0, 0, 0, (1, 4));
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
    let lab = Lab::new("seeded-hang", 0);
    let unpack = lab.kernel("litmus_unpack");
    let mut bench = Bench::new(1);
    bench.launch(&unpack, 0, 0, 0, (1, 4));
    let error = bench.machine.run(1).unwrap_err();
    assert!(matches!(error, SeededError::Hang { lanes: 1, .. }), "{error}");
    assert!(!bench.machine.last_events().is_empty());
}

#[test]
fn wrong_accesses_are_refused_by_name() {
    let lab = Lab::new("seeded-access", 0);
    let error_of = |kernel: &str, device, threads| {
        let mut bench = Bench::new(2);
        bench.launch(&lab.kernel(kernel), device, 0, 0, (1, threads));
        bench.machine.run(3).unwrap_err().to_string()
    };
    let private = error_of("litmus_private", 0, 1);
    assert!(private.contains("data is shared with peers"), "{private}");
    let control = error_of("litmus_wait", 1, 1);
    assert!(control.contains("control is private to device 0"), "{control}");
    let mut bench = Bench::new(1);
    bench.data = bench.machine.allocate("small", Owner::Shared, 16).unwrap();
    bench.launch(&lab.kernel("litmus_send"), 0, 0, 0, (1, 4));
    let outside = bench.machine.run(3).unwrap_err().to_string();
    assert!(outside.contains("is outside its 16 bytes"), "{outside}");
}

#[test]
fn kernels_of_one_machine_are_refused_by_the_other() {
    let lab = Lab::new("seeded-refused", 0);
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
