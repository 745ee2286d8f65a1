//! Wrong answers and wrong inputs.

use super::*;

#[test]
fn another_order_of_summation_is_noticed() {
    let (shape, inputs) = mixed(DataType::Bf16, DataType::F32);
    let oracle = Oracle::new(shape.clone(), lend(&inputs)).unwrap();
    let experts = oracle.reference_experts().unwrap();
    let combination = oracle.combine(rank(2)).unwrap();
    let in_order = |descending: bool| {
        let mut output = Vec::new();
        for token in 0..oracle.tokens(rank(2)) {
            let mut copies: Vec<_> = combination.copies(token).collect();
            if descending {
                copies.reverse();
            }
            let mut sum = vec![0.0f32; shape.hidden];
            let mut addend = vec![0.0f32; shape.hidden];
            for copy in &copies {
                experts.row(copy, &mut addend);
                for (sum, addend) in sum.iter_mut().zip(&addend) {
                    *sum += addend;
                }
            }
            output.extend(f32_bytes(&sum));
        }
        output
    };
    combination.compare_output(&in_order(false), &experts).unwrap();
    let wrong = combination.compare_output(&in_order(true), &experts);
    assert!(matches!(wrong, Err(Mismatch::Output { .. })), "{wrong:?}");
}

#[test]
fn a_right_delivery_passes_and_every_flipped_bit_is_noticed() {
    let (shape, inputs) = mixed(DataType::Bf16, DataType::Bf16);
    let oracle = Oracle::new(shape.clone(), lend(&inputs)).unwrap();
    let destination = 3;
    let delivery = oracle.dispatch(rank(destination)).unwrap();
    let right = Received::fill(&shape, &inputs, destination, true);
    delivery.compare_rows(&right.rows()).unwrap();

    let is_wrong = |wrong: &Received, expected: RowField, row: usize, column: usize| match delivery
        .compare_rows(&wrong.rows())
    {
        Err(Mismatch::Row { field, row: at, column: there, expected: want, seen, .. }) => {
            assert_eq!((field, at, there), (expected, row, column));
            assert_eq!((want ^ seen).count_ones(), 1);
        }
        other => panic!("a flipped bit in {expected} of row {row} gave {other:?}"),
    };
    let indices: Vec<_> = delivery.rows().map(|row| row.index).collect();
    assert!(indices.len() > 5);
    for row in indices {
        for byte in 0..12 {
            let mut wrong = right.clone();
            wrong.payload[row * 12 + byte] ^= 1 << (row % 8);
            is_wrong(&wrong, RowField::Payload, row, byte / 2);
        }
        for k in 0..4 {
            let mut wrong = right.clone();
            wrong.ids[row * 4 + k] ^= 1 << (row % 32);
            is_wrong(&wrong, RowField::Id, row, k);
            let mut wrong = right.clone();
            let weight = &mut wrong.weights[row * 4 + k];
            *weight = f32::from_bits(weight.to_bits() ^ 1);
            is_wrong(&wrong, RowField::Weight, row, k);
        }
        for byte in 0..3 {
            let mut wrong = right.clone();
            wrong.scales[row * 3 + byte] ^= 0x80;
            is_wrong(&wrong, RowField::Scale, row, byte);
        }
        let mut wrong = right.clone();
        wrong.tokens[row] += 1;
        let found = delivery.compare_rows(&wrong.rows());
        assert!(matches!(found, Err(Mismatch::SourceToken { row: at, .. }) if at == row), "{found:?}");
    }
}

#[test]
fn swapped_rows_wrong_counts_and_missing_rows_are_noticed() {
    let (shape, inputs) = mixed(DataType::F32, DataType::F32);
    let oracle = Oracle::new(shape.clone(), lend(&inputs)).unwrap();
    let delivery = oracle.dispatch(rank(0)).unwrap();
    let right = Received::fill(&shape, &inputs, 0, true);
    delivery.compare_rows(&right.rows()).unwrap();
    let first = shape.max_tokens * 2;
    assert!(delivery.counts()[2] >= 2, "the case has two rows to swap");

    let mut wrong = right.clone();
    wrong.tokens.swap(first, first + 1);
    let found = delivery.compare_rows(&wrong.rows());
    assert!(matches!(found, Err(Mismatch::SourceToken { row, .. }) if row == first), "{found:?}");

    // The payloads alone, as when the tables are right and the copies went astray.
    let mut wrong = right.clone();
    for byte in 0..24 {
        wrong.payload.swap(first * 24 + byte, (first + 1) * 24 + byte);
    }
    let found = delivery.compare_rows(&wrong.rows());
    assert!(
        matches!(found, Err(Mismatch::Row { field: RowField::Payload, row, .. }) if row == first),
        "{found:?}"
    );

    let mut wrong = right.clone();
    wrong.counts[2] += 1;
    assert!(matches!(delivery.compare_rows(&wrong.rows()), Err(Mismatch::Count { .. })));
    let mut wrong = right.clone();
    wrong.offsets[4] += 1;
    assert!(matches!(delivery.compare_rows(&wrong.rows()), Err(Mismatch::Offset { place: 4, .. })));
    let mut wrong = right.clone();
    wrong.tokens.truncate(first + 1);
    assert!(matches!(delivery.compare_rows(&wrong.rows()), Err(Mismatch::MissingRow { .. })));
    let mut wrong = right.clone();
    wrong.weights.clear();
    assert!(matches!(delivery.compare_rows(&wrong.rows()), Err(Mismatch::Length { .. })));
}

