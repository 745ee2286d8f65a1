//! The NICs of the machine, which of them each device would use, and the libraries that drive them.

use std::path::Path;

use anabranch::config::NicDriverName;
use anabranch::{Config, RuntimeKind};
use anabranch_hip::{Device, with_distinct_causes};
use anabranch_shmem::RdmaConfig;
use anabranch_transport::TransportKind;
use anabranch_transport_ofi::OfiNics;
use anabranch_transport_rdma::nics::{
    Assignment, ChosenPort, LibraryStatus, Machine, Nic, NicFilter, PciLocation, SYSTEM_FOLDER, assign,
    choose_gid, find_libraries,
};
use anabranch_transport_rdma::{MachineDriver, MachineNics, Provider};
use serde_json::Value;

use super::finding::Finding;

/// Of a NIC whose requests the host posts.
const POSTED: &str = "opened by libibverbs: a thread of the host posts what kernels ask for (`posted`), and kernels do not write its queues";
/// Of one whose queues kernels write.
const WRITTEN: &str = "opened by libmlx5: kernels write its queues (verified with ConnectX in software only, never on hardware)";

/// The NIC settings of the configuration.
struct Settings {
    /// `None` for NICs in software, and where libfabric opens what it lists.
    driver: Option<MachineDriver>,
    /// What is in the place of a driver of the machine's NICs, by its name.
    source: String,
    rdma: RdmaConfig,
    filter: NicFilter,
    /// Whether `transport.order` has NICs.
    wanted: bool,
}

impl Settings {
    fn of(config: &Config) -> Self {
        let world = anabranch::world_config(config);
        // The configuration was checked when it was loaded.
        let filter = NicFilter::parse(&world.rdma.nics).unwrap_or_default();
        Self {
            driver: world.nic.machine_driver(),
            source: world.nic.name().to_owned(),
            filter: filter.with_gid_index(world.rdma.gid_index),
            rdma: world.rdma,
            wanted: config.transport.order.contains(&TransportKind::Rdma),
        }
    }

    /// How a NIC would be opened: in words, and the format that kernels would then write; `None` if it would not be.
    fn opens(&self, nic: &Nic) -> (String, Option<Provider>) {
        let provider = nic.provider();
        match (self.driver, provider) {
            (None, _) => {
                (format!("not opened here: transport.rdma.driver = {:?} does without", self.source), None)
            }
            (Some(MachineDriver::Verbs), _) => (POSTED.to_owned(), Some(Provider::Posted)),
            (Some(_), Provider::Mlx5) => (WRITTEN.to_owned(), Some(Provider::Mlx5)),
            (Some(MachineDriver::Mlx5), _) => {
                ("not opened: transport.rdma.driver = \"mlx5\" is for ConnectX".to_owned(), None)
            }
            (Some(MachineDriver::Auto), _) => {
                (format!("{POSTED}: it is no ConnectX"), Some(Provider::Posted))
            }
        }
    }
}

/// A device and where it is on the PCI bus.
pub(super) struct DevicePlace {
    name: String,
    device: Option<Device>,
    place: Result<PciLocation, String>,
}

/// Where devices are. Devices of the host runtime are nowhere.
pub(super) fn places(devices: &[Device]) -> Vec<DevicePlace> {
    let on_bus = devices.iter().filter(|device| device.runtime().kind() != RuntimeKind::Host);
    on_bus
        .map(|device| DevicePlace {
            name: format!("{} {}", device.runtime().kind(), device.ordinal()),
            device: Some(device.clone()),
            place: place(device),
        })
        .collect()
}

fn place(device: &Device) -> Result<PciLocation, String> {
    let address = device.pci_bus_id().map_err(|error| with_distinct_causes(&error))?;
    let address = address.parse().map_err(|error| with_distinct_causes(&error))?;
    PciLocation::of_device(Path::new(SYSTEM_FOLDER), address).map_err(|error| with_distinct_causes(&error))
}

