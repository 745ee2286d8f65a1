//! Mapping and refusing, on the host runtime.

use anabranch_hip::{Device, DeviceOrdinal, Runtime};
use anabranch_hip_host::{HostConfig, HostMachine};
use anabranch_ranks::GlobalRank;
use anabranch_transport::{
    Audience, Error, HostIdentity, Operation, Origin, PeerInfo, ProcessIdentity, Refusal, Region, Scope,
    Support, Transport, operation_table,
};
use anabranch_transport_p2p::P2pTransport;

fn runtime() -> Runtime {
    HostMachine::new(HostConfig { devices: 2, ..HostConfig::default() }).unwrap().runtime()
}

fn info(rank: u32, device: &Device) -> PeerInfo {
    PeerInfo {
        rank: GlobalRank::new(rank),
        host: HostIdentity("here".into()),
        nics_of: HostIdentity("here".into()),
        process: ProcessIdentity { pid: std::process::id(), nonce: 1 },
        runtime: "host".into(),
        instance: 1,
        device: device.ordinal().0,
        pci: device.pci_bus_id().unwrap(),
        arch: device.arch(),
    }
}

#[test]
fn own_and_same_process_memory_is_reached_by_address() {
    let runtime = runtime();
    let devices = [0, 1].map(|ordinal| runtime.device(DeviceOrdinal(ordinal)).unwrap());
    let [mine, peer] = [0, 1].map(|rank| info(rank, &devices[rank as usize]));
    let here = P2pTransport::new(devices[0].clone(), mine.clone());
    let there = P2pTransport::new(devices[1].clone(), peer.clone());
    let buffer = devices[1].allocate(4096).unwrap();
    let region = Region { address: buffer.address().offset(512).0, bytes: 1024 };

    let offer = there.export(region, Audience::ThisProcess).unwrap();
    let opened = here.open(&peer, &offer, 1024).unwrap();
    assert_eq!(
        (opened.address(), opened.bytes(), opened.origin()),
        (region.address, 1024, Origin::SameProcess)
    );
    assert_eq!(here.reaches(&peer).unwrap().origin, Origin::SameProcess);
    let opened = there.open(&peer, &offer, 1000).unwrap();
    assert_eq!((opened.address(), opened.origin()), (region.address, Origin::Own));
    assert!(matches!(here.open(&peer, &offer, 1025), Err(Error::Offer { .. })));
    assert!(matches!(here.open(&peer, b"not an offer", 8), Err(Error::Offer { .. })));
    let _ = mine;
}

#[test]
fn a_handle_of_this_very_process_is_refused_by_the_runtime() {
    let runtime = runtime();
    let device = runtime.device(DeviceOrdinal(0)).unwrap();
    let transport = P2pTransport::new(device.clone(), info(0, &device));
    // Somebody who claims to be another process, but is not: the runtime says so, and the error carries its code.
    let mut stranger = info(1, &device);
    stranger.process.nonce = 2;
    assert_eq!(transport.reaches(&stranger).unwrap().origin, Origin::Ipc);
    let buffer = device.allocate(4096).unwrap();
    let region = Region { address: buffer.address().0, bytes: 4096 };
    let offer = transport.export(region, Audience::ThisHost).unwrap();
    let error = transport.open(&stranger, &offer, 4096).unwrap_err();
    let words = Refusal::from_error(&error).to_string();
    assert!(words.contains("hipIpcOpenMemHandle: hipError"), "{words}");
    let plain = transport.export(region, Audience::ThisProcess).unwrap();
    assert!(
        matches!(transport.open(&stranger, &plain, 4096), Err(Error::Offer { problem, .. }) if problem.contains("no handle"))
    );
}

#[test]
fn refusals_say_why() {
    let runtime = runtime();
    let device = runtime.device(DeviceOrdinal(0)).unwrap();
    let transport = P2pTransport::new(device.clone(), info(0, &device));
    let peer = info(1, &runtime.device(DeviceOrdinal(1)).unwrap());
    let elsewhere = PeerInfo { host: HostIdentity("there".into()), ..peer.clone() };
    let text = transport.reaches(&elsewhere).unwrap_err().to_string();
    assert_eq!(text, "the peer is on another host (there, here here)");
    let other = PeerInfo { runtime: "nvidia".into(), ..peer.clone() };
    assert!(matches!(transport.reaches(&other), Err(Refusal::OtherRuntime { .. })));
    let other = PeerInfo { instance: 2, ..peer.clone() };
    assert!(matches!(transport.reaches(&other), Err(Refusal::OtherInstance { .. })));
    let gone = PeerInfo { device: 99, ..peer };
    let text = transport.reaches(&gone).unwrap_err().to_string();
    assert!(text.contains("device 99 does not exist"), "{text}");
}

#[test]
fn only_whole_ranges_of_this_devices_memory_are_offered() {
    let runtime = runtime();
    let devices = [0, 1].map(|ordinal| runtime.device(DeviceOrdinal(ordinal)).unwrap());
    let transport = P2pTransport::new(devices[0].clone(), info(0, &devices[0]));
    let mine = devices[0].allocate(4096).unwrap();
    let theirs = devices[1].allocate(4096).unwrap();
    for (address, bytes) in
        [(mine.address().0 + 1, 4096), (mine.address().0, 1 << 40), (theirs.address().0, 8)]
    {
        let error = transport.export(Region { address, bytes }, Audience::ThisProcess).unwrap_err();
        assert!(matches!(error, Error::NotOneAllocation { .. }), "{error}");
    }
    let error = transport.export(Region { address: 64, bytes: 8 }, Audience::ThisProcess).unwrap_err();
    assert!(matches!(error, Error::Export { .. }), "{error}");
}

#[test]
fn the_matrix_is_the_documented_one() {
    let runtime = runtime();
    let device = runtime.device(DeviceOrdinal(0)).unwrap();
    let transport = P2pTransport::new(device.clone(), info(0, &device));
    assert_eq!(operation_table(&[&transport]), include_str!("../OPERATIONS.md"));
    for operation in Operation::ALL {
        let some =
            Scope::ALL.iter().any(|scope| transport.support(*operation, *scope) != Support::Unsupported);
        assert!(some, "{operation} is nowhere implemented");
    }
}
