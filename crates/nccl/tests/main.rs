//! Programs of NCCL on the host runtime, through the shared library, in processes of their own.

mod collectives;
mod common;
mod ends;
mod groups;
mod lifecycle;
mod names;
