//! The committed trace, small traces made here, and everything that can be wrong with one.

use super::*;

/// The trace that is committed with the workspace.
pub(in super::super) const REAL: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/moe-trace-minilm-e64k8.safetensors");

/// A trace of three tokens, H 2, K 2, 5 experts.
struct Small {
    tensors: Vec<(&'static str, Dtype, Vec<usize>, Vec<u8>)>,
    metadata: Vec<(&'static str, &'static str)>,
}

fn bytes<T, const N: usize>(values: &[T], to_bytes: impl Fn(&T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(to_bytes).collect()
}

impl Small {
    fn new() -> Self {
        let ids: [i32; 6] = [0, 4, 1, 2, 3, 0];
        let weights: [f32; 6] = [0.75, 0.25, 0.5, 0.5, 1.0, -0.5];
        Self {
            tensors: vec![
                ("hidden", Dtype::BF16, vec![3, 2], (0..12).collect()),
                ("topk_ids", Dtype::I32, vec![3, 2], bytes(&ids, |id| id.to_le_bytes())),
                ("topk_weights", Dtype::F32, vec![3, 2], bytes(&weights, |weight| weight.to_le_bytes())),
                ("seq_ids", Dtype::I32, vec![3], bytes(&[-3i32, 7, 7], |id| id.to_le_bytes())),
            ],
            metadata: vec![("num_experts", "5")],
        }
    }

    fn data(mut self, tensor: &str, element: usize, bytes: [u8; 4]) -> Self {
        let (.., data) = self.tensors.iter_mut().find(|(name, ..)| *name == tensor).unwrap();
        data[element * 4..][..4].copy_from_slice(&bytes);
        self
    }

    fn shape(mut self, tensor: &str, shape: &[usize]) -> Self {
        let (_, _, old, _) = self.tensors.iter_mut().find(|(name, ..)| *name == tensor).unwrap();
        *old = shape.to_vec();
        self
    }

    fn dtype(mut self, tensor: &str, dtype: Dtype) -> Self {
        let (_, old, ..) = self.tensors.iter_mut().find(|(name, ..)| *name == tensor).unwrap();
        *old = dtype;
        self
    }

    fn without(mut self, tensor: &str) -> Self {
        self.tensors.retain(|(name, ..)| *name != tensor);
        self
    }

    fn metadata(mut self, key: &'static str, value: &'static str) -> Self {
        self.metadata.retain(|(old, _)| *old != key);
        self.metadata.push((key, value));
        self
    }

    fn file(&self) -> Vec<u8> {
        let views = self
            .tensors
            .iter()
            .map(|(name, dtype, shape, data)| (*name, TensorView::new(*dtype, shape.clone(), data).unwrap()));
        let metadata = self.metadata.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        safetensors::serialize(views, Some(metadata)).unwrap()
    }

    fn parse(&self) -> Result<Trace, Error> {
        Trace::parse(Path::new("small.safetensors"), &self.file())
    }

    fn error(&self) -> String {
        self.parse().unwrap_err().to_string()
    }
}

#[test]
fn the_committed_trace_is_what_its_readme_says() {
    let trace = Trace::read(Path::new(REAL)).unwrap();
    assert_eq!((trace.hidden(), trace.experts(), trace.top_k()), (384, 64, 8));
    assert_eq!(trace.sequence_ids().len(), 8192);
    let lengths: Vec<_> = trace.sequence_ids().chunk_by(|a, b| a == b).map(<[_]>::len).collect();
    assert_eq!(lengths.len(), 40);
    assert_eq!((lengths.iter().min(), lengths.iter().max()), (Some(&86), Some(&308)));

    let mut loads = [0usize; 64];
    for &id in trace.ids(0..8192) {
        loads[id as usize] += 1;
    }
    assert_eq!((loads.iter().min(), loads.iter().max()), (Some(&195), Some(&4062)));
    for weights in trace.weights(0..8192).chunks_exact(8) {
        assert!(weights.iter().all(|weight| *weight > 0.0));
        assert!(weights.is_sorted_by(|a, b| a >= b));
        assert!((weights.iter().map(|weight| f64::from(*weight)).sum::<f64>() - 1.0).abs() < 1e-6);
    }
    let largest = trace.hidden_bits(0..8192).iter().map(|bits| half::bf16::from_bits(*bits).to_f32().abs());
    let largest = largest.fold(0.0, f32::max);
    assert!((14.1..14.3).contains(&largest), "{largest}");

    // Over 4 ranks: tokens by distinct ranks.
    let mut by_ranks = [0usize; 5];
    for ids in trace.ids(0..8192).chunks_exact(8) {
        let mut ranks: Vec<_> = ids.iter().map(|id| id / 16).collect();
        ranks.sort_unstable();
        ranks.dedup();
        by_ranks[ranks.len()] += 1;
    }
    assert_eq!(by_ranks, [0, 0, 53, 2240, 5899]);
}

#[test]
fn any_trace_of_the_form_is_read() {
    let trace = Small::new().parse().unwrap();
    assert_eq!((trace.hidden(), trace.experts(), trace.top_k()), (2, 5, 2));
    assert_eq!(trace.hidden_bits(1..3), [0x0504, 0x0706, 0x0908, 0x0B0A]);
    assert_eq!(trace.ids(1..2), [1, 2]);
    assert_eq!(trace.weights(2..3), [1.0, -0.5]);
    assert_eq!(trace.sequence_ids(), [-3, 7, 7]);

    let agreeing = Small::new().metadata("tokens", "3").metadata("hidden", "2").metadata("top_k", "2");
    agreeing.metadata("model", "some other model").parse().unwrap();

    let mut empty = Small::new();
    for (_, _, shape, data) in &mut empty.tensors {
        shape[0] = 0;
        data.clear();
    }
    assert_eq!(empty.parse().unwrap().sequence_ids().len(), 0);
}

#[test]
fn wrong_tensors_are_named() {
    for tensor in ["hidden", "topk_ids", "topk_weights", "seq_ids"] {
        let error = Small::new().without(tensor).error();
        assert_eq!(error, format!("trace small.safetensors: no tensor `{tensor}`"));
    }
    let error = Small::new().dtype("topk_ids", Dtype::U32).error();
    assert_eq!(error, "trace small.safetensors: tensor `topk_ids` is U32, expected I32");
    let error = Small::new().dtype("hidden", Dtype::F16).error();
    assert_eq!(error, "trace small.safetensors: tensor `hidden` is F16, expected BF16");

    let cases: [(&str, &[usize], &str); 7] = [
        ("hidden", &[6], "[6], expected [T, H]"),
        ("hidden", &[2, 3], "[3, 2], expected [2, K] with K at least 1"),
        ("topk_ids", &[6], "[6], expected [T, K]"),
        ("topk_ids", &[2, 3], "[2, 3], expected [3, K] with K at least 1"),
        ("topk_weights", &[3, 2, 1], "[3, 2, 1], expected [3, 2]"),
        ("topk_weights", &[2, 3], "[2, 3], expected [3, 2]"),
        ("seq_ids", &[3, 1], "[3, 1], expected [3]"),
    ];
    for (tensor, shape, message) in cases {
        let error = Small::new().shape(tensor, shape).error();
        assert!(error.ends_with(message), "{tensor} {shape:?}: {error}");
    }
    let mut no_width = Small::new().shape("hidden", &[3, 0]);
    no_width.tensors[0].3.clear();
    assert!(no_width.error().ends_with("[3, 0], expected [T, H] with H at least 1"));
}

#[test]
fn wrong_metadata_is_named() {
    let mut none = Small::new();
    none.metadata.clear();
    assert_eq!(none.error(), "trace small.safetensors: the metadata has no `num_experts`");
    for value in ["0", "-4", "five", "2147483648"] {
        let error = Small::new().metadata("num_experts", value).error();
        assert!(
            error.contains(&format!("`num_experts` is \"{value}\", expected a number within 1..=")),
            "{error}"
        );
    }
    for key in ["tokens", "hidden", "top_k"] {
        let error = Small::new().metadata(key, "17").error();
        assert!(error.contains(&format!("metadata `{key}` is \"17\"")), "{error}");
    }
}

#[test]
fn wrong_values_are_named_with_their_place() {
    let id = |place, id: i32| Small::new().data("topk_ids", place, id.to_le_bytes()).error();
    assert!(id(3, 5).ends_with("topk_ids[1, 1] is 5, experts are 0..5"));
    assert!(id(4, -1).ends_with("topk_ids[2, 0] is -1, experts are 0..5"));
    assert!(id(5, 3).ends_with("topk_ids[2, 1] names expert 3, as topk_ids[2, 0] does"));
    let weight = |weight: f32| Small::new().data("topk_weights", 3, weight.to_le_bytes()).error();
    assert!(weight(f32::NAN).ends_with("topk_weights[1, 1] is NaN"));
    assert!(weight(f32::INFINITY).ends_with("topk_weights[1, 1] is inf"));
    let error = Small::new().data("seq_ids", 2, 6i32.to_le_bytes()).error();
    assert!(error.ends_with("seq_ids[2] is 6 after 7; they must never fall"));
}

#[test]
fn a_file_cut_anywhere_is_an_error_that_says_where() {
    let whole = Small::new().file();
    let header_end = 8 + u64::from_le_bytes(*whole.first_chunk().unwrap()) as usize;
    for length in 0..whole.len() {
        let error = Trace::parse(Path::new("cut"), &whole[..length]).unwrap_err();
        match error {
            Error::FileLength { expected, found, .. } => {
                assert!(length >= header_end);
                assert_eq!((expected, found), (whole.len() as u64, length as u64));
            }
            Error::Header { header_end: end, found, .. } => {
                assert!(length < header_end);
                assert_eq!(found, length as u64);
                assert_eq!(end, if length < 8 { 8 } else { header_end as u64 });
            }
            other => panic!("cut to {length}: {other}"),
        }
    }
    let longer = [whole, vec![0]].concat();
    let error = Trace::parse(Path::new("longer"), &longer).unwrap_err().to_string();
    assert!(error.ends_with("something was added to it"), "{error}");
}

#[test]
fn a_corrupt_header_is_an_error_and_never_a_panic() {
    let whole = Small::new().file();
    let header_end = 8 + u64::from_le_bytes(*whole.first_chunk().unwrap()) as usize;
    for place in 0..8 {
        for bit in 0..8 {
            let mut wrong = whole.clone();
            wrong[place] ^= 1 << bit;
            let error = Trace::parse(Path::new("wrong"), &wrong).unwrap_err();
            assert!(matches!(error, Error::Header { .. }), "{error}");
        }
    }
    // A flipped bit in the header's text may still be a trace (a changed name in the metadata); it must not panic.
    let mut refused = 0;
    for place in 8..header_end {
        let mut wrong = whole.clone();
        wrong[place] ^= 4;
        refused += usize::from(Trace::parse(Path::new("wrong"), &wrong).is_err());
    }
    assert!(refused > (header_end - 8) / 2, "{refused} of {}", header_end - 8);

    let truncated = [u64::MAX.to_le_bytes().to_vec(), vec![0; 64]].concat();
    let error = Trace::parse(Path::new("wrong"), &truncated).unwrap_err();
    assert!(matches!(error, Error::Header { .. }), "{error}");
}

#[test]
fn missing_file_is_named() {
    let error = Trace::read(Path::new("/nowhere/at all")).unwrap_err();
    assert_eq!(error.to_string(), "trace /nowhere/at all: cannot be read");
    assert!(std::error::Error::source(&error).is_some());
}
