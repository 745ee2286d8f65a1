//! What can be wrong with a workload.

use safetensors::SafeTensorError;
use std::path::PathBuf;
use thiserror::Error;

/// A trace or a synthetic workload that cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum Error {
    /// The file cannot be read.
    #[error("trace {}: cannot be read", path.display())]
    Read {
        /// The trace.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is shorter or longer than its own header says.
    #[error("trace {}: the file has {found} bytes, its header promises {expected}; {}", path.display(),
        if found < expected { "it is truncated" } else { "something was added to it" })]
    FileLength {
        /// The trace.
        path: PathBuf,
        /// Bytes by the header.
        expected: u64,
        /// Bytes there.
        found: u64,
    },
    /// The header is not that of a safetensors file.
    #[error("trace {}: bytes 0..{header_end} are not a safetensors header (the file has {found} bytes)",
        path.display())]
    Header {
        /// The trace.
        path: PathBuf,
        /// End of the header, by its first eight bytes where they can be read.
        header_end: u64,
        /// Bytes of the file.
        found: u64,
        /// What the parser found.
        source: SafeTensorError,
    },
    /// A tensor is missing.
    #[error("trace {}: no tensor `{tensor}`", path.display())]
    MissingTensor {
        /// The trace.
        path: PathBuf,
        /// The tensor.
        tensor: &'static str,
        /// What the parser said.
        source: SafeTensorError,
    },
    /// A tensor has another type.
    #[error("trace {}: tensor `{tensor}` is {found}, expected {expected}", path.display())]
    TensorType {
        /// The trace.
        path: PathBuf,
        /// The tensor.
        tensor: &'static str,
        /// Type expected.
        expected: safetensors::Dtype,
        /// Type found.
        found: safetensors::Dtype,
    },
    /// A tensor has another shape.
    #[error("trace {}: tensor `{tensor}` has shape {found:?}, expected {expected}", path.display())]
    TensorShape {
        /// The trace.
        path: PathBuf,
        /// The tensor.
        tensor: &'static str,
        /// Shape expected, in words.
        expected: String,
        /// Shape found.
        found: Vec<usize>,
    },
    /// The metadata lacks an entry.
    #[error("trace {}: the metadata has no `{key}`", path.display())]
    MissingMetadata {
        /// The trace.
        path: PathBuf,
        /// The entry.
        key: &'static str,
    },
    /// An entry of the metadata is not what it must be.
    #[error("trace {}: metadata `{key}` is {found:?}, expected {expected}", path.display())]
    Metadata {
        /// The trace.
        path: PathBuf,
        /// The entry.
        key: &'static str,
        /// Value expected, in words.
        expected: String,
        /// Value found.
        found: String,
    },
    /// An id that is no expert.
    #[error("trace {}: topk_ids[{token}, {k}] is {id}, experts are 0..{experts}", path.display())]
    Expert {
        /// The trace.
        path: PathBuf,
        /// The token.
        token: usize,
        /// Its choice.
        k: usize,
        /// The id.
        id: i32,
        /// Number of experts.
        experts: u32,
    },
    /// A token names an expert twice.
    #[error("trace {}: topk_ids[{token}, {k}] names expert {id}, as topk_ids[{token}, {first}] does",
        path.display())]
    RepeatedExpert {
        /// The trace.
        path: PathBuf,
        /// The token.
        token: usize,
        /// The second choice.
        k: usize,
        /// The first choice.
        first: usize,
        /// The expert.
        id: i32,
    },
    /// A weight is infinite or not a number.
    #[error("trace {}: topk_weights[{token}, {k}] is {weight}", path.display())]
    Weight {
        /// The trace.
        path: PathBuf,
        /// The token.
        token: usize,
        /// The choice.
        k: usize,
        /// The weight.
        weight: f32,
    },
    /// The sequences are not in order.
    #[error("trace {}: seq_ids[{token}] is {found} after {previous}; they must never fall", path.display())]
    SequenceOrder {
        /// The trace.
        path: PathBuf,
        /// The first token that is out of order.
        token: usize,
        /// The sequence before.
        previous: i32,
        /// The sequence of this token.
        found: i32,
    },
    /// A size that must be at least 1 is 0.
    #[error("`{field}` is 0")]
    Zero {
        /// The field.
        field: &'static str,
    },
    /// More experts than an id can name.
    #[error("{experts} experts are more than ids can name ({})", i32::MAX)]
    Experts {
        /// Number of experts.
        experts: u32,
    },
    /// More distinct experts are asked for than there are.
    #[error("top-k {top_k} is more than the {experts} experts")]
    TopK {
        /// Experts per token.
        top_k: usize,
        /// Number of experts.
        experts: u32,
    },
    /// The share of masked ids is no share.
    #[error("the masked ratio {ratio} is not within 0..=1")]
    MaskedRatio {
        /// The ratio.
        ratio: f32,
    },
    /// A rank that the workload does not have.
    #[error("rank {rank} is not in a workload for {ranks} ranks")]
    NoSuchRank {
        /// The rank.
        rank: u32,
        /// Ranks of the workload.
        ranks: u32,
    },
}
