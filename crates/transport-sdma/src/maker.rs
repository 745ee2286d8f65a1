//! What makes a rank's engines: software on the host runtime, hardware on AMD GPUs.

use std::path::Path;
use std::sync::Arc;

use anabranch_hip::{Device, RuntimeKind, SoftwareEngines};
use anabranch_transport::{PeerInfo, Refusal};

use crate::amd::{
    AmdEngine, AmdEngines, AmdError, GpuAddress, NODES_FOLDER, PCI_FOLDER, PciAddress, Topology, open_driver,
};
use crate::config::SdmaConfig;
use crate::device_queue::{DeviceQueueError, QueueEngine};
use crate::generation::Generation;
use crate::ring::Ring;
use crate::software::{SoftwareConfig, SoftwareQueue};

/// The engines of one device.
#[derive(Debug)]
enum Engines {
    Software { engines: SoftwareEngines, config: SoftwareConfig },
    Amd(AmdEngines),
}

/// Makes engines with queues that kernels write.
#[derive(Debug)]
pub(crate) struct Maker {
    pub(crate) generation: &'static Generation,
    ring: Ring,
    engines: Engines,
}

impl Maker {
    /// For a device of the host or the AMD runtime. Makes no queue yet.
    ///
    /// # Errors
    /// What the machine lacks.
    pub(crate) fn new(device: &Device, config: &SdmaConfig) -> Result<Self, Refusal> {
        let failed = |cause: String| Refusal::Failed { cause };
        let ring = Ring::new(config.ring_bytes).map_err(|error| failed(error.to_string()))?;
        let (target, engines) = if device.runtime().kind() == RuntimeKind::Amd {
            let engines = amd(device, config).map_err(|error| Refusal::from_error(&error))?;
            let target = device.arch();
            (target.split_once(':').map_or(&*target, |(name, _)| name).to_owned(), Engines::Amd(engines))
        } else {
            let engines = device.runtime().engines(device.ordinal());
            let engines =
                engines.ok_or_else(|| failed("the runtime has no engines in software".to_owned()))?;
            // The packets of the GPUs that this is for.
            ("gfx942".to_owned(), Engines::Software { engines, config: config.software })
        };
        let generation = Generation::of_target(&target);
        let generation = generation
            .ok_or_else(|| failed(format!("the packets of {target}'s copy engines are not known")))?;
        Ok(Self { generation, ring, engines })
    }

    /// The engine of a channel to a peer.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn make(
        &self,
        device: &Device,
        local: &PeerInfo,
        peer: &PeerInfo,
        channel: u32,
    ) -> Result<Box<dyn QueueEngine>, DeviceQueueError> {
        match &self.engines {
            Engines::Software { engines, config } => {
                // Engines of a seed differ among themselves.
                let number =
                    u64::from(local.rank.get()) << 48 ^ u64::from(peer.rank.get()) << 16 ^ u64::from(channel);
                let seed = (config.seed ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let config = SoftwareConfig { seed, ..*config };
                let queue =
                    SoftwareQueue::start(device, engines.clone(), self.ring, self.generation, config)?;
                Ok(Box::new(queue))
            }
            Engines::Amd(engines) => {
                let own = peer.same_host(local) && peer.pci == local.pci;
                let destination = if own { None } else { Some(peer.pci.as_str()) };
                let engine = hardware(engines, destination, channel);
                Ok(Box::new(engine.map_err(|error| DeviceQueueError::Engine(Box::new(error)))?))
            }
        }
    }
}

/// A queue on hardware, to the GPU at a place or within the own one.
fn hardware(engines: &AmdEngines, destination: Option<&str>, channel: u32) -> Result<AmdEngine, AmdError> {
    let destination = destination.map(address).transpose()?;
    if let Some(destination) = &destination {
        engines.check_link(destination)?;
    }
    AmdEngine::new(engines.create(destination.as_ref(), channel)?)
}

fn amd(device: &Device, config: &SdmaConfig) -> Result<AmdEngines, AmdError> {
    let driver = open_driver()?;
    let topology = Topology::read(Path::new(NODES_FOLDER), Path::new(PCI_FOLDER))?;
    let pci = device.pci_bus_id().map_err(|error| AmdError::Address { given: error.to_string() })?;
    AmdEngines::new(&address(&pci)?, Arc::new(topology), driver, config.ring_bytes)
}

/// A GPU by what HIP reports about its place.
fn address(pci: &str) -> Result<GpuAddress, AmdError> {
    Ok(GpuAddress::from(pci.parse::<PciAddress>()?))
}
