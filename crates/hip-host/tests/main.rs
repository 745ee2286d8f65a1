//! The tests of this crate, as one binary: a crate is linked once, and its tests run side by side.

mod common;
mod engines;
mod graphs;
mod handles;
mod kernels;
mod lifetime;
mod memory;
mod processes;
mod seeded_machine;
mod streams;
