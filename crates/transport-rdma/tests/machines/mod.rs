//! Machines as text, laid out as the kernel's folders.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anabranch_transport_rdma::nics::{Machine, PciLocation};

/// A machine in a folder of its own, which goes with it.
#[derive(Debug)]
pub(crate) struct Tree {
    root: PathBuf,
}

impl Drop for Tree {
    fn drop(&mut self) {
        // A folder that stays behind is no reason to fail.
        let _ = fs::remove_dir_all(&self.root);
    }
}

impl Tree {
    /// Lays out `tests/fixtures/NAME.tree`: lines `path = content` and `path -> target of a symbolic link`, and comments.
    pub(crate) fn of(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("anabranch-nics-{}-{number}", std::process::id()));
        let tree = Self { root };
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(format!("{name}.tree"));
        for line in fs::read_to_string(file).unwrap().lines().filter(|line| !line.starts_with('#')) {
            let (path, link, content) = if let Some((path, target)) = line.split_once(" -> ") {
                (path, true, target)
            } else {
                let (path, content) = line.split_once(" =").unwrap();
                (path, false, content.trim_start())
            };
            let path = tree.root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            if link {
                symlink(content, path).unwrap();
            } else {
                fs::write(path, format!("{content}\n")).unwrap();
            }
        }
        tree
    }

    /// What the kernel's folder would be.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Its NICs.
    pub(crate) fn machine(&self) -> Machine {
        Machine::read(&self.root).unwrap()
    }

    /// Where a device of it is.
    pub(crate) fn place(&self, address: &str) -> PciLocation {
        PciLocation::of_device(&self.root, address.parse().unwrap()).unwrap()
    }
}
