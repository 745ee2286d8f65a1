//! What the driver of ConnectX tells the NIC: the order of its commands and every word of them, typed here from the programmer's
//! reference by hand and not from the driver's tables.

use std::sync::Arc;
use std::time::Duration;

use crate::mlx5::field::{Command, Field};
use crate::mlx5::{Mlx5Driver, PortFacts, layout};
use crate::nics::{GidKind, LinkLayer};
use crate::{Atomics, NicDriver, NicError, NicQueue, Provider, QueueSpec, RdmaConfig};
use anabranch_hip::{Device, DeviceOrdinal};
use anabranch_hip_host::{HostConfig, HostMachine};
use anabranch_ranks::GlobalRank;
use proptest::prelude::*;

use super::fake::{ATOMIC, Fake, GENERAL, HAS_ROCE, ROCE};

pub(crate) const PEER: GlobalRank = GlobalRank::new(3);
const GID: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3];

pub(crate) fn device() -> Device {
    let machine = HostMachine::new(HostConfig::default()).unwrap();
    machine.runtime().device(DeviceOrdinal(0)).unwrap()
}

pub(crate) fn ethernet() -> PortFacts {
    PortFacts {
        number: 1,
        link_layer: LinkLayer::Ethernet,
        lid: 0,
        gid_index: 3,
        gid: GID,
        gid_kind: GidKind::RoceV2,
        mtu: 4096,
        most_answered: 16,
        most_asked: 16,
    }
}

fn infiniband() -> PortFacts {
    let mut gid = [0; 16];
    gid[..2].copy_from_slice(&[0xfe, 0x80]);
    gid[15] = 9;
    let gid_kind = GidKind::InfinibandOrRoceV1;
    PortFacts { link_layer: LinkLayer::Infiniband, lid: 5, gid_index: 0, gid, gid_kind, ..ethernet() }
}

fn roce_v1() -> PortFacts {
    PortFacts { gid_kind: GidKind::InfinibandOrRoceV1, ..ethernet() }
}

pub(crate) fn config() -> RdmaConfig {
    let patience = Duration::from_secs(10);
    RdmaConfig { patience, traffic_class: 0x68, service_level: 5, ..RdmaConfig::default() }
}

pub(crate) fn driver(fake: &Fake, port: PortFacts) -> Mlx5Driver {
    Mlx5Driver::new(Arc::new(fake.clone()), &device(), port, &config(), "nearest".to_owned()).unwrap()
}

pub(crate) fn queue(driver: &Mlx5Driver) -> Arc<dyn NicQueue> {
    driver.create_queue(QueueSpec { peer: PEER, channel: 1, entries: 256 }).unwrap()
}

/// What a peer would send: its own endpoint with some members changed.
fn endpoint(port: PortFacts, change: impl FnOnce(&mut serde_json::Value)) -> Vec<u8> {
    let fake = Fake::new();
    let mut value: serde_json::Value =
        serde_json::from_slice(&queue(&driver(&fake, port)).endpoint()).unwrap();
    change(&mut value);
    serde_json::to_vec(&value).unwrap()
}

#[test]
fn a_queue_pair_is_made_and_connected_in_order() {
    let fake = Fake::new();
    let driver = driver(&fake, ethernet());
    let asked = ["QUERY_HCA_CAP"; 3];
    assert_eq!(fake.calls(), [&asked[..], &["alloc_uar", "query_eqn", "init_obj"]].concat());
    let queue = queue(&driver);
    queue.connect(PEER, &endpoint(ethernet(), |_| ())).unwrap();
    assert_eq!(
        fake.calls()[6..],
        ["umem_reg", "CREATE_CQ", "CREATE_QP", "RST2INIT_QP", "create_ah", "INIT2RTR_QP", "RTR2RTS_QP"]
    );
    assert_eq!(fake.live(), 4, "a page, memory, two objects");
    drop(queue);
    assert_eq!(fake.live(), 1);
    drop(driver);
    assert_eq!(fake.live(), 0);
}

