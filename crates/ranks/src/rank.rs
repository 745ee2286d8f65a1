//! The two kinds of rank.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A rank's number in its world: `0..size of the world`.
///
/// It says which process or thread is meant and nothing about any group. There is deliberately no `From`
/// to or from [`GroupRank`] or an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GlobalRank(u32);

/// A member's position in one group: `0..size of the group`, in group order.
///
/// It means nothing without its group; `Group::global` and `Group::rank_of` go between the two kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupRank(u32);

macro_rules! rank_type {
    ($name:ident, $words:literal) => {
        impl $name {
            /// Makes the rank with this number. Whether it exists is checked where it is used.
            pub const fn new(number: u32) -> Self {
                Self(number)
            }

            /// The number.
            pub const fn get(self) -> u32 {
                self.0
            }

            /// The number, for indexing a table that is in the order of this kind of rank.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($words, " {}"), self.0)
            }
        }
    };
}

rank_type!(GlobalRank, "rank");
rank_type!(GroupRank, "group rank");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_print_which_kind_they_are() {
        assert_eq!(GlobalRank::new(3).to_string(), "rank 3");
        assert_eq!(GroupRank::new(3).to_string(), "group rank 3");
        assert_eq!(GroupRank::new(u32::MAX).index(), u32::MAX as usize);
    }
}
