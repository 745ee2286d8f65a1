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
    /// A text that is no place on the PCI bus.
    #[error(
        "{given:?} is no PCI address: expected domain:bus:device.function in hexadecimal, as 0000:c1:00.0"
    )]
    Address {
        /// The text.
        given: String,
    },
    /// A file or folder of the tree could not be read.
    #[error("{path}: cannot be read", path = path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A line of the tree does not say what it should.
    #[error("{path}:{line}: {text:?}, expected {expected}", path = path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What stands there.
        text: String,
        /// What should.
        expected: &'static str,
    },
    /// A property is not in its file.
    #[error("{path}: no line {property:?}", path = path.display())]
    Property {
        /// The file.
        path: PathBuf,
        /// The property.
        property: &'static str,
    },
    /// The tree has no such GPU.
    #[error(
        "no GPU at {asked}: the kernel shows {shown}; {hidden} node(s) are hidden from this process",
        shown = list(shown)
    )]
    NoSuchGpu {
        /// What was asked for.
        asked: GpuAddress,
        /// The GPUs of the tree.
        shown: Vec<GpuAddress>,
        /// Nodes that this process may not read.
        hidden: usize,
    },
    /// An address that means several nodes.
    #[error(
        "{asked} means {partitions} nodes, partitions of a GPU: name one that the kernel driver distinguishes"
    )]
    Partitioned {
        /// What was asked for.
        asked: GpuAddress,
        /// How many there are.
        partitions: usize,
    },
    /// No link leads from one GPU to the other.
    #[error("no link from node {source_node} to node {destination_node}")]
    NoLink {
        /// The node whose engines copy.
        source_node: u32,
        /// The node of the peer.
        destination_node: u32,
    },
    /// It is unknown which engines serve a peer.
    #[error(
        "no engine is known for copies from node {source_node} to node {destination_node}: {file} recommends none, and \
         the table of engines does not describe this machine: {why}",
        file = file.display()
    )]
    NoRecommendation {
        /// The node whose engines copy.
        source_node: u32,
        /// The node of the peer.
        destination_node: u32,
        /// The link's description.
        file: PathBuf,
        /// Why the table of engines does not apply.
        why: String,
    },
    /// A recommendation of engines that the GPU does not have.
    #[error("{file} recommends the engines {mask:#x}, and node {node} has {engines}", file = file.display())]
    EngineOutOfRange {
        /// The link's description.
        file: PathBuf,
        /// The recommendation, a bit for each engine.
        mask: u32,
        /// The node.
        node: u32,
        /// Its engines.
        engines: u32,
    },
    /// A GPU without engines for what is asked.
    #[error("node {node} has no copy engine for {purpose}")]
    NoEngine {
        /// The node.
        node: u32,
        /// What for.
        purpose: &'static str,
    },
    /// More queues to one peer than its engines hold.
    #[error(
        "{asked} queues from node {source_node} to node {destination_node}: allowed are 1 to {allowed} \
         ({engines} engine(s) with {queues_per_engine} queues each)"
    )]
    TooManyChannels {
        /// The node whose engines copy.
        source_node: u32,
        /// The node of the peer.
        destination_node: u32,
        /// Queues asked for.
        asked: u32,
        /// The most.
        allowed: u32,
        /// Engines that serve the peer.
        engines: u32,
        /// Queues that each holds.
        queues_per_engine: u32,
    },
    /// Queues to several peers that do not fit an engine together.
    #[error(
        "engine {engine} of node {node} would get {asked} queues for {peers} peer(s) and holds {queues_per_engine}"
    )]
    Oversubscribed {
        /// The node.
        node: u32,
        /// The engine.
        engine: u32,
        /// Queues asked for.
        asked: u32,
        /// Peers of the plan.
        peers: usize,
        /// Queues that the engine holds.
        queues_per_engine: u32,
    },
    /// The process has not mapped AMD's runtime.
    #[error("this process has not mapped AMD's runtime (looked for {tried}): open HIP's AMD runtime first")]
    NotMapped {
        /// Names looked for.
        tried: String,
    },
    /// The mapped runtime lacks functions that every version has.
    #[error("{library} has no {}", symbols.join(", "))]
    Symbols {
        /// The library.
        library: String,
        /// What it lacks.
        symbols: Vec<&'static str>,
    },
    /// No way to make queues is open.
    #[error("{library} offers no way to make queues on copy engines: {}", tried.join("; "))]
    NoWay {
        /// The library.
        library: String,
        /// Each way, and what it lacks.
        tried: Vec<String>,
    },
    /// The kernel driver is too old.
    #[error("{origin}: KFD {found}, and queues on a chosen engine need {needed}")]
    OldDriver {
        /// The functions asked.
        origin: String,
        /// What is there.
        found: KfdVersion,
        /// What is needed.
        needed: KfdVersion,
    },
    /// The runtime does not show a GPU of the tree.
    #[error("{origin} does not show the GPU at {gpu}, which the kernel does; it shows {}", list(shown))]
    NotShown {
        /// The functions asked.
        origin: String,
        /// The GPU.
        gpu: GpuAddress,
        /// What it shows.
        shown: Vec<GpuAddress>,
    },
    /// The runtime shows several GPUs at one place, so that none of them can be meant.
    #[error("{origin} shows {count} GPUs at {gpu}: partitions that it does not distinguish")]
    ShownSeveralTimes {
        /// The functions asked.
        origin: String,
        /// The place.
        gpu: GpuAddress,
        /// How many.
        count: usize,
    },
    /// The thunk's functions belong to a copy of the thunk that the runtime does not use.
    #[error(
        "the functions hsaKmt* next to {library} are those of a second thunk, which the runtime has not opened: two \
         thunks in a process manage one address space against each other"
    )]
    SecondThunk {
        /// The library.
        library: String,
    },
    /// A function of the library returned an error code.
    #[error("{call} on {place} returned {code:#x}")]
    Call {
        /// The C name of the function.
        call: &'static str,
        /// Node and engine, or what else it was about.
        place: String,
        /// The code, in the library's own numbering.
        code: u32,
    },
    /// A queue was not made, with a code that a full engine gives too.
    #[error("{call} made no queue on engine {engine} of node {node}: it returned {code:#x}")]
    QueueRefused {
        /// The C name of the function.
        call: &'static str,
        /// The node, in the runtime's numbering.
        node: u32,
        /// The engine.
        engine: u32,
        /// The code, in the library's own numbering.
        code: u32,
    },
    /// A call that succeeded returned something that cannot be used.
    #[error("{call} on {place} succeeded and returned {what}")]
    Returned {
        /// The C name of the function.
        call: &'static str,
        /// Node and engine.
        place: String,
        /// What is wrong with what it returned.
        what: String,
    },
    /// A link that engines cannot do all over that kernels ask of them.
    #[error(
        "the link from the GPU at {gpu} to that at {destination} is not known to carry copies and atomics of 64 bits"
    )]
    LinkLacks {
        /// The GPU whose engines copy.
        gpu: GpuAddress,
        /// The peer.
        destination: GpuAddress,
    },
    /// An engine holds no more queues.
    #[error(
        "no queue for {destination}, channel {channel}: engine {engine} of the GPU at {gpu} holds {queues_per_engine} \
         queues; this world has {in_use} of them and asked for one more; others may be held by HIP's own copies (one or \
         two for an engine) and by other worlds and processes on this GPU"
    )]
    Exhausted {
        /// The GPU whose engines copy.
        gpu: GpuAddress,
        /// The peer.
        destination: GpuAddress,
        /// The channel.
        channel: u32,
        /// The engine.
        engine: u32,
        /// Queues of this world on it.
        in_use: u32,
        /// Queues that it holds.
        queues_per_engine: u32,
        /// The driver's answer; `None` if it was not asked, because this world's queues fill the engine.
        source: Option<Box<AmdError>>,
    },
    /// A queue whose doorbell kernels cannot ring.
    #[error(
        "the doorbell of the queue on engine {engine} is mapped for the host alone: kernels cannot submit to it"
    )]
    HostRings {
        /// The engine.
        engine: u32,
    },
    /// What the crate reports about packets and rings.
    #[error(transparent)]
    Words(#[from] crate::Error),
    /// A ring that cannot be.
    #[error("a ring of {given} bytes: allowed are powers of two from {least} to {most}")]
    Ring {
        /// Bytes given.
        given: u64,
        /// The least.
        least: u64,
        /// The most.
        most: u64,
    },
    /// Something failed, and giving back what had been made failed too. It stays until the process ends.
    #[error("resources created before a failure could not be freed: {undo}")]
    Undo {
        /// What failed first.
        #[source]
        failed: Box<AmdError>,
        /// What failed then.
        undo: Box<AmdError>,
    },
    /// The engines have been closed.
    #[error("the engines of the GPU at {gpu} have been closed: no queue can be created")]
    Closed {
        /// The GPU.
        gpu: GpuAddress,
    },
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
