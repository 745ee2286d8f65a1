//! The port that serves a rank, as it was chosen: what drivers open.

use std::path::Path;

use anabranch_ranks::GlobalRank;
use anabranch_transport::PeerInfo;

use super::RdmaConfig;
use super::assign::Considered;
use super::error::NicTreeError;
use super::filter::NicFilter;
use super::gid::{GidChoice, choose_gid};
use super::machine::{Machine, Nic};
use super::port::Port;
use super::rank::assign_to_rank;
use crate::error::{NicError, Result};

/// A port and its address, and why these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenPort {
    /// The NIC.
    pub nic: Nic,
    /// The port of it.
    pub port: Port,
    /// The address of the port.
    pub gid: GidChoice,
    /// Why this port, in words.
    pub reason: String,
}

impl ChosenPort {
    /// A port of a NIC by its number, with the address that [`choose_gid`] takes. `reason` is why this port, for people.
    ///
    /// # Errors
    /// [`NicError::NoNic`]: there is no such port, or it has no address that can be used.
    pub fn new(nic: &Nic, number: u32, gid_index: Option<u32>, reason: String) -> Result<Self> {
        let none = |problem: &str| NicError::NoNic { reasons: format!("{}:{number}: {problem}", nic.name) };
        let port = nic.ports.iter().find(|port| port.number == number);
        let port = port.ok_or_else(|| none("it has no such port"))?;
        let gid = choose_gid(port.link_layer, &port.gids, gid_index);
        let gid = gid.map_err(|error| none(&error.to_string()))?;
        Ok(Self { nic: nic.clone(), port: port.clone(), gid, reason })
    }

    /// The port of the rank `own` among `peers`, all ranks of the world in the order of their numbers, by what the kernel shows below `root`
    /// (usually [`SYSTEM_FOLDER`](super::SYSTEM_FOLDER)) and the settings allow. Not collective; see [`assign_to_rank`].
    ///
    /// # Errors
    /// [`NicError::NoNic`]: why nothing serves, with each port and why it does not.
    pub fn of_rank(root: &Path, own: GlobalRank, peers: &[PeerInfo], config: &RdmaConfig) -> Result<Self> {
        let none = |cause: NicTreeError| NicError::NoNic { reasons: anabranch_hip::with_causes(&cause) };
        let machine = Machine::read(root).map_err(none)?;
        let filter = NicFilter::parse(&config.nics).map_err(none)?.with_gid_index(config.gid_index);
        filter.check(&machine).map_err(none)?;
        let assigned = assign_to_rank(root, own, peers, &machine, &filter).map_err(none)?;
        let found = assigned.chosen.and_then(|id| Some((machine.nics().get(id.nic)?, id.port)));
        let Some((nic, port)) = found else {
            let of_port = |one: &Considered| format!("{}: {}", one.port, one.verdict);
            let considered = assigned.considered.iter().map(of_port);
            let reasons = std::iter::once(assigned.reason).chain(considered).collect::<Vec<_>>().join("; ");
            return Err(NicError::NoNic { reasons });
        };
        Self::new(nic, port, config.gid_index, assigned.reason)
    }

    /// Why this port and this address, in words.
    pub fn why(&self) -> String {
        format!("{}; GID {}: {}", self.reason, self.gid.gid, self.gid.reason)
    }

    /// The port's number and the address' place in its table, for which verbs and NICs have 8 bits each.
    ///
    /// # Errors
    /// [`NicError::Limit`].
    pub(crate) fn numbers(&self) -> Result<(u8, u8)> {
        let limit = |what, given: u32| NicError::Limit {
            what,
            given: given.into(),
            allowed: format!("0 to {}", u8::MAX),
            nic: self.nic.name.clone(),
        };
        let (port, index) = (self.port.number, self.gid.gid.index);
        Ok((
            u8::try_from(port).map_err(|_| limit("port", port))?,
            u8::try_from(index).map_err(|_| limit("transport.rdma.gid_index", index))?,
        ))
    }
}
