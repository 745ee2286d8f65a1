//! What a queue pair's owner sends to its peer so that the two can be connected.

use anabranch_ranks::GlobalRank;
use anabranch_transport_rdma::{NicError, Provider};
use serde::{Deserialize, Serialize};

use crate::fabric::Address;

/// Which software made it, and which form of frames it speaks.
const DRIVER: &str = "softnic 1";

/// One end of a connection, as it travels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Endpoint {
    driver: String,
    provider: u32,
    fabric: String,
    pub(crate) nic: u64,
    pub(crate) address: Address,
    pub(crate) number: u32,
    channel: u32,
}

impl Endpoint {
    pub(crate) fn new(
        provider: Provider,
        fabric: &str,
        nic: u64,
        address: Address,
        number: u32,
        channel: u32,
    ) -> Self {
        let (driver, fabric) = (DRIVER.to_owned(), fabric.to_owned());
        Self { driver, provider: provider.number(), fabric, nic, address, number, channel }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        // Plain numbers and text: they have no way to fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads the endpoint of a peer, which must fit to this one.
    pub(crate) fn of_peer(&self, peer: GlobalRank, bytes: &[u8]) -> Result<Self, NicError> {
        let refused = |problem: String| NicError::Endpoint { peer, driver: DRIVER.to_owned(), problem };
        let theirs: Self =
            serde_json::from_slice(bytes).map_err(|cause| refused(format!("it cannot be read: {cause}")))?;
        let pairs = [
            ("driver", self.driver.clone(), theirs.driver.clone()),
            ("provider", self.provider.to_string(), theirs.provider.to_string()),
            ("fabric", self.fabric.clone(), theirs.fabric.clone()),
            ("channel", self.channel.to_string(), theirs.channel.to_string()),
        ];
        for (what, ours, given) in pairs {
            if ours != given {
                return Err(refused(format!("its {what} is {given:?}, and this one's is {ours:?}")));
            }
        }
        Ok(theirs)
    }
}
