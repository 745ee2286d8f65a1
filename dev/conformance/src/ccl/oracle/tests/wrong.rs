//! Each oracle is fed its own answer, and wrong ones.

use anabranch_ranks::GroupRank;

use crate::ccl::oracle::{
    Data, Expected, Mismatch, OracleError, all_gather, all_gather_uneven, all_reduce, all_to_all,
    all_to_all_splits, broadcast, gather, reduce_scatter, reduce_scatter_uneven, reduce_to_root, scatter,
};
use anabranch_ccl::{DataType, ReduceOp};

const RANKS: usize = 4;
const TYPE: DataType = DataType::Bf16;
const SUM: ReduceOp = ReduceOp::Sum;

fn rank(index: usize) -> GroupRank {
    GroupRank::new(index as u32)
}

fn input(index: usize, count: u64) -> Vec<u8> {
    Data::Exact.of(TYPE, SUM, RANKS as u32, 5).bytes(rank(index), 0..count)
}

fn inputs(count: u64) -> Vec<Vec<u8>> {
    (0..RANKS).map(|index| input(index, count)).collect()
}

fn outputs(expected: &Expected) -> Vec<Vec<u8>> {
    (0..RANKS).map(|index| expected.output(rank(index)).unwrap_or_default().to_vec()).collect()
}

/// The oracle takes `right`, and notices at a rank with an output that a byte is another, a tail is missing, and that the output
/// is `wrong`.
fn judges(expected: &Expected, right: &[Vec<u8>], wrong: &[&Expected]) {
    expected.check_all(right).unwrap();
    for (index, output) in
        right.iter().enumerate().filter(|(index, _)| expected.output(rank(*index)).is_some())
    {
        assert!(!output.is_empty());
        let refused = |seen: &[u8]| {
            let mismatch = expected.check(rank(index), seen).unwrap_err();
            assert!(matches!(mismatch, Mismatch::Output { rank: at, .. } if at == rank(index)), "{mismatch}");
        };
        refused(&output[..output.len() - 2]);
        let mut changed = output.clone();
        *changed.last_mut().unwrap() ^= 1;
        refused(&changed);
    }
    for wrong in wrong {
        let seen: Vec<_> = outputs(wrong);
        expected.check_all(&seen).unwrap_err();
    }
    assert!(expected.check_all(&right[1..]).unwrap_err().to_string().contains("3 outputs for a group of 4"));
    let outside = expected.check(rank(RANKS), &right[0]).unwrap_err();
    assert_eq!(outside, Mismatch::NoSuchRank { rank: rank(RANKS), ranks: RANKS });
}

/// All inputs with two ranks' exchanged.
fn swapped(inputs: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut swapped = inputs.to_vec();
    swapped.swap(1, 2);
    swapped
}

/// All inputs with the last rank's left out.
fn left_out(inputs: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut fewer = inputs.to_vec();
    fewer[RANKS - 1].fill(0);
    fewer
}

/// The sums of elements, in plain f32: exact data needs no order.
fn summed(inputs: &[Vec<u8>]) -> Vec<u8> {
    let count = inputs[0].len() / 2;
    let value =
        |input: &Vec<u8>, at: usize| half::bf16::from_le_bytes([input[2 * at], input[2 * at + 1]]).to_f32();
    let sum = |at| half::bf16::from_f32(inputs.iter().map(|input| value(input, at)).sum::<f32>());
    (0..count).flat_map(|at| sum(at).to_le_bytes()).collect()
}

#[test]
fn all_reduce_notices_a_rank_that_is_missing() {
    let inputs = inputs(31);
    let right = vec![summed(&inputs); RANKS];
    let wrong = all_reduce(TYPE, SUM, &left_out(&inputs)).unwrap();
    let other = all_reduce(TYPE, ReduceOp::Max, &inputs).unwrap();
    judges(&all_reduce(TYPE, SUM, &inputs).unwrap(), &right, &[&wrong, &other]);
    // Minus has an order: members that are exchanged show where it is one of floats.
    let normal = Data::Normal.of(DataType::F32, SUM, RANKS as u32, 5);
    let inputs: Vec<_> = (0..RANKS).map(|index| normal.bytes(rank(index), 0..1000)).collect();
    let expected = all_reduce(DataType::F32, SUM, &inputs).unwrap();
    let mut rotated = inputs.clone();
    rotated.swap(0, 3);
    expected.check_all(&outputs(&all_reduce(DataType::F32, SUM, &rotated).unwrap())).unwrap_err();
}

#[test]
fn reduce_judges_the_root_alone() {
    let inputs = inputs(31);
    let expected = reduce_to_root(TYPE, SUM, &inputs, rank(2)).unwrap();
    let mut right = vec![vec![0xee; 5]; RANKS];
    right[2] = summed(&inputs);
    let wrong = reduce_to_root(TYPE, SUM, &inputs, rank(1)).unwrap();
    judges(&expected, &right, &[&wrong]);
    let outside = reduce_to_root(TYPE, SUM, &inputs, rank(4)).unwrap_err();
    assert_eq!(outside, OracleError::Root { root: rank(4), ranks: RANKS });
}

