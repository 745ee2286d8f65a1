//! The places in memory that a problem names.

use std::collections::BTreeSet;

use anabranch_weakmem::{Action, Event};

/// Bytes of an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place<'a> {
    name: &'a str,
    first: u32,
    end: u32,
}

impl Place<'_> {
    /// Whether an access to bytes of an allocation touches it.
    pub(super) fn meets(&self, (name, first, end): (&str, u32, u32)) -> bool {
        self.name == name && first < self.end && self.first < end
    }
}

/// Every `NAME+BYTE` and `NAME+FIRST..END` in the text whose name is an allocation of the run.
pub(super) fn places<'a>(problem: &str, events: &'a [Event]) -> Vec<Place<'a>> {
    let names: BTreeSet<&str> = events
        .iter()
        .filter_map(|event| match &event.action {
            Action::Access(_, name, ..) => Some(&**name),
            Action::Sync(_) => None,
        })
        .collect();
    let mut found = Vec::new();
    for name in names {
        for (at, _) in problem.match_indices(name) {
            let starts = !problem[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_');
            let Some(rest) = problem[at + name.len()..].strip_prefix('+') else { continue };
            let Some((first, rest)) = number(rest).filter(|_| starts) else { continue };
            let end =
                rest.strip_prefix("..").and_then(number).map_or(first.saturating_add(1), |(end, _)| end);
            found.push(Place { name, first, end });
        }
    }
    found
}

fn number(text: &str) -> Option<(u32, &str)> {
    let end = text.find(|next: char| !next.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::access;

    #[test]
    fn places_are_found_by_the_names_of_the_run() {
        let events = [
            access(1, 0, "k", Some(0), "store", ("heap1", 0)),
            access(2, 0, "k", Some(0), "store", ("heap10", 0)),
        ];
        let of = |problem: &str| {
            let found = places(problem, &events);
            found.iter().map(|place| (place.name.to_owned(), place.first, place.end)).collect::<Vec<_>>()
        };
        assert_eq!(of("rank 0 read heap1+64, not 3"), [("heap1".to_owned(), 64, 65)]);
        assert_eq!(of("heap10+8..16 tore"), [("heap10".to_owned(), 8, 16)]);
        assert!(of("myheap1+64 and heap2+64 and heap1 and heap1+x").is_empty());
        let place = &places("heap1+64", &events)[0];
        assert!(place.meets(("heap1", 64, 72)) && place.meets(("heap1", 60, 65)));
        assert!(!place.meets(("heap1", 56, 64)) && !place.meets(("heap1", 65, 72)));
        assert!(!place.meets(("heap10", 64, 72)));
    }
}