/// What there is, for each NIC, each device and each library. A machine without NICs is no fault: ranks of one machine need none.
pub(super) fn nics(config: &Config, devices: &[DevicePlace]) -> Vec<Finding> {
    nics_of(Path::new(SYSTEM_FOLDER), config, devices)
}

/// As [`nics`], of the machine that a folder shows. What libfabric has does not depend on it.
fn nics_of(folder: &Path, config: &Config, devices: &[DevicePlace]) -> Vec<Finding> {
    let settings = Settings::of(config);
    let by_libfabric = fabric(config, &settings);
    let machine = match Machine::read(folder) {
        Ok(machine) => machine,
        Err(error) => {
            let unread = Finding::missing("nics", "devices", false, with_distinct_causes(&error));
            return std::iter::once(unread).chain(by_libfabric).collect();
        }
    };
    let mut findings = found(&machine, &settings);
    findings.extend(by_libfabric);
    findings.extend(no_connectx(&machine, &settings));
    if !machine.nics().is_empty() {
        findings.extend(served(&machine, devices, &settings));
    }
    findings.extend(find_libraries().iter().map(|status| library(&machine, status)));
    findings
}

/// What libfabric would serve with, where the configuration asks for it.
fn fabric(config: &Config, settings: &Settings) -> Option<Finding> {
    if config.transport.rdma.driver != NicDriverName::Libfabric {
        return None;
    }
    let provider = config.transport.rdma.fabric_provider.clone();
    let found = OfiNics::new(provider).survey(&settings.rdma.nics);
    Some(match found {
        Ok(words) => Finding::ok("nics", "libfabric", words),
        Err(error) => {
            let hint = "Debian's package is libfabric1; transport.rdma.fabric_provider and transport.rdma.nics choose among what fi_info lists; each queue takes some open files (ulimit -n), and over shm some MiB of /dev/shm";
            Finding::missing("nics", "libfabric", settings.wanted, with_distinct_causes(&error)).hint(hint)
        }
    })
}

/// One line for each NIC.
fn found(machine: &Machine, settings: &Settings) -> Vec<Finding> {
    if machine.nics().is_empty() {
        let detail = format!(
            "{SYSTEM_FOLDER}/class/infiniband shows none: ranks of other machines cannot be reached by RDMA"
        );
        return vec![Finding::missing("nics", "devices", false, detail)];
    }
    machine.nics().iter().map(|nic| describe(nic, settings)).collect()
}

/// Of a configuration that takes nothing but a ConnectX, on a machine that has none.
fn no_connectx(machine: &Machine, settings: &Settings) -> Option<Finding> {
    let has = machine.nics().iter().any(|nic| nic.provider() == Provider::Mlx5);
    if has || settings.driver != Some(MachineDriver::Mlx5) {
        return None;
    }
    let detail = "transport.rdma.driver = \"mlx5\", and this machine has no ConnectX";
    let hint = "transport.rdma.driver = \"auto\" or \"verbs\" takes other NICs";
    Some(Finding::missing("nics", "driver mlx5", settings.wanted, detail).hint(hint))
}

fn describe(nic: &Nic, settings: &Settings) -> Finding {
    let (opened, opens_as) = settings.opens(nic);
    let mut details = vec![nic.provider().to_string()];
    details.extend(nic.driver.as_ref().map(|driver| format!("driver {driver}")));
    details.extend((!nic.firmware.is_empty()).then(|| format!("firmware {}", nic.firmware)));
    details.push(nic.place.path.as_ref().map_or("in software".to_owned(), |path| path.address().to_string()));
    details.extend(nic.place.numa.map(|node| format!("NUMA node {node}")));
    let mut lines = vec![details.join(", "), opened];
    for port in &nic.ports {
        let gid = match choose_gid(port.link_layer, &port.gids, settings.rdma.gid_index) {
            Ok(choice) => format!("GID {} ({})", choice.gid, choice.reason),
            Err(error) => error.to_string(),
        };
        lines.push(format!("{port}; {gid}"));
    }
    lines.extend(nic.problems.iter().cloned());
    let detail = lines.join("\n");
    let finding = if nic.problems.is_empty() {
        Finding::ok("nics", &nic.name, detail)
    } else {
        Finding::missing("nics", &nic.name, false, detail)
    };
    let ports: Vec<Value> = nic.ports.iter().map(|port| Value::from(port.to_string())).collect();
    finding
        .with("provider", nic.provider().word())
        .with("opens_as", opens_as.map(|provider| provider.to_string()))
        .with("pci", nic.place.path.as_ref().map(|path| path.address().to_string()))
        .with("numa", nic.place.numa)
        .with("ports", ports)
}

