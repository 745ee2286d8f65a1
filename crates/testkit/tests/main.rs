//! The tests of this crate, as one binary: a crate is linked once, and its tests run side by side.

mod runner;
