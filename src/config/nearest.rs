//! Suggestions for names that do not exist.

/// The candidate nearest to `given` by edit distance, when one is near enough to be worth a suggestion.
pub(crate) fn nearest<'a>(given: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (given.chars().count() / 3).max(2);
    let scored = candidates.into_iter().map(|name| (distance(given, name), name));
    scored.filter(|(score, _)| *score <= limit).min_by_key(|(score, _)| *score).map(|(_, name)| name)
}

/// Insertions, deletions, replacements and swaps of neighbours that turn one text into the other.
fn distance(left: &str, right: &str) -> usize {
    let (left, right): (Vec<char>, Vec<char>) = (left.chars().collect(), right.chars().collect());
    let mut before_last = Vec::new();
    let mut last: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in right.iter().enumerate() {
            let mut best = (last[j] + usize::from(a != b)).min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == right[j - 1] && left[i - 1] == *b {
                let swapped: &Vec<usize> = &before_last;
                best = best.min(swapped[j - 1] + 1);
            }
            row.push(best);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_found_and_far_ones_are_not() {
        let names = ["heap.bytes", "heap.mode", "device.runtime"];
        assert_eq!(nearest("heap.byte", names), Some("heap.bytes"));
        assert_eq!(nearest("haep.mode", names), Some("heap.mode"));
        assert_eq!(nearest("device.rutnime", names), Some("device.runtime"));
        assert_eq!(nearest("network.card", names), None);
        assert_eq!(nearest("", ["ab"]), Some("ab"));
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
