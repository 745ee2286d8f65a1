//! All settings, each declared once: its key, type, default and meaning, whether ranks must agree on it, and its range.

use std::path::PathBuf;
use std::time::Duration;

use anabranch_bootstrap::Heartbeat;
use anabranch_ccl::{Across, Algorithm, BarrierMode, CclConfig, Check};
use anabranch_ep::Mode;
use anabranch_hip::RuntimeKind;
use anabranch_hip_jit::{CompileMode, ConstantsMode, JitConfig};
use anabranch_shmem::HeapMode;
use anabranch_transport::{TransportKind, limits};

use super::table::settings;
use super::units::{ByteSize, Period};
use super::value::{NicDriverName, Schedule};

const GIB: u64 = 1 << 30;
const MILLISECOND: Period = Period(Duration::from_millis(1));
const DAY: Period = seconds(24 * 3600);

const fn seconds(count: u64) -> Period {
    Period(Duration::from_secs(count))
}

/// The effective settings of one rank.
///
/// `Config::default()` is what an empty file means. See [`Config::load`] and [`Config::load_with`].
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// Which runtime and which of its devices.
    pub device: DeviceConfig,
    /// The symmetric heap.
    pub heap: HeapConfig,
    /// How ranks find each other.
    pub bootstrap: BootstrapConfig,
    /// How bytes move.
    pub transport: TransportConfig,
    /// How kernels are compiled and where they are kept.
    pub kernels: KernelsConfig,
    /// How long waits may last.
    pub deadline: DeadlineConfig,
    /// How collectives are done.
    pub ccl: CclSettings,
    /// Speeds of links.
    pub links: LinkTable,
    /// Launch shapes of expert parallelism.
    pub ep: EpSettings,
}

