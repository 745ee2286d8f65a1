//! Which NIC serves which GPU, on machines written down as text.

use crate::machines::Tree;
use anabranch_ranks::GlobalRank;
use anabranch_transport::{HostIdentity, PeerInfo, ProcessIdentity};
use anabranch_transport_rdma::nics::{
    Assignment, ChosenPort, Distance, Gid, GidError, GidKind, LinkLayer, Machine, NicFilter, NicTreeError,
    PciAddress, PciLocation, PortState, assign, assign_to_rank, choose_gid,
};
use anabranch_transport_rdma::{Provider, nics};

fn filter(entries: &[&str]) -> NicFilter {
    NicFilter::parse(entries).unwrap()
}

fn chosen(assignments: &[Assignment]) -> Vec<String> {
    let name =
        |assignment: &Assignment| assignment.chosen.as_ref().map_or("-".to_owned(), ToString::to_string);
    assignments.iter().map(name).collect()
}

fn verdict<'a>(assignment: &'a Assignment, port: &str) -> &'a str {
    let found = assignment.considered.iter().find(|considered| considered.port.to_string() == port);
    &found.unwrap_or_else(|| panic!("{port} was not considered: {assignment:?}")).verdict
}

#[test]
fn each_gpu_of_a_machine_with_a_switch_for_each_pair_has_the_nic_below_its_switch() {
    let tree = Tree::of("dgx");
    let machine = tree.machine();
    assert_eq!(machine.nics().len(), 12);
    assert!(machine.nics().iter().all(|nic| nic.problems.is_empty() && nic.provider() == Provider::Mlx5));
    let gpus =
        ["18", "3b", "4b", "5c", "9a", "ba", "ca", "da"].map(|bus| tree.place(&format!("0000:{bus}:00.0")));
    let all = assign(&gpus, &machine, &filter(&[]));
    let rails =
        ["mlx5_0:1", "mlx5_3:1", "mlx5_4:1", "mlx5_5:1", "mlx5_6:1", "mlx5_9:1", "mlx5_10:1", "mlx5_11:1"];
    assert_eq!(chosen(&all), rails);
    for one in &all {
        assert_eq!(one.reason, "below the same PCI switch (PIX)");
        assert_eq!((one.equals.len(), one.considered.len()), (1, 12));
        assert_eq!(verdict(one, "mlx5_2:1"), "the port is DOWN (physical state Disabled)");
    }
    assert_eq!(verdict(&all[0], "mlx5_1:1"), "farther than mlx5_0:1");
    let (near, far) = (Distance::Node, Distance::System);
    let distances = |name: &str| {
        let found =
            all.iter().map(|one| one.considered.iter().find(|c| c.port.name == name).unwrap().distance);
        found.collect::<Vec<_>>()
    };
    assert_eq!(distances("mlx5_0"), [Distance::Switch, near, near, near, far, far, far, far]);
}

#[test]
fn a_gpu_behind_bridges_of_its_own_still_has_the_nic_of_its_switch() {
    let tree = Tree::of("mi300x");
    let machine = tree.machine();
    assert!(machine.nics().iter().all(|nic| nic.provider() == Provider::Bnxt));
    let gpus: Vec<PciLocation> = (0..8u32)
        .map(|index| {
            tree.place(&format!("0000:{:02x}:00.0", 0x20 * (index / 2) + 4 + 3 + (index % 2) * 8 + 4))
        })
        .collect();
    let all = assign(&gpus, &machine, &filter(&[]));
    let rails: Vec<String> = (0..8).map(|index| format!("bnxt_re{}:1", 7 - index)).collect();
    assert_eq!(chosen(&all), rails);
    // By name alone the two NICs below a root port are equally far.
    assert_eq!(all[0].reason, "below the same root port, by several switches (PXB)");
    assert_eq!(verdict(&all[0], "bnxt_re6:1"), "farther than bnxt_re7:1");
}

