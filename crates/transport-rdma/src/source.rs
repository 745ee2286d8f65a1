//! Who opens a rank's NIC.

use std::fmt;
use std::sync::Arc;

use anabranch_hip::Device;
use anabranch_transport::PeerInfo;

use crate::driver::NicDriver;
use crate::error::Result;
use crate::machine::{MachineDriver, MachineNics};
use crate::nics::RdmaConfig;

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

/// Where ranks get their NICs from: the machine's, or others that the program provides (in software, say).
#[derive(Clone, Debug)]
pub struct NicSource(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Machine(MachineDriver),
    Brought { name: String, opener: Arc<dyn OpenNic> },
}

impl Default for NicSource {
    fn default() -> Self {
        Self::machine(MachineDriver::default())
    }
}

impl NicSource {
    /// The machine's NICs, by this driver.
    pub fn machine(driver: MachineDriver) -> Self {
        Self(Kind::Machine(driver))
    }

    /// NICs that `opener` opens, in the place of the machine's.
    pub fn new(opener: Arc<dyn OpenNic>) -> Self {
        Self::named("brought", opener)
    }

    /// The same under a name of its own (`transport.rdma.driver`), which ranks compare before they open any.
    pub fn named(name: &str, opener: Arc<dyn OpenNic>) -> Self {
        Self(Kind::Brought { name: name.to_owned(), opener })
    }

    /// Which kind it is (`transport.rdma.driver`): the driver of the machine's NICs, else what it was named.
    pub fn name(&self) -> &str {
        match &self.0 {
            Kind::Machine(driver) => driver.word(),
            Kind::Brought { name, .. } => name,
        }
    }

    /// The driver of the machine's NICs; `None` if the program provides the NICs.
    pub fn machine_driver(&self) -> Option<MachineDriver> {
        match &self.0 {
            Kind::Machine(driver) => Some(*driver),
            Kind::Brought { .. } => None,
        }
    }

    /// Opens the rank's NIC.
    ///
    /// # Errors
    /// The errors of [`OpenNic::open`].
    pub fn open(
        &self,
        device: &Device,
        local: &PeerInfo,
        peers: &[PeerInfo],
        config: &RdmaConfig,
    ) -> Result<Arc<dyn NicDriver>> {
        match &self.0 {
            Kind::Machine(driver) => MachineNics::new(*driver).open(device, local, peers, config),
            Kind::Brought { opener, .. } => opener.open(device, local, peers, config),
        }
    }
}

/// Equal when both are the machine's by the same driver, or the same opener under the same name.
impl PartialEq for NicSource {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Kind::Machine(one), Kind::Machine(other)) => one == other,
            (Kind::Brought { name, opener }, Kind::Brought { name: other_name, opener: other }) => {
                name == other_name && Arc::ptr_eq(opener, other)
            }
            _ => false,
        }
    }
}

impl Eq for NicSource {}