#[test]
fn every_word_of_the_commands_that_make_a_queue_pair_is_right() {
    let fake = Fake::new();
    let driver = driver(&fake, ethernet());
    let queue = queue(&driver);
    assert_eq!(fake.command("QUERY_HCA_CAP"), (16, vec![(0x00, 0x0100_0000), (0x04, 0x0000_0007)]));
    let create_cq = vec![
        (0x00, 0x0400_0000), // opcode
        (0x10, 0x0212_0000), // dbr_umem_valid, cc, oi
        (0x14, 0x0000_0011), // dbr_umem_id
        (0x1c, 0x0800_0022), // log_cq_size, uar_page
        (0x24, 0x0000_0033), // c_eqn
        (0x4c, 0x0000_8040), // dbr_addr
        (0x54, 0x0000_4000), // cq_umem_offset
        (0x58, 0x0000_0011), // cq_umem_id
        (0x5c, 0x8000_0000), // cq_umem_valid
    ];
    assert_eq!(fake.command("CREATE_CQ"), (272, create_cq));
    let create_qp = vec![
        (0x00, 0x0500_0000),  // opcode
        (0x18, 0x0000_1800),  // st RC, pm_state MIGRATED
        (0x1c, 0x0000_0044),  // pd
        (0x20, 0x0000_4040),  // log_sq_size, ts_format
        (0x24, 0x0000_0022),  // uar_page
        (0x94, 0x0012_3456),  // cqn_snd
        (0xb4, 0x0012_3456),  // cqn_rcv
        (0xbc, 0x0000_8000),  // dbr_addr
        (0xc4, 0x0300_0000),  // rq_type: none
        (0xe8, 0x1000_0000),  // dbr_umem_valid
        (0xfc, 0x0000_0011),  // dbr_umem_id
        (0x108, 0x0000_0011), // wq_umem_id
        (0x10c, 0x8000_0000), // wq_umem_valid
    ];
    assert_eq!(fake.command("CREATE_QP"), (272, create_qp));
    let rst2init = vec![
        (0x00, 0x0502_0000), // opcode
        (0x08, 0x00ab_cdef), // qpn
        (0x18, 0x0000_1800), // pm_state MIGRATED
        (0x54, 0x0001_0000), // vhca_port_num
        (0xa8, 0x0003_e000), // atomic_mode, rre, rwe, rae
    ];
    assert_eq!(fake.command("RST2INIT_QP"), (272, rst2init));

    let words = queue.words();
    let start = words.ring.0;
    let places = [words.completions.0 - start, words.doorbell_record.0 - start, words.doorbell.0 & 0xfff];
    assert_eq!(places, [0x4000, 0x8000, 0x800]);
    assert_eq!((words.entries, words.number, words.path_mtu), (256, 0x00ab_cdef, 4096));
    assert_eq!(queue.describe(), "queue pair 0xabcdef to rank 3, channel 1, on mlx5_7");
    assert_eq!(queue.stopped(), None);
}

