//! Which NIC a rank gets, from `[transport.rdma]`.

use std::sync::Arc;

use anabranch_shmem::{NicSource, RdmaConfig};
#[cfg(feature = "software-nic")]
use anabranch_softnic::{Listen, SoftNicConfig, SoftNics};
use anabranch_transport_rdma::MachineDriver;

use crate::config::{Config, NicDriverName};

pub(crate) fn rdma_config(config: &Config) -> RdmaConfig {
    let rdma = &config.transport.rdma;
    RdmaConfig {
        queues: rdma.queues,
        entries: rdma.entries,
        patience: rdma.patience.duration(),
        nics: rdma.nics.clone(),
        gid_index: rdma.gid_index,
        traffic_class: rdma.traffic_class,
        service_level: rdma.service_level,
    }
}

/// What opens a rank's NIC, whichever process the others are in.
pub(crate) fn source(config: &Config) -> NicSource {
    match config.transport.rdma.driver {
        NicDriverName::Verbs => NicSource::machine(MachineDriver::Verbs),
        NicDriverName::Mlx5 => NicSource::machine(MachineDriver::Mlx5),
        NicDriverName::Auto => NicSource::machine(MachineDriver::Auto),
        NicDriverName::Libfabric => libfabric(config),
        NicDriverName::Software => software(config),
    }
}

/// The same for ranks that are threads of this process: software NICs hand frames to each other, so that a seed decides about them too.
pub(crate) fn source_of_threads(config: &Config) -> NicSource {
    #[cfg(feature = "software-nic")]
    if config.transport.rdma.driver == NicDriverName::Software {
        return NicSource::named("software", Arc::new(SoftNics::in_process(softnic_config(config))));
    }
    source(config)
}

#[cfg(feature = "libfabric")]
fn libfabric(config: &Config) -> NicSource {
    let provider = config.transport.rdma.fabric_provider.clone();
    NicSource::named("libfabric", Arc::new(anabranch_transport_ofi::OfiNics::new(provider)))
}

#[cfg(not(feature = "libfabric"))]
fn libfabric(_: &Config) -> NicSource {
    NicSource::named("libfabric", Arc::new(Absent { feature: "libfabric" }))
}

#[cfg(feature = "software-nic")]
fn software(config: &Config) -> NicSource {
    let listen = config.transport.rdma.software_address.map_or(Listen::Abstract, Listen::Tcp);
    NicSource::named("software", Arc::new(SoftNics::by_sockets(listen, softnic_config(config))))
}

#[cfg(not(feature = "software-nic"))]
fn software(_: &Config) -> NicSource {
    NicSource::named("software", Arc::new(Absent { feature: "software-nic" }))
}

#[cfg(feature = "software-nic")]
fn softnic_config(config: &Config) -> SoftNicConfig {
    let (rdma, base) = (&config.transport.rdma, SoftNicConfig::default());
    // As much patience with the writer of an entry, which may be a slow thread, as with peers.
    let doorbell_patience = base.doorbell_patience.max(rdma.patience.duration());
    SoftNicConfig { atomics: rdma.software_atomics, doorbell_patience, ..base }
}

/// In the place of a driver that this build lacks. [`crate::Platform::open`] refuses such a configuration before.
#[cfg(not(all(feature = "libfabric", feature = "software-nic")))]
#[derive(Debug)]
struct Absent {
    feature: &'static str,
}

#[cfg(not(all(feature = "libfabric", feature = "software-nic")))]
impl anabranch_shmem::OpenNic for Absent {
    fn open(
        &self,
        _: &anabranch_hip::Device,
        _: &anabranch_transport::PeerInfo,
        _: &[anabranch_transport::PeerInfo],
        _: &RdmaConfig,
    ) -> Result<Arc<dyn anabranch_shmem::NicDriver>, anabranch_shmem::NicError> {
        let reasons = crate::features::not_built(self.feature);
        Err(anabranch_shmem::NicError::NoNic { reasons })
    }
}

#[cfg(all(test, feature = "software-nic"))]
mod tests {
    use super::*;
    use crate::config::Period;

    #[test]
    fn doorbell_patience_follows_the_setting_upwards_only() {
        let mut config = Config::default();
        let patience = |config: &Config| softnic_config(config).doorbell_patience.as_secs();
        assert_eq!(patience(&config), 10);
        config.transport.rdma.patience = Period(std::time::Duration::from_secs(60));
        assert_eq!(patience(&config), 60);
        config.transport.rdma.patience = Period(std::time::Duration::from_secs(1));
        assert_eq!(patience(&config), 10);
    }
}
