//! Collectives over a group, with torch.distributed's semantics.
//!
//! A [`Communicator`] belongs to one group and one sequence of calls. A [`Call`] names a collective and its tensors.
//! [`Communicator::prepare`] checks the call and plans it. [`Communicator::launch`] enqueues it on a stream: one kernel, or, with copy
//! engines, barrier kernels and copies (`lower/engine.rs`). The returned [`Work`] orders other streams after the call, or waits for it on
//! the host. [`typed`] has one method per collective, with torch's names and order of arguments; element types and operators are Rust types
//! there.
//!
//! Order of reading: [`call`] defines the calls, [`plan`] the plan of a call, `recipes.rs` the algorithms, `device/ccl/channel.h`,
//! `meet.h` and `packets.h` the protocols of all kernels with the arguments why no flag or buffer is reused too early, `kernels/*.hip` the
//! algorithms, [`Communicator`] the launches. `network` has the internode collectives.
//!
//! A module depends only on earlier modules of this list: `types`, `device`, `call`, `recipes`, `plan`, `lower`, `planner`, `network`, `run`, `typed`.
//!
//! All members make the same calls in the same order. By default this is not checked. [`CclConfig::check`] compares the calls of all
//! members on the devices, to find out why a program hangs or computes wrong results.
//!
//! Reductions are in group-rank order, accumulated in f32 (f64 for f64), and rounded once: the results have the same bits on every rank, in
//! every run, and with every algorithm.
#![warn(missing_docs)]

pub mod call;
mod device;
mod lower;
mod network;
pub mod plan;
mod planner;
mod recipes;
mod run;
pub mod typed;
mod types;

pub use anabranch_elements::float8;
pub use anabranch_ranks::Across;
pub use anabranch_ranks::{LinkSettings, LinkSpeeds, Moved, TimeParts};
pub use call::Call;
pub use call::message::PointToPoint;
pub use call::norm::{Quantised, RmsNorm};
pub use call::tensor::Tensor;
pub use device::kernels::{self, kernels};
#[cfg(feature = "model")]
pub use network::traffic::{CallTraffic, Hops, LinkCapacity, LinkTraffic, MemberTraffic, call_traffic};
pub use plan::{Choice, Plan};
pub use planner::tuning::{self, Table};
pub use run::{
    BarrierMode, CHECK_OPERATION, CclConfig, Check, Communicator, MESSAGE_OPERATION, OPERATION, Prepared,
    Work,
};
pub use typed::{Options, TypedTensor};
pub use types::{
    Algorithm, Avg, BitAnd, BitOr, BitXor, Collective, DATA_TYPES, DataType, DeviceScalar, Difference,
    Element, Error, ListMismatch, LocationKind, Max, Min, Mismatch, PreMulSum, Product, ReduceOp,
    ReduceOperator, Result, Shape, SplitMismatch, Sum, UnknownReduceOp, UnsupportedDataType,
};

/// The arithmetic of collectives, for kernels of other crates.
///
/// A kernel unit that uses it lists [`DEVICE_HEADERS`](device_api::DEVICE_HEADERS) and includes `ccl/reduce.h`. Everything is in the
/// namespace `ccl`. An element type is the struct that [`DataType::device_name`] names.
pub mod device_api {
    pub use crate::device::headers::DEVICE_HEADERS;
}

/// Lowering of a planned call to kernels, arguments and copies, as a pure function. For simulations and tests, which have no world and lay
/// out the memory of a communicator themselves.
pub mod lowered {
    pub use crate::device::args::{
        BufferView, ChannelState, CommView, Fingerprint, FingerprintArgs, GatherManyArgs, MOST_SEGMENTS,
        MOST_TRANSFERS, PipeState, Pipes, PipesArgs, ROW_WORDS, Segment, Transfer,
    };
    pub use crate::device::channel::{ChannelLayout, PACKET_UNITS};
    pub use crate::device::norm::RowNorm;
    pub use crate::device::pipes::PipeLayout;
    pub use crate::lower::engine::Gathered;
    pub use crate::lower::launch::{Launch, Stage};
    pub use crate::lower::many::Segments;
    pub use crate::lower::messages::TransferLists;
    pub use crate::lower::norm::Norm;
    pub use crate::lower::{Buffers, Counts, Engine, Job, Tensors, local_bytes, lowered};

    /// Internode calls: the steps of each member, and the arguments of the kernels that run them.
    pub mod internode {
        pub use crate::device::args::{Links, NetworkArgs, Reduction};
        pub use crate::network::LinkLayout;
        #[cfg(feature = "rdma")]
        pub use crate::network::lower::{Listed, Tensors, list};
        #[cfg(feature = "rdma")]
        pub use crate::network::schedule::{Exchange, Port, Step, Work, by_node, direct};
    }
}