#[test]
fn reduce_scatter_notices_exchanged_parts() {
    let inputs = inputs(12);
    let expected = reduce_scatter(TYPE, SUM, &inputs).unwrap();
    let right: Vec<_> = summed(&inputs).chunks(6).map(<[u8]>::to_vec).collect();
    judges(&expected, &right, &[&reduce_scatter(TYPE, SUM, &left_out(&inputs)).unwrap()]);
    expected.check_all(&swapped(&right)).unwrap_err();
    let uneven = reduce_scatter(TYPE, SUM, &self::inputs(13)).unwrap_err();
    assert!(matches!(uneven, OracleError::Multiple { given: 26, multiple: 8, .. }), "{uneven}");

    let expected = reduce_scatter_uneven(TYPE, SUM, &inputs, &[1, 2, 4, 5]).unwrap();
    let all = summed(&inputs);
    let right = [&all[..2], &all[2..6], &all[6..14], &all[14..]].map(<[u8]>::to_vec);
    judges(&expected, &right, &[&reduce_scatter_uneven(TYPE, SUM, &inputs, &[2, 1, 4, 5]).unwrap()]);
    let short = reduce_scatter_uneven(TYPE, SUM, &inputs, &[1, 2, 4, 4]).unwrap_err();
    assert!(matches!(short, OracleError::Length { given: 24, needed: 22, .. }), "{short}");
}

#[test]
fn all_gather_notices_exchanged_ranks() {
    let inputs = inputs(7);
    let expected = all_gather(TYPE, &inputs).unwrap();
    judges(&expected, &vec![inputs.concat(); RANKS], &[&all_gather(TYPE, &swapped(&inputs)).unwrap()]);
    let counts = [3, 1, 0, 6];
    let uneven: Vec<_> = counts.iter().enumerate().map(|(index, count)| input(index, *count)).collect();
    let expected = all_gather_uneven(TYPE, &uneven, &counts).unwrap();
    let mut wrong = uneven.clone();
    wrong[3] = input(2, 6);
    let wrong = all_gather_uneven(TYPE, &wrong, &counts).unwrap();
    judges(&expected, &vec![uneven.concat(); RANKS], &[&wrong]);
    assert!(matches!(all_gather(TYPE, &uneven), Err(OracleError::Length { given: 2, needed: 6, .. })));
    assert_eq!(
        all_gather_uneven(TYPE, &uneven, &[3, 1, 0]).unwrap_err(),
        OracleError::Counts { given: 3, ranks: RANKS }
    );
}

#[test]
fn gather_judges_the_root_alone() {
    let inputs = inputs(7);
    let expected = gather(TYPE, &inputs, rank(1)).unwrap();
    let mut right = vec![Vec::new(); RANKS];
    right[1] = inputs.concat();
    judges(&expected, &right, &[&gather(TYPE, &swapped(&inputs), rank(1)).unwrap()]);
    gather(TYPE, &inputs, rank(RANKS)).unwrap_err();
}

#[test]
fn all_to_all_notices_a_transposed_order() {
    let inputs = inputs(12);
    let expected = all_to_all(TYPE, &inputs).unwrap();
    let right: Vec<Vec<u8>> = (0..RANKS)
        .map(|to| inputs.iter().flat_map(|input| input[6 * to..6 * to + 6].to_vec()).collect())
        .collect();
    judges(&expected, &right, &[&all_to_all(TYPE, &swapped(&inputs)).unwrap()]);
    expected.check_all(&inputs).unwrap_err();
    expected.check_all(&swapped(&right)).unwrap_err();

    let splits = [[1, 2, 3, 0], [4, 0, 1, 1], [1, 1, 1, 1], [0, 5, 2, 3]];
    let uneven: Vec<_> =
        splits.iter().enumerate().map(|(index, splits)| input(index, splits.iter().sum())).collect();
    let expected = all_to_all_splits(TYPE, &uneven, &splits).unwrap();
    let part = |from: usize, to: usize| {
        let start = splits[from][..to].iter().sum::<u64>() as usize * 2;
        uneven[from][start..start + splits[from][to] as usize * 2].to_vec()
    };
    let right: Vec<Vec<u8>> =
        (0..RANKS).map(|to| (0..RANKS).flat_map(|from| part(from, to)).collect()).collect();
    let mut wrong = splits;
    wrong[3] = [0, 4, 3, 3];
    judges(&expected, &right, &[&all_to_all_splits(TYPE, &uneven, &wrong).unwrap()]);
    wrong[3] = [0, 4, 3, 2];
    let short = all_to_all_splits(TYPE, &uneven, &wrong).unwrap_err();
    assert!(matches!(short, OracleError::Length { given: 20, needed: 18, .. }), "{short}");
}

#[test]
fn broadcast_and_scatter_notice_another_root() {
    let inputs = inputs(12);
    let expected = broadcast(TYPE, &inputs, rank(3)).unwrap();
    judges(&expected, &vec![inputs[3].clone(); RANKS], &[&broadcast(TYPE, &inputs, rank(0)).unwrap()]);
    let outside = broadcast(TYPE, &inputs, rank(RANKS)).unwrap_err();
    assert_eq!(outside.to_string(), "group rank 4, which is to be the root, is not in a group of 4");

    let expected = scatter(TYPE, &inputs[3], RANKS, rank(3)).unwrap();
    let right: Vec<_> = inputs[3].chunks(6).map(<[u8]>::to_vec).collect();
    judges(&expected, &right, &[&scatter(TYPE, &inputs[0], RANKS, rank(0)).unwrap()]);
    expected.check_all(&swapped(&right)).unwrap_err();
    scatter(TYPE, &inputs[3][2..], RANKS, rank(3)).unwrap_err();
    scatter(TYPE, &inputs[3], RANKS, rank(RANKS)).unwrap_err();
    assert_eq!(scatter(TYPE, &[], 0, rank(0)).unwrap_err(), OracleError::NoRanks);
}
