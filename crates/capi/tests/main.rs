//! The C interface, from C: programs are built with the system's compilers, and run as ranks on the `host` runtime.

mod common;
mod header;
mod install;
mod programs;
