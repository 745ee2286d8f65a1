//! The cases that are one number smaller than a case.

use crate::Case;

/// The numbers of a case, in the order in which they are made smaller: what takes the most lines of a timeline first.
const NUMBERS: [fn(&mut Case) -> &mut u32; 5] = [
    |case| &mut case.ranks,
    |case| &mut case.rounds,
    |case| &mut case.tokens,
    |case| &mut case.blocks,
    |case| &mut case.waves,
];

/// Every case in which one number is 1, half, or one less; the smallest first. Some may be no case of the protocol.
pub(crate) fn smaller(case: &Case) -> Vec<Case> {
    let mut all = Vec::new();
    // What can go wrong without a fault is clearer than what needs it.
    for fault in 0..case.faults.len() {
        let mut candidate = case.clone();
        candidate.faults.remove(fault);
        all.push(candidate);
    }
    for number in NUMBERS {
        let now = *number(&mut case.clone());
        let mut values = vec![1, now / 2, now.saturating_sub(1)];
        values.retain(|value| (1..now).contains(value));
        values.dedup();
        all.extend(values.into_iter().map(|value| {
            let mut candidate = case.clone();
            *number(&mut candidate) = value;
            candidate
        }));
    }
    if case.staged {
        all.push(Case { staged: false, ..case.clone() });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Protocol;

    #[test]
    fn each_number_is_made_smaller_on_its_own() {
        let mut case = Case::new(Protocol::Ep, 6);
        (case.rounds, case.tokens, case.blocks, case.waves, case.staged) = (3, 1, 2, 1, true);
        let numbers = |case: &Case| (case.ranks, case.rounds, case.blocks, case.staged);
        let found: Vec<_> = smaller(&case).iter().map(numbers).collect();
        let expected = [
            (1, 3, 2, true),
            (3, 3, 2, true),
            (5, 3, 2, true),
            (6, 1, 2, true),
            (6, 2, 2, true),
            (6, 3, 1, true),
            (6, 3, 2, false),
        ];
        assert_eq!(found, expected);
        (case.ranks, case.rounds, case.blocks, case.staged) = (1, 1, 1, false);
        assert!(smaller(&case).is_empty(), "there is no smaller case");
    }

    #[test]
    fn faults_go_first_one_by_one() {
        let mut case = Case::new(Protocol::World, 2);
        case.faults = ["kill:1@3", "slow:0:1ms"].map(|text| text.parse().unwrap()).to_vec();
        let left: Vec<_> = smaller(&case).into_iter().take(3).map(|case| (case.ranks, case.faults)).collect();
        let expected = [(2, vec![case.faults[1]]), (2, vec![case.faults[0]]), (1, case.faults.clone())];
        assert_eq!(left, expected);
    }
}
