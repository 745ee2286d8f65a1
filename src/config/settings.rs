//! All settings, each declared once: its key, type, default and meaning, whether ranks must agree on it, and its range.

use std::path::PathBuf;
use std::time::Duration;

use anabranch_bootstrap::Heartbeat;
use anabranch_ccl::{Across, Algorithm, CclConfig, Check, Meetings};
use anabranch_ep::Mode;
use anabranch_hip::RuntimeKind;
use anabranch_hip_jit::{CompileMode, JitConfig};
use anabranch_shmem::HeapMode;
use anabranch_transport::TransportKind;

use super::table::settings;
use super::units::{ByteSize, Period};
use super::value::{NicDriverName, Schedule};

const MIB: u64 = 1 << 20;
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

// A setting is `key (flags): type = default, within range;`, or `key: Option<type> => "what its absence means"`. Its comment is the text
// of `config show` and of docs/configuration.md. Ranges that a library crate checks are not repeated here: see `check`.
settings! {
    /// `[device]`.
    [device] DeviceConfig {
        /// Which runtime runs the kernels.
        runtime (shared): RuntimeKind = RuntimeKind::Host;
        /// Device ordinals; local rank i uses the i-th.
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
        /// Who decides which lane runs next. `seeded` runs the ranks, which are threads then, one step at a time.
        schedule (shared): Schedule = Schedule::Free;
        /// Seed of the seeded schedule, which needs one.
        seed (shared): Option<u64> => "none";
        /// Steps after which a run of the seeded schedule is given up.
        steps (shared): u64 = 1_000_000_000, within 1..;
        /// What goes wrong in a run of the seeded schedule: `kill:1@37` and others (docs/simulation.md).
        faults (shared): Vec<String> = Vec::new();
    }

    /// `[heap]`.
    [heap] HeapConfig {
        /// Size of every rank's symmetric heap.
        bytes (shared): ByteSize = ByteSize(256 * MIB);
        /// How the heap's memory is obtained. `static`: one allocation; peers' heaps are mapped where the runtime puts them.
        /// `flat`: physical memory, mapped into one range of addresses in the order of the ranks, each heap a stride behind the
        /// one before; takes virtual memory management (host, nvidia, amd from ROCm 7.2) and `p2p` in transport.order.
        mode (shared): HeapMode = HeapMode::Static;
    }

    /// `[bootstrap]`.
    [bootstrap] BootstrapConfig {
        /// host:port of the store that rank 0 runs; several, separated by commas, are tried in turn.
        address: Option<String> => "what the launcher says";
        /// Added to the launcher's port, which its own store may occupy.
        port_offset: u16 = 1;
        /// The secret that ranks show each other, at least 16 bytes; nothing that could be guessed.
        secret (secret): Option<String> => "what the launcher says";
        /// The file that holds the secret; only its owner may be able to read it (mode 0600).
        secret_file: Option<PathBuf> => "what the launcher says";
        /// Whether ranks meet without a secret where other machines reach them: whoever reaches the port can then join.
        insecure: bool = false;
        /// The network interface that rank 0 listens on.
        interface: Option<String> => "the one that the address is of";
        /// How often a rank shows that it lives; rank 0's value counts for all.
        heartbeat: Period = seconds(1), within Period(Heartbeat::LEAST_INTERVAL)..;
        /// Silence after which a rank counts as dead; rank 0's value counts for all.
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
        /// Queues of copy engines to each peer, 1 to 64; the waves of a kernel are spread over them.
        queues (shared): u32 = 2;
        /// Size of a queue's ring, a power of two from 256 bytes to 64 MiB.
        ring_bytes (shared): ByteSize = ByteSize(64 << 10);
        /// The most that one copy packet moves, a multiple of 32 bytes; longer copies are several.
        most_copy_bytes (shared): Option<ByteSize> => "what the engine takes", within ..=ByteSize(u64::from(u32::MAX) / 32 * 32);
    }

    /// `[transport.rdma]`.
    [transport.rdma] RdmaConfig {
        /// What serves as a rank's NIC. `verbs`: the machine's NICs by libibverbs; a thread of the host posts what kernels ask for.
        /// `mlx5`: its ConnectX by libmlx5; kernels write the queues themselves; verified over a ConnectX in software below the real
        /// libmlx5, never on hardware. `auto`: `mlx5`, or `verbs`, with the reason, where that cannot be opened or makes no queue pair.
        /// `libfabric`: a network of libfabric's, 1.17 or later; a thread of the host posts, to memory of the host alone; verified over
        /// its providers tcp and shm, never on hardware. `software`: NICs in software that talk over sockets, for trials without hardware.
        driver (shared): NicDriverName = NicDriverName::Verbs;
        /// Queue pairs to each peer, 1 to 64; the waves of a kernel are spread over them.
        queues (shared): u32 = 2;
        /// Entries of a send queue, a power of two from 16 to 32768; a request takes one or two.
        entries (shared): u32 = 256;
        /// How long a peer's NIC has to answer before its queue pair fails.
        patience (shared): Period = seconds(10);
        /// Which NICs may be used: `NAME`, `NAME:PORT`, `=NAME`, and `^` before what is left out; empty means every NIC that is hardware.
        nics: Vec<String> = Vec::new();
        /// Which address of the port (GID).
        gid_index: Option<u32> => "the best by its kind";
        /// Traffic class of packets, 0 to 255; on Ethernet four times the DSCP.
        traffic_class (shared): u8 = 0;
        /// Service level, 0 to 15; on Ethernet the priority, 0 to 7.
        service_level (shared): u8 = 0;
        /// Which provider of libfabric's serves with the driver `libfabric`, by its name there: `tcp`, `shm` (with
        /// `FI_SHM_DISABLE_CMA=1` in the environment), `efa`, `verbs;ofi_rxm`. `transport.rdma.nics` names interfaces.
        fabric_provider (shared): Option<String> => "the first that libfabric lists and that serves";
        /// Where NICs in software listen: an IP address by which the other machines reach this one. Heaps then travel unencrypted.
        software_address: Option<std::net::IpAddr> => "sockets of this machine";
        /// Whether NICs in software have atomic operations; false tries a program as on NICs without.
        software_atomics (shared): bool = true;
    }

    /// `[kernels]`.
    [kernels] KernelsConfig {
        /// Whether a kernel that is not in the cache may be compiled.
        compile: CompileMode = CompileMode::Auto;
        /// Directory of compiled kernels; a local one.
        cache: Option<PathBuf> => "$XDG_CACHE_HOME/anabranch or ~/.cache/anabranch";
        /// Read-only directories searched before the cache.
        prebuilt: Vec<PathBuf> = Vec::new();
        /// `auto`; a GPU tool chain's name (hipcc, clang, hiprtc, nvrtc, nvcc), which the host runtime does without; or the path of a
        /// compiler, with a `/` (host: g++, gcc, c++, cc or clang), which must serve the runtime; other targets are compiled as with
        /// `auto`.
        compiler: String = "auto".to_owned();
        /// How long one compilation may take; compilers that are libraries (hiprtc, NVRTC) cannot be stopped. Others that need the same
        /// kernel wait for it a minute longer, and report every 15 s for which process.
        patience: Period = Period(JitConfig::PATIENCE), within MILLISECOND..=DAY;
        /// The target to compile for; contradicting the device is an error.
        arch: Option<String> => "what the device reports";
        /// A checkout whose kernel sources replace the embedded ones.
        source_dir: Option<PathBuf> => "the embedded sources";
        /// Options added to every compiler call; part of the cache key.
        extra_options (shared): Vec<String> = Vec::new();
        /// Whether kernels carry debug information; part of the cache key.
        debug_info (shared): bool = false;
        /// Compilers run at once.
        jobs: Option<u32> => "one per core", within 1..;
        /// How many failed compilations are kept for reading.
        keep_failed: u32 = 8;
    }

    /// `[deadline]`.
    [deadline] DeadlineConfig {
        /// How long joining a world may take as a whole, waiting for all ranks included, and how long a later
        /// collective call of the host waits for the slowest rank.
        rendezvous (shared): Period = seconds(60);
        /// How long a kernel waits for its peers, counted from its start.
        operation (shared): Period = seconds(10);
    }

    /// `[ccl]`.
    [ccl] CclSettings {
        /// How every collective is done, an error where it cannot be; `auto` chooses for each call.
        algorithm (shared): Option<Algorithm>;
        /// Most blocks of a collective's kernel, 1 to 1024.
        max_blocks (shared): Option<u32> => "chosen from the device", within 1..;
        /// Memory of the symmetric heap that each communicator takes for staging, at least 4096 bytes.
        staging_bytes (shared): Option<ByteSize> => "chosen from the heap and the device", within ByteSize(CclConfig::LEAST_STAGING)..;
        /// Memory of the symmetric heap that each communicator takes for messages sent and not yet received, at least 4096
        /// bytes.
        pipe_bytes (shared): Option<ByteSize> => "chosen from the heap and the device", within ByteSize(CclConfig::LEAST_STAGING)..;
        /// Streams for the copies to each member in collectives by copy engine, up to 16; 0 for one stream for all other members, whose
        /// copies then follow each other.
        copy_streams (shared): Option<u32> => "0 on NVIDIA GPUs, else 1";
        /// How members meet before and behind copies by engine: `kernel`, or `stream`, which takes no compute unit (not in captures);
        /// `auto`: by stream on NVIDIA GPUs.
        meetings (shared): Meetings = Meetings::Auto;
        /// What is checked at every collective: `fingerprint` compares the members' calls on the devices before data moves, and
        /// costs about a barrier.
        check (shared): Check = Check::Off;
        /// Which way collectives go where members are on several machines: `direct`, or `node`, where what concerns several members of a
        /// machine goes there once, or packed; `auto`: by node where bytes, requests and hops are estimated to take less time so.
        across (shared): Across = Across::Auto;
        /// File of measured choices, written by `anabranch tune`; its content is the same on all ranks.
        table: Option<PathBuf> => "the library's own for the device, if it has one";
    }

    /// `[links]`.
    [links] LinkTable {
        /// GB/s (10^9 bytes a second) of a rank to all others of its node, in each direction. These speeds decide between routes that
        /// no table was measured for; `anabranch tune links` measures them.
        inside_gb_per_s (shared): Option<f64> => "the device's: measured on H200, assumed for other devices";
        /// Microseconds from a flag's store to where it is seen inside a node.
        inside_hop_us (shared): Option<f64> => "the device's: measured on H200, assumed for other devices";
        /// GB/s of a rank's NIC, in each direction.
        nic_gb_per_s (shared): Option<f64> => "assumed: 50, a port of 400 Gbit/s";
        /// Microseconds from a request in a NIC's queue to where its bytes are seen at the peer.
        nic_hop_us (shared): Option<f64> => "assumed: 2";
        /// Microseconds between two requests of one NIC.
        nic_message_us (shared): Option<f64> => "assumed: 0.1";
        /// Microseconds of a kernel's launch.
        launch_us (shared): Option<f64> => "the device's: measured on H200, assumed for other devices";
    }

    /// `[ep]`.
    [ep] EpSettings {
        /// Dispatches that may be in flight without their combine.
        slots (shared): u32 = 1, within 1..;
        /// How received rows lie in plans that leave it open: `slotted`, each source has a part of the window; `compact`, counts
        /// first and rows without gaps; `auto`, slotted up to 512 tokens a rank.
        mode (shared): Mode = Mode::Auto;
        /// Most blocks of a dispatch or combine kernel, whatever was measured to be fastest: with fewer, other kernels can run beside.
        blocks: Option<u32> => "as measured, or chosen from the device", within 1..;
        /// Waves of each such block.
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
