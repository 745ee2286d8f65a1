//! Which NICs the settings allow.

use super::error::{NicTreeError, NicTreeResult};
use super::machine::Machine;

/// The entries of `transport.rdma.nics`, and `transport.rdma.gid_index`, which a port has to have where it is set.
///
/// An entry is `NAME` or `NAME:PORT`. `NAME` means every NIC whose name begins with it, except that a number at its end is a whole
/// number: `mlx5` means `mlx5_0` and `mlx5_10`, `mlx5_1` does not mean `mlx5_10`. `=NAME` means the NIC of that very name. With
/// `^` before it an entry leaves its NICs out. A port may be used if no entry with `^` means it and, where there are entries without,
/// one of them does. An empty list allows all but NICs in software, which have to be named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NicFilter {
    takes: Vec<Entry>,
    leaves: Vec<Entry>,
    gid_index: Option<u32>,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    /// As it was given.
    text: String,
    name: String,
    whole: bool,
    port: Option<u32>,
}

/// What the settings say of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Allowed {
    /// Nothing: it may be used if it is hardware.
    Unnamed,
    /// It may be used, by this entry.
    Named(String),
    /// It may not, and why.
    Refused(String),
}

impl NicFilter {
    /// Reads the entries.
    ///
    /// # Errors
    /// [`NicTreeError::Entry`]: the entry, what is wrong, and what an entry is.
    pub fn parse<S: AsRef<str>>(entries: &[S]) -> NicTreeResult<Self> {
        let mut filter = Self::default();
        for given in entries {
            let given = given.as_ref();
            let (list, text) = match given.strip_prefix('^') {
                Some(rest) => (&mut filter.leaves, rest),
                None => (&mut filter.takes, given),
            };
            list.push(Entry::parse(given, text)?);
        }
        Ok(filter)
    }

    /// The same with `transport.rdma.gid_index`: a port serves only if it has an address at that place of its table, which may then be
    /// one that is not chosen by itself. `None`: if it has one that [`choose_gid`](super::choose_gid) takes.
    #[must_use]
    pub fn with_gid_index(self, gid_index: Option<u32>) -> Self {
        Self { gid_index, ..self }
    }

    /// What [`Self::with_gid_index`] was given.
    pub(super) fn gid_index(&self) -> Option<u32> {
        self.gid_index
    }

    /// Whether any NIC here is meant, if NICs are named at all.
    ///
    /// # Errors
    /// [`NicTreeError::NoSuchNic`] with the entries and the ports of the machine.
    pub fn check(&self, machine: &Machine) -> NicTreeResult<()> {
        if self.takes.is_empty() || self.unmatched(machine).len() < self.takes.len() {
            return Ok(());
        }
        let given = self.takes.iter().map(|entry| entry.text.as_str()).collect::<Vec<_>>().join(", ");
        let ports = machine
            .nics()
            .iter()
            .flat_map(|nic| nic.ports.iter().map(move |port| format!("{}:{}", nic.name, port.number)));
        let ports: Vec<String> = ports.collect();
        let present = if ports.is_empty() { "there is none".to_owned() } else { ports.join(", ") };
        Err(NicTreeError::NoSuchNic { given, present })
    }

    /// Entries without `^` that mean no port of this machine: machines of one job may differ.
    pub fn unmatched(&self, machine: &Machine) -> Vec<&str> {
        let means = |entry: &&Entry| {
            machine.nics().iter().any(|nic| nic.ports.iter().any(|port| entry.means(&nic.name, port.number)))
        };
        self.takes.iter().filter(|entry| !means(entry)).map(|entry| entry.text.as_str()).collect()
    }

    /// Whether a NIC without ports may be used, which no folder of the kernel shows: an interface by its name, say. Its port counts as 1.
    ///
    /// # Errors
    /// Why not.
    pub fn allows(&self, name: &str) -> Result<(), String> {
        match self.judge(name, 1) {
            Allowed::Refused(why) => Err(why),
            Allowed::Unnamed | Allowed::Named(_) => Ok(()),
        }
    }

    /// What the settings say of a port.
    pub(super) fn judge(&self, nic: &str, port: u32) -> Allowed {
        if let Some(entry) = self.leaves.iter().find(|entry| entry.means(nic, port)) {
            return Allowed::Refused(format!("left out by {:?} in transport.rdma.nics", entry.text));
        }
        match self.takes.iter().find(|entry| entry.means(nic, port)) {
            Some(entry) => Allowed::Named(entry.text.clone()),
            None if self.takes.is_empty() => Allowed::Unnamed,
            None => Allowed::Refused("not named in transport.rdma.nics".to_owned()),
        }
    }
}

impl Entry {
    /// `text` is what follows the `^`.
    fn parse(given: &str, text: &str) -> NicTreeResult<Self> {
        let wrong = |problem| NicTreeError::Entry { given: given.to_owned(), problem };
        let (name, port) = match text.split_once(':') {
            None => (text, None),
            Some((name, port)) => {
                let plain = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
                let number = plain.then(|| port.parse::<u32>().ok()).flatten();
                let number = number.filter(|number| *number > 0);
                (name, Some(number.ok_or_else(|| wrong("the port is no number from 1 on"))?))
            }
        };
        let (name, whole) = match name.strip_prefix('=') {
            Some(name) => (name, true),
            None => (name, false),
        };
        if name.is_empty() {
            return Err(wrong("the name is missing"));
        }
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.')) {
            return Err(wrong("a name has letters, digits, '_', '-' and '.'"));
        }
        Ok(Self { text: given.to_owned(), name: name.to_owned(), whole, port })
    }

    fn means(&self, nic: &str, port: u32) -> bool {
        if self.port.is_some_and(|own| own != port) {
            return false;
        }
        let Some(rest) = nic.strip_prefix(self.name.as_str()) else { return false };
        let digit = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit());
        let cut = digit(self.name.chars().last()) && digit(rest.chars().next());
        rest.is_empty() || (!self.whole && !cut)
    }
}
