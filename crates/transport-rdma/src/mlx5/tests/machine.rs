//! Which driver opens the machine's NICs, and what is said where it cannot: machines as text, libraries that are not the system's.

use std::sync::Arc;

use crate::machine::{MachineDriver, MachineNics, NicLibraries, SystemLibraries};
use crate::mlx5::{Devx, PortFacts};
use crate::nics::ChosenPort;
use crate::{
    Atomics, NicDriver, NicError, NicLimits, NicQueue, NicSource, OpenNic as _, Provider, QueueSpec,
    RdmaConfig, RdmaTransport, Registered,
};
use anabranch_hip::{Device, DeviceOrdinal};
use anabranch_hip_host::{HostConfig, HostMachine};
use anabranch_ranks::GlobalRank;
use anabranch_transport::{Audience, HostIdentity, PeerInfo, ProcessIdentity, Region, Transport as _};
use anabranch_weakmem::{SeededHost, SeededSchedule};

use super::fake::Fake;
use crate::machines::Tree;

fn device() -> Device {
    let machine = HostMachine::new(HostConfig::default()).unwrap();
    machine.runtime().device(DeviceOrdinal(0)).unwrap()
}

/// A library of ConnectX that is a fake NIC's or not there, and one of verbs that opens a driver which moves nothing.
#[derive(Debug)]
struct Libraries {
    connectx: Option<Fake>,
    verbs: bool,
}

/// What a library that is not there leads to.
fn missing(library: &'static str) -> NicError {
    NicError::Library { library, looked: "by the loader's path".to_owned(), cause: "no such file".to_owned() }
}

impl NicLibraries for Libraries {
    fn devx(&self, _: &Device, chosen: &ChosenPort) -> Result<(Arc<dyn Devx>, PortFacts), NicError> {
        let fake = self.connectx.clone().ok_or_else(|| missing("libmlx5.so.1"))?;
        let facts = PortFacts {
            number: chosen.port.number as u8,
            link_layer: chosen.port.link_layer,
            lid: chosen.port.lid,
            gid_index: chosen.gid.gid.index as u8,
            gid: chosen.gid.gid.value.octets(),
            gid_kind: chosen.gid.gid.kind,
            mtu: 4096,
            most_answered: 16,
            most_asked: 16,
        };
        Ok((Arc::new(fake), facts))
    }

    fn posted(
        &self,
        _: &Device,
        chosen: &ChosenPort,
        _: &RdmaConfig,
    ) -> Result<Arc<dyn NicDriver>, NicError> {
        if !self.verbs {
            return Err(missing("libibverbs"));
        }
        Ok(Arc::new(Posted(chosen.why())))
    }
}

#[derive(Debug)]
struct Posted(String);

impl NicDriver for Posted {
    fn provider(&self) -> Provider {
        Provider::Posted
    }

    fn describe(&self) -> String {
        self.0.clone()
    }

    fn limits(&self) -> NicLimits {
        NicLimits { most_message_bytes: 1 << 20, inline_bytes: 8, atomics: Atomics::Standard }
    }

    fn register(&self, _: Region) -> Result<Arc<dyn Registered>, NicError> {
        Err(missing("nothing is registered here"))
    }

    fn create_queue(&self, _: QueueSpec) -> Result<Arc<dyn NicQueue>, NicError> {
        Err(missing("no queue is made here"))
    }
}

fn peer(rank: u32, pci: &str) -> PeerInfo {
    PeerInfo {
        rank: GlobalRank::new(rank),
        host: HostIdentity(format!("machine {rank}")),
        process: ProcessIdentity { pid: rank, nonce: 0 },
        runtime: "amd".to_owned(),
        instance: 0,
        device: 0,
        pci: pci.to_owned(),
        arch: "gfx942".to_owned(),
        nics_of: HostIdentity(format!("machine {rank}")),
    }
}

/// Rank 0 and rank 1, each on a machine like `tree`.
fn peers(pci: &str) -> [PeerInfo; 2] {
    [peer(0, pci), peer(1, pci)]
}

/// What rank 0 gets on a machine.
fn opened(
    driver: MachineDriver,
    tree: &Tree,
    libraries: Libraries,
    config: &RdmaConfig,
) -> Result<Arc<dyn NicDriver>, NicError> {
    let nics = MachineNics::with(driver, tree.root(), Arc::new(libraries));
    let peers = peers("0000:18:00.0");
    nics.open(&device(), &peers[0], &peers, config)
}

/// All that an error says.
fn words(refused: Result<Arc<dyn NicDriver>, NicError>) -> String {
    anabranch_hip::with_causes(&refused.unwrap_err())
}

fn both(fake: &Fake) -> Libraries {
    Libraries { connectx: Some(fake.clone()), verbs: true }
}

