//! Programs of NCCL on the host runtime, through the shared library, in processes of their own.
#![cfg(test)]
#![expect(clippy::float_cmp, reason = "the values are exact")]

mod captures;
mod collectives;
mod common;
mod ends;
mod groups;
mod lifecycle;
mod names;
mod program;
mod steps;
