//! From a configuration to a joined world: as a process that a launcher started, or as threads.

use std::ops::Deref;
use std::sync::Arc;

use anabranch_bootstrap::launcher::{self, Launch};
use anabranch_bootstrap::{Deadline, Heartbeat, Rendezvous, TcpConfig, TcpRendezvous};
use anabranch_ccl::Communicator;
use anabranch_ep::{EpConfig, ExpertParallel, LaunchTable, Mode};
use anabranch_ranks::{GlobalRank, Group, LinkSettings};
use anabranch_shmem::{LaunchOrder, RankError, RankSetup, WorldConfig};

use crate::config::{ByteSize, Config, ccl_config, link_settings};
use crate::environment::Environment;
use crate::error::Result;
use crate::platform::{Platform, ProcessLayout};
use crate::trace::TraceFile;

/// One rank's side of a joined world, with the configuration that it was joined with: communicators and plans that it makes have the
/// settings of the `[ccl]` and `[ep]` tables. It dereferences to [`anabranch_shmem::World`], which has the heap, the device, the teams and
/// [`leave`](anabranch_shmem::World::leave).
#[derive(Clone, Debug)]
pub struct World {
    inner: anabranch_shmem::World,
    config: Arc<Config>,
    trace: Option<Arc<TraceFile>>,
}

impl World {
    /// A communicator of these ranks, with the settings of the `[ccl]` table. Collective over the group.
    ///
    /// # Errors
    /// [`anabranch_ccl::Error`]: the file of `ccl.table`, memory, or settings in which ranks differ.
    pub fn communicator(&self, group: &Group) -> Result<Communicator> {
        Ok(Communicator::new(self, group, ccl_config(&self.config)?)?)
    }

    /// Dispatch and combine among these ranks, with the settings of the `[ep]` and `[links]` tables for what the plan leaves at its default
    /// ([`with_ep_settings`]). Collective over the group.
    ///
    /// # Errors
    /// [`anabranch_ep::Error`]: the file of `ep.table`, an invalid plan, memory, or plans in which ranks differ.
    pub fn expert_parallel(&self, group: &Group, plan: EpConfig) -> Result<ExpertParallel> {
        Ok(ExpertParallel::new(self, group, with_ep_settings(&self.config, plan)?)?)
    }

    /// [`Self::expert_parallel`] for a plan whose launches are in one order with those of others ([`ExpertParallel::in_order`]).
    /// Collective over the group.
    ///
    /// # Errors
    /// As [`Self::expert_parallel`]; an order of another world.
    pub fn expert_parallel_in_order(
        &self,
        group: &Group,
        plan: EpConfig,
        order: &LaunchOrder,
    ) -> Result<ExpertParallel> {
        Ok(ExpertParallel::in_order(self, group, with_ep_settings(&self.config, plan)?, order)?)
    }

    /// As [`anabranch_shmem::World::leave`]; ends the trace of this rank, if there is one.
    ///
    /// # Errors
    /// As [`anabranch_shmem::World::leave`].
    pub fn leave(&self) -> Result<(), anabranch_shmem::Error> {
        let left = self.inner.leave();
        if let Some(trace) = &self.trace {
            trace.finish();
        }
        left
    }

    /// The configuration that it was joined with.
    pub fn settings(&self) -> &Config {
        &self.config
    }
}

impl Deref for World {
    type Target = anabranch_shmem::World;

    fn deref(&self) -> &Self::Target {
        &self.inner
    }
}

/// A rank that has joined the rendezvous, and its number on its machine.
#[derive(Clone, Debug)]
pub struct JoinedRank {
    /// Its connection to the other ranks.
    pub rendezvous: Arc<dyn Rendezvous>,
    /// The rank among the ranks of this machine, below `local_size`.
    pub local_rank: u32,
    /// Ranks on this machine.
    pub local_size: u32,
}

/// Joins the other ranks at the rendezvous that the launcher's variables name (torchrun, `anabranch run`, srun, Open MPI,
/// MPICH). Collective: returns when all ranks have joined. `bootstrap.address`, `.secret`, `.secret_file`, `.interface` and `.insecure`
/// override the launcher's variables.
///
/// # Errors
/// [`crate::Error::Bootstrap`]: no launcher, or ranks that did not join within `deadline.rendezvous`.
pub fn rendezvous_from_launcher(config: &Config) -> Result<JoinedRank> {
    rendezvous_from(config, &Environment::of_process())
}

