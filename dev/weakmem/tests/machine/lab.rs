//! Ranks under a seed: a thread and a device each.

use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex};

use anabranch_clock::attach;
use anabranch_hip::{
    Device, DeviceAddress, DeviceBuffer, DeviceOrdinal, LaunchShape, Result, Runtime, Stream,
};
use anabranch_hip_host::HostConfig;
use anabranch_hip_jit::{
    DevicePointer, Jit, JitConfig, Kernel, KernelSpec, LoadedUnit, PRELUDE, SourceEdit, ToolSearch, bytemuck,
    device_struct, kernel_unit,
};
use anabranch_weakmem::{MachineRun, SeededFailure, SeededHost, SeededSchedule};

device_struct! {
    /// Arguments of every kernel.
    pub struct MachineArgs {
        pub data: DevicePointer<u64>,
        pub flag: DevicePointer<u64>,
        pub out: DevicePointer<u64>,
        pub value: u64,
        pub mode: u32,
        pub reserved: u32,
    }
}

kernel_unit! {
    pub static UNIT: "machine", include_str!("../machine.hip"), &[PRELUDE];
    pub const PUT: Kernel<MachineArgs> = "machine_put";
    pub const TAKE: Kernel<MachineArgs> = "machine_take";
    pub const ADD: Kernel<MachineArgs> = "machine_add";
    pub const WAIT: Kernel<MachineArgs> = "machine_wait";
    pub const ANSWER: Kernel<MachineArgs> = "machine_answer";
    pub const PRIVATE: Kernel<MachineArgs> = "machine_private";
    pub const WATCH: Kernel<MachineArgs> = "machine_watch";
    pub const COUNT: Kernel<MachineArgs> = "machine_count";
    pub const BYTES: Kernel<MachineArgs> = "machine_bytes";
    pub const CLOCK: Kernel<MachineArgs> = "machine_clock";
    pub const BARRIER: Kernel<MachineArgs> = "machine_barrier";
}

pub const WHOLE: u32 = 0;
pub const NO_RELEASE: u32 = 1;
pub const NO_ACQUIRE: u32 = 2;
pub const WIDTH: u32 = 4;
pub const THREADS: u32 = 8;

fn search() -> ToolSearch {
    let path = ["/usr/local/bin", "/usr/bin", "/bin"].map(PathBuf::from).to_vec();
    ToolSearch { path, ..ToolSearch::default() }
}

/// The kernels of a world, with changes of their sources.
pub fn jit(edits: Vec<SourceEdit>) -> Jit {
    let mut config = JitConfig::new(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("seeded-machine-cache"));
    config.edits = edits;
    Jit::new(config, search())
}

pub fn config(ranks: u32) -> HostConfig {
    HostConfig {
        devices: ranks,
        wave_width: WIDTH,
        memory_bytes: 64 << 20,
        multiprocessors: 1,
        ..HostConfig::default()
    }
}

/// What all ranks of a run share.
#[derive(Debug)]
pub struct Shared {
    /// Of each rank: addresses that it has published.
    pub addresses: Mutex<Vec<Vec<DeviceAddress>>>,
    pub changed: anabranch_clock::Signal,
}

/// One rank's thread.
#[derive(Debug)]
pub struct Rank<'a> {
    pub number: u32,
    pub ranks: u32,
    pub runtime: Runtime,
    pub shared: &'a Shared,
    pub jit: Jit,
    pub machine: SeededHost,
}

impl Rank<'_> {
    /// The same rank, of a world of one.
    pub fn alone(&self) -> Self {
        let (runtime, jit, machine) = (self.runtime.clone(), self.jit.clone(), self.machine.clone());
        Self { ranks: 1, runtime, jit, machine, ..*self }
    }
}

/// A rank's device with its kernels and a stream.
#[derive(Debug)]
pub struct Gpu {
    pub device: Device,
    pub unit: Arc<LoadedUnit>,
    pub stream: Stream,
}

impl Rank<'_> {
    pub fn gpu(&self) -> Result<Gpu> {
        let device = self.runtime.device(DeviceOrdinal(self.number))?;
        for peer in (0..self.ranks).filter(|peer| *peer != self.number) {
            device.enable_peer_access(&self.runtime.device(DeviceOrdinal(peer))?)?;
        }
        // A refusal is the machine's, as compiling works.
        let unit = self.jit.load(&device, &KernelSpec::new(&UNIT)).map_err(|error| match error {
            anabranch_hip_jit::Error::Load { source, .. }
            | anabranch_hip_jit::Error::Symbol { source, .. } => Arc::try_unwrap(source).unwrap(),
            other => panic!("{other}"),
        })?;
        let stream = device.create_stream()?;
        Ok(Gpu { device, unit, stream })
    }

    /// Tells the others where something is, and waits for what they tell; `None` when one of them never does, as it has
    /// given up with an empty list.
    pub fn meet(&self, mine: &[DeviceAddress]) -> Option<Vec<Vec<DeviceAddress>>> {
        let mut addresses = self.shared.addresses.lock().unwrap();
        addresses[self.number as usize] = mine.to_vec();
        self.shared.changed.notify_all();
        while addresses.iter().any(Vec::is_empty) {
            addresses = self.shared.changed.wait(&self.shared.addresses, addresses, None);
        }
        let gave_up = addresses.iter().any(|all| all[0].is_null());
        (!gave_up).then(|| addresses.clone())
    }
}

