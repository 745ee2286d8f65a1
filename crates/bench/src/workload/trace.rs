//! A recorded trace of tokens and their routing, from a safetensors file.

use super::Error;
use safetensors::tensor::{Metadata, TensorView};
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Tokens with their routing and the sequence that each belongs to.
#[derive(Clone, Debug)]
pub(crate) struct Trace {
    hidden: usize,
    experts: u32,
    top_k: usize,
    hidden_bits: Vec<u16>,
    ids: Vec<i32>,
    weights: Vec<f32>,
    sequence_ids: Vec<i32>,
}

impl Trace {
    /// Reads and checks a trace. The file has the tensors `hidden` (bf16 `[T, H]`), `topk_ids` (i32 `[T, K]`),
    /// `topk_weights` (f32 `[T, K]`) and `seq_ids` (i32 `[T]`), and in its metadata `num_experts`; where the
    /// metadata also gives `tokens`, `hidden` or `top_k`, they must agree with the tensors.
    ///
    /// # Errors
    /// An [`Error`] that says what is wrong and where: a file that cannot be read, is truncated or is no
    /// safetensors file, a tensor that is missing or has another type or shape, metadata that is missing or
    /// differs, an id that is no expert or comes twice for one token, a weight that is not finite, a sequence
    /// that comes before its predecessor.
    pub(crate) fn read(path: &Path) -> Result<Self, Error> {
        let bytes = std::fs::read(path).map_err(|source| Error::Read { path: path.to_path_buf(), source })?;
        Self::parse(path, &bytes)
    }

    fn parse(path: &Path, bytes: &[u8]) -> Result<Self, Error> {
        let (_, metadata) =
            SafeTensors::read_metadata(bytes).map_err(|error| not_whole(path, bytes, error))?;
        let tensors = SafeTensors::deserialize(bytes).map_err(|error| not_whole(path, bytes, error))?;
        let file = File { path, tensors, metadata: metadata.metadata().clone().unwrap_or_default() };

        let hidden = file.tensor("hidden", Dtype::BF16)?;
        let [tokens, width] = *hidden.shape() else {
            return Err(file.shape("hidden", "[T, H]", &hidden));
        };
        let topk_ids = file.tensor("topk_ids", Dtype::I32)?;
        let [rows, top_k] = *topk_ids.shape() else {
            return Err(file.shape("topk_ids", "[T, K]", &topk_ids));
        };
        if width == 0 {
            return Err(file.shape("hidden", "[T, H] with H at least 1", &hidden));
        }
        if rows != tokens || top_k == 0 {
            return Err(file.shape("topk_ids", &format!("[{tokens}, K] with K at least 1"), &topk_ids));
        }
        let topk_weights = file.tensor("topk_weights", Dtype::F32)?;
        if topk_weights.shape() != [tokens, top_k] {
            return Err(file.shape("topk_weights", &format!("[{tokens}, {top_k}]"), &topk_weights));
        }
        let seq_ids = file.tensor("seq_ids", Dtype::I32)?;
        if seq_ids.shape() != [tokens] {
            return Err(file.shape("seq_ids", &format!("[{tokens}]"), &seq_ids));
        }
        let experts = file.experts()?;
        for (key, value) in [("tokens", tokens), ("hidden", width), ("top_k", top_k)] {
            file.agrees(key, value)?;
        }

        let trace = Self {
            hidden: width,
            experts,
            top_k,
            hidden_bits: hidden.data().chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect(),
            ids: words(&topk_ids).map(u32::cast_signed).collect(),
            weights: words(&topk_weights).map(f32::from_bits).collect(),
            sequence_ids: words(&seq_ids).map(u32::cast_signed).collect(),
        };
        trace.check(path)?;
        Ok(trace)
    }

    fn check(&self, path: &Path) -> Result<(), Error> {
        let path = || path.to_path_buf();
        for (token, ids) in self.ids.chunks_exact(self.top_k).enumerate() {
            for (k, &id) in ids.iter().enumerate() {
                if !u32::try_from(id).is_ok_and(|expert| expert < self.experts) {
                    return Err(Error::Expert { path: path(), token, k, id, experts: self.experts });
                }
                if let Some(first) = ids[..k].iter().position(|earlier| *earlier == id) {
                    return Err(Error::RepeatedExpert { path: path(), token, k, first, id });
                }
            }
        }
        if let Some(place) = self.weights.iter().position(|weight| !weight.is_finite()) {
            let (token, k) = (place / self.top_k, place % self.top_k);
            return Err(Error::Weight { path: path(), token, k, weight: self.weights[place] });
        }
        if let Some(before) = self.sequence_ids.windows(2).position(|pair| pair[1] < pair[0]) {
            let (previous, found) = (self.sequence_ids[before], self.sequence_ids[before + 1]);
            return Err(Error::SequenceOrder { path: path(), token: before + 1, previous, found });
        }
        Ok(())
    }

