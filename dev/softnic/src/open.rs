//! NICs in software for the ranks of a world.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use anabranch_hip::Device;
use anabranch_ranks::GlobalRank;
use anabranch_transport::PeerInfo;
use anabranch_transport_rdma::{NicDriver, NicError, OpenNic, RdmaConfig};

use crate::config::{Adversary, NicFaults, SoftNicConfig};
use crate::fabric::{Fabric, InProcess, Listen, StreamPort};
use crate::nic::SoftNic;

/// Opens a NIC in software for each rank, as [`OpenNic`] is asked to.
///
/// The patience of each is that of the transport's configuration, and an adversary's seed is another one for each rank.
#[derive(Clone, Debug)]
pub struct SoftNics {
    fabric: Kind,
    config: SoftNicConfig,
    faults: BTreeMap<GlobalRank, NicFaults>,
    opened: Arc<Mutex<BTreeMap<GlobalRank, Weak<SoftNic>>>>,
}

#[derive(Clone, Debug)]
enum Kind {
    InProcess(InProcess),
    Sockets(Listen),
}

impl SoftNics {
    /// For ranks that are threads of this process: all of them get this value, or clones of it.
    pub fn in_process(config: SoftNicConfig) -> Self {
        Self::new(Kind::InProcess(InProcess::new()), config)
    }

    /// For ranks in any processes: each NIC listens there.
    pub fn by_sockets(listen: Listen, config: SoftNicConfig) -> Self {
        Self::new(Kind::Sockets(listen), config)
    }

    fn new(fabric: Kind, config: SoftNicConfig) -> Self {
        Self { fabric, config, faults: BTreeMap::new(), opened: Arc::default() }
    }

    /// The NIC that this value, or a clone of it, has opened for a rank of this process last; `None` if there is none, or it is closed. To
    /// look at what it does: [`SoftNic::traffic`].
    pub fn of(&self, rank: GlobalRank) -> Option<Arc<SoftNic>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner).get(&rank).and_then(Weak::upgrade)
    }

    /// With what goes wrong at the NIC of one rank, in the place of what the configuration says for all.
    #[must_use]
    pub fn with_faults(mut self, rank: GlobalRank, faults: NicFaults) -> Self {
        self.faults.insert(rank, faults);
        self
    }
}

impl OpenNic for SoftNics {
    fn open(
        &self,
        device: &Device,
        local: &PeerInfo,
        _: &[PeerInfo],
        config: &RdmaConfig,
    ) -> Result<Arc<dyn NicDriver>, NicError> {
        let fabric: Box<dyn Fabric> = match &self.fabric {
            Kind::InProcess(fabric) => Box::new(fabric.join()),
            Kind::Sockets(listen) => Box::new(StreamPort::open(listen)?),
        };
        let rank = u64::from(local.rank.get()).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let adversary =
            self.config.adversary.map(|adversary| Adversary { seed: adversary.seed ^ rank, ..adversary });
        let faults = self.faults.get(&local.rank).unwrap_or(&self.config.faults).clone();
        let own = SoftNicConfig { patience: config.patience, adversary, faults, ..self.config.clone() };
        let nic = Arc::new(SoftNic::open(device, fabric, own)?);
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.insert(local.rank, Arc::downgrade(&nic));
        Ok(nic)
    }
}
