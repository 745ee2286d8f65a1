//! One table of all settings: the loader knows keys and kinds from it, `config show` and the documentation
//! print it.

use std::fmt;
use std::fmt::Write as _;

use anabranch_ccl::{Across, Algorithm, Check, Meetings};
use anabranch_ep::Mode;

use super::Config;
use super::sections::AUTO;

/// What a setting's value looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SettingKind {
    /// Any text.
    Text,
    /// One of a few words.
    Word(&'static [&'static str]),
    /// A path.
    Path,
    /// `true` or `false`, and no other spelling.
    Boolean,
    /// A whole number that is not negative.
    Integer,
    /// A size with its unit.
    Size,
    /// A duration with its unit.
    Duration,
    /// A list of texts.
    Texts,
    /// A list of whole numbers.
    Integers,
    /// A list of words out of a few.
    Words(&'static [&'static str]),
}

impl SettingKind {
    /// Whether the value is written between brackets.
    pub fn is_list(self) -> bool {
        matches!(self, Self::Texts | Self::Integers | Self::Words(_))
    }

    /// Whether a bare word on a command line is a number.
    pub(crate) fn is_numeric(self) -> bool {
        matches!(self, Self::Integer | Self::Integers)
    }
}

impl fmt::Display for SettingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = |words: &[&str]| words.join(", ");
        match self {
            Self::Text => f.write_str("text"),
            Self::Word(allowed) => f.write_str(&words(allowed)),
            Self::Path => f.write_str("path"),
            Self::Boolean => f.write_str("true, false"),
            Self::Integer => f.write_str("number"),
            Self::Size => f.write_str("size"),
            Self::Duration => f.write_str("duration"),
            Self::Texts => f.write_str("list of texts"),
            Self::Integers => f.write_str("list of numbers"),
            Self::Words(allowed) => write!(f, "list of {}", words(allowed)),
        }
    }
}

/// One setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Setting {
    /// The dotted key, `heap.bytes`.
    pub name: &'static str,
    /// What its value looks like.
    pub kind: SettingKind,
    /// What its absence means, for settings without a default value; empty for the others.
    pub unset: &'static str,
    /// Whether all ranks of a world must have the same value.
    pub shared: bool,
    /// Whether its value is a secret: whoever shows settings says only that it is set.
    pub secret: bool,
    /// What it does.
    pub help: &'static str,
}

impl Setting {
    /// The default as TOML, or what absence means.
    pub fn default_text(&self) -> String {
        let defaults = flatten(&Config::default());
        match defaults.into_iter().find(|(name, _)| name == self.name) {
            Some((_, value)) => value.to_string(),
            None => self.unset.to_owned(),
        }
    }

    /// The environment variable that sets it.
    pub fn variable(&self) -> String {
        format!("{VARIABLE_PREFIX}{}", self.name.replace('.', "__").to_ascii_uppercase())
    }
}

/// Environment variables that are settings begin with this.
pub(crate) const VARIABLE_PREFIX: &str = "ANABRANCH__";

const fn setting(name: &'static str, kind: SettingKind, help: &'static str) -> Setting {
    Setting { name, kind, unset: "", shared: false, secret: false, help }
}

const fn unset(mut setting: Setting, meaning: &'static str) -> Setting {
    setting.unset = meaning;
    setting
}

const fn shared(mut setting: Setting) -> Setting {
    setting.shared = true;
    setting
}

const fn secret(mut setting: Setting) -> Setting {
    setting.secret = true;
    setting
}

/// What `ep.mode` may be.
const MODES: [&str; Mode::ALL.len()] = {
    let mut words = [""; Mode::ALL.len()];
    let mut index = 0;
    while index < Mode::ALL.len() {
        words[index] = Mode::ALL[index].name();
        index += 1;
    }
    words
};

/// What `ccl.algorithm` may be: whatever there is.
const ALGORITHMS: [&str; Algorithm::ALL.len() + 1] = {
    let mut words = [AUTO; Algorithm::ALL.len() + 1];
    let mut index = 0;
    while index < Algorithm::ALL.len() {
        words[index + 1] = Algorithm::ALL[index].name();
        index += 1;
    }
    words
};

/// What `ccl.meetings` may be.
const MEETINGS: [&str; Meetings::ALL.len()] = {
    let mut words = [""; Meetings::ALL.len()];
    let mut index = 0;
    while index < Meetings::ALL.len() {
        words[index] = Meetings::ALL[index].name();
        index += 1;
    }
    words
};

/// What `ccl.across` may be.
const ACROSS: [&str; Across::ALL.len()] = {
    let mut words = [""; Across::ALL.len()];
    let mut index = 0;
    while index < Across::ALL.len() {
        words[index] = Across::ALL[index].name();
        index += 1;
    }
    words
};

