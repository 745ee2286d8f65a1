//! Expert-parallel dispatch and combine over a group.
//!
//! A mixture-of-experts layer sends every token to the ranks that own its experts and sums what comes back.
//! [`ExpertParallel::dispatch`] does the first, [`ExpertParallel::combine`] the second; between them the caller runs its
//! experts on the rows it got. Each is one kernel on the caller's stream (a compact dispatch two; one more where weights are combined), may be captured into a
//! graph, and waits for no one on the host. Both can be split in two, with other work of the stream between.
//!
//! The order of reading: [`plan`] says what is computed where, `kernels/*.hip` how (each with the argument why no flag
//! or row is overwritten too early), [`ExpertParallel`] when. [`oracle`] is the reference that tests and benchmarks
//! compare with, bit by bit.
//!
//! [`ExpertMajor`] puts received rows into the order of this rank's experts, and sums their outputs back.
//!
//! [`ExpertParallel::routing`] keeps where a dispatch's tokens went, and [`ExpertParallel::dispatch_with`] sends others the same way.
//!
//! With [`Payload::CopyEngine`] copy engines move the rows, so that between the halves of an operation none of it is on the device.
//!
//! Where ranks are on several nodes ([`Nodes`]), rows for other nodes are put over the routes that the heap has there ([`Across`]).
//!
//! A peer that does not come is a fault of the world, or, with [`OnTimeout::Mask`], it is masked and the others go on.
//!
//! Sums are in group-rank order with f32 accumulation and one rounding, so that the result is the same on every rank, in
//! every run, and for every launch shape.

#[doc(hidden)]
pub mod args;
mod cast;
mod codec;
mod data_type;
mod error;
mod mask;
mod nodes;
mod operation;
mod payload;
mod placement;
mod received;
mod slot;
mod tensor;

pub mod expert_major;
pub mod kernels;
pub mod launch;
pub mod oracle;
pub mod owner;
pub mod plan;
pub mod reference;
pub mod room;

pub use anabranch_ranks::{Across, Nodes, UnknownAcross};
pub use anabranch_tuning::{LinkSpeeds, Moved, TimeParts};
pub use cast::DispatchCast;
pub use codec::{CombineCodec, CombineSource, Fp8Format, UnknownWord};
pub use data_type::{DataType, UnknownDataType};
pub use error::{Error, Result};
pub use expert_major::{
    ExpertMajor, ExpertMajorConfig, ExpertMajorPlan, ExpertMajorRows, LocalExpertCounter,
};
pub use kernels::kernels;
pub use launch::LaunchTable;
pub use mask::{MaskCause, MaskedRank, OnTimeout};
pub use nodes::AcrossError;
pub use operation::{
    COMBINE, COUNT, CombineOutput, CombineSent, DISPATCH, DispatchSent, Dispatched, DroppedCopy,
    ExpertOutput, ExpertParallel, ReplayedTokens, Routing,
};
pub use payload::{Payload, UnknownPayload};
pub use placement::PlacementTable;
pub use plan::{EpConfig, MemoryPlan, Plan};
pub use received::ReceivedRows;
pub use room::{Mode, UnknownMode};
pub use tensor::{DeviceSlice, Tokens};