#[test]
fn gpus_of_a_socket_share_its_nic_and_say_so() {
    let tree = Tree::of("dual-socket");
    let gpus = ["21", "41", "a1", "c1"].map(|bus| tree.place(&format!("0000:{bus}:00.0")));
    let all = assign(&gpus, &tree.machine(), &filter(&[]));
    assert_eq!(chosen(&all), ["mlx5_0:1", "mlx5_0:1", "mlx5_1:1", "mlx5_1:1"]);
    assert_eq!(all[3].reason, "on the same NUMA node (PHB), shared by 2 ranks");
    // Left with one, the far GPUs use it too.
    let all = assign(&gpus, &tree.machine(), &filter(&["^mlx5_1"]));
    assert_eq!(chosen(&all), ["mlx5_0:1"; 4]);
    assert_eq!(all[3].reason, "by the link between NUMA nodes (SYS), shared by 4 ranks");
    assert_eq!(verdict(&all[0], "mlx5_1:1"), "left out by \"^mlx5_1\" in transport.rdma.nics");
}

#[test]
fn the_faster_of_equally_near_ports_is_taken_and_lists_of_nics_are_obeyed() {
    let tree = Tree::of("roce-storage");
    let machine = tree.machine();
    let gpu = [tree.place("0000:83:00.0")];
    let one = |entries: &[&str]| assign(&gpu, &machine, &filter(entries)).remove(0);
    let free = one(&[]);
    assert_eq!(chosen(std::slice::from_ref(&free)), ["mlx5_2:1"]);
    assert_eq!(verdict(&free, "mlx5_10:1"), "as near as mlx5_2:1, and slower");
    assert_eq!(verdict(&free, "mlx5_2:2"), "the port is DOWN (physical state Polling)");
    assert!(verdict(&free, "irdma0:1").starts_with("a NIC of kind \"RNIC\""), "{free:?}");
    let named = one(&["mlx5_10"]);
    assert_eq!(chosen(std::slice::from_ref(&named)), ["mlx5_10:1"]);
    assert_eq!(named.reason, "below the same PCI switch (PIX), named by \"mlx5_10\"");
    assert_eq!(verdict(&named, "mlx5_2:1"), "not named in transport.rdma.nics");
    let none = one(&["mlx5_2:2"]);
    assert_eq!((none.chosen.clone(), none.reason.as_str()), (None, "no port can be used"));
    assert_eq!(verdict(&none, "mlx5_2:2"), "the port is DOWN (physical state Polling)");
    let port = &machine.nics()[1].ports[0];
    assert_eq!((port.state, port.rate_mbps, port.gids.len()), (PortState::Active, 400_000, 4));
    assert_eq!(port.to_string(), "port 1, Ethernet, ACTIVE, 400 Gb/s, ens2f0np0");
    let gid = choose_gid(port.link_layer, &port.gids, None).unwrap();
    assert_eq!((gid.gid.index, gid.reason.as_str()), (3, "RoCE v2 over IPv4"));
}

#[test]
fn an_address_that_the_settings_ask_for_decides_which_ports_serve() {
    let ports_of = |name: &str, gpu: &str, index| {
        let tree = Tree::of(name);
        let filter = NicFilter::default().with_gid_index(index);
        assign(&[tree.place(gpu)], &tree.machine(), &filter).remove(0)
    };
    // Alone with RoCE v1: taken when that is asked for.
    let free = ports_of("damaged", "0000:11:00.0", None);
    assert!(verdict(&free, "mlx5_8:1").contains("RoCE v1, which is not routed"), "{free:?}");
    let asked = ports_of("damaged", "0000:11:00.0", Some(0));
    assert!(asked.considered.iter().any(|one| one.port.name == "mlx5_8" && one.usable), "{asked:?}");
    // An address that a port has not.
    let absent = ports_of("roce-storage", "0000:83:00.0", Some(77));
    assert_eq!(absent.chosen, None);
    let why = verdict(&absent, "mlx5_2:1");
    assert!(why.starts_with("transport.rdma.gid_index is 77, and the port has 0 fe80::"), "{why}");
    let infiniband = ports_of("dgx", "0000:18:00.0", Some(77));
    assert!(verdict(&infiniband, "mlx5_0:1").starts_with("transport.rdma.gid_index is 77"), "{infiniband:?}");
    assert_eq!(chosen(&[ports_of("dgx", "0000:18:00.0", Some(0))]), ["mlx5_0:1"]);
}