/// As [`rendezvous_from_launcher`], with a given environment.
///
/// # Errors
/// As [`rendezvous_from_launcher`].
pub fn rendezvous_from(config: &Config, environment: &Environment) -> Result<JoinedRank> {
    config.check()?;
    let launch = launch_of(config, environment)?;
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
    Ok(JoinedRank {
        rendezvous: Arc::new(rendezvous),
        local_rank: launch.local_rank,
        local_size: launch.local_size,
    })
}

/// The launcher's variables, overridden by the settings.
fn launch_of(config: &Config, environment: &Environment) -> Result<Launch> {
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
            // One of the two holds the secret.
            "ANABRANCH_SECRET" if one_secret => settings.secret.clone(),
            "ANABRANCH_SECRET_FILE" if one_secret => file.clone(),
            _ => launcher(),
        }
    };
    Ok(launcher::from_environment_with(&lookup, options)?)
}

/// Opens what the configuration names and joins the world. Collective. End it with [`leave`](anabranch_shmem::World::leave) on all ranks.
///
/// # Errors
/// The errors of [`Platform::open`] and [`Platform::join`].
pub fn join(config: &Config, rank: &JoinedRank) -> Result<World> {
    Platform::open(config, ProcessLayout::Processes { ranks: rank.local_size })?.join(rank)
}

/// Runs `work` on `ranks` ranks of one world, each on a thread and with a device of its own, and returns their results
/// in rank order. Each joins before and leaves after its work.
///
/// # Errors
/// The errors of [`Platform::open`], before any thread is started. The failure of a single rank is in its result.
pub fn spawn_threads<T, E, W>(config: &Config, ranks: u32, work: W) -> Result<Vec<Result<T, RankError<E>>>>
where
    T: Send,
    E: Send,
    W: Fn(&World) -> Result<T, E> + Sync,
{
    Platform::open(config, ProcessLayout::Threads { ranks })?.spawn_threads(work)
}

impl Platform {
    /// Joins the world of all ranks of the rendezvous, with the device of `rank.local_rank`. Collective.
    ///
    /// # Errors
    /// A device that does not exist; the world's own errors, among them the first setting in which ranks differ.
    pub fn join(&self, rank: &JoinedRank) -> Result<World> {
        let device = self.device(rank.local_rank)?;
        let rendezvous = Arc::clone(&rank.rendezvous);
        let trace = self.trace(&device, rendezvous.rank())?;
        let host_identity = self.host_identity(rendezvous.rank(), rendezvous.size());
        let config = WorldConfig { host_identity, ..world_config(self.config()) };
        let world = anabranch_shmem::World::join(config, device, self.jit().clone(), rendezvous)?;
        // All shared settings: the world has compared only those that it uses.
        world.compare(world.group(), "compare configurations", self.config().fields())?;
        if let Some(trace) = &trace {
            trace.follow(&world);
        }
        Ok(World { inner: world, config: Arc::new(self.config().clone()), trace })
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
        let traces = (0..).zip(&devices).map(|(rank, device)| self.trace(device, GlobalRank::new(rank)));
        let traces = traces.collect::<Result<Vec<_>>>()?;
        let config = WorldConfig {
            #[cfg(feature = "rdma")]
            nic: crate::nics::source_of_threads(self.config()),
            ..world_config(self.config())
        };
        let setup = |rank: GlobalRank| {
            let host_identity = self.host_identity(rank, self.ranks());
            let config = WorldConfig { host_identity, ..config.clone() };
            Ok(RankSetup { config, device: devices[rank.index()].clone(), jit: self.jit().clone() })
        };
        let config = Arc::new(self.config().clone());
        let work = |world: &anabranch_shmem::World| {
            let trace = traces[world.rank().index()].clone();
            if let Some(trace) = &trace {
                trace.follow(world);
                // It allocates: kernels that wait for this rank's begin after it.
                if let Err(error) = world.barrier(world.group(), "begin traces") {
                    tracing::warn!(%error, "ranks begin before the traces of all have begun");
                }
            }
            work(&World { inner: world.clone(), config: Arc::clone(&config), trace })
        };
        Ok(anabranch_shmem::spawn_threads(self.ranks(), setup, work))
    }
}