#[test]
fn each_driver_opens_the_port_that_was_chosen() {
    let (tree, config, fake) = (Tree::of("dgx"), RdmaConfig::default(), Fake::new());
    let open = |driver| opened(driver, &tree, both(&fake), &config).unwrap();
    let why = "below the same PCI switch (PIX); GID 0 fe80::a088:c203:0:1: InfiniBand";
    let posted = open(MachineDriver::Verbs);
    assert_eq!((posted.provider(), posted.describe().as_str()), (Provider::Posted, why));
    assert!(fake.calls().is_empty(), "nobody asked for a ConnectX");
    for driver in [MachineDriver::Mlx5, MachineDriver::Auto] {
        let connectx = open(driver);
        assert_eq!((connectx.provider(), connectx.limits().atomics), (Provider::Mlx5, Atomics::Masked));
        assert_eq!(connectx.describe(), format!("mlx5_7:1 (InfiniBand, {why})"));
    }
}

/// Every call of opening a ConnectX on InfiniBand, with a queue pair that is connected to itself.
const OPENING: [&str; 12] = [
    "QUERY_HCA_CAP",
    "QUERY_HCA_CAP",
    "QUERY_HCA_CAP",
    "alloc_uar",
    "query_eqn",
    "init_obj",
    "umem_reg",
    "CREATE_CQ",
    "CREATE_QP",
    "RST2INIT_QP",
    "INIT2RTR_QP",
    "RTR2RTS_QP",
];

#[test]
fn opening_a_connectx_brings_a_queue_pair_to_where_it_may_send() {
    for (name, pci, way, entries) in
        [("dgx", "0000:18:00.0", None, 256), ("roce-storage", "0000:83:00.0", Some("create_ah"), 1024)]
    {
        let config = RdmaConfig { entries, ..RdmaConfig::default() };
        let (tree, peers, fake) = (Tree::of(name), peers(pci), Fake::new());
        let nics = MachineNics::with(MachineDriver::Mlx5, tree.root(), Arc::new(both(&fake)));
        let nic = nics.open(&device(), &peers[0], &peers, &config).unwrap();
        let calls = fake.calls().into_iter().filter(|call| Some(call.as_str()) != way);
        assert_eq!(calls.collect::<Vec<_>>(), OPENING, "{name}");
        // Connected to itself: its own number is the remote one.
        let (_, words) = fake.command("INIT2RTR_QP");
        let number = |offset: usize| words.iter().find(|(at, _)| *at == offset).unwrap().1;
        assert_eq!(number(0x2c), number(0x08), "{name}");
        // As long as those to peers, which a NIC may refuse (log_max_qp_sz, the limit of locked memory).
        let (_, words) = fake.command("CREATE_QP");
        let sizes = words.iter().find(|(at, _)| *at == 0x20).unwrap().1;
        assert_eq!(1 << (sizes >> 11 & 0xf), entries, "{name}");
        assert_eq!(
            (fake.queue_pairs(), fake.live(), fake.rung()),
            (0, 1, vec![0]),
            "a page is left, and nothing was sent"
        );
        drop(nic);
        assert_eq!(fake.live(), 0);
    }
}

#[test]
fn what_a_connectx_lacks_is_an_error_that_names_it_and_nothing_else_is_taken() {
    let (tree, config) = (Tree::of("dgx"), RdmaConfig::default());
    let without = Libraries { connectx: None, verbs: true };
    let text = words(opened(MachineDriver::Mlx5, &tree, without, &config));
    assert!(text.starts_with("libmlx5.so.1 cannot be opened"), "{text}");
    // Every call of opening, the page of registers among them.
    for (call, name) in OPENING.into_iter().enumerate() {
        let fake = Fake::new();
        fake.fail(call);
        let text = words(opened(MachineDriver::Mlx5, &tree, both(&fake), &config));
        assert!(text.contains(name) && text.contains("mlx5_7"), "{text}");
        assert_eq!(fake.live(), 0, "{name}");
    }
    // No ConnectX at all: one in software, which the settings name.
    let named = RdmaConfig { nics: vec!["rxe0".to_owned()], ..RdmaConfig::default() };
    let fake = Fake::new();
    let text = words(opened(MachineDriver::Mlx5, &Tree::of("rxe"), both(&fake), &named));
    assert!(text.contains("rxe0:1: its queue entries are those of posted by the host"), "{text}");
    assert!(fake.calls().is_empty());
    let text = words(opened(MachineDriver::Mlx5, &Tree::of("none"), both(&fake), &config));
    assert_eq!(text, "no NIC can be used: this machine shows no NIC");
}