#[test]
fn an_infiniband_port_without_an_address_does_not_serve() {
    let tree = Tree::of("dgx");
    let mut nics = tree.machine().nics().to_vec();
    nics[0].ports[0].gids.clear();
    let gpu = [tree.place("0000:18:00.0")];
    let one = assign(&gpu, &Machine::new(nics.clone()), &filter(&[])).remove(0);
    assert_ne!(chosen(std::slice::from_ref(&one)), ["mlx5_0:1"]);
    let why = verdict(&one, "mlx5_0:1");
    assert!(why.starts_with("the port has no address that can be used: no address"), "{why}");
    // What opens a port says the same.
    let opened = ChosenPort::new(&nics[0], 1, None, String::new()).unwrap_err().to_string();
    assert!(opened.contains(why), "{opened}");
}

#[test]
fn a_number_at_the_end_of_an_entry_is_a_whole_number() {
    let machine = Tree::of("dgx").machine();
    let names = |entries: &[&str]| {
        let gpu = [PciLocation { path: None, numa: None }];
        let considered = assign(&gpu, &machine, &filter(entries)).remove(0).considered;
        let usable = considered.into_iter().filter(|considered| considered.usable);
        usable.map(|considered| considered.port.name).collect::<Vec<_>>()
    };
    assert_eq!(names(&["mlx5_1"]), ["mlx5_1"], "mlx5_10 and mlx5_11 are others");
    assert_eq!(names(&["mlx5_1:2"]), [""; 0]);
    assert_eq!(names(&["=mlx5_1", "mlx5_10:1"]), ["mlx5_1", "mlx5_10"]);
    assert_eq!(names(&["=mlx5"]), [""; 0]);
    assert_eq!(names(&["mlx5", "^mlx5_4", "^mlx5_9:2"]).len(), 9, "port 2 of mlx5_9 is not there");
    assert_eq!(names(&["^mlx5"]), [""; 0]);
    let both = filter(&["mlx5_99", "mlx5_0"]);
    both.check(&machine).unwrap();
    assert_eq!(both.unmatched(&machine), ["mlx5_99"]);
    let error = filter(&["mlx5_99"]).check(&Tree::of("rxe").machine()).unwrap_err();
    assert_eq!(error.to_string(), "\"mlx5_99\" in transport.rdma.nics means none of the NICs here: rxe0:1");
    filter(&["^mlx5_99"]).check(&machine).unwrap();
}

#[test]
fn entries_that_are_none_are_named() {
    for (given, problem) in [
        ("", "the name is missing"),
        ("^", "the name is missing"),
        (":1", "the name is missing"),
        ("mlx5_0:", "the port is no number"),
        ("mlx5_0:0", "the port is no number"),
        ("mlx5_0:+1", "the port is no number"),
        ("mlx5_0:99999999999", "the port is no number"),
        ("mlx5_0,mlx5_1", "a name has letters"),
        ("^^mlx5_0", "a name has letters"),
    ] {
        let error = NicFilter::parse(&[given]).unwrap_err().to_string();
        assert!(error.contains(problem) && error.contains("NAME:PORT"), "{given:?}: {error}");
    }
}

#[test]
fn a_nic_in_software_is_used_only_when_it_is_named() {
    let tree = Tree::of("rxe");
    let gpu = [tree.place("0000:00:08.0")];
    let free = assign(&gpu, &tree.machine(), &filter(&[])).remove(0);
    assert_eq!(free.chosen, None);
    assert!(verdict(&free, "rxe0:1").starts_with("a NIC in software"), "{free:?}");
    let named = assign(&gpu, &tree.machine(), &filter(&["rxe"])).remove(0);
    assert_eq!(
        (chosen(std::slice::from_ref(&named))[0].as_str(), named.considered[0].distance),
        ("rxe0:1", Distance::Unknown)
    );
    assert_eq!(tree.machine().nics()[0].provider(), Provider::Posted);
    assert_eq!(tree.machine().nics()[0].ports[0].rate_mbps, 2500);
}

