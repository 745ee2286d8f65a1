//! Whose entries kernels write.

use std::fmt;

/// The format of a send queue. Kernels are compiled for one (`RDMA_PROVIDER`), the one that was found when the program started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum Provider {
    /// NVIDIA ConnectX (libmlx5).
    Mlx5 = 1,
    /// Broadcom Thor (`bnxt_re`).
    Bnxt = 2,
    /// AMD Pollara (ionic).
    Ionic = 3,
    /// Requests in memory of the host, which a thread of the host posts, by verbs or what a driver brings: for NICs whose queues or doorbells kernels cannot
    /// write.
    Posted = 4,
}

impl Provider {
    /// Every provider.
    pub const ALL: [Self; 4] = [Self::Mlx5, Self::Bnxt, Self::Ionic, Self::Posted];

    /// The number that kernels are compiled with (`RDMA_PROVIDER`); 0 there is none.
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// The word that reports use.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Mlx5 => "mlx5",
            Self::Bnxt => "bnxt_re",
            Self::Ionic => "ionic",
            Self::Posted => "posted by the host",
        }
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}