/// One line for each device: the port that it would use if each device served one rank. Where kernels are to write the NIC's queues it
/// is opened, as that alone shows whether the runtime maps its registers.
fn served(machine: &Machine, devices: &[DevicePlace], settings: &Settings) -> Vec<Finding> {
    let known: Vec<PciLocation> = devices.iter().filter_map(|device| device.place.clone().ok()).collect();
    let mut assignments = assign(&known, machine, &settings.filter).into_iter();
    let mut findings = Vec::new();
    for device in devices {
        let name = format!("{} would use", device.name);
        if let Err(problem) = &device.place {
            findings.push(Finding::missing("nics", name, false, problem.clone()));
            continue;
        }
        let Some(assignment) = assignments.next() else { continue };
        findings.push(one(name, &assignment));
        findings.extend(opened(machine, device, &assignment, settings));
    }
    findings
}

/// What opening a device's NIC leads to, for drivers that kernels write queues of.
fn opened(
    machine: &Machine,
    device: &DevicePlace,
    assignment: &Assignment,
    settings: &Settings,
) -> Option<Finding> {
    let driver = settings.driver.filter(|driver| *driver != MachineDriver::Verbs)?;
    let (handle, port) = (device.device.as_ref()?, assignment.chosen.as_ref()?);
    let nic = machine.nics().get(port.nic)?;
    let chosen = ChosenPort::new(nic, port.port, settings.rdma.gid_index, assignment.reason.clone());
    let driven =
        chosen.and_then(|chosen| MachineNics::new(driver).open_port(handle, &chosen, &settings.rdma));
    let said = driven.map(|driven| {
        let words = std::iter::once(driven.describe()).chain(driven.lacks().into_iter().map(str::to_owned));
        (driven.provider(), words.collect::<Vec<_>>().join("; "))
    });
    let said = said.map_err(|error| with_distinct_causes(&error));
    Some(open_finding(format!("{} opens {port}", device.name), driver, said, settings.wanted))
}

/// A NIC that was opened, or why not.
fn open_finding(
    name: String,
    driver: MachineDriver,
    said: Result<(Provider, String), String>,
    wanted: bool,
) -> Finding {
    match said {
        Ok((provider, words)) => {
            Finding::ok("nics", name, format!("by the driver {driver}, {provider}: {words}"))
        }
        Err(problem) => {
            let hint = "transport.rdma.driver = \"verbs\" has a thread of the host post in place of kernels";
            Finding::missing("nics", name, wanted, format!("by the driver {driver}: {problem}")).hint(hint)
        }
    }
}

fn one(name: String, assignment: &Assignment) -> Finding {
    let others = assignment
        .considered
        .iter()
        .filter(|considered| Some(&considered.port) != assignment.chosen.as_ref());
    let others: Vec<String> = others
        .map(|considered| format!("not {}: {}, {}", considered.port, considered.distance, considered.verdict))
        .collect();
    let lines =
        |first: String| std::iter::once(first).chain(others.iter().cloned()).collect::<Vec<_>>().join("\n");
    let finding = if let Some(port) = &assignment.chosen {
        Finding::ok("nics", name, lines(format!("{port}, {}", assignment.reason)))
    } else {
        Finding::missing("nics", name, false, lines(assignment.reason.clone()))
    };
    finding.with("port", assignment.chosen.as_ref().map(ToString::to_string)).with("not_taken", others)
}

