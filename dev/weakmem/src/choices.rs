//! Choices of a run that are not drawn but given, one after the other: each run takes another way, until all are taken.

/// What was chosen in a run of an exploration, choice by choice; [`SeededMachine::replay`](super::SeededMachine::replay)
/// goes the same way again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choices(pub(crate) Vec<u32>);

/// Choices as they are taken.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    given: Vec<u32>,
    /// What was chosen, of how many.
    taken: Vec<(u32, u32)>,
}

impl Script {
    pub(crate) fn new(given: Choices) -> Self {
        Self { given: given.0, taken: Vec::new() }
    }

    /// As given; the first beyond that.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        if end <= 1 {
            return 0;
        }
        let given = self.given.get(self.taken.len()).copied().unwrap_or(0);
        // Choices of another program may not fit; any that does is as good.
        let chosen = given.min(end as u32 - 1);
        self.taken.push((chosen, end as u32));
        chosen as usize
    }

    pub(crate) fn taken(&self) -> Choices {
        Choices(self.taken.iter().map(|(chosen, _)| *chosen).collect())
    }

    /// The way after this one, depth first; `None` behind the last.
    pub(crate) fn next(mut self) -> Option<Choices> {
        while let Some((chosen, of)) = self.taken.pop() {
            if chosen + 1 < of {
                let mut next = self.taken();
                next.0.push(chosen + 1);
                return Some(next);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::{Choices, Script};

    #[test]
    fn every_way_is_taken_once() {
        // The second choice is there only behind one answer to the first.
        let mut ways = Vec::new();
        let mut next = Some(Choices::default());
        while let Some(given) = next {
            let mut script = Script::new(given);
            let first = script.below(3);
            let second = if first == 1 { script.below(2) } else { 9 };
            assert_eq!(script.below(1), 0);
            ways.push((first, second));
            next = script.next();
        }
        assert_eq!(ways, [(0, 9), (1, 0), (1, 1), (2, 9)]);
    }
}
