//! Dispatches and sums worked out by hand.

use super::*;
use crate::ep::ElementValues as _;
use anabranch_ep::{EpShape, Mode};

#[test]
fn a_worked_dispatch() {
    let (shape, inputs) = small();
    let oracle = Oracle::new(shape, lend(&inputs)).unwrap();

    let at_zero = oracle.dispatch(rank(0)).unwrap();
    assert_eq!(at_zero.counts(), [1, 1]);
    assert_eq!(at_zero.offsets(), [0, 1, 2]);
    let rows: Vec<_> = at_zero.rows().collect();
    assert_eq!(rows.len(), 2);
    assert_eq!((rows[0].index, rows[0].source, rows[0].token), (0, rank(0), 0));
    assert_eq!((rows[1].index, rows[1].source, rows[1].token), (3, rank(1), 0));
    assert_eq!(rows[1].payload, f32_bytes(&[7.0, 8.0]));
    assert_eq!(rows[1].ids, [-1, 0]);
    assert_eq!(rows[1].weights, Some([4.0, 2.0].as_slice()));
    assert_eq!(rows[1].scales, [20]);

    // Token 1 of rank 0 names two experts of rank 1 and goes there once; token 2 goes nowhere.
    let at_one = oracle.dispatch(rank(1)).unwrap();
    assert_eq!(at_one.counts(), [2, 0]);
    assert_eq!(at_one.total(), 2);
    let rows: Vec<_> = at_one.rows().map(|row| (row.index, row.token, row.ids)).collect();
    assert_eq!(rows, [(0, 0, vec![0, 2]), (1, 1, vec![2, 1])]);

    let first = |source, token, id| Some(InvalidId { rank: rank(source), token, id });
    assert_eq!(oracle.invalid_ids(rank(0)).unwrap(), InvalidIds { count: 1, first: first(0, 2, 7) });
    assert_eq!(oracle.invalid_ids(rank(1)).unwrap(), InvalidIds { count: 1, first: first(1, 0, -9) });
}

#[test]
fn a_worked_dispatch_under_a_cap() {
    let (mut shape, inputs) = small();
    shape.window = Window::Slotted { slots: 1 };
    let oracle = Oracle::new(shape, lend(&inputs)).unwrap();
    // Token 1 of rank 0 finds no room at rank 1, which token 0 has taken; rows of rank 1 begin at row 1.
    assert_eq!(oracle.dropped(rank(0)).unwrap(), [(1, rank(1))]);
    assert_eq!(oracle.dropped(rank(1)).unwrap(), []);
    let at_zero = oracle.dispatch(rank(0)).unwrap();
    assert_eq!(at_zero.rows().map(|row| (row.index, row.token)).collect::<Vec<_>>(), [(0, 0), (1, 0)]);
    let at_one = oracle.dispatch(rank(1)).unwrap();
    assert_eq!((at_one.counts(), at_one.offsets()), ([1, 0].as_slice(), [0, 1, 1].as_slice()));
    let output = oracle.combine(rank(0)).unwrap().output(&oracle.reference_experts().unwrap());
    assert_eq!(output, f32_bytes(&[1.0, 2.0, 0.0, 0.0, 0.0, 0.0]));
}

#[test]
fn a_worked_compact_dispatch() {
    let (mut shape, mut inputs) = small();
    // Rank 1 sends its token to both ranks.
    inputs[1].ids = vec![0, 1];
    shape.window = Window::Compact { capacity: 2 };
    let oracle = Oracle::new(shape, lend(&inputs)).unwrap();
    let rows = |to| {
        let delivery = oracle.dispatch(rank(to)).unwrap();
        delivery.rows().map(|row| (row.index, row.source.get(), row.token)).collect::<Vec<_>>()
    };
    // Rank 0 gets one row of each rank, close together; rank 1 is full with the two of rank 0.
    assert_eq!(rows(0), [(0, 0, 0), (1, 1, 0)]);
    assert_eq!(rows(1), [(0, 0, 0), (1, 0, 1)]);
    assert_eq!(oracle.dropped(rank(0)).unwrap(), []);
    assert_eq!(oracle.dropped(rank(1)).unwrap(), [(0, rank(1))]);
    assert_eq!(oracle.dispatch(rank(1)).unwrap().offsets(), [0, 2, 2]);
    // Of token 0 of rank 1 only what expert 0 makes of it comes back: 4 times the row.
    let output = oracle.combine(rank(1)).unwrap().output(&oracle.reference_experts().unwrap());
    assert_eq!(output, f32_bytes(&[28.0, 32.0]));
}