/// What `ccl.check` may be.
const CHECKS: [&str; Check::ALL.len()] = {
    let mut words = [""; Check::ALL.len()];
    let mut index = 0;
    while index < Check::ALL.len() {
        words[index] = Check::ALL[index].name();
        index += 1;
    }
    words
};

use SettingKind::{Boolean, Duration, Integer, Integers, Path, Size, Text, Texts, Word, Words};

/// All settings, in the order of the documentation.
pub static SETTINGS: &[Setting] = &[
    shared(setting("device.runtime", Word(&["amd", "nvidia", "host"]), "Which runtime runs the kernels.")),
    unset(
        setting("device.devices", Integers, "Device ordinals; local rank i uses the i-th."),
        "device.first + local rank",
    ),
    setting("device.first", Integer, "Ordinal of local rank 0's device when device.devices is not set."),
    unset(
        setting("device.library", Path, "The runtime's library; not used with the host runtime."),
        "found: already loaded, ROCM_PATH, HIP_PATH, /opt/rocm, the loader's path",
    ),
    unset(
        setting("device.host.count", Integer, "Devices that the host runtime shows."),
        "as many as ranks on the machine ask for",
    ),
    unset(
        shared(setting("device.host.wave", Integer, "Lanes of a wave on the host runtime: 1, 4, 32 or 64.")),
        "1 (fast); 4 with the seeded schedule",
    ),
    unset(
        setting(
            "device.host.workers",
            Integer,
            "Threads that run the blocks of one process on the host runtime.",
        ),
        "cores divided by the ranks on the machine, at least 1",
    ),
    setting("device.host.memory", Size, "Memory of one host device; costs nothing until it is touched."),
    shared(setting(
        "device.host.schedule",
        Word(&["free", "seeded"]),
        "Who decides which lane runs next. `seeded` runs the ranks, which are threads then, one step at a time.",
    )),
    unset(
        shared(setting("device.host.seed", Integer, "Seed of the seeded schedule, which needs one.")),
        "none",
    ),
    shared(setting(
        "device.host.steps",
        Integer,
        "Steps after which a run of the seeded schedule is given up.",
    )),
    shared(setting(
        "device.host.faults",
        Texts,
        "What goes wrong in a run of the seeded schedule: `kill:1@37` and others (docs/simulation.md).",
    )),
    shared(setting("heap.bytes", Size, "Size of every rank's symmetric heap.")),
    shared(setting(
        "heap.mode",
        Word(&["static", "flat"]),
        "How the heap's memory is obtained. `static`: one allocation; peers' heaps are mapped where the runtime puts them. \
         `flat`: physical memory, mapped into one range of addresses in the order of the ranks, each heap a stride behind the \
         one before; takes virtual memory management (host, nvidia, amd from ROCm 7.2) and `p2p` in transport.order.",
    )),
    unset(
        setting(
            "bootstrap.address",
            Text,
            "host:port of the store that rank 0 runs; several, separated by commas, are tried in turn.",
        ),
        "what the launcher says",
    ),
    setting(
        "bootstrap.port_offset",
        Integer,
        "Added to the launcher's port, which its own store may occupy.",
    ),
    unset(
        secret(setting(
            "bootstrap.secret",
            Text,
            "The secret that ranks show each other, at least 16 bytes; nothing that could be guessed.",
        )),
        "what the launcher says",
    ),
    unset(
        setting(
            "bootstrap.secret_file",
            Path,
            "The file that holds the secret; only its owner may be able to read it (mode 0600).",
        ),
        "what the launcher says",
    ),
    setting(
        "bootstrap.insecure",
        Boolean,
        "Whether ranks meet without a secret where other machines reach them: whoever reaches the port can then join.",
    ),
    unset(
        setting("bootstrap.interface", Text, "The network interface that rank 0 listens on."),
        "the one that the address is of",
    ),
    setting(
        "bootstrap.heartbeat",
        Duration,
        "How often a rank shows that it lives; rank 0's value counts for all.",
    ),
    setting(
        "bootstrap.silence",
        Duration,
        "Silence after which a rank counts as dead; rank 0's value counts for all.",
    ),
    shared(setting(
        "transport.order",
        Words(&["p2p", "sdma", "rdma"]),
        "Transports in order of preference; the first that reaches a peer is its route.",
    )),
    shared(setting(
        "transport.sdma.queues",
        Integer,
        "Queues of copy engines to each peer, 1 to 64; the waves of a kernel are spread over them.",
    )),
    shared(setting(
        "transport.sdma.ring_bytes",
        Size,
        "Size of a queue's ring, a power of two from 256 bytes to 64 MiB.",
    )),
    unset(
        shared(setting(
            "transport.sdma.most_copy_bytes",
            Size,
            "The most that one copy packet moves, a multiple of 32 bytes; longer copies are several.",
        )),
        "what the engine takes",
    ),
    shared(setting(
        "transport.rdma.driver",
        Word(&["verbs", "mlx5", "auto", "libfabric", "software"]),
        "What serves as a rank's NIC. `verbs`: the machine's NICs by libibverbs; a thread of the host posts what kernels ask for. `mlx5`: its ConnectX by libmlx5; kernels write the queues themselves; verified over a ConnectX in software below the real libmlx5, never on hardware. `auto`: `mlx5`, or `verbs`, with the reason, where that cannot be opened or makes no queue pair. `libfabric`: a network of libfabric's, 1.17 or later; a thread of the host posts, to memory of the host alone; verified over its providers tcp and shm, never on hardware. `software`: NICs in software that talk over sockets, for trials without hardware.",
    )),
    shared(setting(
        "transport.rdma.queues",
        Integer,
        "Queue pairs to each peer, 1 to 64; the waves of a kernel are spread over them.",
    )),
    shared(setting(
        "transport.rdma.entries",
        Integer,
        "Entries of a send queue, a power of two from 16 to 32768; a request takes one or two.",
    )),
    shared(setting(
        "transport.rdma.patience",
        Duration,
        "How long a peer's NIC has to answer before its queue pair fails.",
    )),
    setting(
        "transport.rdma.nics",
        Texts,
        "Which NICs may be used: `NAME`, `NAME:PORT`, `=NAME`, and `^` before what is left out; empty means every NIC that is hardware.",
    ),
    unset(
        setting("transport.rdma.gid_index", Integer, "Which address of the port (GID)."),
        "the best by its kind",
    ),
    shared(setting(
        "transport.rdma.traffic_class",
        Integer,
        "Traffic class of packets, 0 to 255; on Ethernet four times the DSCP.",
    )),
    shared(setting(
        "transport.rdma.service_level",
        Integer,
        "Service level, 0 to 15; on Ethernet the priority, 0 to 7.",
    )),
    unset(
        shared(setting(
            "transport.rdma.fabric_provider",
            Text,
            "Which provider of libfabric's serves with the driver `libfabric`, by its name there: `tcp`, `shm` (with `FI_SHM_DISABLE_CMA=1` in the environment), `efa`, `verbs;ofi_rxm`. `transport.rdma.nics` names interfaces.",
        )),
        "the first that libfabric lists and that serves",
    ),
    unset(
        setting(
            "transport.rdma.software_address",
            Text,
            "Where NICs in software listen: an IP address by which the other machines reach this one. Heaps then travel unencrypted.",
        ),
        "sockets of this machine",
    ),
    shared(setting(
        "transport.rdma.software_atomics",
        Boolean,
        "Whether NICs in software have atomic operations; false tries a program as on NICs without.",
    )),
    setting(
        "kernels.compile",
        Word(&["auto", "deny"]),
        "Whether a kernel that is not in the cache may be compiled.",
    ),
    unset(
        setting("kernels.cache", Path, "Directory of compiled kernels; a local one."),
        "$XDG_CACHE_HOME/anabranch or ~/.cache/anabranch",
    ),
    setting("kernels.prebuilt", Texts, "Read-only directories searched before the cache."),
    setting(
        "kernels.compiler",
        Text,
        "`auto`; a GPU tool chain's name (hipcc, clang, hiprtc, nvrtc, nvcc), which the host runtime does without; or the path of a \
         compiler, with a `/` (host: g++, gcc, c++, cc or clang), which must serve the runtime; other targets are compiled as with \
         `auto`.",
    ),
    setting(
        "kernels.patience",
        Duration,
        "How long one compilation may take; compilers that are libraries (hiprtc, NVRTC) cannot be stopped. Others that need the same \
         kernel wait for it a minute longer, and report every 15 s for which process.",
    ),
    unset(
        setting("kernels.arch", Text, "The target to compile for; contradicting the device is an error."),
        "what the device reports",
    ),
    unset(
        setting("kernels.source_dir", Path, "A checkout whose kernel sources replace the embedded ones."),
        "the embedded sources",
    ),
    shared(setting(
        "kernels.extra_options",
        Texts,
        "Options added to every compiler call; part of the cache key.",
    )),
    shared(setting(
        "kernels.debug_info",
        Boolean,
        "Whether kernels carry debug information; part of the cache key.",
    )),
    unset(setting("kernels.jobs", Integer, "Compilers run at once."), "one per core"),
    setting("kernels.keep_failed", Integer, "How many failed compilations are kept for reading."),
    shared(setting(
        "deadline.rendezvous",
        Duration,
        "How long joining a world may take as a whole, waiting for all ranks included, and how long a later \
         collective call of the host waits for the slowest rank.",
    )),
    shared(setting(
        "deadline.operation",
        Duration,
        "How long a kernel waits for its peers, counted from its start.",
    )),
    shared(setting(
        "ccl.algorithm",
        Word(&ALGORITHMS),
        "How every collective is done, an error where it cannot be; `auto` chooses for each call.",
    )),
    unset(
        shared(setting("ccl.max_blocks", Integer, "Most blocks of a collective's kernel, 1 to 1024.")),
        "chosen from the device",
    ),
    unset(
        shared(setting(
            "ccl.staging_bytes",
            Size,
            "Memory of the symmetric heap that each communicator takes for staging, at least 4096 bytes.",
        )),
        "chosen from the heap and the device",
    ),
    unset(
        shared(setting(
            "ccl.pipe_bytes",
            Size,
            "Memory of the symmetric heap that each communicator takes for messages sent and not yet received, at least 4096 \
             bytes.",
        )),
        "chosen from the heap and the device",
    ),
    unset(
        shared(setting(
            "ccl.copy_streams",
            Integer,
            "Streams for the copies to each member in collectives by copy engine, up to 16; 0 for one stream for all other members, whose \
             copies then follow each other.",
        )),
        "0 on NVIDIA GPUs, else 1",
    ),
    shared(setting(
        "ccl.meetings",
        Word(&MEETINGS),
        "How members meet before and behind copies by engine: `kernel`, or `stream`, which takes no compute unit (not in captures); \
         `auto`: by stream on NVIDIA GPUs.",
    )),
    shared(setting(
        "ccl.check",
        Word(&CHECKS),
        "What is checked at every collective: `fingerprint` compares the members' calls on the devices before data moves, and \
         costs about a barrier.",
    )),
    shared(setting(
        "ccl.across",
        Word(&ACROSS),
        "Which way collectives go where members are on several machines: `direct`, or `node`, where what concerns several members of a \
         machine goes there once, or packed; `auto`: by node where bytes, requests and hops are reckoned to take less time so.",
    )),
    unset(
        setting(
            "ccl.table",
            Path,
            "File of measured choices, written by `anabranch tune`; its content is the same on all ranks.",
        ),
        "the library's own for the device, if it has one",
    ),
    shared(setting("ep.slots", Integer, "Dispatches that may be in flight without their combine.")),
    shared(setting(
        "ep.mode",
        Word(&MODES),
        "How received rows lie in plans that leave it open: `slotted`, each source has a part of the window; `compact`, counts \
         first and rows without gaps; `auto`, slotted up to 512 tokens a rank.",
    )),
    unset(
        setting(
            "ep.blocks",
            Integer,
            "Most blocks of a dispatch or combine kernel, whatever was measured to be fastest: with fewer, other kernels can run beside.",
        ),
        "as measured, or chosen from the device",
    ),
    unset(
        setting("ep.waves_per_block", Integer, "Waves of each such block."),
        "as measured, or chosen from the device",
    ),
    unset(
        setting(
            "ep.table",
            Path,
            "File of measured launch shapes, written by `anabranch tune ep`; what plans take from it is the same on all ranks.",
        ),
        "the library's own for the device, if it has one",
    ),
];

