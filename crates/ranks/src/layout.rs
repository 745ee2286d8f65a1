//! The layout hint.

use crate::GlobalRank;

/// How a group's global ranks lie, found by looking at every element.
///
/// A hint for code that has a shorter way for regular groups; the group's list stays the definition. Only
/// rising sequences count as regular: `[3, 2, 1]` and `[0, 2, 8]` are [`Layout::List`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Member `i` is rank `start + i`. A group of one is contiguous.
    Contiguous {
        /// The first member.
        start: GlobalRank,
    },
    /// Member `i` is rank `start + i * stride`, with a stride of at least 2.
    Strided {
        /// The first member.
        start: GlobalRank,
        /// The distance between neighbours, in ranks.
        stride: u32,
    },
    /// Anything else.
    List,
}

impl Layout {
    /// Derives the hint. An empty list, which no group has, counts as a list.
    pub(crate) fn of(members: &[GlobalRank]) -> Self {
        let Some(&start) = members.first() else { return Self::List };
        let Some(second) = members.get(1) else { return Self::Contiguous { start } };
        let Some(stride) = second.get().checked_sub(start.get()).filter(|stride| *stride > 0) else {
            return Self::List;
        };
        let regular = members.windows(2).all(|pair| match pair {
            [one, next] => one.get().checked_add(stride) == Some(next.get()),
            _ => false,
        });
        match (regular, stride) {
            (false, _) => Self::List,
            (true, 1) => Self::Contiguous { start },
            (true, stride) => Self::Strided { start, stride },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(numbers: &[u32]) -> Layout {
        Layout::of(&numbers.iter().map(|n| GlobalRank::new(*n)).collect::<Vec<_>>())
    }

    #[test]
    fn every_element_is_looked_at() {
        let start = GlobalRank::new(0);
        assert_eq!(layout(&[0]), Layout::Contiguous { start });
        assert_eq!(layout(&[0, 1, 2]), Layout::Contiguous { start });
        assert_eq!(layout(&[0, 2, 4]), Layout::Strided { start, stride: 2 });
        assert_eq!(layout(&[0, 2, 8]), Layout::List);
        assert_eq!(layout(&[0, 2, 4, 7]), Layout::List);
        assert_eq!(layout(&[2, 1, 0]), Layout::List);
        assert_eq!(
            layout(&[u32::MAX - 1, u32::MAX]),
            Layout::Contiguous { start: GlobalRank::new(u32::MAX - 1) }
        );
    }
}