/// A library is missed only where a NIC that needs it is.
fn library(machine: &Machine, status: &LibraryStatus) -> Finding {
    let own = &status.library;
    let needs = |nic: &&Nic| own.driver.is_none() || own.driver == nic.driver.as_deref();
    let users = machine.nics().iter().filter(needs).count();
    // Queues that kernels write need more than the library.
    let unused = match own.driver {
        None => "",
        Some("mlx5_core") => ", for transport.rdma.driver = \"mlx5\" and \"auto\"",
        Some(_) => ", which no driver here makes yet",
    };
    let purpose = format!("{}{unused}", own.purpose);
    let finding = match &status.problem {
        None => Finding::ok("nics", own.soname, purpose),
        Some(problem) if users == 0 => {
            Finding::missing("nics", own.soname, false, format!("{purpose}: {problem}"))
        }
        Some(problem) => {
            let detail = format!("{purpose}: {problem}\nhint: {}", own.hint);
            Finding::missing("nics", own.soname, false, detail)
        }
    };
    finding.with("library", own.soname).with("nics", users)
}

#[cfg(test)]
mod tests {
    use anabranch_transport_rdma::nics::{Gid, GidKind, LinkLayer, NicLibrary, PciPath, Port, PortState};

    use super::super::finding::Status;
    use super::*;

    fn place(folders: &[&str]) -> PciLocation {
        PciLocation { path: PciPath::of_folders(folders.iter().copied()), numa: Some(1) }
    }

    fn nic(name: &str, bus: &str, state: PortState) -> Nic {
        let gid = Gid {
            index: 3,
            value: "::ffff:10.0.0.1".parse().unwrap(),
            kind: GidKind::RoceV2,
            interface: Some("eth2".to_owned()),
        };
        let port = Port {
            number: 1,
            state,
            physical_state: "Polling".to_owned(),
            link_layer: LinkLayer::Ethernet,
            rate_mbps: 400_000,
            lid: 0,
            interfaces: vec!["eth2".to_owned()],
            gids: vec![gid],
        };
        Nic {
            name: name.to_owned(),
            driver: Some("mlx5_core".to_owned()),
            place: place(&["pci0000:80", "0000:80:01.0", &format!("0000:{bus}:00.0")]),
            node_type: "CA".to_owned(),
            firmware: "28.40".to_owned(),
            ports: vec![port],
            problems: Vec::new(),
        }
    }

    #[test]
    fn nic_report_names_device_and_missing_library() {
        let machine =
            Machine::new(vec![nic("mlx5_0", "81", PortState::Active), nic("mlx5_1", "82", PortState::Down)]);
        let by = |driver| Settings {
            driver,
            source: "software".to_owned(),
            rdma: RdmaConfig::default(),
            filter: NicFilter::default(),
            wanted: true,
        };
        let verbs = by(Some(MachineDriver::Verbs));
        let found = found(&machine, &verbs);
        let detail = "mlx5, driver mlx5_core, firmware 28.40, 0000:81:00.0, NUMA node 1\n\
                      opened by libibverbs: a thread of the host posts what kernels ask for (`posted`), and kernels do not write its queues\n\
                      port 1, Ethernet, ACTIVE, 400 Gb/s, eth2; GID 3 ::ffff:10.0.0.1 of eth2 (RoCE v2 over IPv4)";
        assert_eq!((found.len(), found[0].status, found[0].detail.as_str()), (2, Status::Ok, detail));
        let device = |name: &str, place| DevicePlace { name: name.to_owned(), device: None, place };
        let devices = [
            device("amd 0", Ok(place(&["pci0000:80", "0000:80:01.0", "0000:83:00.0"]))),
            device("amd 1", Err("gone".to_owned())),
        ];
        let served = served(&machine, &devices, &verbs);
        let near = "mlx5_0:1, below the same PCI switch (PIX)\n\
                    not mlx5_1:1: below the same PCI switch (PIX), the port is DOWN (physical state Polling)";
        assert_eq!((served[0].name.as_str(), served[0].detail.as_str()), ("amd 0 would use", near));
        assert_eq!((served[1].status, served[1].detail.as_str()), (Status::Absent, "gone"));
        let own =
            NicLibrary { soname: "libx.so", purpose: "x", hint: "install x", driver: Some("mlx5_core") };
        let missing = LibraryStatus { library: own, problem: Some("not there".to_owned()) };
        assert_eq!(
            library(&machine, &missing).detail,
            "x, for transport.rdma.driver = \"mlx5\" and \"auto\": not there\nhint: install x"
        );
        assert_eq!(
            library(&Machine::default(), &missing).detail,
            "x, for transport.rdma.driver = \"mlx5\" and \"auto\": not there",
            "no route needs it"
        );
        assert_eq!(library(&machine, &LibraryStatus { problem: None, ..missing }).status, Status::Ok);
    }