#[test]
fn a_machine_without_nics_is_reported() {
    let tree = Tree::of("none");
    let one = assign(&[tree.place("0000:00:08.0")], &tree.machine(), &filter(&[])).remove(0);
    assert_eq!((one.chosen, one.reason.as_str()), (None, "this machine shows no NIC"));
    let missing = PciLocation::of_device(tree.root(), "0000:00:09.0".parse().unwrap()).unwrap_err();
    assert!(matches!(missing, NicTreeError::Read { .. }), "{missing:?}");
}

#[test]
fn what_cannot_be_read_is_shown_with_its_file_and_spoils_no_other_nic() {
    let tree = Tree::of("damaged");
    let one = assign(&[tree.place("0000:11:00.0")], &tree.machine(), &filter(&[])).remove(0);
    assert_eq!(chosen(std::slice::from_ref(&one)), ["mlx5_9:1"]);
    for (port, words) in [
        ("mlx5_0:0", "ports/1/state: \"ACTIVE\", expected a port's state"),
        ("mlx5_1:0", "ports/1/link_layer: \"Token Ring\", expected \"InfiniBand\" or \"Ethernet\""),
        ("mlx5_2:0", "ports/1/rate: \"fast\", expected a rate"),
        ("mlx5_3:1", "numa_node: \"zero\", expected the number of a NUMA node"),
        ("mlx5_4:0", "ports/1/lid: \"26\", expected a local identifier"),
        ("mlx5_5:0", "gids/0: \"not an address\", expected an address"),
        ("mlx5_6:0", "gid_attrs/types/0: \"RoCE v3\", expected"),
        ("mlx5_7:0", "no port can be read"),
        ("mlx5_8:1", "RoCE v1, which is not routed"),
        ("mlx5_10:0", "cannot be read"),
    ] {
        let found = verdict(&one, port);
        assert!(found.contains(words), "{port}: {found}");
    }
}

fn gid(index: u32, value: &str, kind: GidKind) -> Gid {
    Gid { index, value: value.parse().unwrap(), kind, interface: Some("eth0".to_owned()) }
}

#[test]
fn addresses_are_chosen_by_how_far_they_carry() {
    use GidKind::{InfinibandOrRoceV1 as V1, RoceV2 as V2};
    let mut table = vec![
        gid(0, "fe80::1", V1),
        gid(1, "fe80::1", V2),
        gid(2, "::ffff:169.254.0.1", V2),
        gid(3, "fd00::1", V2),
        gid(4, "::ffff:10.0.0.1", V1),
        gid(5, "::ffff:10.0.0.1", V2),
        gid(6, "::ffff:10.0.0.2", V2),
    ];
    // Each time the best is taken away, the next best is chosen.
    let mut order = Vec::new();
    while let Ok(choice) = choose_gid(LinkLayer::Ethernet, &table, None) {
        assert_eq!(choice.others.len() + 1, table.len());
        order.push((choice.gid.index, choice.reason));
        table.retain(|gid| gid.index != choice.gid.index);
    }
    let order: Vec<_> = order.iter().map(|(index, reason)| (*index, reason.as_str())).collect();
    assert_eq!(
        order,
        [
            (5, "RoCE v2 over IPv4, the first of 2"),
            (6, "RoCE v2 over IPv4"),
            (3, "RoCE v2 over IPv6"),
            (2, "RoCE v2 over IPv4, only on this link"),
            (1, "RoCE v2 over IPv6, only on this link"),
        ]
    );
    let left = choose_gid(LinkLayer::Ethernet, &table, None).unwrap_err();
    assert!(left.to_string().contains("0 fe80::1 of eth0: RoCE v1"), "{left}");
    let asked = choose_gid(LinkLayer::Ethernet, &table, Some(4)).unwrap();
    assert_eq!(asked.reason, "transport.rdma.gid_index takes it: RoCE v1, which is not routed");
    let absent = choose_gid(LinkLayer::Ethernet, &table, Some(3)).unwrap_err();
    assert!(matches!(absent, GidError::Absent { wanted: 3, .. }), "{absent:?}");
    let empty = choose_gid(LinkLayer::Ethernet, &[], Some(3)).unwrap_err();
    assert_eq!(empty.to_string(), "transport.rdma.gid_index is 3, and the port has no address");
    let own = choose_gid(LinkLayer::Infiniband, &table, None).unwrap();
    assert_eq!((own.gid.index, own.reason.as_str()), (0, "InfiniBand, the first of 2"));
}