#[test]
fn every_word_of_the_commands_that_connect_over_ethernet_is_right() {
    let fake = Fake::new();
    let driver = driver(&fake, ethernet());
    let queue = queue(&driver);
    let peer = endpoint(ethernet(), |value| {
        value["number"] = 0x0065_4321.into();
        value["mtu"] = 1024.into();
        value["first_packet"] = 0x00fe_dcba.into();
        value["most_answered"] = 5.into();
    });
    queue.connect(PEER, &peer).unwrap();
    let own: serde_json::Value = serde_json::from_slice(&queue.endpoint()).unwrap();
    let first_packet = own["first_packet"].as_u64().unwrap() as u32;
    let init2rtr = vec![
        (0x00, 0x0503_0000), // opcode
        (0x08, 0x00ab_cdef), // qpn
        (0x20, 0x7e00_0000), // mtu 1024, log_msg_max 30
        (0x2c, 0x0065_4321), // remote_qpn
        (0x38, 0x0003_0040), // src_addr_index, hop_limit
        (0x3c, 0x0680_0000), // tclass
        (0x48, 0x0000_ffff), // rgid
        (0x4c, 0x0a01_0203),
        (0x50, 0x001a_dd6f), // dscp, udp_sport
        (0x54, 0x5001_0242), // eth_prio, vhca_port_num, rmac
        (0x58, 0x0a0b_0c0d),
        (0xa8, 0x0080_0000), // log_rra_max
        (0xac, 0x0cfe_dcba), // min_rnr_nak, next_rcv_psn
    ];
    assert_eq!(fake.command("INIT2RTR_QP"), (272, init2rtr));
    let rtr2rts = vec![
        (0x00, 0x0504_0000),  // opcode
        (0x08, 0x00ab_cdef),  // qpn
        (0x38, 0x9000_0000),  // ack_timeout
        (0x88, 0x0047_c000),  // log_sra_max 2: the peer answers 5 at a time; retry_count, rnr_retry
        (0x90, first_packet), // next_send_psn
    ];
    assert_eq!(fake.command("RTR2RTS_QP"), (272, rtr2rts));
    assert_eq!(queue.words().path_mtu, 1024);
    let again = queue.connect(PEER, &peer).unwrap_err();
    assert!(
        matches!(&again, NicError::Endpoint { problem, .. } if problem.contains("connected already")),
        "{again}"
    );
}

#[test]
fn packets_of_roce_v1_have_no_port_and_no_dscp() {
    let fake = Fake::new();
    let driver = driver(&fake, roce_v1());
    queue(&driver).connect(PEER, &endpoint(roce_v1(), |_| ())).unwrap();
    let (_, words) = fake.command("INIT2RTR_QP");
    let path: Vec<_> = words.into_iter().filter(|(offset, _)| (0x38..0x58).contains(offset)).collect();
    let expected = [
        (0x38, 0x0003_0040), // src_addr_index, hop_limit
        (0x3c, 0x0680_0000), // tclass
        (0x48, 0x0000_ffff), // rgid
        (0x4c, 0x0a01_0203),
        (0x54, 0x5001_0242), // eth_prio, vhca_port_num, rmac; no dscp and udp_sport at 0x50
    ];
    assert_eq!(path, expected);
}

#[test]
fn neither_end_asks_for_more_than_the_other_answers() {
    // Answered and asked of the one end, then of the other, and the exponents that each NIC is told.
    for (one, other, told) in [
        ((16, 16), (16, 16), [(4, 4), (4, 4)]),
        ((16, 4), (8, 16), [(4, 2), (3, 4)]),
        ((1, 16), (128, 200), [(0, 4), (7, 0)]),
        ((255, 255), (255, 255), [(7, 7), (7, 7)]),
        ((12, 12), (6, 6), [(3, 2), (2, 2)]),
    ] {
        let facts = |(most_answered, most_asked)| PortFacts { most_answered, most_asked, ..ethernet() };
        let fakes = [Fake::new(), Fake::new()];
        let drivers = [driver(&fakes[0], facts(one)), driver(&fakes[1], facts(other))];
        let queues = drivers.each_ref().map(queue);
        queues[0].connect(PEER, &queues[1].endpoint()).unwrap();
        queues[1].connect(PEER, &queues[0].endpoint()).unwrap();
        // log_rra_max and log_sra_max are the three bits from bit 21 on.
        let of = |fake: &Fake| {
            (word(fake, "INIT2RTR_QP", 0xa8) >> 21 & 7, word(fake, "RTR2RTS_QP", 0x88) >> 21 & 7)
        };
        assert_eq!(fakes.each_ref().map(of), told, "{one:?} {other:?}");
        let packets = |fake: &Fake| {
            (word(fake, "INIT2RTR_QP", 0xac) & 0x00ff_ffff, word(fake, "RTR2RTS_QP", 0x90) & 0x00ff_ffff)
        };
        let [(receives, sends), (peer_receives, peer_sends)] = fakes.each_ref().map(packets);
        assert_eq!((receives, peer_receives), (peer_sends, sends), "each expects what the other begins with");
    }
}

