//! The NICs of a machine, and which of them serves a GPU. Nothing here opens a NIC.
//!
//! [`Machine::read`] turns the kernel's folders (`class/infiniband` and the PCI devices behind it) into plain data;
//! [`NicFilter`] is what the settings allow; [`assign`] says for every GPU which port it uses, and of every other port why it does
//! not; [`choose_gid`] picks the address. The last two are functions of their arguments and nothing else, so that all ranks of a
//! machine come to the same answer without talking to each other.

mod assign;
mod chosen;
mod config;
mod distance;
mod error;
mod filter;
mod gid;
mod libraries;
mod machine;
mod pci;
mod port;
mod rank;
mod read;

pub use anabranch_transport::PciAddress;
pub use assign::{Assignment, Considered, PortId, assign};
pub use chosen::ChosenPort;
pub use config::RdmaConfig;
pub use distance::{Distance, PciLocation};
pub use error::{NicTreeError, NicTreeResult};
pub use filter::NicFilter;
pub use gid::{Gid, GidChoice, GidError, GidKind, choose_gid};
pub use libraries::{LibraryStatus, NicLibrary, find_libraries};
pub use machine::{Machine, Nic};
pub use pci::PciPath;
pub use port::{LinkLayer, Port, PortState};
pub use rank::assign_to_rank;
pub use read::SYSTEM_FOLDER;
