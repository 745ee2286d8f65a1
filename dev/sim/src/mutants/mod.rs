//! Which mutant, check or argument holds each fence, flag, wait and atomic of the device sources.
//!
//! [`sites`] gives the table: plain data. [`scan`] finds the sites in a source. Tests compare both, so that a line cannot join or
//! leave a kernel without its row, and search every mutant until it is caught.

mod caught;
mod ccl;
mod ccl_fingerprint;
mod ccl_hops;
mod ccl_network;
mod ccl_pipes;
mod ep;
mod list;
mod prelude;
mod rdma;
mod scan;
mod sdma;
mod shmem;
mod table;

pub use caught::{By, CAUGHT, Caught, Search, TESTED, caught_in};
pub use list::{Mutant, mutant, mutants, units};
pub use scan::{Found, communicates, kernels, scan};
pub use table::{DEFINITIONS, HeldBy, KERNELS, Kind, Runs, Site, sites};
