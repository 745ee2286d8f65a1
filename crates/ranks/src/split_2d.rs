//! Rows and columns of a group, the last row possibly shorter.

use crate::{Error, Group, GroupRank};

/// A group laid out in rows of `xrange` members, the last row possibly shorter.
///
/// The member at position `p` of the parent has `x = p mod xrange` and `y = p / xrange`. Where all rows are full,
/// [`Mesh`](crate::Mesh) gives the same groups under names, with any number of axes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mesh2d {
    xrange: u32,
    size: u32,
    x_groups: Vec<Group>,
    y_groups: Vec<Group>,
}

impl Group {
    /// Lays the group out as a mesh with rows of `xrange` members. A range above the group's size gives one
    /// row of all members.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a range of 0.
    pub fn split_2d(&self, xrange: u32) -> Result<Mesh2d, Error> {
        let call = "split_2d";
        if xrange == 0 {
            return Err(Error::invalid(call, "an x range of 0 was given", "it must be at least 1"));
        }
        let size = self.size();
        let xrange = xrange.min(size);
        let row = |y: u32| {
            let start = y * xrange;
            self.split_strided(GroupRank::new(start), 1, xrange.min(size - start))
        };
        let column = |x: u32| self.split_strided(GroupRank::new(x), xrange, (size - x).div_ceil(xrange));
        Ok(Mesh2d {
            xrange,
            size,
            x_groups: (0..size.div_ceil(xrange)).map(row).collect::<Result<_, _>>()?,
            y_groups: (0..xrange).map(column).collect::<Result<_, _>>()?,
        })
    }
}

impl Mesh2d {
    /// Members in a full row.
    pub fn xrange(&self) -> u32 {
        self.xrange
    }

    /// The rows: the group at index `y` has all members with that `y`, in order of `x`.
    pub fn x_groups(&self) -> &[Group] {
        &self.x_groups
    }

    /// The columns: the group at index `x` has all members with that `x`, in order of `y`.
    pub fn y_groups(&self) -> &[Group] {
        &self.y_groups
    }

    /// `(x, y)` of the member at this position of the parent; `None` when the parent has no such position.
    pub fn coordinates(&self, rank: GroupRank) -> Option<(u32, u32)> {
        (rank.get() < self.size).then(|| (rank.get() % self.xrange, rank.get() / self.xrange))
    }

    /// The row of the member at this position of the parent.
    pub fn x_group(&self, rank: GroupRank) -> Option<&Group> {
        self.coordinates(rank).and_then(|(_, y)| self.x_groups.get(y as usize))
    }

    /// The column of the member at this position of the parent.
    pub fn y_group(&self, rank: GroupRank) -> Option<&Group> {
        self.coordinates(rank).and_then(|(x, _)| self.y_groups.get(x as usize))
    }
}
