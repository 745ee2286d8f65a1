//! Sharing a trace's sequences among ranks.

use super::Error;
use std::ops::Range;

/// Shares tokens among `ranks` ranks by sequence: each sequence goes whole to one rank, and a rank's tokens keep
/// their order. `sequence_ids` gives the sequence of each token and never falls.
///
/// The longest sequence goes first, each to the rank that has the fewest tokens (the lowest of equals), so the
/// result depends on the arguments alone. With more ranks than sequences some ranks get nothing.
///
/// # Errors
/// [`Error::Zero`] for no ranks.
pub(crate) fn split(sequence_ids: &[i32], ranks: u32) -> Result<Vec<Vec<Range<usize>>>, Error> {
    if ranks == 0 {
        return Err(Error::Zero { field: "ranks" });
    }
    let mut first = 0;
    let mut sequences: Vec<Range<usize>> = sequence_ids
        .chunk_by(|a, b| a == b)
        .map(|sequence| {
            let range = first..first + sequence.len();
            first = range.end;
            range
        })
        .collect();
    // Stable: sequences of one length stay in order.
    sequences.sort_by_key(|sequence| std::cmp::Reverse(sequence.len()));

    let mut loads = vec![0usize; ranks as usize];
    let mut parts = vec![Vec::new(); ranks as usize];
    for sequence in sequences {
        let lightest = (0..loads.len()).min_by_key(|rank| loads[*rank]).unwrap_or(0);
        loads[lightest] += sequence.len();
        parts[lightest].push(sequence);
    }
    for part in &mut parts {
        part.sort_by_key(|sequence| sequence.start);
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_worked_split() {
        // Sequences of 2, 1, 3 and 1 tokens: 3 to rank 0, 2 to rank 1, then 1 to rank 1 and 1 to rank 0.
        let parts = split(&[4, 4, 5, 7, 7, 7, 9], 2).unwrap();
        assert_eq!(parts, [vec![3..6, 6..7], vec![0..2, 2..3]]);
    }

    #[test]
    fn more_ranks_than_sequences_leave_ranks_empty() {
        let parts = split(&[0, 0, 3], 4).unwrap();
        assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 0, 0]);
        assert_eq!((&parts[0][0], &parts[1][0]), (&(0..2), &(2..3)));
        assert_eq!(split(&[], 2).unwrap(), vec![Vec::<Range<usize>>::new(); 2]);
        assert!(matches!(split(&[0], 0), Err(Error::Zero { field: "ranks" })));
    }

    proptest! {
        #[test]
        fn every_token_once_sequences_whole_in_order_and_balanced(
            lengths in proptest::collection::vec((1usize..40, 1i32..4), 0..60), ranks in 1u32..20,
        ) {
            let mut ids = Vec::new();
            let mut id = -5;
            for (length, step) in &lengths {
                id += step;
                ids.extend(std::iter::repeat_n(id, *length));
            }
            let parts = split(&ids, ranks).unwrap();
            prop_assert_eq!(parts.len(), ranks as usize);
            prop_assert_eq!(&parts, &split(&ids, ranks).unwrap());

            let mut owner = vec![None; ids.len()];
            for (rank, part) in parts.iter().enumerate() {
                prop_assert!(part.is_sorted_by(|a, b| a.end <= b.start));
                for token in part.iter().cloned().flatten() {
                    prop_assert_eq!(owner[token].replace(rank), None);
                }
            }
            prop_assert!(owner.iter().all(Option::is_some));
            for token in 1..ids.len() {
                if ids[token] == ids[token - 1] {
                    prop_assert_eq!(owner[token], owner[token - 1]);
                }
            }
            let heaviest = parts.iter().map(|part| part.iter().map(Range::len).sum::<usize>()).max().unwrap();
            let longest = lengths.iter().map(|(length, _)| *length).max().unwrap_or(0);
            prop_assert!(heaviest <= ids.len() / ranks as usize + longest);
        }
    }
}
