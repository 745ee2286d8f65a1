//! What can go wrong in dispatch and combine, as values.

use std::path::PathBuf;
use std::time::Duration;

use anabranch_ranks::{GlobalRank, GroupRank};

use crate::cast::DispatchCast;
use crate::codec::{CombineCodec, CombineSource};
use crate::data_type::DataType;
use crate::nodes::AcrossError;
use crate::payload::Payload;
use crate::room::Mode;

/// An error of expert-parallel dispatch or combine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A number in the configuration cannot be used.
    #[error("{field} is {given}; {allowed}")]
    Config {
        /// The field.
        field: &'static str,
        /// What it was.
        given: u64,
        /// What is allowed.
        allowed: String,
    },
    /// A placement cannot be.
    #[error("the placement of expert {expert} cannot be: {problem}")]
    Placement {
        /// The expert.
        expert: u32,
        /// Why.
        problem: String,
    },
    /// A file that holds no placement.
    #[error("the placement {}: {problem}", path.display())]
    PlacementFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A table of launches that cannot be used.
    #[error("the table of launches {}: {problem}", path.display())]
    Table {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A call has more tokens than the plan holds.
    #[error("{given} tokens were given, but the plan holds max_tokens = {max_tokens} a rank")]
    TooManyTokens {
        /// Tokens of the call.
        given: usize,
        /// What the plan allows.
        max_tokens: u32,
    },
    /// A buffer is too small for its shape.
    #[error("{what} has {given} bytes, but {shape} needs {needed}")]
    Shape {
        /// The tensor.
        what: &'static str,
        /// Bytes given.
        given: usize,
        /// Bytes needed.
        needed: usize,
        /// The shape, in words.
        shape: String,
    },
    /// A tensor starts at an address that the kernels cannot read.
    #[error("{what} starts at {address:#x}, which is no multiple of {alignment} bytes")]
    Alignment {
        /// The tensor.
        what: &'static str,
        /// Its address.
        address: u64,
        /// What is needed.
        alignment: u64,
    },
    /// Combine does not sum rows of the type.
    #[error("combine_type is {given}; allowed are {allowed}: an expert's output is summed and rounded once")]
    CombineType {
        /// Type given.
        given: DataType,
        /// Types that it sums, in words.
        allowed: String,
    },
    /// A codec was asked for where rows may travel without it.
    #[error(
        "combine_codec is {codec} with combine_source {source_of_rows}; rows are encoded while they are pushed, and those in \
         the combine window are pulled as they are: take combine_source {}, or the codec {}",
        CombineSource::Buffer,
        CombineCodec::None
    )]
    CodecNeedsPush {
        /// Codec given.
        codec: CombineCodec,
        /// Source given.
        source_of_rows: CombineSource,
    },
    /// A cast does not go with a type of the configuration.
    #[error("{what} is {given}; with dispatch_cast {cast} allowed are {allowed}")]
    CastType {
        /// The field.
        what: &'static str,
        /// The cast.
        cast: DispatchCast,
        /// Type given.
        given: DataType,
        /// Types that go with it, in words.
        allowed: String,
    },
    /// Scales were given to a dispatch that makes them.
    #[error(
        "scales were given, {given} bytes a token, but the plan was made with dispatch_cast {cast}, which makes them: give none"
    )]
    CastScales {
        /// Bytes a token given.
        given: u32,
        /// The cast.
        cast: DispatchCast,
    },
    /// A number of tokens in device memory was given to a plan whose kernels do not read one.
    #[error(
        "the number of tokens was given as a device value, but the plan was made without: set device_token_count in its \
         configuration"
    )]
    NoDeviceCount,
    /// The experts' output lies where the plan does not look for it.
    #[error("the experts' output was given in {given}, but the plan was made with combine_source {planned}")]
    Source {
        /// Where it lies, in words.
        given: &'static str,
        /// Source of the plan.
        planned: CombineSource,
    },
    /// A buffer to push from is part of the slot, where peers push to.
    #[error(
        "{what} at {address:#x} lies in the operation's own windows, into which peers push; give a buffer of your own"
    )]
    InOwnWindows {
        /// The tensor.
        what: &'static str,
        /// Its address.
        address: u64,
    },
    /// A buffer to write has bytes in common with one that the same kernel reads.
    #[error("{what} at {address:#x} overlaps {with}, which is read while it is written")]
    Overlap {
        /// The tensor written.
        what: &'static str,
        /// Its address.
        address: u64,
        /// The tensor read.
        with: &'static str,
    },
    /// A tensor's type is not the plan's.
    #[error("{what} is {given}, but the plan was made for {planned}")]
    Type {
        /// The tensor.
        what: &'static str,
        /// Type given.
        given: DataType,
        /// Type of the plan.
        planned: DataType,
    },
    /// Scales were given or left out against the plan.
    #[error(
        "scales: {given} bytes a token were given, but the plan has {planned} (all tokens have scales, or none)"
    )]
    Scales {
        /// Bytes a token given.
        given: u32,
        /// Bytes a token of the plan.
        planned: u32,
    },
    /// Every slot has an operation in flight.
    #[error(
        "all {slots} slots have a dispatch in flight; combine or release one first, or plan more slots (ep.slots)"
    )]
    SlotsBusy {
        /// Slots of the plan.
        slots: u32,
    },
    /// A handle of another plan was given.
    #[error("the handle belongs to another plan")]
    ForeignHandle,
    /// Nothing was kept in a routing yet.
    #[error("the routing is empty: keep that of a dispatch first")]
    NothingKept,
    /// Routings of this plan cannot be kept.
    #[error("a routing of this plan cannot be kept: {why}")]
    NoRouting {
        /// What the plan does that a kept routing does not know.
        why: &'static str,
    },
    /// A call that allocates or waits was made while its stream was being captured.
    #[error("{call} allocates memory or waits, which a capture does not allow; call {instead}")]
    Capturing {
        /// The call.
        call: &'static str,
        /// What to do instead.
        instead: &'static str,
    },
    /// Room for combined weights was given to a plan without them, or left out where the plan has them.
    #[error(
        "the plan was made with combine_weights = {planned}, and a combine {} for them",
        if *.planned { "without room" } else { "with room" }
    )]
    CombineWeights {
        /// Whether the plan combines weights.
        planned: bool,
    },
    /// The expert-major buffers hold another dispatch, or none.
    #[error(
        "the expert-major buffers do not hold this dispatch: expand it first, and contract it before the next expand"
    )]
    NotExpanded,
    /// An expert id named no expert. It counted as masked.
    #[error(
        "{rank} gave {count} invalid expert id(s), the first at token {token}: {id} (allowed are -1 and 0..{experts})"
    )]
    InvalidExpert {
        /// The rank that gave it.
        rank: GroupRank,
        /// How many there were.
        count: u32,
        /// Token of the first.
        token: u32,
        /// The first id.
        id: i32,
        /// Experts of the plan.
        experts: u32,
    },
    /// A number of tokens in device memory was above the bound that came with it. The bound was used.
    #[error(
        "{rank} gave {count} dispatch(es) a device token count above the tokens it has, the first of them {given} where \
         at most {allowed} are there; those were dispatched"
    )]
    ExcessTokens {
        /// The rank that gave it.
        rank: GroupRank,
        /// How many dispatches had such a number.
        count: u32,
        /// The first one's number.
        given: u32,
        /// Its bound.
        allowed: u32,
    },
    /// Ranks can be masked in the slotted mode only.
    #[error(
        "on_timeout masks ranks, and the mode is {mode}; allowed is {}: ranks that differ in whom they mask would work out \
         different places for the same rows",
        Mode::Slotted
    )]
    MaskNeedsSlotted {
        /// Mode of the plan.
        mode: Mode,
    },
    /// The patience of a mask cannot be used.
    #[error("the patience of on_timeout is {given:?}; allowed is {allowed}")]
    Patience {
        /// Patience given.
        given: Duration,
        /// What is allowed.
        allowed: String,
    },
    /// The plan masks nobody.
    #[error("the plan has no mask; make it with on_timeout mask")]
    NoMask,
    /// A rank cannot be masked, or take part in a reset.
    #[error("the mask cannot be changed for {rank}: {problem}")]
    MaskRank {
        /// The rank.
        rank: GroupRank,
        /// Why.
        problem: &'static str,
    },
    /// A mask cannot be reset before all operations have ended.
    #[error("{held} operations have not ended; combine or release their dispatches before the mask is reset")]
    OperationsInFlight {
        /// Slots that are held.
        held: usize,
    },
    /// Another rank could not reset its mask; nobody has.
    #[error("{rank} could not reset its mask: {cause}")]
    ResetElsewhere {
        /// The rank.
        rank: GroupRank,
        /// What it said.
        cause: String,
    },
    /// Copy engines cannot move the rows of such a plan.
    #[error("payload is {payload}, and {field} is {given}; allowed with it is {allowed}: {why}")]
    Payload {
        /// What was to move rows.
        payload: Payload,
        /// The field.
        field: &'static str,
        /// What it was.
        given: String,
        /// Why not.
        why: &'static str,
        /// What is allowed.
        allowed: String,
    },
    /// A plan cannot go across the group's nodes as it is.
    #[error(transparent)]
    Across(#[from] AcrossError),
    /// A peer's memory cannot be reached by kernels.
    #[error(
        "{peer} cannot be reached by loads and stores of this rank, which is what dispatch and combine need of a member that is near: {route}"
    )]
    Unreachable {
        /// The peer.
        peer: GlobalRank,
        /// Which route there is to it, and why that one.
        route: String,
    },
    /// The layer below.
    #[error(transparent)]
    Shmem(#[from] anabranch_shmem::Error),
    /// Compiling or loading kernels.
    #[error(transparent)]
    Jit(#[from] anabranch_hip_jit::Error),
    /// The runtime.
    #[error(transparent)]
    Hip(#[from] anabranch_hip::Error),
}

/// The result of calls in this crate.
pub type Result<T, E = Error> = core::result::Result<T, E>;