#[test]
fn the_window_of_a_configuration() {
    for (mode, max_tokens, max_recv, capacity) in [
        (Mode::Compact, 10, 0, 30),
        (Mode::Compact, 10, 7, 7),
        (Mode::Compact, 10, 31, 30),
        (Mode::Auto, 513, 0, 3 * 513),
    ] {
        let shape = Shape::new(
            &EpConfig::new(EpShape { hidden: 8, experts: 8, top_k: 1, max_tokens })
                .mode(mode)
                .max_recv(max_recv),
            3,
        );
        assert_eq!(shape.window, Window::Compact { capacity });
        assert_eq!(shape.rows(), capacity);
    }
    let shape = Shape::new(&EpConfig::new(EpShape { hidden: 8, experts: 8, top_k: 1, max_tokens: 512 }), 3);
    assert_eq!(shape.window, Window::Slotted { slots: 512 });
}

#[test]
fn a_cap_is_the_same_number_of_slots_for_each_source() {
    for (max_recv, slots) in [(0, 10), (3, 1), (4, 2), (6, 2), (7, 3), (29, 10), (30, 10), (31, 10)] {
        let shape = Shape::new(
            &EpConfig::new(EpShape { hidden: 8, experts: 8, top_k: 1, max_tokens: 10 }).max_recv(max_recv),
            3,
        );
        assert_eq!(shape.window, Window::Slotted { slots }, "{max_recv}");
        assert_eq!(shape.rows(), 3 * slots);
    }
}

#[test]
fn a_worked_dispatch_to_replicas() {
    let (shape, inputs) = small();
    // Expert 0 on rank 1 alone, 1 on rank 0 and then rank 1, 2 on rank 1 and then rank 0.
    let ranks = |ranks: [u32; 2]| ranks.map(rank).to_vec();
    let table = PlacementTable::new([vec![rank(1)], ranks([0, 1]), ranks([1, 0])]);
    let oracle = Oracle::new(Shape { placement: Some(table), ..shape }, lend(&inputs)).unwrap();
    // Rank 0: token 0 names 0 and 2, which is on rank 1 for it; token 1 names 2, on rank 0 for it, and 1, on rank 1.
    let at_zero: Vec<_> =
        oracle.dispatch(rank(0)).unwrap().rows().map(|row| (row.source, row.token)).collect();
    assert_eq!(at_zero, [(rank(0), 1)]);
    // Rank 1's token names 0.
    let at_one: Vec<_> =
        oracle.dispatch(rank(1)).unwrap().rows().map(|row| (row.source, row.token)).collect();
    assert_eq!(at_one, [(rank(0), 0), (rank(0), 1), (rank(1), 0)]);
    let experts = oracle.expert_major(rank(1), 3, 1).unwrap();
    assert_eq!(experts.experts(), [0, 1, 2]);
    let pairs: Vec<Vec<_>> = (0..3)
        .map(|local| experts.pairs(local).iter().map(|pair| (pair.source, pair.token, pair.k)).collect())
        .collect();
    assert_eq!(pairs, [vec![(rank(0), 0, 0), (rank(1), 0, 1)], vec![(rank(0), 1, 1)], vec![(rank(0), 0, 1)]]);
    let sums = oracle.combine(rank(0)).unwrap().output(&oracle.reference_experts().unwrap());
    assert_eq!(sums, f32_bytes(&[1.0, 2.0, 1.875, 2.5, 0.0, 0.0]));
}

#[test]
fn the_first_invalid_id_has_the_lowest_token_then_the_lowest_k() {
    let (shape, mut inputs) = small();
    inputs[0].ids = vec![0, -1, 1, i32::MAX, 3, i32::MIN];
    let oracle = Oracle::new(shape, lend(&inputs)).unwrap();
    let first = Some(InvalidId { rank: rank(0), token: 1, id: i32::MAX });
    assert_eq!(oracle.invalid_ids(rank(0)).unwrap(), InvalidIds { count: 3, first });
}

#[test]
fn a_worked_combine() {
    let (shape, inputs) = small();
    let oracle = Oracle::new(shape, lend(&inputs)).unwrap();
    let experts = oracle.reference_experts().unwrap();
    // Token 0: 0.25 + 0.75 times the row. Token 1: only rank 1, 0.5 + 0.125. Token 2: no rank.
    let output = oracle.combine(rank(0)).unwrap().output(&experts);
    assert_eq!(output, f32_bytes(&[1.0, 2.0, 1.875, 2.5, 0.0, 0.0]));
    let output = oracle.combine(rank(1)).unwrap().output(&experts);
    assert_eq!(output, f32_bytes(&[14.0, 16.0]));
}

