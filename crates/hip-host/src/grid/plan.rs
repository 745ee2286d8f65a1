//! A launch as it was asked for.

use std::sync::Arc;

use anabranch_hip::HipError;

use crate::config::{HostConfig, MAX_BLOCK_THREADS, MAX_LOCAL_BYTES};
use crate::grid::module::KernelEntry;

/// What a launch was given, frozen when it was put on a stream. Holding it keeps the kernel's code loaded.
#[derive(Debug)]
pub struct LaunchPlan {
    pub(crate) kernel: Arc<KernelEntry>,
    pub(crate) grid_blocks: u32,
    pub(crate) block_threads: u32,
    pub(crate) local_bytes: u32,
    /// The argument struct; words of 16 bytes, so that it is aligned for any member.
    pub(crate) arguments: Box<[u128]>,
}

impl LaunchPlan {
    /// A launch of so many blocks. `arguments` is the kernel's argument struct.
    ///
    /// # Panics
    /// If it has fewer bytes than the kernel's descriptor states.
    pub fn new(
        kernel: Arc<KernelEntry>,
        grid_blocks: u32,
        block_threads: u32,
        local_bytes: u32,
        arguments: Box<[u128]>,
    ) -> Self {
        assert!(size_of_val(&*arguments) >= kernel.argument_bytes as usize, "arguments are complete");
        Self { kernel, grid_blocks, block_threads, local_bytes, arguments }
    }

    /// The kernel.
    pub fn kernel(&self) -> &KernelEntry {
        &self.kernel
    }

    /// Blocks of the grid.
    pub fn grid_blocks(&self) -> u32 {
        self.grid_blocks
    }

    /// Threads of a block.
    pub fn block_threads(&self) -> u32 {
        self.block_threads
    }

    /// Checks the shape against the kernel and the machine.
    pub(crate) fn check(&self, config: &HostConfig) -> Result<(), HipError> {
        let most = MAX_BLOCK_THREADS.min(self.kernel.max_block_threads).min(config.lanes_per_device());
        if self.grid_blocks == 0 || self.block_threads == 0 || self.block_threads > most {
            return Err(HipError::INVALID_CONFIGURATION);
        }
        if self.local_bytes > MAX_LOCAL_BYTES {
            return Err(HipError::LAUNCH_OUT_OF_RESOURCES);
        }
        Ok(())
    }
}
