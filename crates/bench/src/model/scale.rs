//! How many ranks, on how many nodes.

use anyhow::bail;
use clap::Args;

/// The most ranks that are counted: the work grows with their square.
const MOST_RANKS: u32 = 1024;

/// The flags of every model.
#[derive(Clone, Debug, Args)]
pub(super) struct ScaleArgs {
    /// Ranks, each a multiple of --per-node, up to 1024.
    #[arg(long, value_delimiter = ',', value_name = "N,...", default_values_t = [8, 16, 32, 64, 128, 256, 512, 1024])]
    ranks: Vec<u32>,
    /// Ranks of each node; each has a NIC of its own.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_RANKS)))]
    per_node: u32,
    /// One JSON object a line.
    #[arg(long)]
    pub(super) json: bool,
}

/// Ranks on nodes of one size, in node order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scale {
    pub(super) ranks: u32,
    pub(super) per_node: u32,
}

impl Scale {
    /// Nodes.
    pub(super) fn nodes(self) -> u32 {
        self.ranks / self.per_node
    }

    /// The node of each rank.
    pub(super) fn node_of_ranks(self) -> Vec<u32> {
        (0..self.ranks).map(|rank| rank / self.per_node).collect()
    }
}

impl ScaleArgs {
    /// All of them, in the order given.
    ///
    /// # Errors
    /// Ranks that do not fill their nodes, or are too many.
    pub(super) fn all(&self) -> anyhow::Result<Vec<Scale>> {
        let per_node = self.per_node;
        let of = |ranks: &u32| {
            if !ranks.is_multiple_of(per_node) || !(per_node..=MOST_RANKS).contains(ranks) {
                bail!(
                    "--ranks {ranks} with --per-node {per_node}; allowed are multiples of {per_node} up to {MOST_RANKS}, as all nodes \
                     are full"
                );
            }
            Ok(Scale { ranks: *ranks, per_node })
        };
        self.ranks.iter().map(of).collect()
    }
}
