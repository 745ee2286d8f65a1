//! The laws of synthetic workloads.

use super::super::{RankTokens, Workload};
use super::*;
use half::bf16;
use proptest::prelude::*;

impl Synthetic {
    /// Two ranks, small.
    pub(in super::super) fn example() -> Self {
        Self {
            tokens: vec![4, 6],
            hidden: 8,
            experts: 8,
            top_k: 3,
            routing: Routing::Random,
            masked: 0.0,
            seed: 1,
        }
    }

    fn rank(&self, rank: u32) -> RankTokens {
        Workload::from_synthetic(self.clone(), DataType::Bf16).unwrap().rank(rank).unwrap()
    }
}

fn values(part: &RankTokens) -> Vec<f32> {
    part.tokens.chunks_exact(2).map(|pair| bf16::from_le_bytes([pair[0], pair[1]]).to_f32()).collect()
}

fn any_routing() -> impl Strategy<Value = Routing> {
    prop_oneof![Just(Routing::Random), Just(Routing::Hot), Just(Routing::Skewed)]
}

prop_compose! {
    fn any_synthetic()(experts in 1u32..40)(
        tokens in proptest::collection::vec(0u32..12, 1..9), hidden in 1usize..11, top_k in 1..=experts.min(9) as usize,
        experts in Just(experts), routing in any_routing(), seed in any::<u64>(),
    ) -> Synthetic {
        Synthetic { tokens, hidden, experts, top_k, routing, masked: 0.0, seed }
    }
}

proptest! {
    #[test]
    fn ids_are_distinct_and_weights_are_shares(synthetic in any_synthetic()) {
        for rank in 0..synthetic.tokens.len() as u32 {
            let part = synthetic.rank(rank);
            let count = synthetic.tokens[rank as usize] as usize;
            prop_assert_eq!(part.count, count);
            prop_assert_eq!(part.tokens.len(), count * synthetic.hidden * 2);
            prop_assert_eq!(part.ids.len(), count * synthetic.top_k);
            prop_assert_eq!(part.weights.len(), count * synthetic.top_k);
            for ids in part.ids.chunks_exact(synthetic.top_k) {
                let mut valid: Vec<_> = ids.iter().copied().filter(|id| *id != -1).collect();
                prop_assert!(valid.iter().all(|id| (0..synthetic.experts as i32).contains(id)));
                valid.sort_unstable();
                prop_assert!(valid.is_sorted_by(|a, b| a < b), "{:?}", ids);
                let hot = (synthetic.experts as usize / synthetic.tokens.len()).max(1);
                let expected = if synthetic.routing == Routing::Hot { hot.min(synthetic.top_k) } else { synthetic.top_k };
                prop_assert_eq!(valid.len(), expected);
                if synthetic.routing == Routing::Hot {
                    prop_assert!(valid.iter().all(|id| (*id as usize) < hot));
                }
            }
            for weights in part.weights.chunks_exact(synthetic.top_k) {
                prop_assert!(weights.iter().all(|weight| *weight > 0.0));
                prop_assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn a_token_depends_on_seed_rank_and_index_alone(synthetic in any_synthetic(), more in 1u32..5) {
        let mut longer = synthetic.clone();
        for count in &mut longer.tokens {
            *count += more;
        }
        for rank in 0..synthetic.tokens.len() as u32 {
            let (short, long) = (synthetic.rank(rank), longer.rank(rank));
            prop_assert_eq!(&short, &synthetic.rank(rank));
            prop_assert_eq!(&short.tokens[..], &long.tokens[..short.tokens.len()]);
            prop_assert_eq!(&short.ids[..], &long.ids[..short.ids.len()]);
            prop_assert_eq!(&short.weights[..], &long.weights[..short.weights.len()]);
        }
    }
}

#[test]
fn ranks_seeds_and_tokens_differ() {
    let synthetic = Synthetic { tokens: vec![50; 3], hidden: 32, ..Synthetic::example() };
    let parts: Vec<_> = (0..3).map(|rank| synthetic.rank(rank)).collect();
    assert!(parts[0].tokens != parts[1].tokens && parts[1].tokens != parts[2].tokens);
    assert!(parts[0].ids != parts[1].ids && parts[0].weights != parts[1].weights);
    let other = Synthetic { seed: 2, ..synthetic.clone() }.rank(0);
    assert!(
        other.tokens != parts[0].tokens && other.ids != parts[0].ids && other.weights != parts[0].weights
    );
    let mut rows: Vec<_> = parts.iter().flat_map(|part| part.tokens.chunks_exact(64)).collect();
    rows.sort_unstable();
    rows.dedup();
    assert_eq!(rows.len(), 150, "no two tokens are equal");
}

#[test]
fn the_same_seed_gives_the_same_bytes_in_every_build() {
    let part = Synthetic::example().rank(1);
    let sum = |bytes: &mut dyn Iterator<Item = u8>| {
        bytes.fold(0xCBF2_9CE4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)
        })
    };
    let tokens = sum(&mut part.tokens.iter().copied());
    let ids = sum(&mut part.ids.iter().flat_map(|id| id.to_le_bytes()));
    let weights = sum(&mut part.weights.iter().flat_map(|weight| weight.to_le_bytes()));
    // Recorded once: results of different builds compare only while the inputs stay the same.
    let recorded = [0xDFB4_5F92_2B54_73D4, 0xE1E9_82B9_552F_FED5, 0x8255_580D_259F_8ED4];
    assert_eq!([tokens, ids, weights], recorded);
}

#[test]
fn random_routing_is_even_over_experts_and_places() {
    let synthetic = Synthetic { tokens: vec![8000], ..Synthetic::example() };
    let part = synthetic.rank(0);
    for place in 0..3 {
        let mut counts = [0u32; 8];
        for ids in part.ids.chunks_exact(3) {
            counts[ids[place] as usize] += 1;
        }
        // Mean 1000, standard deviation 30.
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "place {place}: {counts:?}");
    }
}