    #[test]
    fn libfabric_nics_are_listed_without_rdma_devices() {
        let mut config = Config::default();
        config.transport.rdma.driver = NicDriverName::Libfabric;
        // A file is no folder, and has no folder in it.
        let findings = nics_of(Path::new("/proc/self/status"), &config, &[]);
        let names: Vec<_> = findings.iter().map(|finding| finding.name.as_str()).collect();
        assert_eq!(names, ["devices", "libfabric"]);
    }

    #[test]
    fn driver_setting_selects_how_a_nic_is_opened() {
        let by = |driver, wanted| Settings {
            driver,
            source: "software".to_owned(),
            rdma: RdmaConfig::default(),
            filter: NicFilter::default(),
            wanted,
        };
        let connectx = nic("mlx5_0", "81", PortState::Active);
        let other = Nic { name: "irdma0".to_owned(), driver: Some("ice".to_owned()), ..connectx.clone() };
        for (driver, of_connectx, of_other) in [
            (None, None, None),
            (Some(MachineDriver::Verbs), Some(Provider::Posted), Some(Provider::Posted)),
            (Some(MachineDriver::Mlx5), Some(Provider::Mlx5), None),
            (Some(MachineDriver::Auto), Some(Provider::Mlx5), Some(Provider::Posted)),
        ] {
            let settings = by(driver, true);
            assert_eq!((settings.opens(&connectx).1, settings.opens(&other).1), (of_connectx, of_other));
        }
        let others = Machine::new(vec![other]);
        let missing = no_connectx(&others, &by(Some(MachineDriver::Mlx5), true)).unwrap();
        assert_eq!(missing.status, Status::Wrong);
        assert!(missing.hint.is_some_and(|hint| hint.contains("auto")));
        let unneeded = no_connectx(&others, &by(Some(MachineDriver::Mlx5), false)).unwrap();
        assert_eq!(unneeded.status, Status::Absent, "transport.order has no NICs");
        assert_eq!(no_connectx(&others, &by(Some(MachineDriver::Auto), true)), None);
        assert_eq!(no_connectx(&Machine::new(vec![connectx]), &by(Some(MachineDriver::Mlx5), true)), None);
        let refused = open_finding("amd 0".to_owned(), MachineDriver::Mlx5, Err("no page".to_owned()), true);
        assert_eq!((refused.status, refused.detail.as_str()), (Status::Wrong, "by the driver mlx5: no page"));
        let posted = Ok((Provider::Posted, "not driven by kernels: no page".to_owned()));
        let detail = open_finding("amd 0".to_owned(), MachineDriver::Auto, posted, true).detail;
        assert_eq!(detail, "by the driver auto, posted by the host: not driven by kernels: no page");
    }
}