/// The part of a configuration that a world needs.
pub fn world_config(config: &Config) -> WorldConfig {
    WorldConfig {
        // 0: the world chooses.
        heap_bytes: config.heap.bytes.map_or(0, ByteSize::bytes),
        heap_mode: config.heap.mode,
        transports: config.transport.order.clone(),
        rendezvous_deadline: config.deadline.rendezvous.duration(),
        operation_deadline: config.deadline.operation.duration(),
        #[cfg(feature = "sdma")]
        sdma: sdma_config(config),
        #[cfg(feature = "rdma")]
        rdma: crate::nics::rdma_config(config),
        #[cfg(feature = "rdma")]
        nic: crate::nics::source(config),
        share_devices: config.device.devices.as_ref().is_some_and(|devices| !all_different(devices)),
        ..WorldConfig::default()
    }
}

fn all_different(devices: &[u32]) -> bool {
    devices.iter().enumerate().all(|(index, one)| !devices[..index].contains(one))
}

#[cfg(feature = "sdma")]
fn sdma_config(config: &Config) -> anabranch_shmem::SdmaConfig {
    use anabranch_shmem::SdmaConfig;

    let (sdma, base) = (&config.transport.sdma, SdmaConfig::default());
    // More than fits is more than is allowed.
    let most = sdma.most_copy_bytes.map(|most| u32::try_from(most.bytes()).unwrap_or(u32::MAX));
    SdmaConfig {
        queues: sdma.queues,
        ring_bytes: sdma.ring_bytes.bytes(),
        most_copy_bytes: most.unwrap_or(base.most_copy_bytes),
        // A queue is tried with a copy before the world is there; a slow machine has the time of an operation.
        patience: base.patience.max(config.deadline.operation.duration()),
        ..base
    }
}

/// An expert-parallel plan's configuration with the settings of the `[ep]` and `[links]` tables. A value in the plan that differs from the
/// default wins; a field with its default takes the setting, each link speed by itself. So one slot, [`Mode::Auto`], and 0 for `max_blocks`
/// or `waves_per_block` count as not set. Reads the file of `ep.table` unless the plan has a table.
///
/// # Errors
/// [`anabranch_ep::Error::File`]: a file that does not exist, or that is not a launch table.
pub fn with_ep_settings(config: &Config, plan: EpConfig) -> Result<EpConfig> {
    let ep = &config.ep;
    let mut plan = plan;
    if let (None, Some(path)) = (&plan.table, &ep.table) {
        plan.table = Some(Arc::new(LaunchTable::read(path)?));
    }
    if plan.mode == Mode::Auto {
        plan.mode = ep.mode;
    }
    if plan.slots == DEFAULT_SLOTS {
        plan.slots = ep.slots;
    }
    if plan.max_blocks == 0 {
        plan.max_blocks = ep.blocks.unwrap_or(0);
    }
    if plan.waves_per_block == 0 {
        plan.waves_per_block = ep.waves_per_block.unwrap_or(0);
    }
    let (given, set) = (plan.links, link_settings(config));
    plan.links = LinkSettings {
        inside_gb_per_s: given.inside_gb_per_s.or(set.inside_gb_per_s),
        inside_hop_us: given.inside_hop_us.or(set.inside_hop_us),
        nic_gb_per_s: given.nic_gb_per_s.or(set.nic_gb_per_s),
        nic_hop_us: given.nic_hop_us.or(set.nic_hop_us),
        nic_message_us: given.nic_message_us.or(set.nic_message_us),
        launch_us: given.launch_us.or(set.launch_us),
    };
    Ok(plan)
}

/// Slots of a plan that sets none.
const DEFAULT_SLOTS: u32 = 1;

#[cfg(test)]
mod tests {
    use anabranch_bootstrap::Secret;
    use anabranch_ccl::{Across, Algorithm, BarrierMode, CclConfig, Check};
    use anabranch_ep::EpShape;
    use anabranch_transport::TransportKind;

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
    fn settings_override_the_launcher() {
        let mut launcher = RANK_1_OF_4.to_vec();
        launcher.extend([("MASTER_ADDR", "head"), ("MASTER_PORT", "29500")]);
        let launch = launch_of(&config(&[]), &environment(&launcher)).unwrap();
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
        let launch = launch_of(&set, &environment(&launcher)).unwrap();
        assert_eq!(
            (launch.address.as_str(), launch.secret),
            ("head:29507", Secret::new("the settings' secret"))
        );
        assert_eq!((launch.interface.as_deref(), launch.insecure), (Some("eth1"), true));
        let absent = launch_of(&config(&["bootstrap.secret_file=/absent/secret"]), &environment(&launcher));
        assert!(absent.unwrap_err().to_string().contains("/absent/secret"));
        // With an address in the settings, the launcher need not name one.
        let launch =
            launch_of(&config(&["bootstrap.address=other:4000"]), &environment(RANK_1_OF_4)).unwrap();
        assert_eq!(launch.address, "other:4000");
        assert!(matches!(launch_of(&config(&[]), &environment(&[])), Err(Error::Bootstrap(_))));
    }

