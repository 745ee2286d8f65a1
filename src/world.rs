//! From a configuration to a joined world: as a process that a launcher started, or as threads.

use std::sync::Arc;

use anabranch_bootstrap::launcher::{self, Launch};
use anabranch_bootstrap::{Deadline, Heartbeat, Rendezvous, TcpConfig, TcpRendezvous};
use anabranch_ccl::{CclConfig, Table};
use anabranch_ep::{EpConfig, LaunchTable, Mode};
use anabranch_ranks::GlobalRank;
use anabranch_shmem::{NicSource, RankError, RankSetup, RdmaConfig, SdmaConfig, World, WorldConfig};
use anabranch_softnic::{Listen, SoftNicConfig, SoftNics};
use anabranch_transport::TransportKind;
use anabranch_transport_ofi::OfiNics;
use anabranch_transport_rdma::MachineDriver;

use crate::config::{ByteSize, Config, HeapMode, NicDriverName, TransportName};
use crate::environment::Environment;
use crate::error::Result;
use crate::platform::{Placement, Platform};

/// A rank's place in a world: how it talks to the others, and which of the ranks of its machine it is.
#[derive(Clone, Debug)]
pub struct Place {
    /// How it talks to the others.
    pub rendezvous: Arc<dyn Rendezvous>,
    /// The rank among those of this machine, below `local_size`.
    pub local_rank: u32,
    /// Ranks on this machine.
    pub local_size: u32,
}

/// Meets the other ranks as the launcher says (torchrun, `anabranch run`, srun, Open MPI, MPICH). Collective: returns
/// when all ranks have come. `bootstrap.address`, `.secret`, `.secret_file`, `.interface` and `.insecure` go over what the
/// launcher says.
///
/// # Errors
/// [`crate::Error::Bootstrap`]: no launcher, or ranks that did not come within `deadline.rendezvous`.
pub fn rendezvous_from_launcher(config: &Config) -> Result<Place> {
    rendezvous_from(config, &Environment::of_process())
}

/// As [`rendezvous_from_launcher`], with an environment of one's own.
///
/// # Errors
/// As [`rendezvous_from_launcher`].
pub fn rendezvous_from(config: &Config, environment: &Environment) -> Result<Place> {
    config.check()?;
    let launch = place_of(config, environment)?;
    let deadline = Deadline::after(config.deadline.rendezvous.duration());
    let mut tcp = TcpConfig::new(launch.address, GlobalRank::new(launch.rank), launch.size, deadline);
    tcp.secret = launch.secret;
    tcp.insecure = launch.insecure;
    tcp.session = launch.session;
    tcp.interface = launch.interface;
    tcp.heartbeat = Heartbeat {
        interval: config.bootstrap.heartbeat.duration(),
        limit: config.bootstrap.silence.duration(),
    };
    let rendezvous = TcpRendezvous::join(tcp)?;
    Ok(Place {
        rendezvous: Arc::new(rendezvous),
        local_rank: launch.local_rank,
        local_size: launch.local_size,
    })
}

/// What the launcher says, with the settings on top of it.
fn place_of(config: &Config, environment: &Environment) -> Result<Launch> {
    let options = launcher::Options { port_offset: config.bootstrap.port_offset };
    let settings = &config.bootstrap;
    let one_secret = settings.secret.is_some() || settings.secret_file.is_some();
    let file = settings.secret_file.as_ref().map(|path| path.to_string_lossy().into_owned());
    let lookup = |name: &str| {
        let launcher = || environment.get(name).map(str::to_owned);
        match name {
            // The launcher's own address is not needed then, and may be missing.
            "ANABRANCH_BOOTSTRAP" => settings.address.clone().or_else(launcher),
            "ANABRANCH_IFNAME" => settings.interface.clone().or_else(launcher),
            "ANABRANCH_INSECURE" if settings.insecure => Some("1".to_owned()),
            // Of the two, one says the secret.
            "ANABRANCH_SECRET" if one_secret => settings.secret.clone(),
            "ANABRANCH_SECRET_FILE" if one_secret => file.clone(),
            _ => launcher(),
        }
    };
    Ok(launcher::from_environment_with(&lookup, options)?)
}

/// Opens what the configuration names and joins the world. Collective. End it with [`World::leave`] on all ranks.
///
/// # Errors
/// Those of [`Platform::open`] and [`Platform::join`].
pub fn join(config: &Config, place: &Place) -> Result<World> {
    Platform::open(config, Placement::Processes { ranks: place.local_size })?.join(place)
}

