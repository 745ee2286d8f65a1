//! The NICs of the machine, which of them each device would use, and the libraries that drive them.

use std::path::Path;

use anabranch::RuntimeKind;
use anabranch::hip::{Device, with_distinct_causes};
use anabranch::rdma::Provider;
use anabranch::rdma::nics::{
    Assignment, LibraryStatus, Machine, Nic, NicFilter, Place, SYSTEM_FOLDER, assign, choose_gid,
    find_libraries,
};
use serde_json::Value;

use super::finding::Finding;

/// Which driver opens a NIC, whatever queues its provider has.
const OPENED: &str = "opened by libibverbs: a thread of the host posts what kernels ask for (`posted`), and kernels do not write its queues";

/// A device and where it is on the PCI bus.
pub(super) struct DevicePlace {
    name: String,
    place: Result<Place, String>,
}

/// Where devices are. Devices of the host runtime are nowhere.
pub(super) fn places(devices: &[Device]) -> Vec<DevicePlace> {
    let on_bus = devices.iter().filter(|device| device.runtime().kind() != RuntimeKind::Host);
    on_bus
        .map(|device| DevicePlace {
            name: format!("{} {}", device.runtime().kind(), device.ordinal()),
            place: place(device),
        })
        .collect()
}

fn place(device: &Device) -> Result<Place, String> {
    let address = device.pci_bus_id().map_err(|error| with_distinct_causes(&error))?;
    let address = address.parse().map_err(|error| with_distinct_causes(&error))?;
    Place::of_device(Path::new(SYSTEM_FOLDER), address).map_err(|error| with_distinct_causes(&error))
}

/// What there is, for each NIC, each device and each library. A machine without NICs is no fault: ranks of one machine need none.
pub(super) fn nics(devices: &[DevicePlace]) -> Vec<Finding> {
    let machine = match Machine::read(Path::new(SYSTEM_FOLDER)) {
        Ok(machine) => machine,
        Err(error) => return vec![Finding::missing("nics", "devices", false, with_distinct_causes(&error))],
    };
    let mut findings = found(&machine);
    if !machine.nics().is_empty() {
        findings.extend(served(&machine, devices));
    }
    findings.extend(find_libraries().iter().map(|status| library(&machine, status)));
    findings
}

/// One line for each NIC.
fn found(machine: &Machine) -> Vec<Finding> {
    if machine.nics().is_empty() {
        let detail = format!(
            "{SYSTEM_FOLDER}/class/infiniband shows none: ranks of other machines cannot be reached by RDMA"
        );
        return vec![Finding::missing("nics", "devices", false, detail)];
    }
    machine.nics().iter().map(describe).collect()
}

fn describe(nic: &Nic) -> Finding {
    let mut details = vec![nic.provider().to_string()];
    details.extend(nic.driver.as_ref().map(|driver| format!("driver {driver}")));
    details.extend((!nic.firmware.is_empty()).then(|| format!("firmware {}", nic.firmware)));
    details.push(nic.place.path.as_ref().map_or("in software".to_owned(), |path| path.address().to_string()));
    details.extend(nic.place.numa.map(|node| format!("NUMA node {node}")));
    let mut lines = vec![details.join(", "), OPENED.to_owned()];
    for port in &nic.ports {
        let gid = match choose_gid(port.link_layer, &port.gids, None) {
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
        .with("opens_as", Provider::Posted.to_string())
        .with("pci", nic.place.path.as_ref().map(|path| path.address().to_string()))
        .with("numa", nic.place.numa)
        .with("ports", ports)
}

/// One line for each device: the port that it would use if each device served one rank and the settings named no NIC.
fn served(machine: &Machine, devices: &[DevicePlace]) -> Vec<Finding> {
    let known: Vec<Place> = devices.iter().filter_map(|device| device.place.clone().ok()).collect();
    let mut assignments = assign(&known, machine, &NicFilter::default()).into_iter();
    let mut findings = Vec::new();
    for device in devices {
        let name = format!("{} would use", device.name);
        findings.push(match &device.place {
            Err(problem) => Finding::missing("nics", name, false, problem.clone()),
            Ok(_) => match assignments.next() {
                Some(assignment) => one(name, &assignment),
                None => continue,
            },
        });
    }
    findings
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
    let unused = if own.driver.is_some() { ", which no driver here makes yet" } else { "" };
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
    use anabranch::rdma::nics::{Gid, GidKind, LinkLayer, NicLibrary, PciPath, Port, PortState};

    use super::super::finding::Status;
    use super::*;

    fn place(folders: &[&str]) -> Place {
        Place { path: PciPath::of_folders(folders.iter().copied()), numa: Some(1) }
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
    fn a_nic_a_device_and_a_missing_library_are_told() {
        let machine =
            Machine::new(vec![nic("mlx5_0", "81", PortState::Active), nic("mlx5_1", "82", PortState::Down)]);
        let found = found(&machine);
        let detail = "mlx5, driver mlx5_core, firmware 28.40, 0000:81:00.0, NUMA node 1\n\
                      opened by libibverbs: a thread of the host posts what kernels ask for (`posted`), and kernels do not write its queues\n\
                      port 1, Ethernet, ACTIVE, 400 Gb/s, eth2; GID 3 ::ffff:10.0.0.1 of eth2 (RoCE v2 over IPv4)";
        assert_eq!((found.len(), found[0].status, found[0].detail.as_str()), (2, Status::Ok, detail));
        let device = |name: &str, place| DevicePlace { name: name.to_owned(), place };
        let devices = [
            device("amd 0", Ok(place(&["pci0000:80", "0000:80:01.0", "0000:83:00.0"]))),
            device("amd 1", Err("gone".to_owned())),
        ];
        let served = served(&machine, &devices);
        let near = "mlx5_0:1, below the same PCI switch (PIX)\n\
                    not mlx5_1:1: below the same PCI switch (PIX), the port is DOWN (physical state Polling)";
        assert_eq!((served[0].name.as_str(), served[0].detail.as_str()), ("amd 0 would use", near));
        assert_eq!((served[1].status, served[1].detail.as_str()), (Status::Absent, "gone"));
        let own =
            NicLibrary { soname: "libx.so", purpose: "x", hint: "install x", driver: Some("mlx5_core") };
        let missing = LibraryStatus { library: own, problem: Some("not there".to_owned()) };
        assert_eq!(
            library(&machine, &missing).detail,
            "x, which no driver here makes yet: not there\nhint: install x"
        );
        assert_eq!(
            library(&Machine::default(), &missing).detail,
            "x, which no driver here makes yet: not there",
            "nobody needs it"
        );
        assert_eq!(library(&machine, &LibraryStatus { problem: None, ..missing }).status, Status::Ok);
    }
}