// A setting is `key (flags): type = default, within range;`, or `key: Option<type> => "what its absence means"`, with
// `, limits limits;` where the transport crate states the range. Its comment is the text of `config show --json` and of
// docs/configuration.md. Ranges that a library crate checks are not repeated here: see `check`.
settings! {
    /// `[device]`.
    [device] DeviceConfig {
        /// Which runtime runs the kernels.
        runtime (shared): RuntimeKind = RuntimeKind::Host;
        /// Device ordinals; local rank i uses the i-th. Ranks that are processes share a device that is listed more than once, for tests on few
        /// GPUs: under MPS their kernels run at the same time, without it in time slices.
        devices: Option<Vec<u32>> => "device.first + local rank";
        /// Ordinal of local rank 0's device when device.devices is not set.
        first: u32 = 0;
        /// The runtime's library; not used with the host runtime.
        library: Option<PathBuf> => "found: already loaded, ROCM_PATH, HIP_PATH, /opt/rocm, the loader's path";
        table host: HostDeviceConfig;
    }

    /// `[device.host]`, the GPU made of CPU threads.
    [device.host] HostDeviceConfig {
        /// Devices that the host runtime shows.
        count: Option<u32> => "as many as ranks on the machine ask for";
        /// Lanes of a wave on the host runtime: 1, 4, 32 or 64.
        wave (shared): Option<u32> => "1 (fast); 4 with the seeded schedule";
        /// Threads that run the blocks of one process on the host runtime.
        workers: Option<u32> => "cores divided by the ranks on the machine, at least 1", within 1..;
        /// Memory of one host device; costs nothing until it is touched.
        memory: ByteSize = ByteSize(16 * GIB);
        /// How lanes are scheduled. `free`: by worker threads. `seeded`: one step at a time, in an order drawn from the seed; ranks are threads.
        schedule (shared): Schedule = Schedule::Free;
        /// Seed of the seeded schedule; required there.
        seed (shared): Option<u64> => "none";
        /// Maximum number of steps of a run of the seeded schedule.
        steps (shared): u64 = 1_000_000_000, within 1..;
        /// Faults injected into a run of the seeded schedule: `kill:1@37` and others (docs/simulation.md).
        faults (shared): Vec<String> = Vec::new();
    }

    /// `[heap]`.
    [heap] HeapConfig {
        /// Size of every rank's symmetric heap.
        bytes (shared): Option<ByteSize> => "a 32nd of a device's memory, 256 MiB to 4 GiB, at most half of what is free for each rank on a device";
        /// How the heap's memory is obtained. `static`: one allocation; peers' heaps are mapped where the runtime puts them.
        /// `flat`: physical memory, mapped into one range of addresses in the order of the ranks, at a fixed
        /// stride; requires virtual memory management (host, nvidia, amd from ROCm 7.2) and `p2p` in transport.order.
        mode (shared): HeapMode = HeapMode::Static;
    }

    /// `[bootstrap]`.
    [bootstrap] BootstrapConfig {
        /// host:port of the store that rank 0 runs; several, separated by commas, are tried in turn.
        address: Option<String> => "from the launcher";
        /// Added to the launcher's port, which its own store may occupy.
        port_offset: u16 = 1;
        /// The secret by which ranks authenticate each other, at least 16 random bytes.
        secret (secret): Option<String> => "from the launcher";
        /// The file that holds the secret; only its owner may be able to read it (mode 0600).
        secret_file: Option<PathBuf> => "from the launcher";
        /// Whether ranks may use the rendezvous without a secret beyond the loopback interface; any process that reaches the port can then join.
        insecure: bool = false;
        /// The network interface that rank 0 listens on.
        interface: Option<String> => "the interface of the address";
        /// Interval between a rank's heartbeats; rank 0's value applies to all.
        heartbeat: Period = seconds(1), within Period(Heartbeat::LEAST_INTERVAL)..;
        /// Time without a heartbeat after which a rank counts as dead; rank 0's value applies to all.
        silence: Period = seconds(10);
    }

    /// `[transport]`.
    [transport] TransportConfig {
        /// Transports in order of preference; the first that reaches a peer is its route.
        order (shared): Vec<TransportKind> = vec![TransportKind::P2p];
        table sdma: SdmaConfig;
        table rdma: RdmaConfig;
    }

    /// `[transport.sdma]`.
    [transport.sdma] SdmaConfig {
        /// Queues of copy engines to each peer; the waves of a kernel are spread over them.
        queues (shared): u32 = 2, limits limits::QUEUES;
        /// Size of a queue's ring.
        ring_bytes (shared): ByteSize = ByteSize(64 << 10), limits limits::RING_BYTES;
        /// The most bytes of one copy packet; longer copies take several.
        most_copy_bytes (shared): Option<ByteSize> => "what the engine takes", limits limits::COPY_BYTES;
    }

    /// `[transport.rdma]`.
    [transport.rdma] RdmaConfig {
        /// The NIC driver. `verbs`: NICs by libibverbs; a host thread posts the requests of kernels. `mlx5`: a ConnectX by libmlx5; kernels
        /// write its queues; verified with the real libmlx5 over a software ConnectX, never on hardware. `auto`: `mlx5`, or `verbs` with
        /// the reason if `mlx5` cannot be opened or creates no queue pair. `libfabric`: version 1.17 or later; a host thread posts, and
        /// only host memory is reachable; verified over its providers tcp and shm, never on hardware. `software`: software NICs over
        /// sockets, for trials without hardware.
        driver (shared): NicDriverName = NicDriverName::Verbs;
        /// Queue pairs to each peer; the waves of a kernel are spread over them.
        queues (shared): u32 = 2, limits limits::QUEUES;
        /// Entries of a send queue; a request takes one or two.
        entries (shared): u32 = 256, limits limits::SEND_ENTRIES;
        /// Time that a peer's NIC has to answer before its queue pair fails.
        patience (shared): Period = seconds(10), within Period(*limits::PATIENCE.start())..=Period(*limits::PATIENCE.end());
        /// Which NICs may be used: `NAME`, `NAME:PORT`, `=NAME`, with `^` before an entry to exclude; empty means every hardware NIC.
        nics: Vec<String> = Vec::new();
        /// Index of the port's address (GID).
        gid_index: Option<u32> => "the best by its kind";
        /// Traffic class of packets, 0 to 255; on Ethernet four times the DSCP.
        traffic_class (shared): u8 = 0;
        /// Service level; on Ethernet the priority, at most 7.
        service_level (shared): u8 = 0, limits limits::SERVICE_LEVEL;
        /// Provider for the driver `libfabric`, by its libfabric name: `tcp`, `shm` (with
        /// `FI_SHM_DISABLE_CMA=1` in the environment), `efa`, `verbs;ofi_rxm`. `transport.rdma.nics` names interfaces.
        fabric_provider (shared): Option<String> => "the first usable one that libfabric lists";
        /// IP address on which software NICs listen, reachable from the other machines. Heap data then travels unencrypted.
        software_address: Option<std::net::IpAddr> => "sockets of this machine";
        /// Whether software NICs have atomic operations; false emulates NICs without them.
        software_atomics (shared): bool = true;
    }

    /// `[kernels]`.
    [kernels] KernelsConfig {
        /// Whether a kernel that is not in the cache may be compiled.
        compile: CompileMode = CompileMode::Auto;
        /// Whether kernels are compiled once more for each number of ranks and each shape of a plan (row bytes, top-k, experts), which makes
        /// short operations faster; `auto`: on GPUs, if they are in the cache or a compiler is there and may run.
        constants: ConstantsMode = ConstantsMode::Auto;
        /// Directory of compiled kernels, on a local file system.
        cache: Option<PathBuf> => "$XDG_CACHE_HOME/anabranch or ~/.cache/anabranch";
        /// Read-only directories searched before the cache.
        prebuilt: Vec<PathBuf> = Vec::new();
        /// `auto`; a GPU tool chain's name (hipcc, clang, hiprtc, nvrtc, nvcc), which the host runtime ignores; or the path of a
        /// compiler, with a `/` (host: g++, gcc, c++, cc or clang), which must support the runtime; other targets are compiled as with
        /// `auto`.
        compiler: String = "auto".to_owned();
        /// Time limit of one compilation; compilers that are libraries (hiprtc, NVRTC) cannot be stopped. Processes that need the same
        /// kernel wait one minute longer, and report every 15 s which process compiles it.
        patience: Period = Period(JitConfig::PATIENCE), within MILLISECOND..=DAY;
        /// The target to compile for; an error if it is not the device's.
        arch: Option<String> => "what the device reports";
        /// A checkout whose kernel sources replace the embedded ones.
        source_dir: Option<PathBuf> => "the embedded sources";
        /// Options added to every compiler call; part of the cache key.
        extra_options (shared): Vec<String> = Vec::new();
        /// Whether kernels carry debug information; part of the cache key.
        debug_info (shared): bool = false;
        /// Whether kernels note their waits for other ranks, for pictures of runs; part of the cache key. Their waits take longer.
        /// `anabranch trace` sets it for its ranks.
        note_waits: bool = false;
        /// Number of compilers that run at the same time.
        jobs: Option<u32> => "one per core", within 1..;
        /// Number of failed compilations whose sources and logs are kept.
        keep_failed: u32 = 8;
    }

    /// `[deadline]`.
    [deadline] DeadlineConfig {
        /// Time limit of joining a world, including the wait for all ranks, and of each later collective host call.
        rendezvous (shared): Period = seconds(60);
        /// Time limit of a kernel's waits for its peers, counted from its start.
        operation (shared): Period = seconds(10);
    }

    /// `[ccl]`.
    [ccl] CclSettings {
        /// Algorithm of all collectives, an error where it is impossible; `auto` chooses for each call.
        algorithm (shared): Option<Algorithm>;
        /// Most blocks of a collective's kernel, at most 1024.
        max_blocks (shared): Option<u32> => "chosen from the device and what is free of it", within 1..;
        /// Memory of the symmetric heap that each communicator takes for staging; one of a single rank at most 4 MiB.
        staging_bytes (shared): Option<ByteSize> => "chosen from the heap and the device", within ByteSize(CclConfig::LEAST_STAGING)..;
        /// Memory of the symmetric heap that each communicator takes for messages sent and not yet received; one of a single rank at most 1
        /// MiB.
        pipe_bytes (shared): Option<ByteSize> => "chosen from the heap and the device", within ByteSize(CclConfig::LEAST_STAGING)..;
        /// Streams for the copies to each member in collectives by copy engine, up to 16; 0 for one stream for all other members, whose
        /// copies then follow each other.
        copy_streams (shared): Option<u32> => "0 on NVIDIA GPUs, else 1";
        /// Which barriers surround copies by engine: `kernel`, or `stream`, which uses no compute unit (not in captures);
        /// `auto`: by stream on NVIDIA GPUs. A meeting is a barrier of all members.
        meetings (shared): BarrierMode = BarrierMode::Auto;
        /// What is checked at every collective: `fingerprint` compares the members' calls on the devices before data moves, and
        /// costs about a barrier.
        check (shared): Check = Check::Off;
        /// Which way collectives go where members are on several nodes: `direct`, or `node`, where what concerns several members of a
        /// node goes there once, or packed; `auto`: by node where bytes, requests and hops are estimated to take less time so.
        across (shared): Across = Across::Auto;
        /// File of measured choices, written by `anabranch tune`; its content is the same on all ranks.
        table: Option<PathBuf> => "the library's own for the device, if it has one";
    }

    /// `[links]`.
    [links] LinkTable {
        /// GB/s (10^9 bytes a second) of a rank to all others of its node, in each direction. These speeds decide between routes that
        /// no table was measured for; `anabranch tune links` measures them.
        inside_gb_per_s (shared): Option<f64> => "built in for the device: measured on H200, assumed for others";
        /// Microseconds from a flag's store to where it is seen inside a node.
        inside_hop_us (shared): Option<f64> => "built in for the device: measured on H200, assumed for others";
        /// GB/s of a rank's NIC, in each direction.
        nic_gb_per_s (shared): Option<f64> => "built in: 50 (assumed, a 400 Gbit/s port)";
        /// Microseconds from a request in a NIC's queue to where its bytes are seen at the peer.
        nic_hop_us (shared): Option<f64> => "built in: 2 (assumed)";
        /// Microseconds between two requests of one NIC.
        nic_message_us (shared): Option<f64> => "built in: 0.1 (assumed)";
        /// Microseconds of a kernel's launch.
        launch_us (shared): Option<f64> => "built in for the device: measured on H200, assumed for others";
    }

    /// `[ep]`.
    [ep] EpSettings {
        /// Dispatches that may be in flight without their combine, in plans that do not set it; a plan with one slot counts as such.
        slots (shared): u32 = 1, within 1..;
        /// How received rows lie in plans that do not set it: `slotted`, each source has a part of the window; `compact`, counts
        /// first and rows without gaps; `auto`, slotted up to 512 tokens a rank.
        mode (shared): Mode = Mode::Auto;
        /// Most blocks of a dispatch or combine kernel, in plans that do not set it; also where more were measured to be faster: with fewer,
        /// other kernels can run beside.
        blocks: Option<u32> => "as measured, or chosen from the device", within 1..;
        /// Waves of each block of a dispatch or combine kernel, in plans that do not set it.
        waves_per_block: Option<u32> => "as measured, or chosen from the device", within 1..;
        /// File of measured launch shapes, written by `anabranch tune ep`; what plans take from it is the same on all ranks.
        table: Option<PathBuf> => "the library's own for the device, if it has one";
    }
}

impl HostDeviceConfig {
    /// Lanes of a wave: what is set, else 1, which is fast, or 4 under a seed, as waves of one lane hide mistakes within
    /// a wave.
    pub fn wave_width(&self) -> u32 {
        self.wave.unwrap_or(match self.schedule {
            Schedule::Free => 1,
            Schedule::Seeded => 4,
        })
    }
}
