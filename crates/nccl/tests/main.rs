//! Programs of NCCL on the host runtime, through the shared library, in processes of their own.
#![cfg(test)]
#![expect(clippy::float_cmp, reason = "the values are exact")]

mod captures;
mod collectives;
mod common;
mod copies;
mod ends;
mod functions;
mod groups;
mod lifecycle;
mod many;
mod names;
mod orders;
mod program;
mod queries;
mod refusals;
mod steps;
mod windows;
