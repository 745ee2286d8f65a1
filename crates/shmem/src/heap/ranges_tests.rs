//! The allocator as a state machine against a model of one flag a byte.

use super::ranges::{ByteRange, FreeRanges};
use proptest::collection::vec;
use proptest::prelude::*;

const SEGMENT: u64 = 256;

fn model_of(free: &FreeRanges) -> Vec<bool> {
    let mut model = vec![false; SEGMENT as usize];
    for range in free.to_vec() {
        model[range.offset as usize..range.end() as usize].fill(true);
    }
    model
}

fn coalesced(free: &FreeRanges) -> bool {
    free.to_vec().windows(2).all(|pair| pair[0].end() < pair[1].offset)
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Allocate { bytes: u64, alignment: u64 },
    Free { index: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1..40u64, 0..5u32).prop_map(|(bytes, shift)| Step::Allocate { bytes, alignment: 1 << shift }),
        any::<usize>().prop_map(|index| Step::Free { index }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn ranges_follow_the_model(steps in vec(step(), 0..60)) {
        let mut free = FreeRanges::new(ByteRange { offset: 0, bytes: SEGMENT });
        let mut model = vec![true; SEGMENT as usize];
        let mut live: Vec<ByteRange> = Vec::new();
        for step in steps {
            match step {
                Step::Allocate { bytes, alignment } => {
                    let fits = |start: u64| {
                        start + bytes <= SEGMENT && model[start as usize..(start + bytes) as usize].iter().all(|f| *f)
                    };
                    let lowest = (0..SEGMENT).step_by(alignment as usize).find(|start| fits(*start));
                    prop_assert_eq!(free.lowest_fit(bytes, alignment), lowest);
                    if let Some(offset) = lowest {
                        let range = ByteRange { offset, bytes };
                        prop_assert!(free.take(range));
                        prop_assert!(!free.take(range), "taken twice");
                        model[offset as usize..range.end() as usize].fill(false);
                        live.push(range);
                    }
                }
                Step::Free { index } if !live.is_empty() => {
                    let range = live.swap_remove(index % live.len());
                    prop_assert!(free.give_back(range));
                    prop_assert!(!free.give_back(range), "freed twice");
                    model[range.offset as usize..range.end() as usize].fill(true);
                }
                Step::Free { .. } => {}
            }
            prop_assert_eq!(&model_of(&free), &model);
            prop_assert!(coalesced(&free));
            prop_assert_eq!(free.total(), model.iter().filter(|f| **f).count() as u64);
        }
        for range in live {
            free.give_back(range);
        }
        prop_assert_eq!(free.to_vec(), vec![ByteRange { offset: 0, bytes: SEGMENT }]);
    }

    #[test]
    fn the_intersection_is_what_is_free_in_both(
        one in vec(any::<bool>(), SEGMENT as usize), other in vec(any::<bool>(), SEGMENT as usize),
    ) {
        let ranges = |flags: &[bool]| {
            let mut free = FreeRanges::default();
            for (offset, _) in flags.iter().enumerate().filter(|(_, flag)| **flag) {
                free.give_back(ByteRange { offset: offset as u64, bytes: 1 });
            }
            free
        };
        let both = ranges(&one).intersection(&ranges(&other).to_vec());
        let expected: Vec<bool> = one.iter().zip(&other).map(|(a, b)| *a && *b).collect();
        prop_assert_eq!(model_of(&both), expected);
    }
}