/// Runs `work` on `ranks` ranks of one world, each on a thread and with a device of its own, and returns their results
/// in rank order. Each joins before and leaves after its work.
///
/// # Errors
/// Those of [`Platform::open`], before any thread is started. How a single rank fails is in its result.
pub fn spawn_threads<T, E, W>(config: &Config, ranks: u32, work: W) -> Result<Vec<Result<T, RankError<E>>>>
where
    T: Send,
    E: Send,
    W: Fn(&World) -> Result<T, E> + Sync,
{
    Platform::open(config, Placement::Threads { ranks })?.spawn_threads(work)
}

impl Platform {
    /// Joins the world of all ranks of the rendezvous, with the device of `place.local_rank`. Collective.
    ///
    /// # Errors
    /// A device that does not exist; the world's own errors, among them the first setting in which ranks differ.
    pub fn join(&self, place: &Place) -> Result<World> {
        let device = self.device(place.local_rank)?;
        let rendezvous = Arc::clone(&place.rendezvous);
        let host_identity = self.host_identity(rendezvous.rank(), rendezvous.size());
        let config = WorldConfig { host_identity, ..world_config(self.config()) };
        let world = World::join(config, device, self.jit().clone(), rendezvous)?;
        // The world compares what it uses itself; these are the settings that only the crates above look at.
        world.compare(world.group(), "compare configurations", self.config().fields())?;
        Ok(world)
    }

    /// Runs `work` on every rank of a platform opened for threads; see [`spawn_threads`].
    ///
    /// # Errors
    /// A device that cannot be opened.
    pub fn spawn_threads<T, E, W>(&self, work: W) -> Result<Vec<Result<T, RankError<E>>>>
    where
        T: Send,
        E: Send,
        W: Fn(&World) -> Result<T, E> + Sync,
    {
        let devices = (0..self.ranks()).map(|rank| self.device(rank)).collect::<Result<Vec<_>>>()?;
        let nic = nic_source_of_threads(self.config());
        let config = WorldConfig { nic, ..world_config(self.config()) };
        let setup = |rank: GlobalRank| match devices.get(rank.index()) {
            Some(device) => {
                let host_identity = self.host_identity(rank, self.ranks());
                let config = WorldConfig { host_identity, ..config.clone() };
                Ok(RankSetup { config, device: device.clone(), jit: self.jit().clone() })
            }
            // One device was opened for each rank that is asked for.
            None => Err(anabranch_shmem::Error::Left),
        };
        Ok(anabranch_shmem::spawn_threads(self.ranks(), setup, work))
    }
}

/// The part of a configuration that a world is made with.
pub fn world_config(config: &Config) -> WorldConfig {
    let kind = |name: &TransportName| match name {
        TransportName::P2p => TransportKind::P2p,
        TransportName::Sdma => TransportKind::Sdma,
        TransportName::Rdma => TransportKind::Rdma,
    };
    WorldConfig {
        heap_bytes: config.heap.bytes.bytes(),
        heap_mode: match config.heap.mode {
            HeapMode::Static => anabranch_shmem::HeapMode::Static,
            HeapMode::Flat => anabranch_shmem::HeapMode::Flat,
        },
        transports: config.transport.order.iter().map(kind).collect(),
        rendezvous_deadline: config.deadline.rendezvous.duration(),
        operation_deadline: config.deadline.operation.duration(),
        sdma: sdma_config(config),
        rdma: rdma_config(config),
        nic: nic_source(config),
        ..WorldConfig::default()
    }
}

