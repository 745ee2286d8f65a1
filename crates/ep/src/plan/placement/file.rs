//! Placements in files.

use std::path::Path;

use anabranch_ranks::GroupRank;
use serde::Deserialize;

use super::PlacementTable;
use crate::error::{Error, Result};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    ranks_of_experts: Vec<Vec<u32>>,
}

impl PlacementTable {
    /// Reads a TOML file with the ranks of each expert, as in `ranks_of_experts = [[0], [1, 0], [1]]`: expert 1 is on ranks 1 and 0 of
    /// the group. Whether experts and ranks are those of a plan is checked when that is made.
    ///
    /// # Errors
    /// [`Error::File`]: no such file, and all that [`Self::parse`] refuses.
    pub fn read(path: &Path) -> Result<Self> {
        let refuse = |problem| Error::File { what: "placement", path: path.to_owned(), problem };
        let text = std::fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
        Self::parse(&text).map_err(refuse)
    }

    /// Reads the text of such a file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Text { ranks_of_experts } = toml::from_str(text).map_err(|error| error.to_string())?;
        Ok(Self::new(
            ranks_of_experts.into_iter().map(|ranks| ranks.into_iter().map(GroupRank::new).collect()),
        ))
    }

    /// Places of experts: one for each expert and rank that works on it.
    pub fn copies(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_ranks_of_each_expert() {
        let placed = PlacementTable::parse("ranks_of_experts = [[2, 0], [1], [0, 1, 2]]").unwrap();
        assert_eq!((placed.to_string(), placed.copies()), ("2+0;1;0+1+2".to_owned(), 6));
        for (text, expected) in [
            ("ranks_of_experts = [[0], [-1]]", "-1"),
            ("ranks_of_experts = [0, 1]", "sequence"),
            ("ranks = [[0]]", "unknown field"),
            ("", "missing field"),
        ] {
            let refused = PlacementTable::parse(text).unwrap_err();
            assert!(refused.contains(expected), "{text}: {refused}");
        }
        let missing = PlacementTable::read(Path::new("/nowhere/placement.toml")).unwrap_err().to_string();
        assert!(missing.contains("/nowhere/placement.toml"), "{missing}");
    }
}
