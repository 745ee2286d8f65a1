//! A world whose ranks reach each other by queue pairs of ConnectX: the driver, the transport and kernels over a NIC that takes commands
//! and executes nothing (`crates/transport-rdma/tests/mlx5/fake.rs`).

#[path = "../crates/transport-rdma/tests/mlx5/fake.rs"]
#[allow(dead_code, reason = "the driver's own tests use the rest")]
mod fake;

use std::sync::Arc;

use anabranch::config::LoadOptions;
use anabranch::hip::Device;
use anabranch::transport::{HostIdentity, PeerInfo};
use anabranch::{Config, GlobalRank, Platform, ProcessLayout};
use anabranch_shmem::{Error, RankSetup, WorldConfig, spawn_threads};
use anabranch_transport_rdma::mlx5::{Mlx5Driver, PortFacts};
use anabranch_transport_rdma::nics::{GidKind, LinkLayer};
use anabranch_transport_rdma::{NicDriver, NicError, NicSource, OpenNic, RdmaConfig};
use fake::Fake;

/// `MLX5_OPCODE_RDMA_READ` of rdma-core's `mlx5dv.h`.
const READ: u8 = 0x10;

/// Gives every rank a port of the one NIC.
#[derive(Debug)]
struct Opener(Fake);

impl OpenNic for Opener {
    fn open(
        &self,
        device: &Device,
        local: &PeerInfo,
        _: &[PeerInfo],
        config: &RdmaConfig,
    ) -> Result<Arc<dyn NicDriver>, NicError> {
        let mut gid = [0; 16];
        gid[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, local.rank.get() as u8]);
        let port = PortFacts {
            number: 1,
            link_layer: LinkLayer::Ethernet,
            lid: 0,
            gid_index: 3,
            gid,
            gid_kind: GidKind::RoceV2,
            mtu: 4096,
            most_answered: 16,
            most_asked: 16,
        };
        let devx = Arc::new(self.0.clone());
        Ok(Arc::new(Mlx5Driver::new(devx, device, port, config, "the only one".to_owned())?))
    }
}

#[test]
fn kernels_of_a_world_ring_the_doorbell_of_the_nic_that_the_driver_opened() {
    let set = ["heap.bytes=1 MiB", "transport.order=p2p,rdma", "deadline.operation=2 s"];
    let options = LoadOptions { set: set.map(str::to_owned).to_vec(), ..LoadOptions::default() };
    let config: Config = Config::load_with(&options).unwrap().config;
    let platform = Platform::open(&config, ProcessLayout::Threads { ranks: 2 }).unwrap();
    let fake = Fake::new();
    let nic = NicSource::named("mlx5", Arc::new(Opener(fake.clone())));
    let setup = |rank: GlobalRank| {
        let host_identity = Some(HostIdentity(format!("machine of {rank}")));
        let config = WorldConfig { host_identity, nic: nic.clone(), ..anabranch::world_config(&config) };
        let device = platform.device(rank.get()).unwrap();
        Ok::<_, Error>(RankSetup { config, device, jit: platform.jit().clone() })
    };
    let results = spawn_threads(2, setup, |_| Ok::<_, Error>(()));
    assert_eq!(fake.connected().len(), 4, "two queue pairs of each of two ranks: {results:?}");
    // A world first reads the peers' heaps by its NICs, from a kernel. This NIC does not answer.
    for result in results {
        let text = result.unwrap_err().to_string();
        for part in ["read the peers' heaps by NIC", "queue pair 0xabcd", "on mlx5_7"] {
            assert!(text.contains(part), "{text}");
        }
    }
    let rung = fake.rung();
    assert_eq!(rung.len(), 2, "a page of registers for each rank");
    for value in rung {
        // How the entry's control segment begins: opcode in the fourth byte, then the queue pair's number.
        let [_, _, _, opcode, number @ .., segments] = value.to_le_bytes();
        let number = u32::from_be_bytes([0, number[0], number[1], number[2]]);
        assert!(fake.connected().contains(&number), "{value:#x} names none of {:x?}", fake.connected());
        assert_eq!(opcode, READ, "{value:#x}");
        assert_eq!(segments, 3, "{value:#x}: control, address, data");
    }
}
