//! By what others reach a NIC.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Text that leads to a NIC. What stands before its first slash is the token by which the NIC tells its peers from strangers: it travels
/// to peers, and no log shows it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Address(pub(crate) String);

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.split_once('/') {
            Some((_, place)) => write!(f, "<token>/{place}"),
            None => f.write_str(&self.0),
        }
    }
}