    /// Elements of a token, H.
    pub(crate) fn hidden(&self) -> usize {
        self.hidden
    }

    /// Number of experts.
    pub(crate) fn experts(&self) -> u32 {
        self.experts
    }

    /// Experts per token, K.
    pub(crate) fn top_k(&self) -> usize {
        self.top_k
    }

    /// The sequence of each token; never falls.
    pub(crate) fn sequence_ids(&self) -> &[i32] {
        &self.sequence_ids
    }

    /// The elements of these tokens, as bf16 bits. Panics for tokens that are not there, as all accessors by
    /// token do.
    pub(super) fn hidden_bits(&self, tokens: Range<usize>) -> &[u16] {
        &self.hidden_bits[tokens.start * self.hidden..tokens.end * self.hidden]
    }

    /// The expert ids of these tokens.
    pub(super) fn ids(&self, tokens: Range<usize>) -> &[i32] {
        &self.ids[tokens.start * self.top_k..tokens.end * self.top_k]
    }

    /// The weights of these tokens.
    pub(super) fn weights(&self, tokens: Range<usize>) -> &[f32] {
        &self.weights[tokens.start * self.top_k..tokens.end * self.top_k]
    }
}

/// A file that parsed as safetensors.
struct File<'f> {
    path: &'f Path,
    tensors: SafeTensors<'f>,
    metadata: HashMap<String, String>,
}

impl<'f> File<'f> {
    fn path(&self) -> PathBuf {
        self.path.to_path_buf()
    }

    fn tensor(&self, tensor: &'static str, expected: Dtype) -> Result<TensorView<'f>, Error> {
        let view = self.tensors.tensor(tensor).map_err(|source| Error::MissingTensor {
            path: self.path(),
            tensor,
            source,
        })?;
        if view.dtype() != expected {
            return Err(Error::TensorType { path: self.path(), tensor, expected, found: view.dtype() });
        }
        Ok(view)
    }

    fn shape(&self, tensor: &'static str, expected: &str, found: &TensorView<'_>) -> Error {
        Error::TensorShape {
            path: self.path(),
            tensor,
            expected: expected.to_owned(),
            found: found.shape().to_vec(),
        }
    }

    fn experts(&self) -> Result<u32, Error> {
        let key = "num_experts";
        let found =
            self.metadata.get(key).ok_or_else(|| Error::MissingMetadata { path: self.path(), key })?;
        match found.parse::<u32>() {
            Ok(experts) if (1..=i32::MAX as u32).contains(&experts) => Ok(experts),
            _ => Err(Error::Metadata {
                path: self.path(),
                key,
                expected: format!("a number within 1..={}", i32::MAX),
                found: found.clone(),
            }),
        }
    }

    fn agrees(&self, key: &'static str, value: usize) -> Result<(), Error> {
        match self.metadata.get(key) {
            Some(found) if found.parse() != Ok(value) => Err(Error::Metadata {
                path: self.path(),
                key,
                expected: format!("{value}, as in the tensors"),
                found: found.clone(),
            }),
            _ => Ok(()),
        }
    }
}

/// The elements of a tensor of four-byte elements.
fn words<'t>(tensor: &'t TensorView<'_>) -> impl Iterator<Item = u32> + 't {
    tensor.data().chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

/// Says whether a file that does not parse has the wrong length or the wrong header.
fn not_whole(path: &Path, bytes: &[u8], source: SafeTensorError) -> Error {
    let path = path.to_path_buf();
    let found = bytes.len() as u64;
    let header_bytes = bytes.first_chunk::<8>().map(|length| u64::from_le_bytes(*length));
    let header_end = header_bytes.map_or(8, |length| length.saturating_add(8));
    let promised = bytes
        .get(8..usize::try_from(header_end).unwrap_or(usize::MAX).max(8))
        .and_then(|header| serde_json::from_slice::<Metadata>(header).ok())
        .map(|metadata| header_end + metadata.data_len() as u64);
    match promised {
        Some(expected) if expected != found => Error::FileLength { path, expected, found },
        _ => Error::Header { path, header_end, found, source },
    }
}

#[cfg(test)]
pub(super) mod tests;