#[test]
fn skewed_routing_falls_over_the_experts() {
    let synthetic = Synthetic {
        tokens: vec![4000],
        experts: 64,
        top_k: 4,
        routing: Routing::Skewed,
        ..Synthetic::example()
    };
    let mut counts = [0u32; 64];
    for id in synthetic.rank(0).ids {
        counts[id as usize] += 1;
    }
    assert!(
        counts[0] > 2 * counts[3] && counts[3] > 2 * counts[15] && counts[15] > 2 * counts[63],
        "{counts:?}"
    );
    assert!(counts[63] > 0);
    // All experts of a token, with one having most of the weight.
    let all = Synthetic { experts: 9, top_k: 9, routing: Routing::Skewed, ..Synthetic::example() };
    for ids in all.rank(1).ids.chunks_exact(9) {
        let mut sorted = ids.to_vec();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..9).collect::<Vec<_>>());
    }
}

#[test]
fn masking_hides_its_share_and_leaves_the_weights() {
    let with = |masked| Synthetic { tokens: vec![2000], masked, ..Synthetic::example() }.rank(0);
    let (none, some, all) = (with(0.0), with(0.25), with(1.0));
    assert!(none.ids.iter().all(|id| *id != -1));
    assert!(all.ids.iter().all(|id| *id == -1));
    let hidden = some.ids.iter().filter(|id| **id == -1).count();
    assert!((1350..1650).contains(&hidden), "{hidden} of 6000");
    assert!(some.ids.iter().zip(&none.ids).all(|(some, none)| *some == -1 || some == none));
    assert_eq!(some.weights, none.weights);
}

#[test]
fn elements_are_normal_numbers_of_many_magnitudes_and_both_signs() {
    let part = Synthetic { tokens: vec![200], hidden: 100, ..Synthetic::example() }.rank(0);
    let values = values(&part);
    let mut exponents = [0u32; 256];
    for value in &values {
        assert!(value.is_normal());
        exponents[(value.to_bits() >> 23 & 0xFF) as usize] += 1;
    }
    assert!(exponents[115..135].iter().all(|count| *count > 500), "{exponents:?}");
    assert_eq!(exponents[115..135].iter().sum::<u32>(), 20_000);
    let negative = values.iter().filter(|value| **value < 0.0).count();
    assert!((9000..11_000).contains(&negative));
}

/// What combine sums for an element that goes to several ranks: the element times each rank's weight.
#[test]
fn the_order_of_summation_shows_in_f32() {
    let synthetic =
        Synthetic { tokens: vec![64; 4], hidden: 64, experts: 16, top_k: 8, ..Synthetic::example() };
    let part = synthetic.rank(0);
    let mut differ = 0;
    for (token, row) in values(&part).chunks_exact(64).enumerate() {
        let mut weights = [0.0f32; 4];
        for (id, weight) in part.ids[token * 8..][..8].iter().zip(&part.weights[token * 8..]) {
            weights[*id as usize / 4] += weight;
        }
        for value in row {
            let up = weights.iter().fold(0.0, |sum, weight| sum + value * weight);
            let down = weights.iter().rev().fold(0.0, |sum, weight| sum + value * weight);
            differ += usize::from(up.to_bits() != down.to_bits());
        }
    }
    assert!(differ > 400, "{differ} of 4096 elements depend on the order");
}

#[test]
fn invalid_sizes_are_refused() {
    let check = |change: fn(&mut Synthetic)| {
        let mut synthetic = Synthetic::example();
        change(&mut synthetic);
        synthetic.check().unwrap_err().to_string()
    };
    assert_eq!(check(|s| s.tokens.clear()), "`ranks` is 0");
    assert_eq!(check(|s| s.hidden = 0), "`hidden` is 0");
    assert_eq!(check(|s| s.experts = 0), "`experts` is 0");
    assert_eq!(check(|s| s.top_k = 0), "`top_k` is 0");
    assert_eq!(check(|s| s.top_k = 9), "top-k 9 is more than the 8 experts");
    assert_eq!(check(|s| s.experts = 1 << 31), "2147483648 experts are more than ids can name (2147483647)");
    for ratio in [-0.1, 1.5, f32::NAN] {
        let error = Synthetic { masked: ratio, ..Synthetic::example() }.check().unwrap_err();
        assert_eq!(error.to_string(), format!("the masked ratio {ratio} is not within 0..=1"));
    }
    Synthetic::example().check().unwrap();
}
