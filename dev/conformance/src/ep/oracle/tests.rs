//! The oracle against worked examples and a receiver written another way, and against wrong answers, which it
//! must all notice.

mod expert_major;
mod worked;
mod wrong;

use super::*;
use half::bf16;
use proptest::prelude::*;

/// One rank's input, owned.
#[derive(Clone, Debug)]
struct Input {
    tokens: Vec<u8>,
    ids: Vec<i32>,
    weights: Vec<f32>,
    scales: Vec<u8>,
}

impl Input {
    fn lend(&self) -> RankInput<'_> {
        RankInput { tokens: &self.tokens, ids: &self.ids, weights: Some(&self.weights), scales: &self.scales }
    }
}

fn lend(inputs: &[Input]) -> Vec<RankInput<'_>> {
    inputs.iter().map(Input::lend).collect()
}

fn rank(number: u32) -> GroupRank {
    GroupRank::new(number)
}

fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn bf16_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect()
}

/// A receiver's tables, filled by looking at every (source, token, k) in turn. With `dedup` off it is the
/// receiver of a sender that forgot to deduplicate.
#[derive(Clone, Debug)]
struct Received {
    counts: Vec<u32>,
    offsets: Vec<u32>,
    tokens: Vec<u32>,
    payload: Vec<u8>,
    ids: Vec<i32>,
    weights: Vec<f32>,
    scales: Vec<u8>,
    shape: Shape,
}

impl Received {
    fn fill(shape: &Shape, inputs: &[Input], destination: u32, dedup: bool) -> Self {
        let (k, scale) = (shape.top_k, shape.scale_bytes);
        let row_bytes = shape.row_bytes();
        // A receiver without deduplication may need K rows for each token.
        let rows = shape.ranks as usize * shape.max_tokens * k;
        let mut received = Self {
            counts: vec![0; shape.ranks as usize],
            offsets: vec![0; shape.ranks as usize + 1],
            tokens: vec![u32::MAX; rows],
            payload: vec![0xA5; rows * row_bytes],
            ids: vec![i32::MIN; rows * k],
            weights: vec![f32::NAN; rows * k],
            scales: vec![0x5A; rows * scale],
            shape: shape.clone(),
        };
        let local = |id: i32| {
            let (experts, ranks) = (i64::from(shape.experts), i64::from(shape.ranks));
            let first = |rank: u32| i64::from(rank) * experts / ranks;
            (first(destination)..first(destination + 1)).contains(&i64::from(id))
        };
        for (source, input) in inputs.iter().enumerate() {
            for token in 0..input.ids.len() / k {
                let ids = &input.ids[token * k..][..k];
                let hits = ids.iter().filter(|id| local(**id)).count();
                for _ in 0..if dedup { hits.min(1) } else { hits } {
                    let row = source * shape.max_tokens + received.counts[source] as usize;
                    received.counts[source] += 1;
                    received.tokens[row] = token as u32;
                    received.payload[row * row_bytes..][..row_bytes]
                        .copy_from_slice(&input.tokens[token * row_bytes..][..row_bytes]);
                    for (place, id) in ids.iter().enumerate() {
                        let valid = (0..shape.experts as i32).contains(id);
                        received.ids[row * k + place] = if valid { *id } else { -1 };
                    }
                    received.weights[row * k..][..k].copy_from_slice(&input.weights[token * k..][..k]);
                    received.scales[row * scale..][..scale]
                        .copy_from_slice(&input.scales[token * scale..][..scale]);
                }
            }
            received.offsets[source + 1] = received.offsets[source] + received.counts[source];
        }
        received
    }

    fn rows(&self) -> SlottedRows<'_> {
        SlottedRows {
            counts: &self.counts,
            offsets: Some(&self.offsets),
            tokens: &self.tokens,
            payload: &self.payload,
            row_bytes: self.shape.row_bytes(),
            ids: &self.ids,
            top_k: self.shape.top_k,
            weights: &self.weights,
            scales: &self.scales,
            scale_bytes: self.shape.scale_bytes,
        }
    }
}

