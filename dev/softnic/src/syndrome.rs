//! How requests fail.

use std::fmt;

/// Why a request failed, as completions say it. Numbers are those of `MLX5_CQE_SYNDROME_*` in rdma-core's `mlx5dv.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Syndrome {
    /// More bytes than there may be.
    LocalLength = 0x01,
    /// The entry is not one.
    LocalQueueOperation = 0x02,
    /// A local range or key that is not registered.
    LocalProtection = 0x04,
    /// An earlier entry failed.
    Flushed = 0x05,
    /// The peer does not do such a request.
    RemoteInvalidRequest = 0x12,
    /// A remote range or key that is not registered.
    RemoteAccess = 0x13,
    /// The peer could not do it.
    RemoteOperation = 0x14,
    /// The peer does not answer.
    RetryExceeded = 0x15,
    /// The peer's receive queue is empty.
    ReceiverNotReady = 0x16,
}

impl Syndrome {
    /// Every syndrome.
    pub const ALL: [Self; 9] = [
        Self::LocalLength,
        Self::LocalQueueOperation,
        Self::LocalProtection,
        Self::Flushed,
        Self::RemoteInvalidRequest,
        Self::RemoteAccess,
        Self::RemoteOperation,
        Self::RetryExceeded,
        Self::ReceiverNotReady,
    ];

    /// The number that completions carry.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The syndrome of a number.
    pub fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|syndrome| syndrome.number() == number)
    }

    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::LocalLength => "local length error",
            Self::LocalQueueOperation => "local queue pair operation error",
            Self::LocalProtection => "local protection error",
            Self::Flushed => "flushed: an earlier entry failed",
            Self::RemoteInvalidRequest => "remote invalid request error",
            Self::RemoteAccess => "remote access error",
            Self::RemoteOperation => "remote operation error",
            Self::RetryExceeded => "transport retry counter exceeded",
            Self::ReceiverNotReady => "receiver-not-ready retry counter exceeded",
        }
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (syndrome {:#04x})", self.words(), self.number())
    }
}
