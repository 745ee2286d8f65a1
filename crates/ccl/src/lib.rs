//! Collectives over a group, with torch.distributed's semantics.
//!
//! A [`Communicator`] belongs to one group and one sequence of calls. A [`Call`] names a collective and its tensors;
//! [`Communicator::prepare`] checks it and chooses how it is done, [`Communicator::launch`] puts it on a stream (one kernel, or by copy
//! engine kernels that meet and the copies between them: `engine.rs`), and the
//! [`Work`] that comes back orders other streams behind it or waits for it on the host. [`typed`] has a method for each collective,
//! with torch's names and order of arguments; element types and operators are Rust types there.
//!
//! The order of reading: [`call`] says what a call means, [`plan`] how it is done, `device/ccl/lane.h` and `packets.h` what all
//! kernels stand on (with the arguments why no flag or buffer is used again too early), `kernels/*.hip` the algorithms, and
//! [`Communicator`] when. [`oracle`] is the reference that tests and benchmarks compare with, bit by bit.
//!
//! Nothing in a call says that other members make the same. [`CclConfig::check`] compares all members' calls on the devices, for
//! finding out why a program hangs or computes nonsense.
//!
//! Reductions are in group-rank order, accumulated in f32 (f64 for f64), and rounded once: the same bits on every rank, in every
//! run, and for every algorithm.

#[doc(hidden)]
pub mod args;
pub mod call;
#[doc(hidden)]
pub mod channel;
mod checker;
mod communicator;
mod config;
pub mod conformance;
mod crossing;
mod data_type;
pub mod device_api;
mod element;
#[doc(hidden)]
pub mod engine;
mod error;
mod fingerprint;
pub use anabranch_elements::float8;
mod in_place;
pub mod kernels;
#[doc(hidden)]
pub mod lower;
#[doc(hidden)]
pub mod many;
#[doc(hidden)]
pub mod message;
#[doc(hidden)]
pub mod network;
pub mod oracle;
#[doc(hidden)]
pub mod pipes;
pub mod plan;
mod prepared;
mod reduce;
mod sizes;
mod steps;
mod tensor;
pub mod tuning;
pub mod typed;
mod work;

pub use anabranch_ranks::{Across, UnknownAcross};
pub use anabranch_tuning::{LinkSpeeds, Moved, TimeParts};
pub use call::{Call, Collective};
pub use checker::CHECK_OPERATION;
pub use communicator::{Communicator, MESSAGE_OPERATION, OPERATION};
pub use config::{CclConfig, Check, Meetings, UnknownCheck};
pub use data_type::{DataType, UnknownDataType};
pub use element::Element;
pub use error::{Error, Result};
pub use fingerprint::{Difference, ListMismatch, Mismatch, SplitMismatch};
pub use kernels::kernels;
pub use message::PointToPoint;
pub use network::traffic::{CallTraffic, Hops, LinkRoom, LinkTraffic, MemberTraffic, call_traffic};
pub use plan::{Algorithm, Choice, Plan, UnknownAlgorithm};
pub use prepared::Prepared;
pub use reduce::{
    Avg, BitAnd, BitOr, BitXor, Max, Min, PreMulSum, Product, ReduceOp, ReduceOperator, Sum, UnknownReduceOp,
};
pub use tensor::{LocationKind, Tensor};
pub use tuning::Table;
pub use typed::{Options, TypedTensor};
pub use work::Work;