fn small() -> (Shape, Vec<Input>) {
    let shape = Shape {
        ranks: 2,
        experts: 3,
        top_k: 2,
        hidden: 2,
        scale_bytes: 1,
        max_tokens: 3,
        placement: None,
        window: Window::Slotted { slots: 3 },
        dispatch: DataType::F32,
        combine: DataType::F32,
        output: DataType::F32,
        codec: CombineCodec::None,
    };
    // Rank 0 owns expert 0, rank 1 owns experts 1 and 2.
    let first = Input {
        tokens: f32_bytes(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        ids: vec![0, 2, 2, 1, 7, -1],
        weights: vec![0.25, 0.75, 0.5, 0.125, 1.0, 1.0],
        scales: vec![10, 11, 12],
    };
    let second =
        Input { tokens: f32_bytes(&[7.0, 8.0]), ids: vec![-9, 0], weights: vec![4.0, 2.0], scales: vec![20] };
    (shape, vec![first, second])
}

/// A mid-sized case with masked and invalid ids, uneven and empty ranks, several experts per rank.
fn mixed(dispatch: DataType, combine: DataType) -> (Shape, Vec<Input>) {
    let counts = [5usize, 0, 9, 1];
    let shape = Shape {
        ranks: 4,
        experts: 10,
        top_k: 4,
        hidden: 6,
        scale_bytes: 3,
        max_tokens: 9,
        placement: None,
        window: Window::Slotted { slots: 9 },
        dispatch,
        combine,
        output: combine,
        codec: CombineCodec::None,
    };
    let mut state = 7u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    let inputs = counts
        .iter()
        .map(|&count| {
            let values: Vec<f32> =
                (0..count * 6).map(|_| f32::from_bits(next() << 1 & 0x87FF_0000 | 0x3A00_0000)).collect();
            Input {
                tokens: if dispatch == DataType::F32 { f32_bytes(&values) } else { bf16_bytes(&values) },
                ids: (0..count * 4).map(|_| (next() % 14) as i32 - 2).collect(),
                weights: (0..count * 4).map(|_| (next() % 1000 + 1) as f32 / 777.0).collect(),
                scales: (0..count * 3).map(|_| next() as u8).collect(),
            }
        })
        .collect();
    (shape, inputs)
}

prop_compose! {
    fn any_case()(
        ranks in 1u32..7, experts in 1u32..20, top_k in 1usize..6, hidden in 1usize..4, scale_bytes in 0usize..3,
    )(
        ids in proptest::collection::vec(
            proptest::collection::vec(-2i32..experts as i32 + 2, 0..6 * top_k), ranks as usize),
        ranks in Just(ranks), experts in Just(experts), top_k in Just(top_k), hidden in Just(hidden),
        scale_bytes in Just(scale_bytes), seed in any::<u32>(),
    ) -> (Shape, Vec<Input>) {
        let shape = Shape {
            ranks, experts, top_k, hidden, scale_bytes, max_tokens: 6, placement: None, window: Window::Slotted { slots: 6 },
            dispatch: DataType::F32, combine: DataType::F32, output: DataType::F32,
            codec: CombineCodec::None,
        };
        let inputs = ids.into_iter().enumerate().map(|(source, mut ids)| {
            let tokens = ids.len() / top_k;
            ids.truncate(tokens * top_k);
            // Provenance payload: every element tells its source, token and column.
            let element = |i: usize| f32::from_bits(seed & 0xFF00_0000 | (source * 4096 + i) as u32);
            Input {
                tokens: f32_bytes(&(0..tokens * hidden).map(element).collect::<Vec<_>>()),
                weights: (0..ids.len()).map(|i| 0.5 + i as f32).collect(),
                scales: (0..tokens * scale_bytes).map(|i| (source * 50 + i) as u8).collect(),
                ids,
            }
        }).collect();
        (shape, inputs)
    }
}

proptest! {
    #[test]
    fn the_oracle_agrees_with_a_receiver_that_looks_at_every_id((shape, inputs) in any_case()) {
        let oracle = Oracle::new(shape.clone(), lend(&inputs)).unwrap();
        for destination in 0..shape.ranks {
            let received = Received::fill(&shape, &inputs, destination, true);
            let delivery = oracle.dispatch(rank(destination)).unwrap();
            prop_assert_eq!(delivery.compare_rows(&received.rows()), Ok(()));
            prop_assert_eq!(delivery.rows().count(), delivery.total() as usize);
        }
    }

    #[test]
    fn what_is_sent_is_what_is_summed((shape, inputs) in any_case()) {
        let oracle = Oracle::new(shape.clone(), lend(&inputs)).unwrap();
        let mut sent = std::collections::BTreeSet::new();
        for source in 0..shape.ranks {
            let combination = oracle.combine(rank(source)).unwrap();
            for token in 0..oracle.tokens(rank(source)) {
                let copies: Vec<_> = combination.copies(token).collect();
                prop_assert!(copies.is_sorted_by(|a, b| a.destination < b.destination));
                for copy in copies {
                    prop_assert!(sent.insert((copy.destination, copy.row, source, token as u32)));
                }
            }
        }
        for destination in 0..shape.ranks {
            for row in oracle.dispatch(rank(destination)).unwrap().rows() {
                prop_assert!(sent.remove(&(rank(destination), row.index, row.source.get(), row.token)));
            }
        }
        prop_assert!(sent.is_empty());
    }
}