#[test]
fn a_sender_that_does_not_deduplicate_is_noticed() {
    let (shape, inputs) = small();
    let oracle = Oracle::new(shape.clone(), lend(&inputs)).unwrap();
    let delivery = oracle.dispatch(rank(1)).unwrap();
    delivery.compare_rows(&Received::fill(&shape, &inputs, 1, true).rows()).unwrap();
    let twice = Received::fill(&shape, &inputs, 1, false);
    assert!(matches!(
        delivery.compare_rows(&twice.rows()),
        Err(Mismatch::Count { expected: 2, seen: 3, .. })
    ));
    // Two copies of a row also double its sum, which the combine's comparison sees by itself.
    let experts = oracle.reference_experts().unwrap();
    let combination = oracle.combine(rank(0)).unwrap();
    combination.compare_output(&f32_bytes(&[1.0, 2.0, 1.875, 2.5, 0.0, 0.0]), &experts).unwrap();
    let found = combination.compare_output(&f32_bytes(&[1.0, 2.0, 3.75, 5.0, 0.0, 0.0]), &experts);
    let (expected, seen) = (1.875f32.to_bits(), 3.75f32.to_bits());
    assert_eq!(found, Err(Mismatch::Output { rank: rank(0), token: 1, column: 0, expected, seen }));
}

#[test]
fn every_flipped_bit_of_a_combined_token_is_noticed() {
    let (shape, inputs) = mixed(DataType::Bf16, DataType::Bf16);
    let oracle = Oracle::new(shape, lend(&inputs)).unwrap();
    let experts = oracle.reference_experts().unwrap();
    let combination = oracle.combine(rank(2)).unwrap();
    let right = combination.output(&experts);
    combination.compare_output(&right, &experts).unwrap();
    assert!(right.iter().any(|byte| *byte != 0), "all zeros would prove nothing");
    for bit in 0..right.len() * 8 {
        let mut wrong = right.clone();
        wrong[bit / 8] ^= 1 << (bit % 8);
        match combination.compare_output(&wrong, &experts) {
            Err(Mismatch::Output { token, column, .. }) => {
                assert_eq!((token, column), (bit / 96, bit % 96 / 16));
            }
            other => panic!("bit {bit} gave {other:?}"),
        }
    }
    assert!(matches!(combination.compare_output(&right[2..], &experts), Err(Mismatch::Length { .. })));
}

#[test]
fn inputs_that_no_dispatch_could_have_are_refused() {
    let (shape, inputs) = small();
    let refuse =
        |shape: &Shape, inputs: &[RankInput<'_>]| Oracle::new(shape.clone(), inputs.to_vec()).unwrap_err();
    for field in ["ranks", "experts", "top_k", "hidden"] {
        let mut wrong = shape.clone();
        match field {
            "ranks" => wrong.ranks = 0,
            "experts" => wrong.experts = 0,
            "top_k" => wrong.top_k = 0,
            _ => wrong.hidden = 0,
        }
        assert_eq!(refuse(&wrong, &lend(&inputs)), OracleError::Zero { field });
    }
    assert_eq!(refuse(&shape, &lend(&inputs)[..1]), OracleError::Inputs { given: 1, ranks: 2 });
    let few = Shape { max_tokens: 2, ..shape.clone() };
    assert!(matches!(refuse(&few, &lend(&inputs)), OracleError::TooManyTokens { tokens: 3, .. }));

    let mut short = lend(&inputs);
    short[1].tokens = &short[1].tokens[1..];
    assert_eq!(
        refuse(&shape, &short),
        OracleError::Length { rank: rank(1), tensor: "tokens", expected: 8, given: 7 }
    );
    let mut ragged = lend(&inputs);
    ragged[0].ids = &ragged[0].ids[1..];
    assert!(matches!(refuse(&shape, &ragged), OracleError::Length { tensor: "ids", .. }));
    let mut some = lend(&inputs);
    some[1].weights = None;
    assert_eq!(refuse(&shape, &some), OracleError::SomeWeights { rank: rank(1) });

    let mut none = lend(&inputs);
    for input in &mut none {
        input.weights = None;
    }
    let oracle = Oracle::new(shape, none).unwrap();
    assert!(matches!(oracle.reference_experts(), Err(OracleError::NoWeights)));
    assert!(matches!(oracle.dispatch(rank(2)), Err(OracleError::NoSuchRank { .. })));
    assert!(matches!(oracle.combine(rank(2)), Err(OracleError::NoSuchRank { .. })));
    assert!(matches!(oracle.invalid_ids(rank(2)), Err(OracleError::NoSuchRank { .. })));
    assert!(GivenRows::new(oracle.shape(), &[&[]]).is_err());
    assert!(GivenRows::new(oracle.shape(), &[&[], &[]]).is_err());
}
