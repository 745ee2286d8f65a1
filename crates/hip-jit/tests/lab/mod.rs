//! Kernels of `device/litmus.hip`, compiled for one memory profile, and a machine for each seed.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]

use std::collections::BTreeSet;

use anabranch_hip::DeviceAddress;
use anabranch_hip_jit::control::{FaultRecord, WaitControl};
use anabranch_hip_jit::{
    CodeObject, DevicePointer, DeviceStruct as _, Jit, KernelSpec, KernelUnit, PRELUDE, Target, bytemuck,
    device_struct,
};
use anabranch_weakmem::{
    Allocation, MemoryProfile, Owner, Run, SeededConfig, SeededKernel, SeededMachine, Shape,
};

use anabranch_testkit::mutant;

use crate::common::{self, Scratch};

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

pub static UNIT: KernelUnit = KernelUnit {
    name: "litmus",
    source: include_str!("../device/litmus.hip"),
    headers: &[PRELUDE],
    entries: &[
        "litmus_send",
        "litmus_receive",
        "litmus_relay_first",
        "litmus_relay_second",
        "litmus_relay_third",
        "litmus_cross",
        "litmus_load_then_store",
        "litmus_two_words",
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

/// No mutant: the prelude as it is.
pub const RIGHT: &str = "NONE";
/// What a kernel leaves out.
pub const WHOLE: u32 = 0;
pub const NO_RELEASE: u32 = 1;
pub const ONE_THREAD_RELEASES: u32 = 2;
pub const NO_ACQUIRE: u32 = 3;
pub const DEVICE_SCOPE: u32 = 4;
/// Added to one of these: the receiver does not read before, which would be a race.
pub const LATE: u32 = 16;

pub const SEEDS: u64 = 400;
pub const THREADS: u32 = 12;
const WAVE: u32 = 4;

/// Kernels of one object.
pub struct Lab {
    pub object: CodeObject,
    profile: MemoryProfile,
    find_races: bool,
    _scratch: Scratch,
}

/// One run's machine and its memory.
pub struct Bench {
    pub machine: SeededMachine,
    pub data: Allocation,
    pub flags: Allocation,
    pub control: Allocation,
    pub record: Allocation,
    pub outs: Vec<Allocation>,
}

/// A launch: kernel, device, stream, `me`, mode.
pub type Launch = (&'static str, u32, u32, u32, u32);

impl Lab {
    pub fn new(name: &str, broken: &str, profile: MemoryProfile) -> Self {
        let edits = if broken == RIGHT { Vec::new() } else { mutant(broken) };
        let scratch = Scratch::new(&format!("{name}-{broken}-{profile:?}"));
        let jit = Jit::new(scratch.config(), common::search(None));
        let mut spec = KernelSpec::new(&UNIT).with("HOST_INSTRUMENTED", 1).edited(&edits);
        if profile == MemoryProfile::Cumulative {
            spec = spec.with("HOST_CUMULATIVE", 1);
        }
        let object = jit.compile(&spec, &Target::host(WAVE).unwrap()).unwrap();
        Self { object, profile, find_races: false, _scratch: scratch }
    }

    /// The same, whose runs fail at races.
    pub fn that_finds_races(self) -> Self {
        Self { find_races: true, ..self }
    }

    pub fn kernel(&self, name: &str) -> SeededKernel {
        // SAFETY: the object was compiled from the prelude with HOST_INSTRUMENTED.
        unsafe { SeededKernel::load_for(&self.object.bytes, name, WAVE, self.profile) }.unwrap()
    }

    pub fn bench(&self, devices: u32) -> Bench {
        self.bench_with(devices, |_| ())
    }

    /// A bench whose machine differs.
    pub fn bench_with(&self, devices: u32, change: impl FnOnce(&mut SeededConfig)) -> Bench {
        let mut config = SeededConfig {
            lanes: 64,
            keep_events: true,
            find_races: self.find_races,
            profile: self.profile,
            ..SeededConfig::default()
        };
        change(&mut config);
        Bench::new(config, devices)
    }

    /// What the first word of each device's own memory may be after launches of one block of one wave.
    pub fn outcomes(&self, devices: u32, launches: &[Launch]) -> BTreeSet<Vec<u64>> {
        self.outcomes_of(devices, launches, (1, WAVE), |bench| {
            (0..devices).map(|device| bench.out(device, 0)).collect()
        })
    }

    /// What `look` finds after launches of one shape: blocks and threads of a block.
    pub fn outcomes_of<T: Ord>(
        &self,
        devices: u32,
        launches: &[Launch],
        shape: (u32, u32),
        look: impl Fn(&Bench) -> T,
    ) -> BTreeSet<T> {
        let kernels: Vec<_> = launches.iter().map(|(name, ..)| self.kernel(name)).collect();
        let run = |seed| {
            let mut bench = self.bench(devices);
            for (kernel, (_, device, stream, me, mode)) in kernels.iter().zip(launches) {
                bench.launch(kernel, (*device, *stream), *me, *mode, shape);
            }
            bench.run(seed);
            look(&bench)
        };
        (0..SEEDS).map(run).collect()
    }
}

impl Bench {
    fn new(config: SeededConfig, devices: u32) -> Self {
        let mut machine = SeededMachine::new(config).unwrap();
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

    pub fn launch(
        &mut self,
        kernel: &SeededKernel,
        (device, stream): (u32, u32),
        me: u32,
        mode: u32,
        (blocks, block_threads): (u32, u32),
    ) {
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
        self.machine.launch(device, stream, kernel, shape, &bytes).unwrap();
    }

    pub fn run(&mut self, seed: u64) -> Run {
        self.machine.run(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"))
    }

    pub fn out(&self, device: u32, index: u64) -> u64 {
        self.word(self.outs[device as usize], index)
    }

    pub fn word(&self, of: Allocation, index: u64) -> u64 {
        u64::from_ne_bytes(self.machine.read(of, index * 8, 8).unwrap().try_into().unwrap())
    }
}
