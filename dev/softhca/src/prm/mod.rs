//! Formats of the device, by the programmer's reference manual of ConnectX (PRM): entries, completions, commands.

pub(crate) mod completion;
pub(crate) mod entry;
pub(crate) mod field;

/// Syndromes of completions with an error: `MLX5_CQE_SYNDROME_*` of rdma-core's `mlx5dv.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Syndrome(pub(crate) u8);

impl Syndrome {
    pub(crate) const LOCAL_LENGTH: Self = Self(0x01);
    pub(crate) const LOCAL_QP_OPERATION: Self = Self(0x02);
    pub(crate) const LOCAL_PROTECTION: Self = Self(0x04);
    pub(crate) const FLUSHED: Self = Self(0x05);
    pub(crate) const REMOTE_INVALID_REQUEST: Self = Self(0x12);
    pub(crate) const REMOTE_ACCESS: Self = Self(0x13);
    pub(crate) const TRANSPORT_RETRY_EXCEEDED: Self = Self(0x15);
}
