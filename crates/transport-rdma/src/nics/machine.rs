//! The NICs of a machine, as plain data.

use super::distance::PciLocation;
use super::port::Port;
use crate::provider::Provider;

/// A device of `class/infiniband`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Its name: `mlx5_0`, `rdmap0s6`.
    pub name: String,
    /// The kernel driver of the PCI device behind it (`mlx5_core`). `None` for one in software, or if the kernel does not say.
    pub driver: Option<String>,
    /// Where it is. One in software (`rxe`, `siw`) is nowhere on the bus.
    pub place: PciLocation,
    /// What it is to verbs (`1: CA` reads `CA`); `CA` is the only kind with queue pairs that connect without a connection manager.
    pub node_type: String,
    /// Version of its firmware, for people. Empty if the kernel does not say.
    pub firmware: String,
    /// Its ports by number.
    pub ports: Vec<Port>,
    /// What of it could not be read, in words. Such a NIC is shown and not used.
    pub problems: Vec<String>,
}

impl Nic {
    /// The format of its queue entries. NICs whose queues kernels cannot write are posted to by the host.
    pub fn provider(&self) -> Provider {
        match self.driver.as_deref() {
            Some("mlx5_core") => Provider::Mlx5,
            Some("bnxt_en") => Provider::Bnxt,
            Some("ionic") => Provider::Ionic,
            _ => Provider::Posted,
        }
    }

    /// Whether there is no hardware behind it.
    pub(crate) fn is_software(&self) -> bool {
        self.place.path.is_none()
    }
}

/// The NICs of a machine, by name (numbers within names in the order of their values).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    pub(super) nics: Vec<Nic>,
}

impl Machine {
    /// A machine with these NICs.
    pub fn new(mut nics: Vec<Nic>) -> Self {
        nics.sort_by_key(|nic| natural(&nic.name));
        Self { nics }
    }

    /// Its NICs.
    pub fn nics(&self) -> &[Nic] {
        &self.nics
    }
}

/// A key that orders `mlx5_2` before `mlx5_10`: words and numbers in turn; the name itself at last, so that `a1` and `a01` differ.
pub(super) fn natural(name: &str) -> (Vec<(String, u64)>, String) {
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let word = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (text, tail) = rest.split_at(word);
        let digits = tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len());
        let (number, tail) = tail.split_at(digits);
        parts.push((text.to_owned(), number.parse().unwrap_or(0)));
        rest = tail;
    }
    (parts, name.to_owned())
}