fn rdma_config(config: &Config) -> RdmaConfig {
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

/// What opens a rank's NIC, where that is not one in software.
fn hardware_source(config: &Config) -> Option<NicSource> {
    let rdma = &config.transport.rdma;
    Some(match rdma.driver {
        NicDriverName::Verbs => NicSource::machine(MachineDriver::Verbs),
        NicDriverName::Mlx5 => NicSource::machine(MachineDriver::Mlx5),
        NicDriverName::Auto => NicSource::machine(MachineDriver::Auto),
        NicDriverName::Libfabric => {
            NicSource::named("libfabric", Arc::new(OfiNics::new(rdma.fabric_provider.clone())))
        }
        NicDriverName::Software => return None,
    })
}

fn softnic_config(config: &Config) -> SoftNicConfig {
    let (rdma, base) = (&config.transport.rdma, SoftNicConfig::default());
    // As much patience with the writer of an entry, which may be a slow thread, as with peers.
    let doorbell_patience = base.doorbell_patience.max(rdma.patience.duration());
    SoftNicConfig { atomics: rdma.software_atomics, doorbell_patience, ..base }
}

/// What opens a rank's NIC, whichever process the others are in.
fn nic_source(config: &Config) -> NicSource {
    if let Some(source) = hardware_source(config) {
        return source;
    }
    let listen = config.transport.rdma.software_address.map_or(Listen::Abstract, Listen::Tcp);
    NicSource::named("software", Arc::new(SoftNics::by_sockets(listen, softnic_config(config))))
}

/// The same for ranks that are threads of this process: NICs in software hand frames to each other, so that a seed decides about them too.
fn nic_source_of_threads(config: &Config) -> NicSource {
    if let Some(source) = hardware_source(config) {
        return source;
    }
    NicSource::named("software", Arc::new(SoftNics::in_process(softnic_config(config))))
}

fn sdma_config(config: &Config) -> SdmaConfig {
    let (sdma, base) = (&config.transport.sdma, SdmaConfig::default());
    // Checked to fit when the configuration was.
    let most = sdma.most_copy_bytes.and_then(|most| u32::try_from(most.bytes()).ok());
    SdmaConfig {
        queues: sdma.queues,
        ring_bytes: sdma.ring_bytes.bytes(),
        most_copy_bytes: most.unwrap_or(base.most_copy_bytes),
        // A queue is tried with a copy before the world is there; a slow machine has the time of an operation.
        patience: base.patience.max(config.deadline.operation.duration()),
        ..base
    }
}

/// What a communicator is made with, from the `[ccl]` table. Reads the file of `ccl.table`.
///
/// # Errors
/// [`anabranch_ccl::Error::Table`]: a file that is not there, or is no table.
pub fn ccl_config(config: &Config) -> Result<CclConfig> {
    let ccl = &config.ccl;
    let table = ccl.table.as_deref().map(Table::read).transpose()?;
    Ok(CclConfig {
        algorithm: ccl.algorithm,
        max_blocks: ccl.max_blocks.unwrap_or(0),
        staging_bytes: ccl.staging_bytes.map_or(0, ByteSize::bytes),
        pipe_bytes: ccl.pipe_bytes.map_or(0, ByteSize::bytes),
        copy_streams: ccl.copy_streams,
        meetings: ccl.meetings,
        check: ccl.check,
        across: ccl.across,
        machines: None,
        table: table.map(Arc::new),
    })
}

/// An expert-parallel plan's configuration with the launch shape and slots of the `[ep]` table, and with its mode where the plan
/// leaves that open. Reads the file of `ep.table`.
///
/// # Errors
/// [`anabranch_ep::Error::Table`]: a file that is not there, or is no table.
pub fn with_ep_settings(config: &Config, plan: EpConfig) -> Result<EpConfig> {
    let ep = &config.ep;
    let plan = match &ep.table {
        Some(path) => plan.table(Arc::new(LaunchTable::read(path)?)),
        None => plan,
    };
    let plan = if plan.mode == Mode::Auto { plan.mode(ep.mode) } else { plan };
    Ok(plan.slots(ep.slots).launch(ep.blocks.unwrap_or(0), ep.waves_per_block.unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use anabranch_bootstrap::Secret;
    use anabranch_ccl::{Across, Algorithm, Check, Meetings};

    use super::*;
    use crate::Error;
    use crate::config::LoadOptions;

    fn config(set: &[&str]) -> Config {
        let options = LoadOptions {
            set: set.iter().map(|text| (*text).to_owned()).collect(),
            ..LoadOptions::default()
        };
        Config::load_with(&options).unwrap().config
    }

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    const RANK_1_OF_4: &[(&str, &str)] = &[
        ("RANK", "1"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("ANABRANCH_SECRET", "the launcher's secret"),
    ];

    #[test]
    fn the_launcher_says_and_the_settings_overrule() {
        let mut launcher = RANK_1_OF_4.to_vec();
        launcher.extend([("MASTER_ADDR", "head"), ("MASTER_PORT", "29500")]);
        let launch = place_of(&config(&[]), &environment(&launcher)).unwrap();
        assert_eq!((launch.rank, launch.size, launch.local_size), (1, 4, 2));
        assert_eq!(
            (launch.address.as_str(), launch.secret),
            ("head:29501", Secret::new("the launcher's secret"))
        );
        assert_eq!((launch.interface, launch.insecure), (None, false));
        let set = config(&[
            "bootstrap.port_offset=7",
            "bootstrap.secret=the settings' secret",
            "bootstrap.interface=eth1",
            "bootstrap.insecure=true",
        ]);
        let launch = place_of(&set, &environment(&launcher)).unwrap();
        assert_eq!(
            (launch.address.as_str(), launch.secret),
            ("head:29507", Secret::new("the settings' secret"))
        );
        assert_eq!((launch.interface.as_deref(), launch.insecure), (Some("eth1"), true));
        let absent = place_of(&config(&["bootstrap.secret_file=/absent/secret"]), &environment(&launcher));
        assert!(absent.unwrap_err().to_string().contains("/absent/secret"));
        // With an address of one's own, the launcher need not name one.
        let launch = place_of(&config(&["bootstrap.address=other:4000"]), &environment(RANK_1_OF_4)).unwrap();
        assert_eq!(launch.address, "other:4000");
        assert!(matches!(place_of(&config(&[]), &environment(&[])), Err(Error::Bootstrap(_))));
    }

    #[test]
    fn settings_reach_the_world_and_the_plan() {
        let set = config(&["heap.bytes=64 MiB", "deadline.operation=3 s", "ep.slots=2", "ep.blocks=5"]);
        let world = world_config(&set);
        assert_eq!((world.heap_bytes, world.operation_deadline.as_secs()), (64 << 20, 3));
        assert_eq!(world.transports, [TransportKind::P2p]);
        // Waits that no setting names follow the deadlines, and are not shortened by them.
        assert_eq!(world.sdma.patience.as_secs(), 10);
        let patient = config(&["deadline.operation=600 s", "transport.rdma.patience=60 s"]);
        assert_eq!(world_config(&patient).sdma.patience.as_secs(), 600);
        assert_eq!(softnic_config(&patient).doorbell_patience.as_secs(), 60);
        assert_eq!(softnic_config(&set).doorbell_patience.as_secs(), 10);
        let plan = with_ep_settings(&set, EpConfig::new(64, 8, 2, 16)).unwrap();
        assert_eq!((plan.slots, plan.max_blocks, plan.waves_per_block), (2, 5, 0));
        assert!(plan.table.is_none());
        let table = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/ep/tables/host.toml");
        let tuned = config(&[&format!("ep.table={table}")]);
        let plan = with_ep_settings(&tuned, EpConfig::new(64, 8, 2, 16)).unwrap();
        assert_eq!(plan.table.as_deref(), Some(&LaunchTable::read(table.as_ref()).unwrap()));
        // What the plan says counts; the setting is for plans that say nothing.
        let compact = config(&["ep.mode=compact"]);
        let given = EpConfig::new(64, 8, 2, 16).mode(Mode::Slotted);
        assert_eq!(with_ep_settings(&compact, given).unwrap().mode, Mode::Slotted);
        assert_eq!(with_ep_settings(&compact, EpConfig::new(64, 8, 2, 16)).unwrap().mode, Mode::Compact);
        assert_eq!(with_ep_settings(&set, EpConfig::new(64, 8, 2, 16)).unwrap().mode, Mode::Auto);
    }

    #[test]
    fn settings_reach_the_communicator() {
        assert_eq!(ccl_config(&Config::default()).unwrap(), CclConfig::default());
        let words = [
            "algorithm=push",
            "max_blocks=5",
            "staging_bytes=1 MiB",
            "pipe_bytes=64 KiB",
            "copy_streams=3",
            "meetings=stream",
            "check=fingerprint",
            "across=direct",
        ];
        let set = config(&words.map(|word| format!("ccl.{word}")).each_ref().map(String::as_str));
        let wanted = CclConfig {
            algorithm: Some(Algorithm::Push),
            max_blocks: 5,
            staging_bytes: 1 << 20,
            pipe_bytes: 64 << 10,
            copy_streams: Some(3),
            meetings: Meetings::Stream,
            check: Check::Fingerprint,
            across: Across::Direct,
            machines: None,
            table: None,
        };
        assert_eq!(ccl_config(&set).unwrap(), wanted);
        // What ranks compare is said under the same names.
        let fields = wanted.fields();
        assert!(fields.iter().all(|(name, _)| crate::config::setting_named(name).is_some()), "{fields:?}");
    }
}
