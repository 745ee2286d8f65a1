//! Reading trees, and what is said of those that are wrong.

use std::fs;
use std::io;

use super::tree::{Tree, TreeGpu, TreeLink, all_xgmi, connect, eight_mi300x, kernel_mask};
use crate::amd::{AmdError, GpuAddress, LinkKind, PciAddress, Topology};

fn address(text: &str) -> GpuAddress {
    text.parse::<PciAddress>().unwrap().into()
}

#[test]
fn addresses_are_read_and_written() {
    let pci: PciAddress = "0001:C1:1f.7".parse().unwrap();
    assert_eq!(pci, PciAddress { domain: 1, bus: 0xc1, device: 0x1f, function: 7 });
    assert_eq!(pci.to_string(), "0001:c1:1f.7");
    for wrong in
        ["", "c1:00.0", "0000:c1:00", "0000:c1:20.0", "0000:c1:00.8", "0000:+1:00.0", "0000:100:00.0"]
    {
        let error = wrong.parse::<PciAddress>().unwrap_err().to_string();
        assert!(error.contains(&format!("{wrong:?}")) && error.contains("0000:c1:00.0"), "{error}");
    }
}

#[test]
fn a_tree_is_read_whole() {
    let mut gpus = eight_mi300x();
    connect(&mut gpus, kernel_mask);
    gpus[0].links.push(TreeLink { to: 0, kind: 2, mask: Some(3), flags: 1 | 1 << 3 });
    let tree = Tree::new(2, &gpus);
    let topology = tree.read();
    assert_eq!(topology.gpus().len(), 8);
    assert_eq!(topology.cpus(), [0, 1]);
    assert_eq!(topology.hidden(), [] as [u32; 0]);
    let first = topology.find(&address("0000:0c:00.0")).unwrap();
    assert_eq!((first.node, first.gpu_id, first.device_id), (2, 50_002, 0x74a1));
    assert_eq!((first.engines, first.xgmi_engines, first.queues_per_engine), (2, 14, 8));
    assert_eq!((first.xgmi_physical_id, first.compute_dies), (Some(3), Some(8)));
    assert_eq!((first.gfx_target_version, first.hive_id), (90_402, 0x1234_5678_9abc_def0));
    assert_eq!(first.links.len(), 8);
    let peer = first.link_to(3).unwrap();
    assert_eq!(peer.kind, LinkKind::Xgmi);
    assert_eq!(peer.recommended_engines, Some(1 << 10), "from place 3 to place 2");
    assert!(peer.carries_atomics_64() && peer.reaches_memory());
    let host = first.link_to(0).unwrap();
    assert_eq!(host.kind, LinkKind::Pcie);
    assert!(!host.carries_atomics_64() && host.reaches_memory());
}

#[test]
fn flags_that_say_nothing_leave_the_kind() {
    let mut gpu = TreeGpu::mi300x(1, 1);
    gpu.links.push(TreeLink { to: 0, kind: 2, mask: None, flags: 0 });
    gpu.links.push(TreeLink { to: 2, kind: 11, mask: Some(0), flags: 0 });
    let tree = Tree::new(1, &[gpu]);
    let topology = tree.read();
    let gpu = &topology.gpus()[0];
    assert!(!gpu.link_to(0).unwrap().carries_atomics_64());
    assert!(gpu.link_to(2).unwrap().carries_atomics_64());
    assert_eq!(gpu.link_to(2).unwrap().recommended_engines, None, "no bit recommends nothing");
}

#[test]
fn two_gpus_that_differ_in_the_domain_are_two() {
    let one = TreeGpu::mi300x(1, 0xc1);
    let two = TreeGpu { domain: 1, ..TreeGpu::mi300x(2, 0xc1) };
    let topology = Tree::new(1, &[one, two]).read();
    assert_eq!(topology.find(&address("0000:c1:00.0")).unwrap().node, 1);
    assert_eq!(topology.find(&address("0001:c1:00.0")).unwrap().node, 2);
    let error = topology.find(&address("0002:c1:00.0")).unwrap_err().to_string();
    assert!(error.contains("0002:c1:00.0") && error.contains("0000:c1:00.0; 0001:c1:00.0"), "{error}");
    assert!(topology.find(&address("0000:c1:00.1")).is_err(), "another function is another device");
}

/// Newer kernels put the partition into the upper bits, some older ones into the function.
#[test]
fn a_divided_gpu_wants_its_partition_named() {
    for shift in [28, 0] {
        let part =
            |index: u32| TreeGpu { location: 0xc1 << 8 | index << shift, ..TreeGpu::mi300x(1 + index, 0xc1) };
        let topology = Tree::new(1, &(0..8).map(part).collect::<Vec<_>>()).read();
        let whole = address("0000:c1:00.0");
        assert!(matches!(topology.find(&whole), Err(AmdError::Partitioned { partitions: 8, .. })));
        for index in 0..8 {
            let found = topology.find(&GpuAddress { partition: Some(index), ..whole }).unwrap();
            assert_eq!(found.node, 1 + index, "shift {shift}");
            let back = topology.address(found);
            assert_eq!(back.partition, Some(index));
            assert_eq!(topology.find(&back).unwrap().node, found.node);
        }
        assert!(topology.find(&GpuAddress { partition: Some(8), ..whole }).is_err());
    }
}