#[test]
fn the_host_posts_for_kernels_only_where_allowed_with_the_reason() {
    let (tree, config) = (Tree::of("dgx"), RdmaConfig::default());
    // Whatever a runtime or a NIC refuses, up to the last change of state.
    for (call, name) in OPENING.into_iter().enumerate() {
        let fake = Fake::new();
        fake.fail(call);
        let driver = opened(MachineDriver::Auto, &tree, both(&fake), &config).unwrap();
        assert_eq!(driver.provider(), Provider::Posted, "{name}");
        let said = driver.describe();
        let why =
            format!("below the same PCI switch (PIX); not driven by kernels: {name} failed on mlx5_7: ");
        assert!(said.starts_with(&why), "{said}");
        if name.ends_with("_QP") || name == "CREATE_CQ" {
            assert!(said.contains("bad parameter (status 0x03, syndrome 0x0012abcd)"), "{said}");
        }
        assert_eq!(fake.live(), 0, "{name}");
    }
    let without = Libraries { connectx: None, verbs: true };
    let said = opened(MachineDriver::Auto, &tree, without, &config).unwrap().describe();
    assert!(said.contains("not driven by kernels: libmlx5.so.1 cannot be opened"), "{said}");
    let neither = Libraries { connectx: None, verbs: false };
    let text = words(opened(MachineDriver::Auto, &tree, neither, &config));
    for part in ["mlx5: libmlx5.so.1 cannot be opened", "verbs: libibverbs cannot be opened"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn two_ranks_connect_their_queue_pairs_by_what_they_offer() {
    let (tree, config) = (Tree::of("roce-storage"), RdmaConfig::default());
    let device = device();
    let peers = peers("0000:83:00.0");
    let fakes = [Fake::new(), Fake::new()];
    let transports: Vec<_> = fakes
        .iter()
        .zip(&peers)
        .map(|(fake, own)| {
            let nics = MachineNics::with(MachineDriver::Mlx5, tree.root(), Arc::new(both(fake)));
            let nic = nics.open(&device, own, &peers, &config);
            RdmaTransport::new(device.clone(), own.clone(), 2, nic, config.clone())
        })
        .collect();
    assert_eq!(
        transports[0].format(),
        Some((Provider::Mlx5, Atomics::Masked)),
        "kernels are compiled for it"
    );
    let heaps = [device.allocate(4096).unwrap(), device.allocate(4096).unwrap()];
    let regions = heaps.each_ref().map(|heap| Region { address: heap.address().0, bytes: 4096 });
    let offers: Vec<_> = transports
        .iter()
        .zip(regions)
        .map(|(transport, region)| transport.export(region, Audience::ThisHost).unwrap())
        .collect();
    transports[0].open(&peers[1], &offers[1], 4096).unwrap();
    transports[1].open(&peers[0], &offers[0], 4096).unwrap();
    let order = ["create_ah", "INIT2RTR_QP", "RTR2RTS_QP"];
    for (fake, (transport, other)) in fakes.iter().zip(transports.iter().zip(peers.iter().rev())) {
        let calls = fake.calls();
        let connected = &calls[calls.len() - 2 * order.len()..];
        assert_eq!(connected, [order, order].concat(), "for each of two queue pairs");
        let reason = transport.reaches(other).unwrap().reason;
        assert!(reason.starts_with("2 queue pairs, mlx5, by mlx5_7:1 (Ethernet"), "{reason}");
        let queues = transport.queues(other.rank, 1);
        assert_eq!((queues.len(), queues[0].remote_bytes, queues[0].remote_key), (2, 4096, 2));
        // A page of registers for all queue pairs of a NIC; rings and records of their own.
        assert_eq!(queues[0].doorbell, queues[1].doorbell);
        assert_ne!(queues[0].doorbell_record, queues[1].doorbell_record);
        let (one, other) = (queues[0].number.min(queues[1].number), queues[0].number.max(queues[1].number));
        assert_eq!(fake.sending(), [one, other]);
        assert_eq!(fake.rung(), [0], "no kernel has run");
    }
    drop(transports);
    assert_eq!(fakes.map(|fake| fake.live()), [0, 0]);
}

#[test]
fn the_systems_libraries_do_not_open_what_is_not_there() {
    let tree = Tree::of("dgx");
    let peers = peers("0000:18:00.0");
    let config = RdmaConfig::default();
    for driver in MachineDriver::ALL {
        let nics = MachineNics::with(driver, tree.root(), Arc::new(SystemLibraries));
        let text = words(nics.open(&device(), &peers[0], &peers, &config));
        // Where libibverbs is, it does not show this NIC; where it is not, that is said.
        let known = ["verbs do not show mlx5_0", "libibverbs cannot be opened", "GID 0"];
        assert!(known.iter().any(|part| text.contains(part)), "{driver}: {text}");
        let seeded = SeededHost::new(HostConfig::default(), &SeededSchedule::new(1)).unwrap();
        let seeded = seeded.runtime().device(DeviceOrdinal(0)).unwrap();
        let text = words(nics.open(&seeded, &peers[0], &peers, &config));
        assert!(text.contains("the device is simulated"), "{driver}: {text}");
    }
}

#[test]
fn sources_are_equal_when_they_open_alike_and_have_the_settings_words() {
    let names = MachineDriver::ALL.map(|driver| NicSource::machine(driver).name().to_owned());
    assert_eq!(names, ["verbs", "mlx5", "auto"]);
    assert_eq!(NicSource::default(), NicSource::machine(MachineDriver::Verbs));
    assert_ne!(NicSource::default(), NicSource::machine(MachineDriver::Mlx5));
    let tree = Tree::of("none");
    let opener = Arc::new(MachineNics::with(MachineDriver::Mlx5, tree.root(), Arc::new(SystemLibraries)));
    let brought = NicSource::named("mlx5", opener);
    assert_ne!(brought, NicSource::machine(MachineDriver::Mlx5));
    assert_eq!((brought.clone(), brought.machine_driver()), (brought, None));
}
