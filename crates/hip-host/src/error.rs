//! Why a machine could not be made.

/// An error of [`HostMachine::new`](crate::HostMachine::new). Errors of the HIP functions are
/// [`HipError`](anabranch_hip::HipError) codes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("wave width {width} is not one of 1, 4, 32, 64")]
    WaveWidth {
        /// What was asked for, lanes.
        width: u32,
    },
    #[error("{field} is {value}, outside {least}..={most}")]
    Range {
        /// The field of [`HostConfig`](crate::HostConfig).
        field: &'static str,
        value: u64,
        least: u64,
        most: u64,
    },
    /// The address space for the lanes' stacks could not be reserved.
    #[error("cannot reserve {bytes} bytes of address space for lane stacks")]
    Reserve {
        bytes: usize,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot start worker thread {worker}")]
    Thread {
        /// Which worker, from 0.
        worker: usize,
        #[source]
        source: std::io::Error,
    },
    /// The process could not read its own entry under `/proc`, without which memory cannot be shared.
    #[error("cannot read the process's start time from /proc/self/stat")]
    Process {
        #[source]
        source: std::io::Error,
    },
}
