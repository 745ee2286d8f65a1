//! Who opens a rank's NIC.

use std::fmt;
use std::sync::Arc;

use anabranch_hip::Device;
use anabranch_transport::PeerInfo;

use crate::config::RdmaConfig;
use crate::driver::NicDriver;
use crate::error::{NicError, Result};

/// Opens the NIC that serves a rank.
pub trait OpenNic: fmt::Debug + Send + Sync {
    /// Chooses and opens a NIC for the rank that `local` describes, on its `device`, in a world of `ranks` ranks. Not collective; each rank
    /// calls it once while it joins.
    ///
    /// # Errors
    /// Why there is none; what the NIC's library or the configuration refuses.
    fn open(
        &self,
        device: &Device,
        local: &PeerInfo,
        ranks: u32,
        config: &RdmaConfig,
    ) -> Result<Arc<dyn NicDriver>>;
}

/// Where ranks get their NICs from: those of the machine, unless somebody brought others (in software, say).
#[derive(Clone, Debug, Default)]
pub struct NicSource(Option<Arc<dyn OpenNic>>);

impl NicSource {
    /// NICs that `opener` opens, in the place of the machine's.
    pub fn new(opener: Arc<dyn OpenNic>) -> Self {
        Self(Some(opener))
    }

    /// Opens the rank's NIC.
    ///
    /// # Errors
    /// Those of [`OpenNic::open`].
    pub fn open(
        &self,
        device: &Device,
        local: &PeerInfo,
        ranks: u32,
        config: &RdmaConfig,
    ) -> Result<Arc<dyn NicDriver>> {
        match &self.0 {
            Some(opener) => opener.open(device, local, ranks, config),
            None => open_machines(device, local, ranks, config),
        }
    }
}

/// Equal when both are the machine's, or the same opener.
impl PartialEq for NicSource {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

impl Eq for NicSource {}

/// The machine's own NIC by its verbs library.
fn open_machines(_: &Device, _: &PeerInfo, _: u32, _: &RdmaConfig) -> Result<Arc<dyn NicDriver>> {
    Err(NicError::NoNic { reasons: "this build has no driver for the machine's NICs".to_owned() })
}
