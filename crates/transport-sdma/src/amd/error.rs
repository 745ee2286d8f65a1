//! What can go wrong with AMD's engines, as values.

use std::io;
use std::path::PathBuf;

use anabranch_transport::UnknownPciAddress;

use super::address::GpuAddress;
use super::thunk::KfdVersion;

/// An error of AMD's engines.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AmdError {
    #[error(
        "{given:?} is no PCI address: expected domain:bus:device.function in hexadecimal, as 0000:c1:00.0"
    )]
    Address { given: String },
    #[error("{path}: cannot be read", path = path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{path}:{line}: {text:?}, expected {expected}", path = path.display())]
    Line {
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        text: String,
        expected: &'static str,
    },
    #[error("{path}: no line {property:?}", path = path.display())]
    Property { path: PathBuf, property: &'static str },
    #[error(
        "no GPU at {asked}: the kernel shows {shown}; {hidden} node(s) are hidden from this process",
        shown = list(shown)
    )]
    NoSuchGpu { asked: GpuAddress, shown: Vec<GpuAddress>, hidden: usize },
    #[error(
        "{asked} means {partitions} nodes, partitions of a GPU: name one that the kernel driver distinguishes"
    )]
    Partitioned { asked: GpuAddress, partitions: usize },
    #[error("no link from node {source_node} to node {destination_node}")]
    NoLink { source_node: u32, destination_node: u32 },
    #[error(
        "no engine is known for copies from node {source_node} to node {destination_node}: {file} recommends none, and \
         the table of engines does not describe this machine: {why}",
        file = file.display()
    )]
    NoRecommendation { source_node: u32, destination_node: u32, file: PathBuf, why: String },
    #[error("{file} recommends the engines {mask:#x}, and node {node} has {engines}", file = file.display())]
    EngineOutOfRange { file: PathBuf, mask: u32, node: u32, engines: u32 },
    #[error("node {node} has no copy engine for {purpose}")]
    NoEngine { node: u32, purpose: &'static str },
    #[error(
        "{asked} queues from node {source_node} to node {destination_node}: allowed are 1 to {allowed} \
         ({engines} engine(s) with {queues_per_engine} queues each)"
    )]
    TooManyChannels {
        source_node: u32,
        destination_node: u32,
        asked: u32,
        allowed: u32,
        engines: u32,
        queues_per_engine: u32,
    },
    #[error(
        "engine {engine} of node {node} would get {asked} queues for {peers} peer(s) and holds {queues_per_engine}"
    )]
    Oversubscribed { node: u32, engine: u32, asked: u32, peers: usize, queues_per_engine: u32 },
    #[error("this process has not mapped AMD's runtime (looked for {tried}): open HIP's AMD runtime first")]
    NotMapped { tried: String },
    #[error("{library} has no {}", symbols.join(", "))]
    Symbols { library: String, symbols: Vec<&'static str> },
    #[error("{library} offers no way to make queues on copy engines: {}", tried.join("; "))]
    NoWay {
        library: String,
        /// Each way, and what it lacks.
        tried: Vec<String>,
    },
    #[error("{origin}: KFD {found}, and queues on a chosen engine need {needed}")]
    OldDriver { origin: String, found: KfdVersion, needed: KfdVersion },
    #[error("{origin} does not show the GPU at {gpu}, which the kernel does; it shows {}", list(shown))]
    NotShown { origin: String, gpu: GpuAddress, shown: Vec<GpuAddress> },
    /// The runtime shows several GPUs at one place, so that none of them can be meant.
    #[error("{origin} shows {count} GPUs at {gpu}: partitions that it does not distinguish")]
    ShownSeveralTimes { origin: String, gpu: GpuAddress, count: usize },
    #[error(
        "the functions hsaKmt* next to {library} are those of a second thunk, which the runtime has not opened: two \
         thunks in a process manage one address space against each other"
    )]
    SecondThunk { library: String },
    #[error("{call} on {place} returned {code:#x}")]
    Call {
        call: &'static str,
        /// Node and engine, or what else it was about.
        place: String,
        /// The code, in the library's own numbering.
        code: u32,
    },
    #[error("{call} made no queue on engine {engine} of node {node}: it returned {code:#x}")]
    QueueRefused {
        call: &'static str,
        /// The node, in the runtime's numbering.
        node: u32,
        engine: u32,
        /// The code, in the library's own numbering.
        code: u32,
    },
    #[error("{call} on {place} succeeded and returned {what}")]
    Returned { call: &'static str, place: String, what: String },
    #[error(
        "the link from the GPU at {gpu} to that at {destination} is not known to carry copies and atomics of 64 bits"
    )]
    LinkLacks { gpu: GpuAddress, destination: GpuAddress },
    #[error(
        "no queue for {destination}, channel {channel}: engine {engine} of the GPU at {gpu} holds {queues_per_engine} \
         queues; this world has {in_use} of them and asked for one more; others may be held by HIP's own copies (one or \
         two for an engine) and by other worlds and processes on this GPU"
    )]
    Exhausted {
        gpu: GpuAddress,
        destination: GpuAddress,
        channel: u32,
        engine: u32,
        /// Queues of this world on it.
        in_use: u32,
        queues_per_engine: u32,
        /// The driver's answer; `None` if it was not asked, because this world's queues fill the engine.
        source: Option<Box<AmdError>>,
    },
    #[error(
        "the doorbell of the queue on engine {engine} is mapped for the host alone: kernels cannot submit to it"
    )]
    HostRings { engine: u32 },
    /// What the crate reports about packets and rings.
    #[error(transparent)]
    Words(#[from] crate::Error),
    #[error("a ring of {given} bytes: allowed are powers of two from {least} to {most}")]
    Ring { given: u64, least: u64, most: u64 },
    /// Something failed, and giving back what had been made failed too. It stays until the process ends.
    #[error("resources created before a failure could not be freed: {undo}")]
    Undo {
        #[source]
        failed: Box<AmdError>,
        undo: Box<AmdError>,
    },
    #[error("the engines of the GPU at {gpu} have been closed: no queue can be created")]
    Closed { gpu: GpuAddress },
}

impl From<UnknownPciAddress> for AmdError {
    fn from(UnknownPciAddress { given }: UnknownPciAddress) -> Self {
        Self::Address { given }
    }
}

/// Result of AMD's engines.
pub type AmdResult<T> = Result<T, AmdError>;

fn list(addresses: &[GpuAddress]) -> String {
    if addresses.is_empty() {
        return "none".to_owned();
    }
    addresses.iter().map(GpuAddress::to_string).collect::<Vec<_>>().join("; ")
}