#[test]
fn addresses_on_the_bus_are_read_and_written_alike() {
    for text in ["0000:c1:00.0", "10000:e1:1f.7"] {
        assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), text);
    }
    for text in ["", "c1:00.0", "0000:c1:20.0", "0000:c1:00.8", "0000:100:00.0", "0000:+1:00.0", "0000:c1:00"]
    {
        assert!(nics::PciPath::of_folders(["pci0000:00", text]).is_none(), "{text}");
    }
    // Behind a VMD the domain has a host bridge within the path, and auxiliary devices follow the PCI device.
    let folders =
        ["pci0000:00", "0000:00:0e.0", "pci10000:e0", "10000:e0:01.0", "10000:e1:00.0", "mlx5_core.rdma.0"];
    let path = nics::PciPath::of_folders(folders).unwrap();
    assert_eq!(path.to_string(), "pci10000:e0/10000:e0:01.0/10000:e1:00.0");
    assert_eq!(nics::PciPath::of_folders(["virtual", "net", "lo"]), None);
}

#[test]
fn every_library_is_found_or_reported_with_a_reason() {
    let found = nics::find_libraries();
    assert_eq!(found.len(), 4);
    for status in found {
        let problem = status.problem.unwrap_or_else(|| status.library.soname.to_owned());
        assert!(problem.contains(status.library.soname), "{problem}");
    }
}

fn peer(rank: u32, host: &str, pci: &str) -> PeerInfo {
    PeerInfo {
        rank: GlobalRank::new(rank),
        host: HostIdentity(host.to_owned()),
        nics_of: HostIdentity(host.to_owned()),
        process: ProcessIdentity { pid: rank, nonce: 0 },
        runtime: "amd".to_owned(),
        instance: 0,
        device: 0,
        pci: pci.to_owned(),
        arch: "gfx942".to_owned(),
    }
}

#[test]
fn ranks_of_a_machine_choose_alike_and_those_of_others_do_not_count() {
    let tree = Tree::of("dual-socket");
    let machine = tree.machine();
    // Rank 5 has a partition in place of the function, rank 6 a device of the host runtime.
    let peers = [
        peer(0, "there", "0000:21:00.0"),
        peer(1, "here", "0000:21:00.0"),
        peer(2, "here", "0000:a1:00.0"),
        peer(3, "there", "0000:a1:00.0"),
        peer(4, "here", "0000:41:00.0"),
        peer(5, "here", "0000:C1:00.3"),
        PeerInfo { runtime: "host".to_owned(), ..peer(6, "here", "0000:21:00.0") },
    ];
    let of = |rank| {
        let rank = GlobalRank::new(rank);
        assign_to_rank(tree.root(), rank, &peers, &machine, &NicFilter::default()).unwrap()
    };
    let here: Vec<_> = [1, 2, 4, 5, 6].map(|rank| chosen(&[of(rank)]).remove(0)).to_vec();
    assert_eq!(here, ["mlx5_0:1", "mlx5_1:1", "mlx5_0:1", "mlx5_1:1", "mlx5_0:1"]);
    assert_eq!(of(1).reason, "on the same NUMA node (PHB), shared by 3 ranks");
    assert_eq!(of(6).reason, "at a distance that is not known (?), 1 of 2 equal ports, shared by 3 ranks");
    assert_eq!(of(9).reason, "rank 9 is not one of the world's 7 ranks");
}

