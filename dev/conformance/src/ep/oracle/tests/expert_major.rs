//! Expert-major layouts worked out by hand and by sorting, and wrong ones.

use super::*;
use anabranch_ep::expert_major::{ExpertMajorRows, ExpertRowSource, ExpertTable, SLOT_DROPPED, SLOT_NONE};

#[test]
fn a_worked_layout() {
    let (shape, inputs) = small();
    let oracle = Oracle::new(shape, lend(&inputs)).unwrap();
    let at_one = oracle.expert_major(rank(1), 1, 1).unwrap();
    assert_eq!(at_one.experts(), [1, 2]);
    let pair = |row, token, k| Pair { row, source: rank(0), token, k };
    assert_eq!(at_one.pairs(0), [pair(1, 1, 1)]);
    assert_eq!(at_one.pairs(1), [pair(0, 0, 1), pair(1, 1, 0)]);
    assert_eq!(at_one.kept(1), [pair(0, 0, 1)]);
    assert_eq!(at_one.dropped().collect::<Vec<_>>(), [&pair(1, 1, 0)]);
    let at_zero = oracle.expert_major(rank(0), 4, 1).unwrap();
    assert_eq!(at_zero.pairs(0), [pair(0, 0, 0), Pair { row: 3, source: rank(1), token: 0, k: 1 }]);
    assert!(matches!(oracle.expert_major(rank(2), 1, 1), Err(OracleError::NoSuchRank { .. })));
    assert!(matches!(oracle.expert_major(rank(0), 1, 0), Err(OracleError::Zero { .. })));
}

#[test]
fn a_worked_contract() {
    let (shape, inputs) = small();
    let oracle = Oracle::new(shape, lend(&inputs)).unwrap();
    // Factors of the experts are 1, 1.125 and 1.25. Token 0 is 0.25 at rank 0 and 0.75 * 1.25 at rank 1; token 1 is 0.5 * 1.25 and
    // 0.125 * 1.125 at rank 1.
    let all = oracle.contracted(3, FactorExperts).unwrap();
    let output = oracle.combine(rank(0)).unwrap().output(&all);
    assert_eq!(output, f32_bytes(&[1.1875, 2.375, 2.296_875, 3.0625, 0.0, 0.0]));
    // With one row an expert, the second pair of expert 2 is left out.
    let few = oracle.contracted(1, FactorExperts).unwrap();
    let output = oracle.combine(rank(0)).unwrap().output(&few);
    assert_eq!(output, f32_bytes(&[1.1875, 2.375, 0.421_875, 0.5625, 0.0, 0.0]));
    oracle.combine(rank(0)).unwrap().compare_output(&output, &all).unwrap_err();
}

/// The layout by sorting all pairs of all ranks by expert, source, token and k.
fn sorted(
    shape: &Shape,
    inputs: &[Input],
    destination: u32,
    capacity: usize,
    alignment: usize,
) -> ExpertMajorRows {
    let owned = |rank: u32| (u64::from(rank) * u64::from(shape.experts) / u64::from(shape.ranks)) as i32;
    let range = owned(destination)..owned(destination + 1);
    let (k, stride) = (shape.top_k, shape.ranks as usize + 1);
    let mut pairs = Vec::new();
    let mut seen = ExpertMajorRows {
        slot_map: vec![SLOT_NONE; shape.ranks as usize * shape.max_tokens * k],
        source_offsets: vec![0; range.len() * stride],
        ..ExpertMajorRows::default()
    };
    for (source, input) in inputs.iter().enumerate() {
        let mut row = source * shape.max_tokens;
        for (token, ids) in input.ids.chunks(k).enumerate() {
            let here = ids.iter().enumerate().filter(|(_, id)| range.contains(id));
            let before = pairs.len();
            pairs.extend(here.map(|(k, id)| (*id, source, token, k, row)));
            row += usize::from(pairs.len() > before);
        }
    }
    pairs.sort_unstable();
    for (local, expert) in range.enumerate() {
        let mine: Vec<_> = pairs.iter().filter(|pair| pair.0 == expert).collect();
        let mut table = ExpertTable::default();
        for (place, &&(_, source, token, slot, row)) in mine.iter().enumerate() {
            let entry = &mut seen.slot_map[row * k + slot];
            *entry = SLOT_DROPPED;
            if place >= capacity {
                continue;
            }
            *entry = (local * capacity + place) as u32;
            for later in source + 1..stride {
                seen.source_offsets[local * stride + later] += 1;
            }
            let (bytes, scale) = (shape.row_bytes(), shape.scale_bytes);
            table.rows.extend(&inputs[source].tokens[token * bytes..][..bytes]);
            table.scales.extend(&inputs[source].scales[token * scale..][..scale]);
            table.sources.push(ExpertRowSource {
                row: row as u32,
                source_rank: source as u32,
                source_token: token as u32,
                k: slot as u32,
                weight: inputs[source].weights[token * k + slot],
            });
        }
        seen.pairs.push(mine.len() as u32);
        seen.counts.push(table.sources.len() as u32);
        let padded = table.sources.len().next_multiple_of(alignment);
        let none = ExpertRowSource {
            row: u32::MAX,
            source_rank: u32::MAX,
            source_token: u32::MAX,
            k: u32::MAX,
            weight: 0.0,
        };
        table.sources.resize(padded, none);
        table.rows.resize(padded * shape.row_bytes(), 0);
        table.scales.resize(padded * shape.scale_bytes, 0);
        seen.experts.push(table);
    }
    seen
}

