//! Which of a port's addresses queue pairs use.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::bindings::{IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2};

/// An address of a port (global identifier).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gid {
    /// Its place in the port's table.
    pub(crate) index: u32,
    /// `enum ibv_gid_type`.
    pub(crate) kind: u32,
    /// The address, as on the wire.
    pub(crate) raw: [u8; 16],
}

impl Gid {
    /// The IPv4 address that it stands for, if it is such a one.
    pub(crate) fn ipv4(&self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.raw).to_ipv4_mapped()
    }

    /// Whether it is of the link's own range (fe80::/10).
    fn is_link_local(&self) -> bool {
        Ipv6Addr::from(self.raw).is_unicast_link_local()
    }

    /// For people.
    pub(crate) fn describe(&self) -> String {
        let kind = match self.kind {
            IBV_GID_TYPE_IB => "InfiniBand",
            IBV_GID_TYPE_ROCE_V1 => "RoCE v1",
            IBV_GID_TYPE_ROCE_V2 => "RoCE v2",
            _ => "of an unlisted type",
        };
        match self.ipv4() {
            Some(address) => format!("gid {} ({kind}, {address})", self.index),
            None => format!("gid {} ({kind}, {})", self.index, Ipv6Addr::from(self.raw)),
        }
    }
}

/// Chooses the address, and says why: the one at the index that the configuration names; else, on Ethernet, RoCE v2 by an IPv4 address,
/// which routers forward and whose peers' addresses are of the same family on every rank; then RoCE v2 by a global, then by a link-local
/// IPv6 address; then RoCE v1, which switches forward within one Ethernet segment only. On InfiniBand, the first.
///
/// # Errors
/// Why there is none.
pub(crate) fn choose_gid(
    gids: &[Gid],
    ethernet: bool,
    wanted: Option<u32>,
) -> Result<(Gid, &'static str), String> {
    if let Some(index) = wanted {
        let found = gids.iter().find(|gid| gid.index == index);
        let indices: Vec<_> = gids.iter().map(|gid| gid.index).collect();
        return found
            .map(|gid| (*gid, "named by the configuration"))
            .ok_or_else(|| format!("gid {index} is asked for, and there are {indices:?}"));
    }
    if !ethernet {
        return gids.first().map(|gid| (*gid, "the first")).ok_or_else(|| "it has no gid".to_owned());
    }
    let rank = |gid: &Gid| match (gid.kind, gid.ipv4(), gid.is_link_local()) {
        (IBV_GID_TYPE_ROCE_V2, Some(_), _) => Some((0, "RoCE v2 by an IPv4 address, which is routed")),
        (IBV_GID_TYPE_ROCE_V2, None, false) => {
            Some((1, "RoCE v2 by a global IPv6 address; there is none by IPv4"))
        }
        (IBV_GID_TYPE_ROCE_V2, None, true) => Some((2, "RoCE v2 by a link-local address; there is no other")),
        (IBV_GID_TYPE_ROCE_V1, ..) => Some((3, "RoCE v1, within one Ethernet segment; there is no v2")),
        _ => None,
    };
    let best = gids
        .iter()
        .filter_map(|gid| rank(gid).map(|(rank, why)| (rank, *gid, why)))
        .min_by_key(|(rank, ..)| *rank);
    best.map(|(_, gid, why)| (gid, why))
        .ok_or_else(|| "it has no RoCE gid: its network interface may be down".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u32, kind: u32, address: &str) -> Gid {
        Gid { index, kind, raw: address.parse::<Ipv6Addr>().unwrap().octets() }
    }

    #[test]
    fn roce_v2_by_ipv4_comes_first_then_global_then_link_local_then_v1() {
        let mut gids = vec![
            gid(0, IBV_GID_TYPE_ROCE_V1, "fe80::1"),
            gid(1, IBV_GID_TYPE_ROCE_V2, "fe80::1"),
            gid(2, IBV_GID_TYPE_ROCE_V1, "::ffff:10.0.0.1"),
            gid(4, IBV_GID_TYPE_ROCE_V2, "2001:db8::1"),
            gid(5, IBV_GID_TYPE_ROCE_V2, "::ffff:10.0.0.1"),
        ];
        for expected in [5, 4, 1, 0] {
            let (chosen, why) = choose_gid(&gids, true, None).unwrap();
            assert_eq!(chosen.index, expected, "{why}");
            gids.retain(|gid| gid.index != expected);
        }
        gids.clear();
        assert!(choose_gid(&gids, true, None).unwrap_err().contains("no RoCE gid"));
    }

    #[test]
    fn a_named_gid_is_taken_or_refused() {
        let gids = [gid(0, IBV_GID_TYPE_ROCE_V1, "fe80::1"), gid(3, IBV_GID_TYPE_ROCE_V2, "::ffff:10.0.0.1")];
        assert_eq!(choose_gid(&gids, true, Some(0)).unwrap().0.index, 0);
        let problem = choose_gid(&gids, true, Some(2)).unwrap_err();
        assert!(problem.contains("gid 2") && problem.contains("[0, 3]"), "{problem}");
        assert_eq!(gids[1].describe(), "gid 3 (RoCE v2, 10.0.0.1)");
    }
}
