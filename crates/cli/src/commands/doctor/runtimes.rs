//! The three runtimes and their devices.

use anabranch::{Config, Environment, ProcessLayout, RuntimeKind, open_runtime};
use anabranch_hip::with_distinct_causes;
use anabranch_hip::{Device, DeviceOrdinal, Runtime};
use anabranch_shmem::HeapMode;

use super::finding::{Finding, size};

/// Devices of the host runtime to check where the configuration sets no number.
const HOST_DEVICES: u32 = 4;

/// Opens a runtime; the finding has its path, or the searched paths.
pub(super) fn open(
    config: &Config,
    kind: RuntimeKind,
    wanted: bool,
    environment: &Environment,
) -> (Option<Runtime>, Vec<Finding>) {
    let mut config = config.clone();
    config.device.runtime = kind;
    if !wanted {
        // What is set is meant for the configured runtime.
        config.device.library = None;
        config.device.devices = None;
        config.device.first = 0;
    }
    let ranks = match kind {
        RuntimeKind::Host => config.device.host.count.unwrap_or(HOST_DEVICES),
        RuntimeKind::Amd | RuntimeKind::Nvidia => 1,
    };
    if kind == RuntimeKind::Host {
        config.device.devices = None;
        config.device.first = 0;
    }
    match open_runtime(&config, ProcessLayout::Threads { ranks }, environment) {
        Err(error) => (None, vec![absent(kind, wanted, &with_distinct_causes(&error))]),
        Ok(runtime) => {
            let found = examine(&runtime, wanted);
            (Some(runtime), vec![found])
        }
    }
}

fn absent(kind: RuntimeKind, wanted: bool, problem: &str) -> Finding {
    let hint = match kind {
        RuntimeKind::Amd => {
            "install ROCm, set ROCM_PATH or device.library, or choose device.runtime = \"host\""
        }
        RuntimeKind::Nvidia => {
            "install NVIDIA's driver (libcuda.so.1), set device.library, or choose device.runtime = \"host\""
        }
        RuntimeKind::Host => "look at the [device.host] settings and at the limits below",
    };
    Finding::missing("runtimes", kind.to_string(), wanted, problem)
        .hint(hint)
        .with("runtime", kind.to_string())
}

fn examine(runtime: &Runtime, wanted: bool) -> Finding {
    let kind = runtime.kind().to_string();
    let (count, versions) = match (runtime.device_count(), runtime.versions()) {
        (Ok(count), Ok(versions)) => (count, versions),
        (Err(error), _) | (_, Err(error)) => {
            return Finding::missing("runtimes", kind, wanted, with_distinct_causes(&error))
                .hint("the library opens but does not answer: is the driver loaded?");
        }
    };
    let (driver, library) = versions;
    let plural = if count == 1 { "" } else { "s" };
    let detail = format!("{}, driver {driver}, runtime {library}, {count} device{plural}", runtime.origin());
    let finding = if count == 0 {
        let hint = "no device is visible: look at HIP_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES and the permissions of the device files";
        Finding::missing("runtimes", kind.clone(), wanted, detail).hint(hint)
    } else {
        Finding::ok("runtimes", kind.clone(), detail)
    };
    finding
        .with("runtime", kind)
        .with("origin", runtime.origin())
        .with("devices", count)
        .with("driver_version", driver)
}

/// Opens all devices of a runtime.
pub(super) fn devices(runtime: &Runtime, wanted: bool) -> (Vec<Device>, Vec<Finding>) {
    let count = runtime.device_count().unwrap_or(0);
    let (mut devices, mut findings) = (Vec::new(), Vec::new());
    for ordinal in (0..count).map(DeviceOrdinal) {
        let name = format!("{} {ordinal}", runtime.kind());
        match runtime.device(ordinal) {
            Ok(device) => {
                findings.push(describe(name, &device));
                devices.push(device);
            }
            Err(error) => findings.push(
                Finding::missing("devices", name, wanted, with_distinct_causes(&error))
                    .hint("the device is there but does not open"),
            ),
        }
    }
    (devices, findings)
}

/// Whether the devices can do what the heap's mode asks for.
pub(super) fn heap(config: &Config, devices: &[Device]) -> Vec<Finding> {
    match config.heap.mode {
        HeapMode::Flat => devices.iter().map(flat_heap).collect(),
        HeapMode::Static => Vec::new(),
    }
}

fn flat_heap(device: &Device) -> Finding {
    let name = format!("{} {}", device.runtime().kind(), device.ordinal());
    let hint = "choose heap.mode = \"static\", or a driver with virtual memory management (amd: ROCm 7.2)";
    match device.has_virtual_memory().and_then(|has| Ok(has.then_some(device.physical_granularity()?))) {
        Ok(Some(unit)) => Finding::ok("heap", name, format!("flat, in units of {}", size(unit as u64)))
            .with("unit_bytes", unit),
        Ok(None) => {
            let problem = "heap.mode is \"flat\", and the device has no virtual memory management";
            Finding::missing("heap", name, true, problem).hint(hint)
        }
        Err(error) => Finding::missing("heap", name, true, with_distinct_causes(&error)).hint(hint),
    }
}

fn describe(name: String, device: &Device) -> Finding {
    let pci = device.pci_bus_id().unwrap_or_else(|_| "no PCI address".to_owned());
    let (free, total) = device.memory_info().unwrap_or((0, 0));
    let virtual_memory = device.has_virtual_memory().unwrap_or(false);
    let detail = format!(
        "{}, {}, {} of {} free, {} multiprocessors, waves of {}, {pci}, {}",
        device.name(),
        device.arch(),
        size(free as u64),
        size(total as u64),
        device.multiprocessors(),
        device.wave_size(),
        if virtual_memory { "virtual memory" } else { "no virtual memory" },
    );
    Finding::ok("devices", name, detail)
        .with("runtime", device.runtime().kind().to_string())
        .with("ordinal", device.ordinal().0)
        .with("arch", device.arch())
        .with("memory_bytes", total as u64)
        .with("free_bytes", free as u64)
        .with("multiprocessors", device.multiprocessors())
        .with("wave", device.wave_size())
        .with("virtual_memory", virtual_memory)
        .with("pci", pci)
}
