//! Expert-parallel dispatch and combine over a group.
//!
//! A mixture-of-experts layer sends every token to the ranks that own its experts and sums what comes back.
//! [`ExpertParallel::dispatch`] does the first, [`ExpertParallel::combine`] the second; between them the caller runs its
//! experts on the rows it got. Each is one kernel on the caller's stream (a compact dispatch two; one more where weights are combined), may be captured into a
//! graph, and waits for no one on the host. Both can be split in two, with other work of the stream between.
//!
//! Read in this order: [`plan`] defines what is computed where, `kernels/*.hip` how (each with the argument that no flag
//! or row is overwritten too early), [`ExpertParallel`] when. The oracle that tests and benchmarks compare with, bit by
//! bit, is in the crate `anabranch-conformance`.
//!
//! [`ExpertMajor`] puts received rows into the order of this rank's experts, and sums their outputs back.
//!
//! [`ExpertParallel::routing`] saves where a dispatch's tokens went, and [`ExpertParallel::dispatch_with`] sends others the same way.
//!
//! With [`Payload::CopyEngine`] copy engines move the rows, so that between send and recv no kernel of an operation is on the device.
//!
//! Where ranks are on several nodes ([`Nodes`]), rows for other nodes are put over the routes that the heap has there ([`Across`]).
//!
//! A peer that does not come is a fault of the world, or, with [`OnTimeout::Mask`], it is masked and the others go on.
//!
//! Sums are in group-rank order with f32 accumulation and one rounding, so that the result is the same on every rank, in
//! every run, and for every launch shape.

#[cfg_attr(not(feature = "simulation"), expect(unreachable_pub, reason = "the feature exports it"))]
mod args;
mod error;
mod options;
mod route;
mod run;
mod slot;
mod tensor;

pub mod expert_major;
pub mod kernels;

/// What a simulation launches the kernels with instead of a world: the arguments that [`ExpertParallel`] passes, for its own memory.
#[cfg(feature = "simulation")]
pub mod simulation {
    pub use crate::args::*;
    pub use crate::route::{Push, RankArguments};
    pub use crate::slot::SlotAddresses;
}

mod lock;
pub mod plan;

pub use anabranch_elements::data_type::{DataType, UnsupportedDataType};
pub use anabranch_ranks::{Across, Nodes, UnknownAcross};
pub use anabranch_ranks::{LinkSettings, LinkSpeeds, Moved, TimeParts};
pub use error::{Error, Result};
pub use expert_major::{
    ExpertMajor, ExpertMajorConfig, ExpertMajorPlan, ExpertMajorRows, LocalExpertCounter,
};
pub use kernels::kernels;
pub use options::{
    CombineCodec, CombineSource, DispatchCast, Fp8Format, MaskCause, MaskedRank, Mode, OnTimeout, Payload,
    UnknownMode, UnknownPayload, UnknownWord,
};
pub use plan::launch::LaunchTable;
pub use plan::{EpConfig, EpShape, MemoryPlan, PlacementTable, Plan, launch};
pub use route::{COMBINE, COUNT, DISPATCH};
pub use run::{
    CombineSent, DispatchSent, Dispatched, DroppedCopy, ExpertParallel, ReceivedRow, ReceivedRows,
    ReplayedTokens, Routing,
};
pub use tensor::{COMBINED_TYPES, CombineOutput, DeviceSlice, ExpertOutput, HostElement, ROW_TYPES, Tokens};