/// The NICs of ranks on devices of a machine, by what each counts as.
fn divided(tree: &Tree, filter: &NicFilter, ranks: &[(&str, PeerInfo)]) -> Vec<String> {
    let of = |(rank, (host, peer)): (u32, &(&str, PeerInfo))| PeerInfo {
        rank: GlobalRank::new(rank),
        host: HostIdentity((*host).to_owned()),
        nics_of: HostIdentity("here".to_owned()),
        ..peer.clone()
    };
    let (peers, machine): (Vec<_>, _) = ((0..).zip(ranks).map(of).collect(), tree.machine());
    let nic = |peer: &PeerInfo| {
        assign_to_rank(tree.root(), peer.rank, &peers, &machine, filter).unwrap().chosen.unwrap().name
    };
    peers.iter().map(nic).collect()
}

#[test]
fn machines_that_are_one_divide_its_equal_ports() {
    // As near as each other to devices of the host runtime.
    let (two, eight) = (Tree::of("dual-socket"), Tree::of("dgx"));
    let ports = |tree, named: &[&str], hosts: &[&'static str]| {
        let device = || PeerInfo { runtime: "host".to_owned(), ..peer(0, "here", "0000:21:00.0") };
        let ranks: Vec<_> = hosts.iter().map(|host| (*host, device())).collect();
        divided(tree, &filter(named), &ranks)
    };
    assert_eq!(ports(&two, &[], &["a", "b"]), ["mlx5_0", "mlx5_1"]);
    assert_eq!(ports(&two, &[], &["a", "a", "b", "b"]), ["mlx5_0", "mlx5_0", "mlx5_1", "mlx5_1"]);
    assert_eq!(ports(&two, &[], &["a", "a", "a"]), ["mlx5_0", "mlx5_1", "mlx5_0"], "one machine uses all");
    assert_eq!(ports(&two, &[], &["a", "a", "b"]), ["mlx5_0", "mlx5_0", "mlx5_1"]);
    assert_eq!(
        ports(&two, &[], &["a", "b", "c"]),
        ["mlx5_0", "mlx5_1", "mlx5_0"],
        "two are too few for three"
    );
    let three = ["mlx5_3", "mlx5_4", "mlx5_5"];
    assert_eq!(ports(&eight, &three, &["a", "a", "b", "b"]), ["mlx5_3", "mlx5_5", "mlx5_4", "mlx5_4"]);
}

#[test]
fn machines_that_are_one_divide_the_ports_that_are_as_near_to_their_gpus() {
    let tree = Tree::of("dgx");
    let ports = |named: &[&str], ranks: &[(&'static str, &str)]| {
        let device = |bus: &str| peer(0, "here", &format!("0000:{bus}:00.0"));
        let ranks: Vec<_> = ranks.iter().map(|(host, bus)| (*host, device(bus))).collect();
        divided(&tree, &filter(named), &ranks)
    };
    let four = [("a", "18"), ("a", "3b"), ("b", "4b"), ("b", "5c")];
    // NICs of the other socket, as far from all of them.
    assert_eq!(ports(&["mlx5_9", "mlx5_10"], &four), ["mlx5_9", "mlx5_9", "mlx5_10", "mlx5_10"]);
    assert_eq!(ports(&["mlx5_9", "mlx5_10", "mlx5_11"], &four), ["mlx5_9", "mlx5_11", "mlx5_10", "mlx5_10"]);
    // Whatever the order of their addresses.
    let turned = [("a", "5c"), ("b", "18"), ("a", "3b"), ("b", "4b")];
    assert_eq!(ports(&["mlx5_9", "mlx5_10"], &turned), ["mlx5_9", "mlx5_10", "mlx5_9", "mlx5_10"]);
    // Where each has one of its own beside it, that one is taken.
    assert_eq!(ports(&[], &four), ["mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5"]);
}
