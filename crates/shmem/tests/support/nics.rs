//! Worlds of several machines, as far as their ranks know: memory is mapped within one, and NICs in software reach the others.

use anabranch_hip::Device;
use anabranch_ranks::GlobalRank;
use anabranch_shmem::{Error, NicDriver, NicError, NicSource, OpenNic, RankSetup, RdmaConfig};
use anabranch_softnic::{Adversary, SoftNicConfig, SoftNics};
use anabranch_transport::{HostIdentity, PeerInfo, TransportKind};
use std::sync::Arc;

use super::Bench;

/// Ranks on machines of these sizes.
pub(crate) struct Machines {
    pub(crate) bench: Bench,
    sizes: Vec<u32>,
}

/// NICs with frames of 64 bytes and messages of 1 KiB, with an adversary where there is a seed for it.
pub(crate) fn soft(seed: Option<u64>) -> SoftNicConfig {
    let adversary = seed.map(Adversary::new);
    SoftNicConfig { frame_bytes: 256, most_message_bytes: 1024, adversary, ..SoftNicConfig::default() }
}

impl Machines {
    pub(crate) fn new(sizes: &[u32], wave: u32, nics: SoftNics) -> Self {
        let mut bench = Bench::with_wave(sizes.iter().sum(), wave);
        bench.config.transports = vec![TransportKind::P2p, TransportKind::Rdma];
        bench.config.rdma = RdmaConfig { queues: 2, entries: 16, ..RdmaConfig::default() };
        bench.config.nic = NicSource::new(Arc::new(nics));
        Self { bench, sizes: sizes.to_vec() }
    }

    pub(crate) fn ranks(&self) -> u32 {
        self.sizes.iter().sum()
    }

    /// The machine of a rank.
    pub(crate) fn machine(&self, rank: GlobalRank) -> u32 {
        let mut end = 0;
        let mut ends = self.sizes.iter().map(|size| {
            end += size;
            end
        });
        ends.position(|end| rank.get() < end).unwrap() as u32
    }

    pub(crate) fn setup(&self, rank: GlobalRank) -> Result<RankSetup, Error> {
        let mut setup = self.bench.setup(rank)?;
        setup.config.host_identity = Some(HostIdentity(format!("machine {}", self.machine(rank))));
        Ok(setup)
    }
}

/// NICs in software, of which one rank's driver is what `change` makes of it.
pub(crate) struct ChangedNic<C> {
    pub(crate) nics: SoftNics,
    pub(crate) rank: u32,
    pub(crate) change: C,
}

impl<C> std::fmt::Debug for ChangedNic<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the changed NIC of rank {}", self.rank)
    }
}

impl<C: Fn(Arc<dyn NicDriver>) -> Arc<dyn NicDriver> + Send + Sync> OpenNic for ChangedNic<C> {
    fn open(
        &self,
        device: &Device,
        local: &PeerInfo,
        peers: &[PeerInfo],
        config: &RdmaConfig,
    ) -> Result<Arc<dyn NicDriver>, NicError> {
        let nic = self.nics.open(device, local, peers, config)?;
        Ok(if local.rank.get() == self.rank { (self.change)(nic) } else { nic })
    }
}