#[test]
fn who_asks_for_a_queue_pair_does_not_wait_while_its_peer_is_looked_up() {
    let fake = Fake::new();
    let driver = driver(&fake, ethernet());
    let (slow, other) = (queue(&driver), queue(&driver));
    let peer = endpoint(ethernet(), |_| ());
    let held = fake.hold_next_hop();
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| slow.connect(PEER, &peer));
        held.wait_until_asked();
        // None of these may wait; a test that hangs here shows it.
        assert_eq!((slow.words().path_mtu, slow.stopped()), (4096, None));
        assert!(slow.connect(PEER, &peer).unwrap_err().to_string().contains("connected already"));
        drop(other);
        held.let_go();
        connecting.join().unwrap().unwrap();
    });
    drop(slow);
    drop(driver);
    assert_eq!(fake.live(), 0);
}

#[test]
fn over_infiniband_a_global_header_is_only_for_other_subnets() {
    let fake = Fake::new();
    let driver = driver(&fake, infiniband());
    let near = queue(&driver);
    near.connect(PEER, &endpoint(infiniband(), |value| value["lid"] = 7.into())).unwrap();
    let (_, words) = fake.command("INIT2RTR_QP");
    let path: Vec<_> = words.into_iter().filter(|(offset, _)| (0x30..0x5c).contains(offset)).collect();
    assert_eq!(path, [(0x34, 0x0000_0007), (0x54, 0x0501_0000)], "rlid; sl and vhca_port_num");
    assert!(!fake.calls().contains(&"create_ah".to_owned()), "the system is not asked for a way");
    let far = queue(&driver);
    far.connect(PEER, &endpoint(infiniband(), |value| value["gid"][1] = 0x81.into())).unwrap();
    let (_, words) = fake.command("INIT2RTR_QP");
    let path: Vec<_> = words.into_iter().filter(|(offset, _)| (0x30..0x5c).contains(offset)).collect();
    let header = [
        (0x34, 0x0080_0005), // grh, rlid
        (0x38, 0x0000_0040),
        (0x3c, 0x0680_0000),
        (0x40, 0xfe81_0000),
        (0x4c, 0x0000_0009),
        (0x54, 0x0501_0000),
    ];
    assert_eq!(path, header);
}

#[test]
fn atomic_operations_are_reported_only_if_kernels_can_use_them() {
    // Byte order of 8-byte results, operations, sizes.
    for (order, operations, sizes, expected) in [
        (1 << 30, 0x0f, 0x0c, Atomics::Masked),
        (1 << 30, 0x0f, 0xff, Atomics::Masked),
        (1 << 30, 0x0f, 0x08, Atomics::Standard),
        (1 << 30, 0x03, 0x0c, Atomics::Standard),
        (1 << 30, 0x07, 0x0c, Atomics::Standard),
        (1 << 30, 0x01, 0x0c, Atomics::None),
        (1 << 30, 0x0f, 0x04, Atomics::None),
        (0, 0x0f, 0x0c, Atomics::None),
    ] {
        let fake = Fake::new();
        fake.say(ATOMIC, &[(0x18, order), (0x20, operations), (0x24, sizes)]);
        let limits = driver(&fake, ethernet()).limits();
        assert_eq!(limits.atomics, expected, "{order:#x} {operations:#x} {sizes:#x}");
        assert_eq!((limits.most_message_bytes, limits.inline_bytes), (1 << 30, 28));
    }
}

/// A word of a command; 0 where it has none.
fn word(fake: &Fake, name: &str, offset: usize) -> u32 {
    let (_, words) = fake.command(name);
    words.iter().find(|(at, _)| *at == offset).map_or(0, |(_, word)| *word)
}

