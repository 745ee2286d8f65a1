//! Which machine and which process this is.

use std::path::Path;

use anabranch_hip::{Device, RuntimeKind};
use anabranch_ranks::GlobalRank;
use anabranch_transport::{HostIdentity, PeerInfo, ProcessIdentity};
use sha2::{Digest as _, Sha256};

use crate::config::WorldConfig;
use crate::error::{Error, Result};

/// The kernel's boot id, or the host's name.
fn own_machine() -> Result<HostIdentity> {
    if let Ok(text) = read("/proc/sys/kernel/random/boot_id") {
        return Ok(HostIdentity(text));
    }
    read("/proc/sys/kernel/hostname").map(HostIdentity)
}

/// Process number, with the start time and the process-number namespace as nonce, which distinguishes processes with equal
/// numbers, now (containers) and over time, and is the same in all threads.
fn process_identity() -> Result<ProcessIdentity> {
    let stat = read("/proc/self/stat")?;
    // The command's name may hold spaces and brackets, so fields are counted from its last bracket.
    let start = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(19)).unwrap_or_default();
    let namespace = std::fs::read_link(Path::new("/proc/self/ns/pid"))
        .map(|link| link.to_string_lossy().into_owned())
        .unwrap_or_default();
    let digest = Sha256::digest(format!("{start} {namespace}"));
    let nonce = digest.iter().take(8).fold(0, |value, byte| (value << 8) | u64::from(*byte));
    Ok(ProcessIdentity { pid: std::process::id(), nonce })
}

fn read(path: &'static str) -> Result<String> {
    std::fs::read_to_string(path).map(|text| text.trim().to_owned()).map_err(|source| Error::System {
        what: format!("reading {path}, which identifies the process or the machine,"),
        source,
    })
}

/// What this rank's peers learn about it.
pub(crate) fn peer_info(rank: GlobalRank, config: &WorldConfig, device: &Device) -> Result<PeerInfo> {
    let runtime = device.runtime();
    // Where the machine has no identity, its NICs are distinguished as its ranks are.
    let machine = own_machine().or_else(|error| config.host_identity.clone().ok_or(error))?;
    Ok(PeerInfo {
        rank,
        host: config.host_identity.clone().unwrap_or_else(|| machine.clone()),
        nics_of: machine,
        process: process_identity()?,
        runtime: runtime.kind().to_string(),
        // AMD's and NVIDIA's libraries exist once in a process, however often they are opened.
        instance: if runtime.kind() == RuntimeKind::Host { runtime.instance() as u64 } else { 0 },
        device: device.ordinal().0,
        pci: device.pci_bus_id()?,
        arch: device.arch(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_a_process_have_one_identity_and_a_child_another() {
        let mine = process_identity().unwrap();
        let other = std::thread::spawn(|| process_identity().unwrap()).join().unwrap();
        assert_eq!(mine, other);
        assert_eq!(own_machine().unwrap(), own_machine().unwrap());
    }
}
