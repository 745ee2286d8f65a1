//! Handles by which other processes of the same user map this process's device memory.
//!
//! A handle says which process holds the memory's file open under which number; the opener finds the file
//! through `/proc`. What it finds must be the very file that the handle was made for, so that a handle that has
//! outlived its memory or its process is an error and never other memory.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use anabranch_hip::HipError;
use anabranch_hip::types::HipIpcMemHandle;
use rustix::fs::{Mode, OFlags, fstat, open};

use crate::memory::regions::Region;

const MAGIC: [u8; 8] = *b"anaIPC01";

/// A process, distinguished from later ones with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    id: u32,
    /// Clock ticks since the system started.
    started: u64,
}

impl Process {
    /// This process.
    pub(crate) fn current() -> std::io::Result<Self> {
        let id = std::process::id();
        Ok(Self { id, started: started(Path::new("/proc/self/stat"))? })
    }
}

/// Field 22 of a process's `stat`. The second field holds a name in parentheses that may contain anything.
fn started(stat: &Path) -> std::io::Result<u64> {
    let text = std::fs::read_to_string(stat)?;
    let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    fields
        .split_ascii_whitespace()
        .nth(19)
        .and_then(|field| field.parse().ok())
        .ok_or_else(|| std::io::Error::from(std::io::ErrorKind::InvalidData))
}

/// What a handle says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IpcHandle {
    process: Process,
    file: i32,
    pub(crate) device: u32,
    pub(crate) bytes: u64,
    inode: u64,
    file_system: u64,
}

impl IpcHandle {
    /// The handle of an allocation.
    ///
    /// # Errors
    /// `hipErrorInvalidValue` for memory without a file of its own.
    pub(crate) fn of(region: &Region, process: Process) -> Result<Self, HipError> {
        let file = region.file().ok_or(HipError::INVALID_VALUE)?;
        let status = fstat(file).map_err(|_| HipError::OPERATING_SYSTEM)?;
        Ok(Self {
            process,
            file: file.as_raw_fd(),
            device: region.device,
            bytes: region.bytes as u64,
            inode: status.st_ino,
            file_system: status.st_dev,
        })
    }

    pub(crate) fn is_of(&self, process: Process) -> bool {
        self.process == process
    }

    pub(crate) fn encode(&self) -> HipIpcMemHandle {
        let mut reserved = [0; 64];
        reserved[..8].copy_from_slice(&MAGIC);
        reserved[8..12].copy_from_slice(&self.process.id.to_le_bytes());
        reserved[12..16].copy_from_slice(&self.file.to_le_bytes());
        reserved[16..24].copy_from_slice(&self.process.started.to_le_bytes());
        reserved[24..32].copy_from_slice(&self.bytes.to_le_bytes());
        reserved[32..40].copy_from_slice(&self.inode.to_le_bytes());
        reserved[40..48].copy_from_slice(&self.file_system.to_le_bytes());
        reserved[48..52].copy_from_slice(&self.device.to_le_bytes());
        let sum = checksum(&reserved[..56]);
        reserved[56..].copy_from_slice(&sum.to_le_bytes());
        HipIpcMemHandle { reserved }
    }

    /// # Errors
    /// `hipErrorInvalidHandle` for bytes that no machine wrote.
    pub(crate) fn decode(handle: &HipIpcMemHandle) -> Result<Self, HipError> {
        let bytes = &handle.reserved;
        let word = |at: usize| {
            let mut raw = [0; 8];
            raw.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(raw)
        };
        if bytes[..8] != MAGIC || word(56) != checksum(&bytes[..56]) {
            return Err(HipError::INVALID_HANDLE);
        }
        Ok(Self {
            process: Process { id: word(8) as u32, started: word(16) },
            file: (word(8) >> 32) as i32,
            bytes: word(24),
            inode: word(32),
            file_system: word(40),
            device: word(48) as u32,
        })
    }

    /// Opens the memory's file.
    ///
    /// # Errors
    /// `hipErrorMapFailed` if the process or the allocation is gone, or belongs to another user.
    pub(crate) fn open(&self) -> Result<OwnedFd, HipError> {
        let stale = |why: &'static str| {
            tracing::warn!(process = self.process.id, why, "a memory handle cannot be opened");
            HipError::MAP_FAILED
        };
        let process = format!("/proc/{}", self.process.id);
        let alive = started(Path::new(&format!("{process}/stat"))).is_ok_and(|at| at == self.process.started);
        if !alive {
            return Err(stale("the exporting process is gone"));
        }
        let file = open(format!("{process}/fd/{}", self.file), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map_err(|_| stale("the exporting process has no such allocation, or is another user's"))?;
        let status = fstat(file.as_fd()).map_err(|_| stale("the allocation cannot be examined"))?;
        let same = status.st_ino == self.inode && status.st_dev == self.file_system;
        if !same || (status.st_size as u64) < self.bytes {
            return Err(stale("the allocation has been freed"));
        }
        Ok(file)
    }
}

/// FNV-1a: detects bytes that are no handle, nothing more.
fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
