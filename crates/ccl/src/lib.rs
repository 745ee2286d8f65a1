//! Collectives over a group, with torch.distributed's semantics.
//!
//! A [`Communicator`] belongs to one group and one sequence of calls. A [`Call`] names a collective and its tensors;
//! [`Communicator::prepare`] checks it and chooses how it is done, [`Communicator::launch`] puts it on a stream (one kernel, or by copy
//! engine barrier kernels and the copies between them: `lower/engine.rs`), and the [`Work`] that comes back orders other streams after it
//! or waits for it on the host. [`typed`] has a method for each collective, with torch's names and order of arguments; element types and
//! operators are Rust types there.
//!
//! The order of reading: [`call`] says what a call means, [`plan`] how it is done, `lower/recipes.rs` which algorithms there are,
//! `device/ccl/channel.h` and `packets.h` what all kernels stand on (with the arguments why no flag or buffer is used again too early),
//! `kernels/*.hip` the algorithms, and [`Communicator`] when.
//!
//! A folder depends on those before it only: `types`, `device`, `call`, `lower`, `plan`, `network`, `run`, `typed`.
//!
//! Members make the same calls; nothing in a call checks that. [`CclConfig::check`] compares all members' calls on the devices, for
//! finding out why a program hangs or computes nonsense.
//!
//! Reductions are in group-rank order, accumulated in f32 (f64 for f64), and rounded once: the same bits on every rank, in every
//! run, and for every algorithm.

pub mod call;
mod device;
mod lower;
mod network;
pub mod plan;
mod run;
pub mod typed;
mod types;

pub use anabranch_elements::float8;
pub use anabranch_ranks::{Across, UnknownAcross};
pub use anabranch_ranks::{LinkSettings, LinkSpeeds, Moved, TimeParts};
pub use call::Call;
pub use call::message::PointToPoint;
pub use call::tensor::Tensor;
pub use device::kernels::{self, kernels};
pub use lower::Plan;
pub use network::traffic::{CallTraffic, Hops, LinkRoom, LinkTraffic, MemberTraffic, call_traffic};
pub use plan::Choice;
pub use plan::tuning::{self, Table};
pub use run::{
    CHECK_OPERATION, CclConfig, Check, Communicator, MESSAGE_OPERATION, Meetings, OPERATION, Prepared,
    UnknownCheck, Work,
};
pub use typed::{Options, TypedTensor};
pub use types::{
    Algorithm, Avg, BitAnd, BitOr, BitXor, Collective, DATA_TYPES, DataType, Difference, Element, Error,
    ListMismatch, LocationKind, Max, Min, Mismatch, PreMulSum, Product, ReduceOp, ReduceOperator, Result,
    Shape, SplitMismatch, Sum, UnknownAlgorithm, UnknownReduceOp, UnsupportedDataType,
};

/// The arithmetic of collectives inside kernels, for kernels of one's own.
///
/// A unit that uses it lists [`DEVICE_HEADERS`](device_api::DEVICE_HEADERS) and includes `ccl/reduce.h`. Everything there lies in the
/// namespace `ccl`; an element type is the struct that [`DataType::device_name`] names.
pub mod device_api {
    pub use crate::device::headers::DEVICE_HEADERS;
}

/// From a planned call to the kernels, arguments and copies that a communicator puts on a stream, as a pure function: for simulations
/// and tests, which have no world and lay out a communicator's memory themselves.
pub mod lowered {
    pub use crate::device::args::{
        BufferView, ChannelState, CommView, Fingerprint, FingerprintArgs, GatherManyArgs, MOST_SEGMENTS,
        MOST_TRANSFERS, PipeState, Pipes, PipesArgs, ROW_WORDS, Segment, Transfer,
    };
    pub use crate::device::channel::{ChannelLayout, PACKET_UNITS};
    pub use crate::device::pipes::PipeLayout;
    pub use crate::lower::engine::Gathered;
    pub use crate::lower::launch::{Launch, Stage};
    pub use crate::lower::many::Segments;
    pub use crate::lower::messages::TransferLists;
    pub use crate::lower::{Buffers, Counts, Engine, Job, Tensors, local_bytes, lowered};

    /// Calls between nodes: the steps of each member, and the arguments of the kernels that do them.
    pub mod internode {
        pub use crate::device::args::{Links, NetworkArgs, Reduction};
        pub use crate::network::LinkLayout;
        pub use crate::network::lower::{Listed, Tensors, list};
        pub use crate::network::schedule::{Exchange, Port, Step, Work, by_node, direct};
    }
}