/// Some kernels give all partitions one location: an engine must not be chosen for the wrong one.
#[test]
fn partitions_that_the_kernel_does_not_number_cannot_be_meant() {
    let part = |index: u32| TreeGpu::mi300x(1 + index, 0xc1);
    let topology = Tree::new(1, &(0..4).map(part).collect::<Vec<_>>()).read();
    let whole = address("0000:c1:00.0");
    for partition in [None, Some(0)] {
        let error = topology.find(&GpuAddress { partition, ..whole }).unwrap_err();
        assert!(matches!(error, AmdError::Partitioned { partitions: 4, .. }), "{error}");
    }
    assert!(matches!(
        topology.find(&GpuAddress { partition: Some(1), ..whole }),
        Err(AmdError::NoSuchGpu { .. })
    ));
}

#[test]
fn a_whole_gpu_is_its_own_first_part() {
    let topology = Tree::new(1, &[TreeGpu::mi300x(1, 0xc1)]).read();
    let whole = address("0000:c1:00.0");
    assert_eq!(topology.find(&GpuAddress { partition: Some(0), ..whole }).unwrap().node, 1);
    assert!(topology.find(&GpuAddress { partition: Some(1), ..whole }).is_err());
}

#[test]
fn hidden_nodes_are_counted_and_not_read() {
    let mut gpus = eight_mi300x();
    connect(&mut gpus, kernel_mask);
    let tree = Tree::new(2, &gpus);
    let hidden = [tree.node(4), tree.node(5)];
    let link = tree.node(2).join("io_links/1/properties");
    let read = |path: &std::path::Path| {
        let refused = path == link || hidden.iter().any(|node| path.starts_with(node));
        if refused { Err(io::ErrorKind::PermissionDenied.into()) } else { fs::read_to_string(path) }
    };
    let topology = Topology::read_with(&tree.nodes(), &tree.pci(), &read).unwrap();
    assert_eq!(topology.hidden(), [4, 5]);
    assert_eq!(topology.gpus().len(), 6);
    assert!(topology.gpus()[0].link_to(4).is_none());
    let error = topology.find(&address("0000:2c:00.0")).unwrap_err().to_string();
    assert!(error.contains("2 node(s) are hidden"), "{error}");
}

#[test]
fn errors_have_file_and_line() {
    let tree = Tree::new(1, &[TreeGpu::mi300x(1, 1)]);
    let file = tree.node(1).join("properties");
    let good = fs::read_to_string(&file).unwrap();
    let line = 1 + good.lines().position(|line| line.starts_with("num_sdma_engines")).unwrap();
    for wrong in
        ["num_sdma_engines two", "num_sdma_engines", "num_sdma_engines 2 2", "num_sdma_engines 4294967296"]
    {
        fs::write(&file, good.replace("num_sdma_engines 2", wrong)).unwrap();
        let error = Topology::read(&tree.nodes(), &tree.pci()).unwrap_err();
        let AmdError::Line { path, line: found, text, .. } = &error else { panic!("{error}") };
        assert_eq!((path, *found, text.as_str()), (&file, line, wrong));
        assert!(error.to_string().contains("decimal number of 32 bits"), "{error}");
    }
    fs::write(&file, good.replace("num_sdma_engines 2\n", "")).unwrap();
    let error = Topology::read(&tree.nodes(), &tree.pci()).unwrap_err();
    assert!(matches!(error, AmdError::Property { property: "num_sdma_engines", .. }), "{error}");
    fs::write(&file, good).unwrap();
    fs::write(tree.node(1).join("gpu_id"), "x\n").unwrap();
    let error = Topology::read(&tree.nodes(), &tree.pci()).unwrap_err();
    assert!(matches!(&error, AmdError::Line { line: 1, text, .. } if text == "x"), "{error}");
    fs::remove_dir_all(tree.nodes()).unwrap();
    let error = Topology::read(&tree.nodes(), &tree.pci()).unwrap_err();
    assert!(matches!(&error, AmdError::Read { path, .. } if *path == tree.nodes()), "{error}");
}

/// A kernel without recommendations, hives, dies and peer links: everything that came later is optional.
#[test]
fn older_kernels_say_less() {
    let mut gpus = vec![TreeGpu::mi300x(1, 1), TreeGpu::mi300x(2, 2)];
    connect(&mut gpus, all_xgmi);
    gpus.iter_mut().flat_map(|gpu| &mut gpu.links).for_each(|link| link.mask = None);
    let tree = Tree::new(1, &gpus);
    for node in [1, 2] {
        let file = tree.node(node).join("properties");
        let text = fs::read_to_string(&file).unwrap();
        let later = ["hive_id", "num_xcc", "gfx_target_version"];
        let kept = text.lines().filter(|line| !later.iter().any(|name| line.starts_with(name)));
        fs::write(&file, kept.collect::<Vec<_>>().join("\n")).unwrap();
    }
    let topology = tree.read();
    let gpu = &topology.gpus()[0];
    assert_eq!((gpu.hive_id, gpu.compute_dies, gpu.gfx_target_version), (0, None, 0));
    assert_eq!(gpu.link_to(2).unwrap().recommended_engines, None);
}