/// The setting of a dotted key.
pub fn setting_named(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == name)
}

/// Whether a dotted key is a table that settings live in.
pub(crate) fn is_table(name: &str) -> bool {
    name == "transport.p2p"
        || SETTINGS
            .iter()
            .any(|setting| setting.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
}

/// The leaves of a configuration as (dotted key, TOML value), in the order of [`SETTINGS`]; settings without
/// a value are absent.
pub(crate) fn flatten(config: &Config) -> Vec<(String, toml::Value)> {
    // Serializing plain tables of texts and numbers cannot fail: there are no maps with other keys in it.
    let table = toml::Table::try_from(config).unwrap_or_default();
    let mut leaves = Vec::new();
    collect("", &table, &mut leaves);
    let position =
        |name: &str| SETTINGS.iter().position(|setting| setting.name == name).unwrap_or(usize::MAX);
    leaves.sort_by_key(|(name, _)| position(name));
    leaves
}

fn collect(prefix: &str, table: &toml::Table, leaves: &mut Vec<(String, toml::Value)>) {
    for (key, value) in table {
        let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        match value {
            toml::Value::Table(inner) => collect(&name, inner, leaves),
            _ => leaves.push((name, value.clone())),
        }
    }
}

/// The table of all settings as Markdown, for `docs/configuration.md`.
pub fn settings_markdown() -> String {
    let mut text =
        String::from("| setting | value | default | same on all ranks | meaning |\n|---|---|---|---|---|\n");
    for setting in SETTINGS {
        let default = if setting.unset.is_empty() {
            format!("`{}`", setting.default_text())
        } else {
            setting.unset.to_owned()
        };
        let shared = if setting.shared { "yes" } else { "" };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| `{}` | {} | {default} | {shared} | {} |",
            setting.name, setting.kind, setting.help
        );
    }
    text
}
