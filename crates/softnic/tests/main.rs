//! The tests of this crate, as one binary: a crate is linked once, and its tests run side by side.

mod common;
mod device;
mod entries;
mod nics;
mod other_entries;
mod processes;
mod sequences;
mod sockets;
mod strict;
