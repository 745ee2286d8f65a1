//! What a queue's owner sends to its peer so that the two can be connected.

use serde::{Deserialize, Serialize};

/// Which driver made it, and which form of this description it speaks.
const DRIVER: &str = "libfabric 1";

/// A provider whose endpoints in one process use each other's memory directly, also when the other has ended and unmapped it: seen with
/// libfabric 1.17, whose `shm` then takes a lock that is not there.
const WITHIN_NO_PROCESS: &str = "shm";

/// A range of the peer's that requests may name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RemoteRange {
    /// The key that requests have.
    pub(crate) number: u32,
    /// The owner's address of its first byte.
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// The provider's key.
    pub(crate) key: u64,
    /// Whether operations name it by the owner's addresses, or count from its first byte.
    pub(crate) by_address: bool,
}

impl RemoteRange {
    /// What operations name these bytes by, if all of them are in it.
    pub(crate) fn target(&self, address: u64, bytes: u64) -> Option<u64> {
        let offset = address.checked_sub(self.address)?;
        let is_within = offset.checked_add(bytes)? <= self.bytes;
        is_within.then_some(if self.by_address { address } else { offset })
    }
}

/// One end of a queue, as it travels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Endpoint {
    driver: String,
    provider: String,
    address_format: u32,
    channel: u32,
    /// The number of the owner's process.
    process: u32,
    /// As the provider writes it.
    pub(crate) address: Vec<u8>,
    pub(crate) ranges: Vec<RemoteRange>,
}

impl Endpoint {
    pub(crate) fn new(provider: String, address_format: u32, channel: u32, address: Vec<u8>) -> Self {
        let driver = DRIVER.to_owned();
        let process = std::process::id();
        Self { driver, provider, address_format, channel, process, address, ranges: Vec::new() }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        // Plain numbers and text: they have no way to fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads the endpoint of a peer, which must fit to this one.
    ///
    /// # Errors
    /// What does not fit, in words.
    pub(crate) fn of_peer(&self, bytes: &[u8]) -> Result<Self, String> {
        let theirs: Self =
            serde_json::from_slice(bytes).map_err(|cause| format!("it cannot be read: {cause}"))?;
        let pairs = [
            ("driver", self.driver.clone(), theirs.driver.clone()),
            ("provider", self.provider.clone(), theirs.provider.clone()),
            ("form of addresses", self.address_format.to_string(), theirs.address_format.to_string()),
            ("channel", self.channel.to_string(), theirs.channel.to_string()),
        ];
        for (what, ours, given) in pairs {
            if ours != given {
                return Err(format!(
                    "its {what} is {given:?}, and this rank's is {ours:?} (transport.rdma.fabric_provider chooses the provider)"
                ));
            }
        }
        if self.provider == WITHIN_NO_PROCESS && self.process == theirs.process {
            return Err(format!(
                "both are in process {}, and the provider {WITHIN_NO_PROCESS} crashes it when one of two such endpoints ends before the other: ranks have to be processes of their own, or take another provider (transport.rdma.fabric_provider)",
                self.process
            ));
        }
        Ok(theirs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Endpoint {
        let ranges =
            vec![RemoteRange { number: 3, address: 4096, bytes: 64, key: 1 << 40, by_address: false }];
        Endpoint { ranges, ..Endpoint::new("tcp;ofi_rxm".to_owned(), 2, 1, vec![127, 0, 0, 1]) }
    }

    #[test]
    fn an_endpoint_arrives_as_it_was_and_another_is_refused_by_what_differs() {
        assert_eq!(own().of_peer(&own().to_bytes()), Ok(own()));
        let shared = |process| Endpoint { provider: "shm".to_owned(), process, ..own() };
        let far = shared(own().process + 1);
        assert_eq!(shared(own().process).of_peer(&far.to_bytes()), Ok(far));
        let near = shared(own().process).of_peer(&shared(own().process).to_bytes()).unwrap_err();
        assert!(near.contains("both are in process") && near.contains("fabric_provider"), "{near}");
        let check = |change: fn(&mut Endpoint), expected: &str| {
            let mut peer = own();
            change(&mut peer);
            let problem = own().of_peer(&peer.to_bytes()).unwrap_err();
            assert!(problem.contains(expected), "{problem}");
        };
        check(
            |peer| peer.provider = "shm".to_owned(),
            "its provider is \"shm\", and this rank's is \"tcp;ofi_rxm\"",
        );
        check(|peer| peer.driver = "libfabric 2".to_owned(), "its driver");
        check(|peer| peer.address_format = 3, "its form of addresses");
        check(|peer| peer.channel = 0, "its channel is \"0\"");
        let cut = own().of_peer(&own().to_bytes()[..20]).unwrap_err();
        assert!(cut.contains("cannot be read"), "{cut}");
    }

    #[test]
    fn bytes_of_a_range_are_named_as_its_provider_wants_and_no_others() {
        let by_offset = own().ranges[0].clone();
        let by_address = RemoteRange { by_address: true, ..by_offset.clone() };
        for (address, bytes, offset) in [
            (4096, 64, Some(0)),
            (4096, 0, Some(0)),
            (4104, 56, Some(8)),
            (4104, 57, None),
            (4095, 2, None),
            (u64::MAX, 2, None),
        ] {
            assert_eq!(by_offset.target(address, bytes), offset);
            assert_eq!(by_address.target(address, bytes), offset.map(|_| address));
        }
    }
}