#[test]
fn timestamps_have_the_nics_own_format_where_it_has_one() {
    // What send queues and, with RoCE, queue pairs know: a free running counter, real time, or both. And what is set.
    for (sends, pairs, format) in [
        (0, None, 0),
        (1, None, 1),
        (2, None, 1),
        (0, Some(0), 0),
        (1, Some(1), 1),
        (2, Some(2), 1),
        (0, Some(1), 1),
        (1, Some(0), 0),
        (2, Some(0), 0),
    ] {
        let fake = Fake::new();
        let roce = if pairs.is_some() { HAS_ROCE.1 } else { 0 };
        fake.say(GENERAL, &[(HAS_ROCE.0, roce), (0x98, sends << 30)]);
        fake.say(ROCE, &[(0x10, pairs.unwrap_or(3))]);
        let _queue = queue(&driver(&fake, ethernet()));
        assert_eq!(word(&fake, "CREATE_QP", 0x20) >> 6 & 3, format, "{sends} {pairs:?}");
    }
}

#[test]
fn peers_may_do_atomic_operations_only_where_the_nic_has_them() {
    const READ_AND_WRITE: u32 = 0xc000;
    const ATOMIC_TOO: u32 = 0xe000;
    for (operations, sizes, mode, access) in [
        (0, 0, 0, READ_AND_WRITE),
        (0x01, 0x08, 0, READ_AND_WRITE),
        (0x03, 0x08, 1, ATOMIC_TOO),
        (0x0f, 0x0c, 3, ATOMIC_TOO),
        (0x0f, 0x1ff, 8, ATOMIC_TOO),
    ] {
        let fake = Fake::new();
        fake.say(ATOMIC, &[(0x18, 1 << 30), (0x20, operations), (0x24, sizes)]);
        let _queue = queue(&driver(&fake, ethernet()));
        let expected = mode << 16 | access;
        assert_eq!(word(&fake, "RST2INIT_QP", 0xa8), expected, "{operations:#x} {sizes:#x}");
    }
}

#[test]
fn every_failed_call_frees_everything_and_reports_the_nics_error() {
    let peer = endpoint(ethernet(), |_| ());
    let all = 13;
    for call in 0..all {
        let fake = Fake::new();
        fake.fail(call);
        let made = Mlx5Driver::new(Arc::new(fake.clone()), &device(), ethernet(), &config(), String::new());
        let done =
            made.and_then(|driver| driver.create_queue(QueueSpec { peer: PEER, channel: 0, entries: 16 }));
        let done = done.and_then(|queue| queue.connect(PEER, &peer));
        let error = done.expect_err("one call failed");
        let name = fake.calls().pop().unwrap();
        assert_eq!(fake.calls().len(), call + 1, "nothing behind {name}: {error}");
        let text = error.to_string();
        assert!(text.contains(&name) && text.contains("mlx5_7"), "{text}");
        if name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_') {
            assert!(text.contains("bad parameter (status 0x03, syndrome 0x0012abcd)"), "{text}");
        }
        assert_eq!(fake.live(), 0, "behind {name}");
    }
    let fake = Fake::new();
    fake.fail(all);
    let queue = queue(&driver(&fake, ethernet()));
    queue.connect(PEER, &peer).unwrap();
    assert_eq!(fake.calls().len(), all, "these are all calls");
}

#[test]
fn endpoints_that_do_not_fit_are_refused_before_anything_is_sent() {
    for (port, bytes, problem) in [
        (ethernet(), b"not one".to_vec(), "expected"),
        (ethernet(), endpoint(ethernet(), |v| v["driver"] = "posted".into()), "it is one of \"posted\""),
        (ethernet(), endpoint(roce_v1(), |_| ()), "one of InfiniBand or RoCE v1, this rank's of RoCE v2"),
        (roce_v1(), endpoint(ethernet(), |_| ()), "one of RoCE v2, this rank's of InfiniBand or RoCE v1"),
        (ethernet(), endpoint(ethernet(), |v| v["most_answered"] = 0.into()), "answers no reads"),
        (ethernet(), endpoint(ethernet(), |v| v["first_packet"] = 0x0100_0000.into()), "0x1000000"),
        (ethernet(), endpoint(ethernet(), |v| v["number"] = 0.into()), "queue pair number 0x0"),
        (ethernet(), endpoint(ethernet(), |v| v["number"] = 0x0100_0000.into()), "number 0x1000000"),
        (ethernet(), endpoint(ethernet(), |v| v["mtu"] = 1500.into()), "packets of 1500 bytes"),
        (ethernet(), endpoint(infiniband(), |_| ()), "one of InfiniBand, this rank's of Ethernet"),
        (infiniband(), endpoint(infiniband(), |v| v["lid"] = 0.into()), "no local identifier"),
        (ethernet(), endpoint(ethernet(), |v| v["more"] = 0.into()), "unknown field"),
    ] {
        let fake = Fake::new();
        let driver = driver(&fake, port);
        let queue = queue(&driver);
        let calls = fake.calls().len();
        let error = queue.connect(PEER, &bytes).unwrap_err();
        assert!(matches!(&error, NicError::Endpoint { peer: PEER, .. }), "{error:?}");
        assert!(error.to_string().contains(problem), "{error}");
        assert_eq!(fake.calls().len(), calls, "{error}");
    }
}