proptest! {
    #[test]
    fn the_oracle_agrees_with_a_sort((shape, inputs) in any_case(), tiles in 1usize..5, power in 0u32..3) {
        let (alignment, capacity) = (1 << power, tiles << power);
        let oracle = Oracle::new(shape.clone(), lend(&inputs)).unwrap();
        for destination in 0..shape.ranks {
            let seen = sorted(&shape, &inputs, destination, capacity, alignment);
            let delivery = oracle.expert_major(rank(destination), capacity, alignment).unwrap();
            prop_assert_eq!(delivery.compare(&seen), Ok(()));
            prop_assert_eq!(delivery.dropped().count() as u64, seen.dropped());
        }
    }
}

#[test]
fn every_wrong_word_and_byte_is_noticed() {
    let (shape, inputs) = mixed(DataType::Bf16, DataType::Bf16);
    let oracle = Oracle::new(shape.clone(), lend(&inputs)).unwrap();
    let (destination, capacity, alignment) = (3, 8, 4);
    let right = sorted(&shape, &inputs, destination, capacity, alignment);
    let delivery = oracle.expert_major(rank(destination), capacity, alignment).unwrap();
    delivery.compare(&right).unwrap();
    assert!(right.experts.iter().any(|table| table.sources.iter().any(|source| source.row == u32::MAX)));
    let is_wrong = |what: &str, change: &dyn Fn(&mut ExpertMajorRows)| {
        let mut wrong = right.clone();
        change(&mut wrong);
        let mismatch = delivery.compare(&wrong).unwrap_err();
        assert_eq!(mismatch.what, what, "{mismatch}");
    };
    for local in 0..right.experts.len() {
        is_wrong("counts", &|wrong| wrong.counts[local] += 1);
        is_wrong("pairs", &|wrong| wrong.pairs[local] += 1);
        for place in 0..right.experts[local].sources.len() {
            is_wrong("sources", &|wrong| wrong.experts[local].sources[place].row ^= 1);
            is_wrong("sources", &|wrong| wrong.experts[local].sources[place].source_rank ^= 1);
            is_wrong("sources", &|wrong| wrong.experts[local].sources[place].source_token ^= 1);
            is_wrong("sources", &|wrong| wrong.experts[local].sources[place].k ^= 1);
            is_wrong("sources", &|wrong| wrong.experts[local].sources[place].weight += 1.0);
        }
        for byte in 0..right.experts[local].rows.len() {
            is_wrong("rows", &|wrong| wrong.experts[local].rows[byte] ^= 4);
        }
        for byte in 0..right.experts[local].scales.len() {
            is_wrong("scales", &|wrong| wrong.experts[local].scales[byte] ^= 4);
        }
    }
    for place in 0..right.source_offsets.len() {
        is_wrong("source offsets", &|wrong| wrong.source_offsets[place] += 1);
    }
    let received: Vec<usize> =
        oracle.dispatch(rank(destination)).unwrap().rows().map(|row| row.index).collect();
    for row in received {
        is_wrong("slot map", &|wrong| wrong.slot_map[row * shape.top_k] ^= 1);
    }
    is_wrong("slot map", &|wrong| wrong.slot_map.clear());
    is_wrong("experts", &|wrong| wrong.experts.truncate(1));
    is_wrong("scales", &|wrong| wrong.experts[0].scales.truncate(1));
}

#[test]
fn a_window_with_a_wrong_sum_or_without_a_pair_is_noticed() {
    let (shape, inputs) = mixed(DataType::Bf16, DataType::F32);
    let oracle = Oracle::new(shape.clone(), lend(&inputs)).unwrap();
    let (destination, capacity) = (rank(2), 2);
    let delivery = oracle.expert_major(destination, capacity, 1).unwrap();
    assert!(delivery.dropped().count() > 0);
    let window = |capacity: usize, backwards: bool| {
        let contracted = oracle.contracted(capacity, FactorExperts).unwrap();
        let row_bytes = shape.combine_row_bytes();
        let mut window = vec![0xee; shape.ranks as usize * shape.max_tokens * row_bytes];
        for source in 0..shape.ranks {
            for copy in (0..oracle.tokens(rank(source)))
                .flat_map(|token| oracle.combine(rank(source)).unwrap().copies(token).collect::<Vec<_>>())
            {
                if copy.destination != destination {
                    continue;
                }
                let mut values = vec![0.0; shape.hidden];
                contracted.row(&copy, &mut values);
                if backwards {
                    values.reverse();
                }
                window[copy.row * row_bytes..][..row_bytes].copy_from_slice(&f32_bytes(&values));
            }
        }
        window
    };
    let contracted = oracle.contracted(capacity, FactorExperts).unwrap();
    delivery.compare_window(&window(capacity, false), &contracted).unwrap();
    delivery.compare_window(&window(capacity, true), &contracted).unwrap_err();
    delivery.compare_window(&window(100, false), &contracted).unwrap_err();
    delivery.compare_window(&window(1, false), &contracted).unwrap_err();
    delivery.compare_window(&[], &contracted).unwrap_err();
}
