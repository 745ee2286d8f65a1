//! Writes trees as the kernel shows them (`kfd_topology.c`).

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::amd::topology::Topology;

pub(super) const MI300X: u32 = 0x74a1;
pub(super) const MI308X: u32 = 0x74a2;
pub(super) const MI300X_VIRTUAL: u32 = 0x74b5;

/// `rec_sdma_eng_map` of `kfd_topology.c`, typed in here a second time.
pub(super) const KERNEL_TABLE: [[i32; 8]; 8] = [
    [-1, 14, 12, 2, 4, 8, 10, 6],
    [14, -1, 2, 10, 8, 4, 6, 12],
    [10, 2, -1, 12, 14, 6, 4, 8],
    [2, 12, 10, -1, 6, 14, 8, 4],
    [4, 8, 14, 6, -1, 10, 12, 2],
    [8, 4, 6, 14, 12, -1, 2, 10],
    [10, 6, 4, 8, 12, 2, -1, 14],
    [6, 12, 8, 4, 2, 10, 14, -1],
];

/// A link to write.
#[derive(Clone, Debug)]
pub(super) struct TreeLink {
    pub(super) to: u32,
    pub(super) kind: u32,
    pub(super) mask: Option<u32>,
    pub(super) flags: u32,
}

/// A GPU to write.
#[derive(Clone, Debug)]
pub(super) struct TreeGpu {
    pub(super) node: u32,
    pub(super) domain: u32,
    pub(super) location: u32,
    pub(super) device: u32,
    pub(super) target: u32,
    pub(super) hive: u64,
    pub(super) physical: Option<u32>,
    pub(super) engines: u32,
    pub(super) xgmi_engines: u32,
    pub(super) queues: u32,
    pub(super) links: Vec<TreeLink>,
}

impl TreeGpu {
    pub(super) fn mi300x(node: u32, bus: u32) -> Self {
        Self {
            node,
            domain: 0,
            location: bus << 8,
            device: MI300X,
            target: 90_402,
            hive: 0x1234_5678_9abc_def0,
            physical: None,
            engines: 2,
            xgmi_engines: 14,
            queues: 8,
            links: Vec::new(),
        }
    }
}

/// A tree in a folder of its own, which goes with it.
#[derive(Debug)]
pub(super) struct Tree {
    folder: PathBuf,
}

impl Drop for Tree {
    fn drop(&mut self) {
        // A folder that stays behind is no reason to fail.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn write(file: &Path, text: &str) {
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, text).unwrap();
}

impl Tree {
    /// A tree of these GPUs, with CPUs on the nodes before them.
    pub(super) fn new(cpus: u32, gpus: &[TreeGpu]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("anabranch-kfd-{}-{number}", std::process::id());
        let tree = Self { folder: std::env::temp_dir().join(name) };
        for cpu in 0..cpus {
            let node = tree.node(cpu);
            write(&node.join("gpu_id"), "0\n");
            write(&node.join("properties"), "cpu_cores_count 96\nsimd_count 0\n");
        }
        for gpu in gpus {
            tree.write_gpu(gpu);
        }
        tree
    }

    pub(super) fn nodes(&self) -> PathBuf {
        self.folder.join("nodes")
    }

    pub(super) fn pci(&self) -> PathBuf {
        self.folder.join("pci")
    }

    pub(super) fn node(&self, node: u32) -> PathBuf {
        self.nodes().join(node.to_string())
    }

    pub(super) fn read(&self) -> Topology {
        Topology::read(&self.nodes(), &self.pci()).unwrap()
    }

    fn write_gpu(&self, gpu: &TreeGpu) {
        let node = self.node(gpu.node);
        write(&node.join("gpu_id"), &format!("{}\n", 50_000 + gpu.node));
        let mut text = String::from("cpu_cores_count 0\nsimd_count 1216\n");
        for (name, value) in [
            ("gfx_target_version", u64::from(gpu.target)),
            ("vendor_id", 4098),
            ("device_id", u64::from(gpu.device)),
            ("location_id", u64::from(gpu.location)),
            ("domain", u64::from(gpu.domain)),
            ("drm_render_minor", 128 + u64::from(gpu.node)),
            ("hive_id", gpu.hive),
            ("num_sdma_engines", u64::from(gpu.engines)),
            ("num_sdma_xgmi_engines", u64::from(gpu.xgmi_engines)),
            ("num_sdma_queues_per_engine", u64::from(gpu.queues)),
            ("num_xcc", 8),
        ] {
            writeln!(text, "{name} {value}").unwrap();
        }
        write(&node.join("properties"), &text);
        for (index, link) in gpu.links.iter().enumerate() {
            let mut text = format!("type {}\nversion_major 0\nnode_from {}\n", link.kind, gpu.node);
            writeln!(text, "node_to {}\nweight 15", link.to).unwrap();
            if let Some(mask) = link.mask {
                writeln!(text, "recommended_sdma_engine_id_mask {mask}").unwrap();
            }
            writeln!(text, "flags {}", link.flags).unwrap();
            write(&node.join(format!("io_links/{index}/properties")), &text);
        }
        if let Some(physical) = gpu.physical {
            let (bus, device, function) =
                (gpu.location >> 8 & 0xff, gpu.location >> 3 & 0x1f, gpu.location & 7);
            let address = format!("{:04x}:{bus:02x}:{device:02x}.{function:x}", gpu.domain);
            write(&self.pci().join(address).join("xgmi_physical_id"), &format!("{physical}\n"));
        }
    }
}

/// Links each GPU to all others over xGMI.
pub(super) fn connect(gpus: &mut [TreeGpu], mask: impl Fn(&TreeGpu, &TreeGpu) -> Option<u32>) {
    let all = gpus.to_vec();
    for gpu in gpus {
        for peer in all.iter().filter(|peer| peer.node != gpu.node) {
            gpu.links.push(TreeLink { to: peer.node, kind: 11, mask: mask(gpu, peer), flags: 1 });
        }
    }
}

/// Eight MI300X on nodes 2 to 9, whose places in the hive are not in the order of their nodes.
pub(super) fn eight_mi300x() -> Vec<TreeGpu> {
    let places = [3, 2, 0, 1, 7, 6, 4, 5];
    let gpu = |(index, place): (usize, &u32)| TreeGpu {
        physical: Some(*place),
        ..TreeGpu::mi300x(2 + index as u32, 0x0c + 0x10 * index as u32)
    };
    places.iter().enumerate().map(gpu).collect()
}

/// What the kernel recommends for whole MI300X.
pub(super) fn kernel_mask(from: &TreeGpu, to: &TreeGpu) -> Option<u32> {
    let engine = KERNEL_TABLE[from.physical? as usize][to.physical? as usize];
    Some(1 << u32::try_from(engine).ok()?)
}

/// Every xGMI engine.
#[allow(clippy::unnecessary_wraps, reason = "taken where a mask may be missing")]
pub(super) fn all_xgmi(from: &TreeGpu, _: &TreeGpu) -> Option<u32> {
    Some(((1 << from.xgmi_engines) - 1) << from.engines)
}