#[test]
fn settings_that_the_nic_has_no_bits_for_are_refused() {
    let new = |port: PortFacts, config: RdmaConfig| {
        let fake = Fake::new();
        let error =
            Mlx5Driver::new(Arc::new(fake.clone()), &device(), port, &config, String::new()).unwrap_err();
        assert!(fake.calls().is_empty(), "{error}");
        error.to_string()
    };
    let level = |service_level| RdmaConfig { service_level, ..config() };
    assert_eq!(new(ethernet(), level(8)), "transport.rdma.service_level: 8 given, 0 to 7 allowed on mlx5_7");
    assert_eq!(
        new(infiniband(), level(16)),
        "transport.rdma.service_level: 16 given, 0 to 15 allowed on mlx5_7"
    );
    assert!(new(PortFacts { mtu: 1500, ..ethernet() }, config()).starts_with("bytes of a packet: 1500"));
    let none = |port: PortFacts| new(port, config());
    assert!(none(PortFacts { most_answered: 0, ..ethernet() }).starts_with("reads answered at a time: 0"));
    assert!(none(PortFacts { most_asked: 0, ..ethernet() }).starts_with("reads asked for at a time: 0"));
    let fake = Fake::new();
    let driver = driver(&fake, ethernet());
    for entries in [0, 8, 17, 64 << 10] {
        let error = driver.create_queue(QueueSpec { peer: PEER, channel: 0, entries }).unwrap_err();
        assert!(error.to_string().contains("a power of two from 16 to 32768"), "{error}");
    }
    assert_eq!(driver.provider(), Provider::Mlx5);
    assert_eq!(driver.describe(), "mlx5_7:1 (Ethernet, nearest)");
}

#[test]
fn fields_lie_within_their_structures_and_apart() {
    for table in layout::LAYOUTS {
        assert_eq!(table.bits % 32, 0, "{}", table.name);
        let mut taken = vec![None; table.bits];
        for field in table.fields {
            assert!(field.is_sound(), "{}.{}", table.name, field.name);
            for bit in &mut taken[field.offset..field.offset + field.width] {
                assert_eq!(bit.replace(field.name), None, "{}.{}", table.name, field.name);
            }
        }
    }
}

proptest! {
    #[test]
    fn a_field_that_was_written_is_read_and_no_other_bit_changes(
        table in 0..layout::LAYOUTS.len(),
        picked in any::<prop::sample::Index>(),
        value in any::<u64>(),
        ones in any::<bool>(),
    ) {
        let table = layout::LAYOUTS[table];
        let field: Field = *picked.get(table.fields);
        let mut command = Command::new(&table);
        if ones {
            command.bytes_mut().fill(0xff);
        }
        let before = command.bytes().to_vec();
        let after = command.set(field, value);
        let kept = if field.width == 64 { value } else { value & ((1 << field.width) - 1) };
        prop_assert_eq!(after.get(field), kept);
        for (index, (old, new)) in before.iter().zip(after.bytes()).enumerate() {
            for bit in 0..8 {
                let at = index * 8 + bit;
                if !(field.offset..field.offset + field.width).contains(&at) {
                    prop_assert_eq!(old >> (7 - bit) & 1, new >> (7 - bit) & 1, "bit {}", at);
                }
            }
        }
    }
}
