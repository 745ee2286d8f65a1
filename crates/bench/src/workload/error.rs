//! What can be wrong with a workload.

use safetensors::SafeTensorError;
use std::path::PathBuf;
use thiserror::Error;

/// A trace or a synthetic workload that cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum Error {
    #[error("trace {}: cannot be read", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("trace {}: the file has {found} bytes, its header promises {expected}; {}", path.display(),
        if found < expected { "it is truncated" } else { "something was added to it" })]
    FileLength { path: PathBuf, expected: u64, found: u64 },
    #[error("trace {}: bytes 0..{header_end} are not a safetensors header (the file has {found} bytes)",
        path.display())]
    Header {
        path: PathBuf,
        /// End of the header, by its first eight bytes where they can be read.
        header_end: u64,
        /// Bytes of the file.
        found: u64,
        source: SafeTensorError,
    },
    #[error("trace {}: no tensor `{tensor}`", path.display())]
    MissingTensor { path: PathBuf, tensor: &'static str, source: SafeTensorError },
    #[error("trace {}: tensor `{tensor}` is {found}, expected {expected}", path.display())]
    TensorType {
        path: PathBuf,
        tensor: &'static str,
        expected: safetensors::Dtype,
        found: safetensors::Dtype,
    },
    #[error("trace {}: tensor `{tensor}` has shape {found:?}, expected {expected}", path.display())]
    TensorShape {
        path: PathBuf,
        tensor: &'static str,
        /// Shape expected, in words.
        expected: String,
        found: Vec<usize>,
    },
    #[error("trace {}: the metadata has no `{key}`", path.display())]
    MissingMetadata { path: PathBuf, key: &'static str },
    #[error("trace {}: metadata `{key}` is {found:?}, expected {expected}", path.display())]
    Metadata {
        path: PathBuf,
        key: &'static str,
        /// Value expected, in words.
        expected: String,
        found: String,
    },
    #[error("trace {}: topk_ids[{token}, {k}] is {id}, experts are 0..{experts}", path.display())]
    Expert { path: PathBuf, token: usize, k: usize, id: i32, experts: u32 },
    #[error("trace {}: topk_ids[{token}, {k}] names expert {id}, as topk_ids[{token}, {first}] does",
        path.display())]
    RepeatedExpert { path: PathBuf, token: usize, k: usize, first: usize, id: i32 },
    #[error("trace {}: topk_weights[{token}, {k}] is {weight}", path.display())]
    Weight { path: PathBuf, token: usize, k: usize, weight: f32 },
    #[error("trace {}: seq_ids[{token}] is {found} after {previous}; they must never fall", path.display())]
    SequenceOrder { path: PathBuf, token: usize, previous: i32, found: i32 },
    /// A size that must be at least 1 is 0.
    #[error("`{field}` is 0")]
    Zero { field: &'static str },
    #[error("{experts} experts are more than ids can name ({})", i32::MAX)]
    Experts { experts: u32 },
    #[error("top-k {top_k} is more than the {experts} experts")]
    TopK { top_k: usize, experts: u32 },
    #[error("the masked ratio {ratio} is not within 0..=1")]
    MaskedRatio { ratio: f32 },
    #[error("rank {rank} is not in a workload for {ranks} ranks")]
    NoSuchRank { rank: u32, ranks: u32 },
}
