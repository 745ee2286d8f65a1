//! The machine's own NICs, and which driver opens them.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use anabranch_hip::Device;
use anabranch_transport::PeerInfo;

use crate::driver::NicDriver;
use crate::error::{NicError, Result};
use crate::mlx5::{Devx, LibMlx5, Mlx5Driver, PortFacts, open_verbs};
use crate::nics::RdmaConfig;
use crate::nics::{ChosenPort, SYSTEM_FOLDER};
use crate::provider::Provider;
use crate::source::OpenNic;
use crate::verbs::PostedDriver;

anabranch_ranks::word_enum! {
    /// Which driver opens the machine's NICs (`transport.rdma.driver`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum MachineDriver, word, "NIC driver" {
        /// [`PostedDriver`]: a thread of the host posts what kernels ask for. Every NIC that has verbs will do.
        #[default]
        Verbs = "verbs",
        /// [`Mlx5Driver`]: kernels write the queues of a ConnectX. Nothing else is taken in its place.
        Mlx5 = "mlx5",
        /// [`Self::Mlx5`] where that can be opened and makes a queue pair that may send; else [`Self::Verbs`], with the reason in what the driver reports about itself and in the log.
        /// Ranks that come to different answers cannot connect, and say so.
        Auto = "auto",
    }
}

/// The libraries by which a port that was chosen is opened: the system's, or a test's.
pub(crate) trait NicLibraries: fmt::Debug + Send + Sync {
    /// Opens a ConnectX for commands, and says what its port is.
    ///
    /// # Errors
    /// [`NicError::Library`]; [`NicError::NoNic`] for a port that cannot be used; [`NicError::Limit`] and [`NicError::Call`].
    fn devx(&self, device: &Device, port: &ChosenPort) -> Result<(Arc<dyn Devx>, PortFacts)>;

    /// Opens a NIC whose requests the host posts.
    ///
    /// # Errors
    /// As [`PostedDriver::open`].
    fn posted(&self, device: &Device, port: &ChosenPort, config: &RdmaConfig) -> Result<Arc<dyn NicDriver>>;
}

/// `libibverbs` and `libmlx5`, opened at run time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SystemLibraries;

impl NicLibraries for SystemLibraries {
    fn devx(&self, device: &Device, port: &ChosenPort) -> Result<(Arc<dyn Devx>, PortFacts)> {
        refuse_simulated(device)?;
        let (verbs, facts) = open_verbs(device, port)?;
        Ok((Arc::new(LibMlx5::open(verbs)?), facts))
    }

    fn posted(&self, device: &Device, port: &ChosenPort, config: &RdmaConfig) -> Result<Arc<dyn NicDriver>> {
        refuse_simulated(device)?;
        Ok(Arc::new(PostedDriver::open(device, port, config)?))
    }
}

fn refuse_simulated(device: &Device) -> Result<()> {
    if device.runtime().driver().is_none() {
        return Ok(());
    }
    let reasons = "the device is simulated, and a NIC would run on another clock".to_owned();
    Err(NicError::NoNic { reasons })
}

/// Opens the machine's NIC for each rank: the port that [`ChosenPort::of_rank`] says, by the driver that the settings name.
#[derive(Clone, Debug)]
pub struct MachineNics {
    driver: MachineDriver,
    root: PathBuf,
    libraries: Arc<dyn NicLibraries>,
}

impl MachineNics {
    /// This machine's, by the system's libraries.
    pub fn new(driver: MachineDriver) -> Self {
        Self::with(driver, SYSTEM_FOLDER, Arc::new(SystemLibraries))
    }

    /// Those that a folder in the place of [`SYSTEM_FOLDER`] shows, by other libraries.
    pub(crate) fn with(
        driver: MachineDriver,
        root: impl Into<PathBuf>,
        libraries: Arc<dyn NicLibraries>,
    ) -> Self {
        Self { driver, root: root.into(), libraries }
    }

    /// Opens a port that was chosen, for a device. Not collective.
    ///
    /// # Errors
    /// What the driver needs and does not find; of [`MachineDriver::Auto`], of both.
    pub fn open_port(
        &self,
        device: &Device,
        port: &ChosenPort,
        config: &RdmaConfig,
    ) -> Result<Arc<dyn NicDriver>> {
        match self.driver {
            MachineDriver::Verbs => self.libraries.posted(device, port, config),
            MachineDriver::Mlx5 => self.mlx5(device, port, config),
            MachineDriver::Auto => match self.mlx5(device, port, config) {
                Ok(driver) => Ok(driver),
                Err(error) => self.fall_back(device, port, config, &error),
            },
        }
    }

    fn mlx5(&self, device: &Device, port: &ChosenPort, config: &RdmaConfig) -> Result<Arc<dyn NicDriver>> {
        let provider = port.nic.provider();
        if provider != Provider::Mlx5 {
            let reasons = format!(
                "{}:{}: its queue entries are those of {provider}, and the driver mlx5 is for ConnectX; transport.rdma.nics names others",
                port.nic.name, port.port.number
            );
            return Err(NicError::NoNic { reasons });
        }
        let (devx, facts) = self.libraries.devx(device, port)?;
        let driver = Mlx5Driver::new(devx, device, facts, config, port.why())?;
        // Queue pairs are made when all ranks have opened their NICs, when it is too late to choose another driver.
        driver.probe()?;
        Ok(Arc::new(driver))
    }

    /// By the host, as `refused` says that kernels cannot write the NIC's queues.
    fn fall_back(
        &self,
        device: &Device,
        port: &ChosenPort,
        config: &RdmaConfig,
        refused: &NicError,
    ) -> Result<Arc<dyn NicDriver>> {
        let why = anabranch_hip::with_causes(refused);
        tracing::warn!(
            nic = port.nic.name,
            why,
            "transport.rdma.driver = \"auto\": a thread of the host posts, as kernels cannot write the NIC's queues"
        );
        let reason = format!("{}; not driven by kernels: {why}", port.reason);
        let opened = self.libraries.posted(device, &ChosenPort { reason, ..port.clone() }, config);
        opened.map_err(|error| NicError::NoNic {
            reasons: format!("mlx5: {why}; verbs: {}", anabranch_hip::with_causes(&error)),
        })
    }
}

impl OpenNic for MachineNics {
    fn open(
        &self,
        device: &Device,
        local: &PeerInfo,
        peers: &[PeerInfo],
        config: &RdmaConfig,
    ) -> Result<Arc<dyn NicDriver>> {
        let port = ChosenPort::of_rank(&self.root, local.rank, peers, config)?;
        self.open_port(device, &port, config)
    }
}
