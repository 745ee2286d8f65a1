//! What two queue pairs tell one another before they are connected.

use serde::{Deserialize, Serialize};

/// A queue pair as its peer's driver needs to know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Endpoint {
    /// [`Self::FORMAT`]; another driver's endpoint has another.
    pub(crate) format: String,
    /// The number of the queue pair.
    pub(crate) number: u32,
    /// The packet sequence number that it starts with.
    pub(crate) first_packet: u32,
    /// Whether the link is Ethernet.
    pub(crate) ethernet: bool,
    /// The port's local identifier (InfiniBand).
    pub(crate) lid: u16,
    /// The port's address.
    pub(crate) gid: [u8; 16],
    /// `enum ibv_gid_type` of it.
    pub(crate) gid_kind: u32,
    /// `enum ibv_mtu` of the port.
    pub(crate) mtu: u32,
    /// Reads and atomic operations that the NIC answers at a time.
    pub(crate) most_answered: u8,
}

impl Endpoint {
    /// The first field's value.
    pub(crate) const FORMAT: &'static str = "anabranch verbs 1";

    /// As bytes for the peer.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        // Plain fields cannot fail to be written.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// What a peer's driver wrote, if a queue pair of this port can be connected to it.
    ///
    /// # Errors
    /// What does not fit.
    pub(crate) fn from_peer(bytes: &[u8], own: &Self) -> Result<Self, String> {
        let peer: Self =
            serde_json::from_slice(bytes).map_err(|error| format!("it cannot be read: {error}"))?;
        if peer.format != Self::FORMAT {
            return Err(format!("its format is {:?}, and {:?} is allowed", peer.format, Self::FORMAT));
        }
        if peer.ethernet != own.ethernet {
            return Err("one port's link is Ethernet and the other's InfiniBand".to_owned());
        }
        if own.ethernet && peer.gid_kind != own.gid_kind {
            return Err(format!(
                "its gid is of type {}, and this rank's of type {}",
                peer.gid_kind, own.gid_kind
            ));
        }
        let within = |value: u32, bits: u32| value >> bits == 0;
        if !within(peer.number, 24) || !within(peer.first_packet, 24) {
            return Err(format!(
                "queue pair {} or packet {} has more than 24 bits",
                peer.number, peer.first_packet
            ));
        }
        if !(1..=5).contains(&peer.mtu) {
            return Err(format!("its packet size has the code {}, and 1 to 5 are allowed", peer.mtu));
        }
        Ok(peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Endpoint {
        Endpoint {
            format: Endpoint::FORMAT.to_owned(),
            number: 17,
            first_packet: 0xff_ffff,
            ethernet: true,
            lid: 0,
            gid: [1; 16],
            gid_kind: 2,
            mtu: 3,
            most_answered: 16,
        }
    }

    #[test]
    fn a_peer_reads_what_was_written() {
        assert_eq!(Endpoint::from_peer(&own().to_bytes(), &own()), Ok(own()));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_reason() {
        let check = |change: fn(&mut Endpoint), expected: &str| {
            let mut peer = own();
            change(&mut peer);
            let problem = Endpoint::from_peer(&peer.to_bytes(), &own()).unwrap_err();
            assert!(problem.contains(expected), "{problem}");
        };
        check(|peer| peer.format = "mlx5".to_owned(), "mlx5");
        check(|peer| peer.ethernet = false, "InfiniBand");
        check(|peer| peer.gid_kind = 1, "type 1");
        check(|peer| peer.number = 1 << 24, "24 bits");
        check(|peer| peer.first_packet = 1 << 24, "24 bits");
        check(|peer| peer.mtu = 0, "code 0");
        let cut = Endpoint::from_peer(&own().to_bytes()[..20], &own()).unwrap_err();
        assert!(cut.contains("cannot be read"), "{cut}");
    }
}