impl Gpu {
    pub fn zeroed(&self, words: usize) -> Result<DeviceBuffer> {
        let mut buffer = self.device.allocate(words * 8)?;
        buffer.fill(0)?;
        Ok(buffer)
    }

    pub fn launch(&self, kernel: Kernel<MachineArgs>, blocks: u32, args: &MachineArgs) -> Result<()> {
        self.launch_on(&self.stream, kernel, blocks, args)
    }

    pub fn launch_on(
        &self,
        stream: &Stream,
        kernel: Kernel<MachineArgs>,
        blocks: u32,
        args: &MachineArgs,
    ) -> Result<()> {
        self.launch_threads(stream, kernel, (blocks, THREADS), args)
    }

    /// With so many blocks of so many threads.
    pub fn launch_threads(
        &self,
        stream: &Stream,
        kernel: Kernel<MachineArgs>,
        (grid_blocks, block_threads): (u32, u32),
        args: &MachineArgs,
    ) -> Result<()> {
        let kernel = self.unit.get(kernel).unwrap();
        let shape = LaunchShape { grid_blocks, block_threads, local_bytes: 0 };
        // SAFETY: the tests keep what the arguments name.
        let launched = unsafe { kernel.launch(shape, stream, args) };
        launched.map_err(|error| match error {
            anabranch_hip_jit::Error::Launch { cause, .. } => Arc::try_unwrap(cause).unwrap(),
            other => panic!("{other}"),
        })
    }
}

pub fn words(buffer: &DeviceBuffer, count: usize) -> Result<Vec<u64>> {
    let mut words = vec![0_u64; count];
    buffer.copy_to_host(0, bytemuck::cast_slice_mut(&mut words))?;
    Ok(words)
}

pub fn args(data: DeviceAddress, flag: DeviceAddress, out: DeviceAddress, value: u64) -> MachineArgs {
    let pointer = DevicePointer::new;
    MachineArgs {
        data: pointer(data),
        flag: pointer(flag),
        out: pointer(out),
        value,
        mode: WHOLE,
        reserved: 0,
    }
}

/// What came of a run.
#[derive(Debug)]
pub struct Outcome<T> {
    pub ranks: Vec<T>,
    pub run: MachineRun,
    pub failure: Option<SeededFailure>,
    pub machine: SeededHost,
}

impl<T> Outcome<T> {
    pub fn log(&self) -> String {
        let lines: Vec<String> = self.run.events.iter().map(ToString::to_string).collect();
        lines.join("\n")
    }
}

/// Runs a body on every rank's thread.
#[expect(clippy::needless_pass_by_value, reason = "schedules are made in the call")]
pub fn world<T: Send>(
    ranks: u32,
    schedule: SeededSchedule,
    body: impl Fn(&Rank<'_>) -> T + Sync,
) -> Outcome<T> {
    static JIT: LazyLock<Jit> = LazyLock::new(|| jit(Vec::new()));
    world_with(&JIT, ranks, &schedule, body)
}

/// [`world`] with kernels of a given pipeline.
pub fn world_with<T: Send>(
    jit: &Jit,
    ranks: u32,
    schedule: &SeededSchedule,
    body: impl Fn(&Rank<'_>) -> T + Sync,
) -> Outcome<T> {
    let machine = SeededHost::new(config(ranks), schedule).unwrap();
    let runtime = machine.runtime();
    let driver = runtime.driver().expect("a seeded machine has a driver");
    let shared = Shared {
        addresses: Mutex::new(vec![Vec::new(); ranks as usize]),
        changed: anabranch_clock::Signal::new(),
    };
    let seats = driver.seats(&(0..ranks).collect::<Vec<_>>());
    let results = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks)
            .zip(seats)
            .map(|(rank, seat)| {
                let (driver, runtime, shared, body) = (Arc::clone(&driver), runtime.clone(), &shared, &body);
                let machine = machine.clone();
                scope.spawn(move || {
                    let _attached = attach(driver, seat);
                    body(&Rank { number: rank, ranks, runtime, shared, jit: jit.clone(), machine })
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let run = machine.run();
    Outcome { ranks: results, run, failure: machine.failure(), machine }
}

pub fn seeded(seed: u64) -> SeededSchedule {
    SeededSchedule { keep_events: true, ..SeededSchedule::new(seed) }
}
