//! By which way something goes between nodes.

use serde::{Deserialize, Serialize};

crate::word_enum! {
    /// By which way something goes to other nodes. What each means for an operation, and when [`Self::Auto`] is which, the operation says.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    #[non_exhaustive]
    pub enum Across, name, "way across nodes" {
        /// What is expected to be faster.
        #[default]
        Auto = "auto",
        /// From every member straight to whom it concerns: the fewest steps, on any nodes.
        Direct = "direct",
        /// What concerns several members of a node goes there once, to one of them, who hands it on inside, or what concerns one goes there
        /// together: fewer bytes, or fewer requests, between nodes, and more steps.
        Node = "node",
    }
}
