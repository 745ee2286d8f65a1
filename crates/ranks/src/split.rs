//! Splitting a group by what its members chose, or by where they run.

use crate::{Error, Group, GroupRank, Nodes};
use std::collections::BTreeMap;
use std::hash::Hash;

/// What one member asks for in [`Group::split`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SplitChoice {
    /// Members with equal colors form a group; `None` joins none.
    pub color: Option<u32>,
    /// Members of a group are ordered by this, and by their position in the parent where it is equal.
    pub key: i64,
}

impl Group {
    /// Splits by color, as `MPI_Comm_split` does: one group for each color that occurs, in rising order of
    /// colors, each ordered by key and then by position in `self`.
    ///
    /// `choices` has one entry for each member, in group order; every member must be given the same table.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the table's length is not the group's size.
    pub fn split(&self, choices: &[SplitChoice]) -> Result<Vec<(u32, Self)>, Error> {
        let call = "split";
        self.one_each(call, choices.len())?;
        let mut colors: BTreeMap<u32, Vec<(i64, GroupRank)>> = BTreeMap::new();
        for (choice, rank) in choices.iter().zip(self.ranks()) {
            if let Some(color) = choice.color {
                colors.entry(color).or_default().push((choice.key, rank));
            }
        }
        colors
            .into_iter()
            .map(|(color, mut chosen)| {
                chosen.sort_unstable();
                Ok((color, self.pick(call, chosen.into_iter().map(|(_, rank)| rank))?))
            })
            .collect()
    }

    /// One group for each node, in the order in which the nodes first occur; members keep their order.
    ///
    /// `nodes` has one entry for each member, in group order: any value that distinguishes nodes (a boot
    /// identity, say).
    ///
    /// # Errors
    /// [`Error::Invalid`] when the table's length is not the group's size.
    pub fn by_node<N: Eq + Hash>(&self, nodes: &[N]) -> Result<Vec<Self>, Error> {
        self.one_each("by_node", nodes.len())?;
        Nodes::new(nodes).inside(self)
    }

    pub(crate) fn one_each(&self, call: &'static str, given: usize) -> Result<(), Error> {
        if given == self.members().len() {
            Ok(())
        } else {
            let given = format!("{given} entries were given for a group of {} members", self.size());
            Err(Error::invalid(call, given, "each member needs exactly one"))
        }
    }
}
