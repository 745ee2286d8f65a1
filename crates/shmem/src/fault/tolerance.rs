//! Losses that do not end the world, for operations that can do without a rank.

use anabranch_bootstrap::Loss;
use anabranch_ranks::{GlobalRank, Group};

/// Whose losses are tolerated, and who was lost.
#[derive(Debug, Default)]
pub(crate) struct Tolerated {
    groups: Vec<(u64, Group)>,
    next: u64,
    lost: Vec<Loss>,
}

impl Tolerated {
    pub(crate) fn begin(&mut self, group: &Group) -> u64 {
        self.next += 1;
        self.groups.push((self.next, group.clone()));
        self.next
    }

    /// Whether the loss is tolerated. It is remembered then.
    pub(crate) fn takes(&mut self, loss: &Loss) -> bool {
        let taken = self.covers(loss);
        if taken && self.lost.iter().all(|known| known.rank != loss.rank) {
            self.lost.push(loss.clone());
        }
        taken
    }

    fn covers(&self, loss: &Loss) -> bool {
        self.names(loss.rank)
    }

    /// Whether a loss of the rank would be tolerated.
    pub(crate) fn names(&self, rank: GlobalRank) -> bool {
        self.groups.iter().any(|(_, group)| group.contains(rank))
    }

    /// The losses that no operation tolerates any more.
    pub(crate) fn end(&mut self, number: u64) -> Vec<Loss> {
        self.groups.retain(|(other, _)| *other != number);
        let lost = std::mem::take(&mut self.lost);
        let (kept, ended) = lost.into_iter().partition(|loss| self.covers(loss));
        self.lost = kept;
        ended
    }
}

#[cfg(test)]
mod tests {
    use anabranch_bootstrap::LossKind;

    use super::*;

    fn loss(rank: u32) -> Loss {
        Loss { rank: GlobalRank::new(rank), kind: LossKind::Died, detail: "gone".to_owned() }
    }

    #[test]
    fn a_loss_counts_again_when_the_last_that_tolerates_it_goes() {
        let world = Group::world(4).unwrap();
        let pair = world.subset_of_ranks(&[1, 2].map(GlobalRank::new)).unwrap();
        let mut tolerated = Tolerated::default();
        assert!(!tolerated.takes(&loss(1)));
        let (all, some) = (tolerated.begin(&world), tolerated.begin(&pair));
        for lost in [3, 1, 1] {
            assert!(tolerated.takes(&loss(lost)));
        }
        assert_eq!(tolerated.end(all), [loss(3)], "no other operation tolerates it");
        assert!(!tolerated.takes(&loss(0)));
        assert_eq!(tolerated.end(some), [loss(1)], "once");
        assert_eq!(tolerated.end(some), []);
    }
}