/// One token on rank 0 of three that goes to all three ranks.
fn one_token(combine: DataType, output: DataType) -> (Shape, Vec<Input>) {
    let shape = Shape {
        ranks: 3,
        experts: 3,
        top_k: 3,
        hidden: 1,
        scale_bytes: 0,
        max_tokens: 1,
        placement: None,
        window: Window::Slotted { slots: 1 },
        dispatch: DataType::F32,
        combine,
        output,
        codec: CombineCodec::None,
    };
    let token =
        Input { tokens: f32_bytes(&[1.0]), ids: vec![2, 0, 1], weights: vec![1.0; 3], scales: vec![] };
    let none = Input { tokens: vec![], ids: vec![], weights: vec![], scales: vec![] };
    (shape, vec![token, none.clone(), none])
}

/// The combined token when the experts of the three ranks wrote these values.
fn sum_of_three(combine: DataType, output: DataType, values: [f32; 3]) -> Vec<u8> {
    let (shape, inputs) = one_token(combine, output);
    let tables = values.map(|value| {
        let row = if combine == DataType::F32 { f32_bytes(&[value]) } else { bf16_bytes(&[value]) };
        [row, vec![0xFF; 2 * combine.bytes_of(1) as usize]].concat()
    });
    let tables: Vec<&[u8]> = tables.iter().map(Vec::as_slice).collect();
    let experts = GivenRows::new(&shape, &tables).unwrap();
    let oracle = Oracle::new(shape, lend(&inputs)).unwrap();
    oracle.combine(rank(0)).unwrap().output(&experts)
}

#[test]
fn sums_are_in_group_rank_order_whatever_the_order_of_k() {
    let big = 33_554_432.0;
    for element in [DataType::F32, DataType::Bf16] {
        let bytes = |value| if element == DataType::F32 { f32_bytes(&[value]) } else { bf16_bytes(&[value]) };
        assert_eq!(sum_of_three(element, element, [big, 1.0, -big]), bytes(0.0));
        assert_eq!(sum_of_three(element, element, [big, -big, 1.0]), bytes(1.0));
        assert_eq!(sum_of_three(element, element, [1.0, big, -big]), bytes(0.0));
    }
}

#[test]
fn there_is_one_rounding_at_the_end_and_it_goes_to_even() {
    // Rounding after each addition would lose both small addends: 256 + 1 is a tie in bf16.
    assert_eq!(sum_of_three(DataType::Bf16, DataType::Bf16, [256.0, 1.0, 1.0]), bf16_bytes(&[258.0]));
    assert_eq!(sum_of_three(DataType::Bf16, DataType::Bf16, [256.0, 1.0, 0.0]), bf16_bytes(&[256.0]));
    assert_eq!(sum_of_three(DataType::Bf16, DataType::Bf16, [258.0, 1.0, 0.0]), bf16_bytes(&[260.0]));
    assert_eq!(sum_of_three(DataType::F32, DataType::Bf16, [256.0, 1.0, 0.001]), bf16_bytes(&[258.0]));
    assert_eq!(sum_of_three(DataType::Bf16, DataType::F32, [256.0, 1.0, 0.0]), f32_bytes(&[257.0]));
}

#[test]
fn zeros_and_nans() {
    assert_eq!(sum_of_three(DataType::F32, DataType::F32, [-0.0, -0.0, -0.0]), f32_bytes(&[0.0]));
    let signalling = f32::from_bits(0x7F80_0001);
    let bits = DataType::F32.bits_at(&sum_of_three(DataType::F32, DataType::F32, [signalling, 1.0, 1.0]), 0);
    assert!(DataType::F32.is_quiet_nan(bits));
    assert!(DataType::Bf16.is_quiet_nan(DataType::Bf16.round(signalling)));
    assert!(!DataType::F32.is_quiet_nan(0x7F80_0001));
    assert!(!DataType::Bf16.is_quiet_nan(0x7F80), "infinity is no NaN");
    let huge = sum_of_three(DataType::F32, DataType::Bf16, [f32::MAX, 0.0, 0.0]);
    assert_eq!(huge, bf16_bytes(&[f32::INFINITY]));
}

#[test]
fn an_expected_nan_matches_any_quiet_nan_and_nothing_else() {
    let (shape, inputs) = one_token(DataType::F32, DataType::F32);
    let tables = [f32::NAN, 1.0, 1.0].map(|value| f32_bytes(&[value, 0.0, 0.0]));
    let tables: Vec<&[u8]> = tables.iter().map(Vec::as_slice).collect();
    let experts = GivenRows::new(&shape, &tables).unwrap();
    let oracle = Oracle::new(shape, lend(&inputs)).unwrap();
    let combination = oracle.combine(rank(0)).unwrap();
    let with_bits = |bits: u32| combination.compare_output(&bits.to_le_bytes(), &experts);
    with_bits(0x7FFF_FFFF).unwrap();
    with_bits(0xFFC0_0000).unwrap();
    for wrong in [0x7F80_0001, 0x7F80_0000, 0, 0x3F80_0000] {
        assert!(matches!(with_bits(wrong), Err(Mismatch::Output { seen, .. }) if seen == wrong));
    }
}
