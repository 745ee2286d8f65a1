//! What two queue pairs exchange before they are connected.

use std::hash::{BuildHasher, RandomState};

use serde::{Deserialize, Serialize};

use crate::error::NicError;
use crate::nics::{GidKind, LinkLayer};

/// A queue pair as its peer's driver needs to know it. Both drivers of hardware use it, each under a name of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Endpoint {
    /// Which driver made it, and in which form.
    pub(crate) driver: String,
    /// The number of the queue pair, 24 bits.
    pub(crate) number: u32,
    /// The packet sequence number that it sends first, 24 bits.
    pub(crate) first_packet: u32,
    /// What the port's wire is.
    pub(crate) link_layer: LinkLayer,
    /// The port's local identifier; 0 on Ethernet.
    pub(crate) lid: u16,
    /// The port's address, in the order of the wire.
    pub(crate) gid: [u8; 16],
    /// The format of its packets: RoCE v1 and v2 differ.
    pub(crate) gid_kind: GidKind,
    /// The most bytes of a packet: 256, 512, 1024, 2048 or 4096.
    pub(crate) mtu: u32,
    /// Reads and atomic operations that the queue pair answers at a time; its peer asks for no more.
    pub(crate) most_answered: u32,
}

impl Endpoint {
    /// As bytes for the peer.
    #[expect(clippy::expect_used, reason = "says why it cannot fail")]
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a struct of numbers and words serializes")
    }

    /// What a peer's driver wrote, if this queue pair can be connected to it.
    ///
    /// # Errors
    /// What does not fit.
    pub(crate) fn of_peer(&self, bytes: &[u8]) -> Result<Self, String> {
        let theirs: Self =
            serde_json::from_slice(bytes).map_err(|error| format!("it cannot be read: {error}"))?;
        if theirs.driver != self.driver {
            return Err(format!("it is one of {:?}", theirs.driver));
        }
        if theirs.number == 0 || theirs.number > MOST_24_BITS {
            return Err(format!("queue pair number {:#x}, 1 to {MOST_24_BITS:#x} allowed", theirs.number));
        }
        if theirs.first_packet > MOST_24_BITS {
            return Err(format!("first packet {:#x}, 0 to {MOST_24_BITS:#x} allowed", theirs.first_packet));
        }
        if !is_mtu(theirs.mtu) {
            return Err(format!("packets of {} bytes, {MTUS} allowed", theirs.mtu));
        }
        if theirs.most_answered == 0 {
            return Err(
                "it answers no reads and atomic operations, 1 or more at a time are needed".to_owned()
            );
        }
        if theirs.link_layer != self.link_layer {
            let (their, own) = (theirs.link_layer, self.link_layer);
            return Err(format!("its port is one of {their}, this rank's of {own}"));
        }
        match self.link_layer {
            LinkLayer::Ethernet if theirs.gid_kind != self.gid_kind => Err(format!(
                "its GID is one of {}, this rank's of {}: set transport.rdma.gid_index on both",
                theirs.gid_kind, self.gid_kind
            )),
            LinkLayer::Infiniband if theirs.lid == 0 => {
                Err("its port has no local identifier: is a subnet manager running?".to_owned())
            }
            _ => Ok(theirs),
        }
    }

    /// Whether packets to a peer carry a global header: on Ethernet always; on InfiniBand between subnets, whose prefix is the first half.
    pub(crate) fn is_global(&self, peer: &Self) -> bool {
        self.link_layer == LinkLayer::Ethernet || self.gid[..8] != peer.gid[..8]
    }
}

const MOST_24_BITS: u32 = 0x00ff_ffff;

/// The bytes that packets may have, in words.
pub(crate) const MTUS: &str = "256, 512, 1024, 2048 or 4096";

/// Whether packets may have so many bytes.
pub(crate) fn is_mtu(bytes: u32) -> bool {
    bytes.is_power_of_two() && (256..=4096).contains(&bytes)
}

/// The code of a packet's bytes (`enum ibv_mtu`, and `MLX5_QPC_MTU_*` alike): 256 is 1, 4096 is 5.
pub(crate) const fn mtu_code(bytes: u32) -> u32 {
    let bytes = if bytes < 256 { 256 } else { bytes };
    bytes.ilog2() - 7
}

