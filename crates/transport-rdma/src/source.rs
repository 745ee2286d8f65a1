//! Who opens a rank's NIC.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use anabranch_hip::Device;
use anabranch_transport::PeerInfo;

use crate::config::RdmaConfig;
use crate::driver::NicDriver;
use crate::error::{NicError, Result};
use crate::nics::{Considered, Machine, NicFilter, NicTreeError, SYSTEM_FOLDER, assign_to_rank};
use crate::verbs::{NicChoice, PostedDriver};

/// Opens the NIC that serves a rank.
pub trait OpenNic: fmt::Debug + Send + Sync {
    /// Chooses and opens a NIC for the rank that `local` describes, on its `device`, among `peers`, all ranks of the world in the order of
    /// their numbers. Not collective; each rank calls it once while it joins.
    ///
    /// # Errors
    /// Why there is none; what the NIC's library or the configuration refuses.
    fn open(
        &self,
        device: &Device,
        local: &PeerInfo,
        peers: &[PeerInfo],
        config: &RdmaConfig,
    ) -> Result<Arc<dyn NicDriver>>;
}

/// Where ranks get their NICs from: those of the machine, unless somebody brought others (in software, say).
#[derive(Clone, Debug, Default)]
pub struct NicSource(Option<Brought>);

/// NICs that somebody brought.
#[derive(Clone, Debug)]
struct Brought {
    name: String,
    opener: Arc<dyn OpenNic>,
}

impl NicSource {
    /// NICs that `opener` opens, in the place of the machine's.
    pub fn new(opener: Arc<dyn OpenNic>) -> Self {
        Self::named("brought", opener)
    }

    /// The same under a name of its own (`transport.rdma.driver`), which ranks compare before they open any.
    pub fn named(name: &str, opener: Arc<dyn OpenNic>) -> Self {
        Self(Some(Brought { name: name.to_owned(), opener }))
    }

    /// Which kind it is (`transport.rdma.driver`): `verbs` for the machine's NICs, else what it was named.
    pub fn name(&self) -> &str {
        self.0.as_ref().map_or("verbs", |brought| &brought.name)
    }

    /// Opens the rank's NIC.
    ///
    /// # Errors
    /// Those of [`OpenNic::open`].
    pub fn open(
        &self,
        device: &Device,
        local: &PeerInfo,
        peers: &[PeerInfo],
        config: &RdmaConfig,
    ) -> Result<Arc<dyn NicDriver>> {
        match &self.0 {
            Some(brought) => brought.opener.open(device, local, peers, config),
            None => open_machines(device, local, peers, config),
        }
    }
}

/// Equal when both are the machine's, or the same opener under the same name.
impl PartialEq for NicSource {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(one), Some(other)) => one.name == other.name && Arc::ptr_eq(&one.opener, &other.opener),
            _ => false,
        }
    }
}

impl Eq for NicSource {}

/// The machine's NIC by its verbs library: the port that [`assign_to_rank`] says, and requests that a thread of the host posts.
fn open_machines(
    device: &Device,
    local: &PeerInfo,
    peers: &[PeerInfo],
    config: &RdmaConfig,
) -> Result<Arc<dyn NicDriver>> {
    let none = |cause: NicTreeError| NicError::NoNic { reasons: anabranch_hip::with_causes(&cause) };
    let root = Path::new(SYSTEM_FOLDER);
    let machine = Machine::read(root).map_err(none)?;
    let filter = NicFilter::parse(&config.nics).map_err(none)?.with_gid_index(config.gid_index);
    filter.check(&machine).map_err(none)?;
    let assigned = assign_to_rank(root, local.rank, peers, &machine, &filter).map_err(none)?;
    let Some(port) = assigned.chosen else {
        let of_port = |one: &Considered| format!("{}: {}", one.port, one.verdict);
        let considered: Vec<_> = assigned.considered.iter().map(of_port).collect();
        let reasons = std::iter::once(assigned.reason).chain(considered).collect::<Vec<_>>().join("; ");
        return Err(NicError::NoNic { reasons });
    };
    let choice = NicChoice {
        nic: Some(port.name),
        // Verbs count ports in 8 bits.
        port: u8::try_from(port.port).ok(),
        gid: config.gid_index,
        traffic_class: config.traffic_class,
        service_level: config.service_level,
    };
    Ok(Arc::new(PostedDriver::open(device, &choice, config)?))
}
