//! Which of a port's addresses a queue pair uses.

use core::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use super::port::LinkLayer;

/// What packets with an address look like (`gid_attrs/types` of the kernel).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum GidKind {
    /// InfiniBand, or RoCE v1 on Ethernet, which no router carries: `IB/RoCE v1`.
    InfinibandOrRoceV1,
    /// RoCE v2, over UDP: `RoCE v2`.
    RoceV2,
}

impl fmt::Display for GidKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::InfinibandOrRoceV1 => "InfiniBand or RoCE v1",
            Self::RoceV2 => "RoCE v2",
        })
    }
}

/// An address of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Its place in the port's table.
    pub index: u32,
    /// Its 16 bytes, in the order of the wire.
    pub value: Ipv6Addr,
    /// What packets with it look like.
    pub kind: GidKind,
    /// The network interface that it belongs to, on Ethernet.
    pub interface: Option<String>,
}

impl fmt::Display for Gid {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.index, self.value)?;
        match &self.interface {
            Some(interface) => write!(out, " of {interface}"),
            None => Ok(()),
        }
    }
}

/// The address that is used, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidChoice {
    /// The address.
    pub gid: Gid,
    /// Why, in words.
    pub reason: String,
    /// The others, and what they are, in the table's order.
    pub others: Vec<(u32, String)>,
}

/// Why no address can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GidError {
    #[error("transport.rdma.gid_index is {wanted}, and the port has {present}")]
    Absent {
        wanted: u32,
        /// The places that are not empty, or that there are none.
        present: String,
    },
    #[error(
        "the port has no address that can be used: {considered}; transport.rdma.gid_index takes another one"
    )]
    None { considered: String },
}

/// What an address is to a queue pair; better before worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    RoutableV4,
    RoutableV6,
    LinkLocalV4,
    LinkLocalV6,
    NotTaken,
}

impl Class {
    fn of(link_layer: LinkLayer, gid: &Gid) -> Self {
        match (link_layer, gid.kind) {
            // Every address of an InfiniBand port will do, and the first is the port's own.
            (LinkLayer::Infiniband, GidKind::InfinibandOrRoceV1) => Self::RoutableV6,
            (LinkLayer::Infiniband, GidKind::RoceV2) | (LinkLayer::Ethernet, GidKind::InfinibandOrRoceV1) => {
                Self::NotTaken
            }
            (LinkLayer::Ethernet, GidKind::RoceV2) => match mapped(gid.value) {
                Some(address) if address.is_link_local() => Self::LinkLocalV4,
                Some(_) => Self::RoutableV4,
                None if gid.value.segments()[0] & 0xffc0 == 0xfe80 => Self::LinkLocalV6,
                None => Self::RoutableV6,
            },
        }
    }

    fn describe(self, link_layer: LinkLayer) -> &'static str {
        match (self, link_layer) {
            (Self::NotTaken, LinkLayer::Ethernet) => "RoCE v1, which is not routed",
            (Self::NotTaken, LinkLayer::Infiniband) => "RoCE v2 on InfiniBand",
            (_, LinkLayer::Infiniband) => "InfiniBand",
            (Self::RoutableV4, _) => "RoCE v2 over IPv4",
            (Self::RoutableV6, _) => "RoCE v2 over IPv6",
            (Self::LinkLocalV4, _) => "RoCE v2 over IPv4, only on this link",
            (Self::LinkLocalV6, _) => "RoCE v2 over IPv6, only on this link",
        }
    }
}

/// `::ffff:a.b.c.d`.
fn mapped(value: Ipv6Addr) -> Option<Ipv4Addr> {
    value.to_ipv4_mapped()
}

/// Chooses among a port's addresses, given without the empty places of its table.
///
/// On Ethernet: RoCE v2 over IPv4 before RoCE v2 over IPv6 before either of them only on the link (169.254/16, fe80::/10); never
/// RoCE v1 unless `wanted` says so. On InfiniBand: the port's own. Among equals the first place of the table. `wanted` takes
/// that place, whatever it is.
///
/// # Errors
/// [`GidError`]: what was given and what there is.
pub fn choose_gid(link_layer: LinkLayer, gids: &[Gid], wanted: Option<u32>) -> Result<GidChoice, GidError> {
    let describe = |gid: &Gid| Class::of(link_layer, gid).describe(link_layer);
    let listed = |gids: &[Gid]| {
        let all: Vec<String> = gids.iter().map(|gid| format!("{gid}: {}", describe(gid))).collect();
        if all.is_empty() { "no address".to_owned() } else { all.join("; ") }
    };
    let (gid, reason) = if let Some(wanted) = wanted {
        let gid = gids.iter().find(|gid| gid.index == wanted);
        let gid = gid.ok_or_else(|| GidError::Absent { wanted, present: listed(gids) })?;
        (gid, format!("transport.rdma.gid_index takes it: {}", describe(gid)))
    } else {
        let classed = gids.iter().map(|gid| (Class::of(link_layer, gid), gid.index, gid));
        let fit = classed.filter(|(class, ..)| *class != Class::NotTaken);
        let best = fit.min_by_key(|(class, index, _)| (*class, *index));
        let (class, _, gid) = best.ok_or_else(|| GidError::None { considered: listed(gids) })?;
        let equals = gids.iter().filter(|other| Class::of(link_layer, other) == class).count();
        let among = if equals > 1 { format!(", the first of {equals}") } else { String::new() };
        (gid, format!("{}{among}", class.describe(link_layer)))
    };
    let others = gids.iter().filter(|other| other.index != gid.index);
    let others = others.map(|other| (other.index, describe(other).to_owned())).collect();
    Ok(GidChoice { gid: gid.clone(), reason, others })
}