    #[test]
    fn settings_reach_the_world_and_the_plan() {
        let chosen = WorldConfig { heap_bytes: 0, ..WorldConfig::default() };
        assert_eq!(world_config(&Config::default()), chosen);
        let set = config(&["heap.bytes=64 MiB", "deadline.operation=3 s", "ep.slots=2", "ep.blocks=5"]);
        let world = world_config(&set);
        assert_eq!((world.heap_bytes, world.operation_deadline.as_secs()), (64 << 20, 3));
        assert_eq!(world.transports, [TransportKind::P2p]);
        #[cfg(feature = "sdma")]
        {
            // Waits that no setting names follow the deadlines, and are not shortened by them.
            assert_eq!(world.sdma.patience.as_secs(), 10);
            let patient = config(&["deadline.operation=600 s"]);
            assert_eq!(world_config(&patient).sdma.patience.as_secs(), 600);
        }
        let plan = with_ep_settings(
            &set,
            EpConfig::new(EpShape { hidden: 64, experts: 8, top_k: 2, max_tokens: 16 }),
        )
        .unwrap();
        assert_eq!((plan.slots, plan.max_blocks, plan.waves_per_block), (2, 5, 0));
        assert!(plan.table.is_none());
        let table = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/ep/tables/host.toml");
        let tuned = config(&[&format!("ep.table={table}")]);
        let plan = with_ep_settings(
            &tuned,
            EpConfig::new(EpShape { hidden: 64, experts: 8, top_k: 2, max_tokens: 16 }),
        )
        .unwrap();
        assert_eq!(plan.table.as_deref(), Some(&LaunchTable::read(table.as_ref()).unwrap()));
    }

    #[test]
    fn plan_set_in_code_wins_over_settings() {
        let shape = EpShape { hidden: 64, experts: 8, top_k: 2, max_tokens: 16 };
        let open = EpConfig::new(shape);
        let set = config(&[
            "ep.mode=compact",
            "ep.slots=2",
            "ep.blocks=5",
            "ep.waves_per_block=4",
            "links.nic_hop_us=7",
            "links.launch_us=3",
            concat!("ep.table=", env!("CARGO_MANIFEST_DIR"), "/crates/ep/tables/host.toml"),
        ]);
        let table = Arc::new(LaunchTable { device: "given".to_owned(), launches: Vec::new() });
        let links = LinkSettings { nic_hop_us: Some(1.5), ..LinkSettings::default() };
        let given =
            open.clone().mode(Mode::Slotted).slots(3).launch(6, 8).table(Arc::clone(&table)).links(links);
        let plan = with_ep_settings(&set, given).unwrap();
        assert_eq!((plan.mode, plan.slots, plan.max_blocks, plan.waves_per_block), (Mode::Slotted, 3, 6, 8));
        assert_eq!((plan.links.nic_hop_us, plan.links.launch_us), (Some(1.5), Some(3.0)));
        assert_eq!(plan.table, Some(table));
        let open_mode = with_ep_settings(&config(&["ep.mode=compact"]), open.clone()).unwrap().mode;
        assert_eq!(open_mode, Mode::Compact);
        let default = with_ep_settings(&Config::default(), open.clone()).unwrap();
        assert_eq!(default, open);
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
            shared_blocks: 0,
            staging_bytes: 1 << 20,
            pipe_bytes: 64 << 10,
            copy_streams: Some(3),
            barriers: BarrierMode::Stream,
            check: Check::Fingerprint,
            across: Across::Direct,
            nodes: None,
            table: None,
            links: LinkSettings::default(),
        };
        assert_eq!(ccl_config(&set).unwrap(), wanted);
        // Ranks compare them under the names of the settings.
        let fields = wanted.fields();
        assert!(fields.iter().all(|(name, _)| crate::config::setting_named(name).is_some()), "{fields:?}");
    }
}
