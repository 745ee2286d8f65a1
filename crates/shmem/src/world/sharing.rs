//! Ranks that use one GPU together ([`WorldConfig::share_devices`](crate::WorldConfig::share_devices)).

use anabranch_hip::RuntimeKind;
use anabranch_transport::PeerInfo;

use crate::config;
use crate::error::{Error, Result};

/// Whether two ranks use one GPU. Ranks of the host runtime never count as sharing: its machine runs all blocks of all kernels.
fn share(first: &PeerInfo, second: &PeerInfo) -> bool {
    let same = first.same_host(second) && first.runtime == second.runtime && first.pci == second.pci;
    same && second.runtime != RuntimeKind::Host.to_string()
}

/// Refuses ranks that use one GPU: kernels that wait for each other have to run at the same time. Where `allowed`, processes may, whose
/// kernels run at the same time under MPS or in time slices. Threads of one process never: a call of the runtime that waits for all
/// kernels of the process, as to free memory does, would wait for a kernel that waits for the thread that makes it.
pub(super) fn refuse(peers: &[PeerInfo], allowed: bool) -> Result<()> {
    for (index, second) in peers.iter().enumerate() {
        let refused = |first: &&PeerInfo| share(first, second) && (!allowed || first.same_process(second));
        if let Some(first) = peers.iter().take(index).find(refused) {
            let way = if first.same_process(second) {
                "give each rank its own"
            } else {
                "give each rank its own, or list it twice in device.devices to share it in tests"
            };
            let problem = format!("both use the device {}; {way}", second.pci);
            return Err(Error::Pair { first: first.rank, second: second.rank, problem });
        }
    }
    Ok(())
}

/// Ranks on a rank's device, itself too. At least 1.
fn users_of(local: &PeerInfo, peers: &[PeerInfo]) -> u32 {
    (peers.iter().filter(|peer| share(peer, local)).count() as u32).max(1)
}

/// One rank's part of its device's multiprocessors, at least 1, so that the same kernels of all ranks on it fit together.
pub(super) fn part_of(multiprocessors: u32, local: &PeerInfo, peers: &[PeerInfo]) -> u32 {
    (multiprocessors / users_of(local, peers)).max(1)
}

/// The heap of each rank where `heap.bytes` is not configured: as large as the tightest device allows. `memory` has the bytes free and in
/// total on each rank's device; ranks on one device divide what is free.
pub(super) fn chosen_heap_bytes(peers: &[PeerInfo], memory: &[(u64, u64)]) -> u64 {
    let of_rank = |(peer, (free, total)): (&PeerInfo, &(u64, u64))| {
        config::chosen_heap_bytes(free / u64::from(users_of(peer, peers)), *total)
    };
    peers.iter().zip(memory).map(of_rank).fold(u64::MAX, u64::min)
}

#[cfg(test)]
mod tests {
    use anabranch_ranks::GlobalRank;
    use anabranch_transport::{HostIdentity, ProcessIdentity};

    use super::*;

    fn peer(rank: u32, host: &str, runtime: RuntimeKind, pci: &str) -> PeerInfo {
        PeerInfo {
            rank: GlobalRank::new(rank),
            host: HostIdentity(host.to_owned()),
            nics_of: HostIdentity(host.to_owned()),
            process: ProcessIdentity { pid: rank, nonce: 0 },
            runtime: runtime.to_string(),
            instance: 0,
            device: 0,
            pci: pci.to_owned(),
            arch: String::new(),
        }
    }

    #[test]
    fn ranks_of_one_gpu_are_refused_by_rank_and_address() {
        let others = [("a", RuntimeKind::Nvidia, "0:1"), ("b", RuntimeKind::Nvidia, "0:0")];
        let others =
            others.into_iter().zip(1..).map(|((host, runtime, pci), rank)| peer(rank, host, runtime, pci));
        let mut peers: Vec<_> =
            std::iter::once(peer(0, "a", RuntimeKind::Nvidia, "0:0")).chain(others).collect();
        refuse(&peers, false).unwrap();
        peers.push(peer(3, "a", RuntimeKind::Nvidia, "0:0"));
        refuse(&peers, true).unwrap();
        let error = refuse(&peers, false).unwrap_err().to_string();
        assert!(error.contains("rank 0") && error.contains("rank 3") && error.contains("0:0"), "{error}");
        assert!(error.contains("device.devices"), "{error}");
        refuse(&[peer(0, "a", RuntimeKind::Host, "0:0"), peer(1, "a", RuntimeKind::Host, "0:0")], false)
            .unwrap();
        peers[3].process = peers[0].process;
        let error = refuse(&peers, true).unwrap_err().to_string();
        assert!(error.contains("rank 3") && !error.contains("device.devices"), "threads: {error}");
    }

    #[test]
    fn ranks_of_one_gpu_divide_its_multiprocessors() {
        let peers: Vec<_> = ["0:0", "0:1", "0:0"]
            .into_iter()
            .zip(0..)
            .map(|(pci, rank)| peer(rank, "a", RuntimeKind::Amd, pci))
            .collect();
        let part = |all, rank: usize| part_of(all, &peers[rank], &peers);
        assert_eq!((part(132, 0), part(132, 1), part(132, 2)), (66, 132, 66));
        assert_eq!(part(1, 0), 1);
    }

    #[test]
    fn ranks_of_one_gpu_divide_its_free_memory() {
        const GIB: u64 = 1 << 30;
        let of = |runtime, addresses: [&str; 3]| {
            let peers: Vec<_> =
                addresses.iter().zip(0..).map(|(pci, rank)| peer(rank, "a", runtime, pci)).collect();
            chosen_heap_bytes(&peers, &[(6 * GIB, 80 * GIB); 3])
        };
        assert_eq!(of(RuntimeKind::Nvidia, ["0:0", "0:1", "0:2"]), 80 * GIB / 32);
        assert_eq!(of(RuntimeKind::Nvidia, ["0:0", "0:1", "0:1"]), 3 * GIB / 2, "the tightest device");
        assert_eq!(of(RuntimeKind::Nvidia, ["0:0"; 3]), GIB);
        assert_eq!(
            of(RuntimeKind::Host, ["0:0"; 3]),
            80 * GIB / 32,
            "the host runtime has no devices to share"
        );
    }
}
