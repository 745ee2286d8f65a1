//! The kernel's interface to verbs: commands that are written to `/dev/infiniband/uverbsN`, methods that are called by `ioctl`.

pub(crate) mod abi;
pub(crate) mod commands;
pub(crate) mod methods;

use bytemuck::{Pod, Zeroable};

/// A structure at the begin of some bytes; what is missing is zero, as for the kernel.
fn read<T: Pod + Zeroable>(bytes: &[u8]) -> T {
    let mut value = T::zeroed();
    let size = size_of::<T>().min(bytes.len());
    bytemuck::bytes_of_mut(&mut value)[..size].copy_from_slice(&bytes[..size]);
    value
}

#[cfg(test)]
mod tests;
