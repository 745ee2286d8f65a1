//! The tests of this crate, as one binary: a crate is linked once, and its tests run side by side.

mod common;
mod conformance;
mod faulty;
mod hostile;
mod hosts;
mod launcher;
mod leaks;
mod process;
mod tcp;