/// The bytes of a code; beyond the codes a number that [`is_mtu`] refuses.
pub(crate) fn mtu_bytes(code: u32) -> u32 {
    128u32.checked_shl(code).unwrap_or(0)
}

/// Whether a NIC answers and asks for reads and atomic operations at all: kernels read peers' memory and add to it.
///
/// # Errors
/// [`NicError::Limit`].
pub(crate) fn check_reads(most_answered: u32, most_asked: u32, nic: &str) -> Result<(), NicError> {
    if most_answered > 0 && most_asked > 0 {
        return Ok(());
    }
    let what = if most_answered == 0 { "reads answered at a time" } else { "reads asked for at a time" };
    Err(NicError::Limit { what, given: 0, allowed: "1 or more".to_owned(), nic: nic.to_owned() })
}

/// A packet sequence number to begin with: drawn, so that packets of an earlier connection between the same numbers are not taken for
/// this one's.
pub(crate) fn first_packet() -> u32 {
    RandomState::new().hash_one(0) as u32 & MOST_24_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Endpoint {
        Endpoint {
            driver: "verbs 2".to_owned(),
            number: 17,
            first_packet: 0xff_ffff,
            link_layer: LinkLayer::Ethernet,
            lid: 0,
            gid: [1; 16],
            gid_kind: GidKind::RoceV2,
            mtu: 1024,
            most_answered: 16,
        }
    }

    #[test]
    fn a_peer_reads_what_was_written() {
        assert_eq!(own().of_peer(&own().to_bytes()), Ok(own()));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_reason() {
        let check = |change: fn(&mut Endpoint), expected: &str| {
            let mut peer = own();
            change(&mut peer);
            let problem = own().of_peer(&peer.to_bytes()).unwrap_err();
            assert!(problem.contains(expected), "{problem}");
        };
        check(|peer| peer.driver = "mlx5 2".to_owned(), "mlx5");
        check(|peer| peer.link_layer = LinkLayer::Infiniband, "one of InfiniBand, this rank's of Ethernet");
        check(|peer| peer.gid_kind = GidKind::InfinibandOrRoceV1, "RoCE v1, this rank's of RoCE v2");
        check(|peer| peer.number = 1 << 24, "number 0x1000000");
        check(|peer| peer.number = 0, "number 0x0");
        check(|peer| peer.first_packet = 1 << 24, "first packet 0x1000000");
        check(|peer| peer.mtu = 1500, "packets of 1500 bytes");
        check(|peer| peer.most_answered = 0, "answers no reads");
        let cut = own().of_peer(&own().to_bytes()[..20]).unwrap_err();
        assert!(cut.contains("cannot be read"), "{cut}");
        let infiniband = Endpoint { link_layer: LinkLayer::Infiniband, ..own() };
        let without = infiniband.of_peer(&infiniband.to_bytes()).unwrap_err();
        assert!(without.contains("no local identifier"), "{without}");
    }

    #[test]
    fn a_nic_that_answers_no_reads_or_asks_for_none_is_refused() {
        let check =
            |answered, asked| check_reads(answered, asked, "mlx5_7").map_err(|error| error.to_string());
        assert_eq!(check(1, 1), Ok(()));
        let (answered, asked) = (check(0, 16).unwrap_err(), check(16, 0).unwrap_err());
        assert_eq!(answered, "reads answered at a time: 0 given, 1 or more allowed on mlx5_7");
        assert_eq!(asked, "reads asked for at a time: 0 given, 1 or more allowed on mlx5_7");
    }

    #[test]
    fn sizes_of_packets_and_their_codes_are_each_others() {
        for (code, bytes) in [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)] {
            assert_eq!((mtu_code(bytes), mtu_bytes(code), is_mtu(bytes)), (code, bytes, true));
        }
        assert!([0, 6, 31, 32, 99].iter().all(|code| !is_mtu(mtu_bytes(*code))));
    }

    #[test]
    fn two_queue_pairs_begin_with_packets_of_their_own() {
        let drawn: std::collections::BTreeSet<_> = (0..64).map(|_| first_packet()).collect();
        assert!(drawn.len() > 32 && drawn.iter().all(|packet| *packet <= MOST_24_BITS), "{drawn:?}");
    }
}
