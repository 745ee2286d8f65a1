//! A ConnectX NIC in software. Preloaded into a program, it answers for `/dev/infiniband/uverbsN` below the unmodified libibverbs and
//! libmlx5: it takes the kernel's part (the uverbs commands, mlx5's driver data, DEVX) and the device's (it reads the queue
//! entries that the program writes, moves the bytes, and writes completions). README.md says how to run it.
//!
//! It shares no code with the crates that it tests, and must not: layouts come from the kernel's headers and the names of
//! Linux's `mlx5_ifc.h`, not from `anabranch-transport-rdma`.

mod controls;
mod devx;
mod driver;
#[cfg(not(test))]
mod hooks;
mod nic;
mod prm;
mod uverbs;
mod violations;

/// An error number of the C library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

/// Prints a line to the standard error output.
#[expect(clippy::print_stderr, reason = "a preloaded library has no other way to report")]
pub(crate) fn report(text: std::fmt::Arguments<'_>) {
    eprintln!("softhca: {text}");
}
