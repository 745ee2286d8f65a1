//! The NICs of the machine, which of them each device would use, and the libraries that drive them.

use std::path::Path;

use anabranch::RuntimeKind;
use anabranch::hip::{Device, with_distinct_causes};
use anabranch::rdma::nics::{
    Assignment, LibraryStatus, Machine, Nic, NicFilter, Place, SYSTEM_FOLDER, assign, choose_gid,
    find_libraries,
};
use serde_json::Value;

use super::finding::Finding;

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
    let mut lines = vec![details.join(", ")];
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
    let finding = match &assignment.chosen {
        Some(port) => {
            let mut lines = vec![format!("{port}, {}", assignment.reason)];
            lines.extend(others.iter().cloned());
            Finding::ok("nics", name, lines.join("\n"))
        }
        None => {
            let mut lines = vec![assignment.reason.clone()];
            lines.extend(others.iter().cloned());
            Finding::missing("nics", name, false, lines.join("\n"))
        }
    };
    finding.with("port", assignment.chosen.as_ref().map(ToString::to_string)).with("not_taken", others)
}

/// A library is missed only where a NIC that needs it is.
fn library(machine: &Machine, status: &LibraryStatus) -> Finding {
    let own = &status.library;
    let needs = |nic: &&Nic| own.driver.is_none() || own.driver == nic.driver.as_deref();
    let users = machine.nics().iter().filter(needs).count();
    let finding = match &status.problem {
        None => Finding::ok("nics", own.soname, own.purpose),
        Some(problem) if users == 0 => {
            Finding::missing("nics", own.soname, false, format!("{}: {problem}", own.purpose))
        }
        Some(problem) => {
            let detail = format!("{}: {problem}\nhint: {}", own.purpose, own.hint);
            Finding::missing("nics", own.soname, false, detail)
        }
    };
    finding.with("library", own.soname).with("nics", users)
}
