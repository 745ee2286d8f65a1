//! Expert-parallel dispatch and combine over a group.
//!
//! A mixture-of-experts layer sends every token to the ranks that own its experts, and sums the experts' outputs for the token.
//! [`ExpertParallel::dispatch`] does the first, [`ExpertParallel::combine`] the second; between them the caller runs its
//! experts on the received rows. Each is one kernel on the caller's stream (a compact dispatch is two; one more where weights are
//! combined), may be captured into a graph, and does not block the host. Both can be split into send and receive, with other work of the
//! stream between.
//!
//! Read in this order: [`plan`] has the sizes and layouts, `kernels/*.hip` the protocols (each with the argument that no flag
//! or row is overwritten too early), [`ExpertParallel`] the calls. The oracle that tests and benchmarks compare with, bit by
//! bit, is in the crate `anabranch-conformance`.
//!
//! [`ExpertMajor`] copies received rows into the order of this rank's experts, and sums their outputs back.
//!
//! [`ExpertParallel::routing`] saves the routing of a dispatch, and [`ExpertParallel::dispatch_with`] sends other rows with it.
//!
//! With [`Payload::CopyEngine`] copy engines move the rows, so that between send and receive no kernel of an operation is on the device.
//!
//! Where ranks are on several nodes ([`Nodes`]), kernels put the rows for other nodes over the routes of the symmetric heap ([`Across`]).
//!
//! An expired wait for a peer is a fault of the world; with [`OnTimeout::Mask`] the peer is masked and the others continue.
//!
//! Sums are in group-rank order with f32 accumulation and one rounding, so the result is the same on every rank, in
//! every run, and for every launch shape.
#![warn(missing_docs)]

#[cfg_attr(not(feature = "simulation"), expect(unreachable_pub, reason = "the feature exports it"))]
mod args;
mod error;
mod known;
mod options;
mod route;
mod run;
mod slot;
mod tensor;

pub mod expert_major;
pub mod kernels;

/// The kernels' arguments as [`ExpertParallel`] passes them, for a simulation that launches the kernels on its own memory.
#[cfg(feature = "simulation")]
pub mod simulation {
    pub use crate::args::*;
    pub use crate::route::{Push, RankArguments};
    pub use crate::slot::SlotAddresses;
}

mod lock;
pub mod plan;

pub use anabranch_elements::data_type::{DataType, UnsupportedDataType};
pub use anabranch_ranks::{Across, Nodes};
pub use anabranch_ranks::{LinkSettings, LinkSpeeds, Moved, TimeParts};
pub use error::{Error, Result};
pub use expert_major::{
    ContiguousExperts, ContiguousLayout, ContiguousOutput, ContiguousRows, ContiguousWeights, ExpertMajor,
    ExpertMajorConfig, ExpertMajorPlan, ExpertMajorRows, LocalExpertCounter, RowUnpacker, Unpacked,
};
pub use kernels::kernels;
pub use options::{
    CombineCodec, CombineSource, DispatchCast, Fp8Format, MaskCause, MaskedRank, Mode, OnTimeout, Payload,
    ScaleLayout,
};
pub use plan::launch::LaunchTable;
pub use plan::{EpConfig, EpShape, MemoryPlan, PlacementTable, Plan, launch};
pub use route::{COMBINE, COUNT, DISPATCH};
pub use run::{
    CombineSent, DispatchSent, Dispatched, DroppedCopy, ExpertParallel, ReceivedRow, ReceivedRows,
    ReplayedTokens, Routing,
};
pub use tensor::{
    COMBINED_TYPES, CombineOutput, DeviceSlice, ExpertOutput, HostElement, LayoutOutput, ROW_TYPES, Tokens,
};
