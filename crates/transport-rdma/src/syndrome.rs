//! What NICs say of requests that failed: one table of numbers for each provider, and one of words.

use core::ffi::c_uint;

use crate::bindings::{
    IBV_WC_BAD_RESP_ERR, IBV_WC_FATAL_ERR, IBV_WC_GENERAL_ERR, IBV_WC_LOC_ACCESS_ERR, IBV_WC_LOC_LEN_ERR,
    IBV_WC_LOC_PROT_ERR, IBV_WC_LOC_QP_OP_ERR, IBV_WC_MW_BIND_ERR, IBV_WC_REM_ABORT_ERR,
    IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_OP_ERR, IBV_WC_RESP_TIMEOUT_ERR,
    IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_WR_FLUSH_ERR,
};
use crate::provider::Provider;

/// Why a request failed, for every provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    LocalLength,
    LocalOperation,
    LocalProtection,
    Flushed,
    WindowBind,
    BadResponse,
    LocalAccess,
    RemoteInvalidRequest,
    RemoteAccess,
    RemoteOperation,
    RetriesExceeded,
    ReceiverNotReady,
    RemoteAbort,
    Fatal,
    ResponseTimeout,
    General,
}

impl Failure {
    const fn words(self) -> &'static str {
        match self {
            Self::LocalLength => "local length error",
            Self::LocalOperation => "local queue pair operation error",
            Self::LocalProtection => "local protection error",
            Self::Flushed => "flushed, as the queue pair had failed before",
            Self::WindowBind => "memory window bind error",
            Self::BadResponse => "bad response",
            Self::LocalAccess => "local access error",
            Self::RemoteInvalidRequest => "invalid request at the peer",
            Self::RemoteAccess => "access refused by the peer's NIC",
            Self::RemoteOperation => "operation error at the peer",
            Self::RetriesExceeded => "transport retries exceeded: the peer's NIC does not answer",
            Self::ReceiverNotReady => {
                "receiver-not-ready retries exceeded: nothing is posted to the peer's receive queue"
            }
            Self::RemoteAbort => "aborted by the peer",
            Self::Fatal => "fatal error of the NIC",
            Self::ResponseTimeout => "response timeout: no answer within the patience",
            Self::General => "general error",
        }
    }
}

/// The number in a fault record of [`crate::device::PHASE_NIC_ERROR`] (`seen`) in words.
///
/// mlx5: `vendor_syndrome << 8 | syndrome` of an error completion, after rdma-core's `MLX5_CQE_SYNDROME_*`; posted by the host: a
/// verbs work completion status (`ibv_wc_status`). Others as numbers.
pub fn syndrome_words(provider: Provider, seen: u64) -> String {
    let (vendor, syndrome) = (seen >> 8, seen & 0xff);
    match provider {
        Provider::Mlx5 => {
            let words = mlx5(syndrome).map_or("an unknown syndrome", Failure::words);
            format!("{words} (syndrome {syndrome:#04x}, vendor's {vendor:#04x})")
        }
        Provider::Posted => format!("{} (verbs status {syndrome})", status_words(syndrome as c_uint)),
        Provider::Bnxt | Provider::Ionic => format!("status {seen:#x}"),
    }
}

/// What a status of verbs says (`enum ibv_wc_status`).
pub(crate) fn status_words(status: c_uint) -> &'static str {
    verbs(status).map_or("an unknown status", Failure::words)
}

/// `MLX5_CQE_SYNDROME_*` of rdma-core's `mlx5dv.h`.
const fn mlx5(syndrome: u64) -> Option<Failure> {
    Some(match syndrome {
        0x01 => Failure::LocalLength,
        0x02 => Failure::LocalOperation,
        0x04 => Failure::LocalProtection,
        0x05 => Failure::Flushed,
        0x06 => Failure::WindowBind,
        0x10 => Failure::BadResponse,
        0x11 => Failure::LocalAccess,
        0x12 => Failure::RemoteInvalidRequest,
        0x13 => Failure::RemoteAccess,
        0x14 => Failure::RemoteOperation,
        0x15 => Failure::RetriesExceeded,
        0x16 => Failure::ReceiverNotReady,
        0x22 => Failure::RemoteAbort,
        _ => return None,
    })
}

/// `enum ibv_wc_status` of rdma-core's `verbs.h`, meanings after the manual page `ibv_poll_cq(3)`.
const fn verbs(status: c_uint) -> Option<Failure> {
    Some(match status {
        IBV_WC_LOC_LEN_ERR => Failure::LocalLength,
        IBV_WC_LOC_QP_OP_ERR => Failure::LocalOperation,
        IBV_WC_LOC_PROT_ERR => Failure::LocalProtection,
        IBV_WC_WR_FLUSH_ERR => Failure::Flushed,
        IBV_WC_MW_BIND_ERR => Failure::WindowBind,
        IBV_WC_BAD_RESP_ERR => Failure::BadResponse,
        IBV_WC_LOC_ACCESS_ERR => Failure::LocalAccess,
        IBV_WC_REM_INV_REQ_ERR => Failure::RemoteInvalidRequest,
        IBV_WC_REM_ACCESS_ERR => Failure::RemoteAccess,
        IBV_WC_REM_OP_ERR => Failure::RemoteOperation,
        IBV_WC_RETRY_EXC_ERR => Failure::RetriesExceeded,
        IBV_WC_RNR_RETRY_EXC_ERR => Failure::ReceiverNotReady,
        IBV_WC_REM_ABORT_ERR => Failure::RemoteAbort,
        IBV_WC_FATAL_ERR => Failure::Fatal,
        IBV_WC_RESP_TIMEOUT_ERR => Failure::ResponseTimeout,
        IBV_WC_GENERAL_ERR => Failure::General,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_peer_has_one_status_for_every_provider() {
        let said = [syndrome_words(Provider::Mlx5, 0x8115), syndrome_words(Provider::Posted, 12)];
        assert_eq!(
            said,
            [
                "transport retries exceeded: the peer's NIC does not answer (syndrome 0x15, vendor's 0x81)",
                "transport retries exceeded: the peer's NIC does not answer (verbs status 12)"
            ]
        );
        assert_eq!(syndrome_words(Provider::Bnxt, 0x15), "status 0x15");
        assert!(syndrome_words(Provider::Mlx5, 0x77).starts_with("an unknown syndrome"));
        assert!(syndrome_words(Provider::Posted, 0x77).starts_with("an unknown status"));
    }

    #[test]
    fn no_two_numbers_of_a_provider_mean_the_same() {
        let told = |failures: Vec<Failure>| {
            let mut words: Vec<_> = failures.into_iter().map(Failure::words).collect();
            let count = words.len();
            words.sort_unstable();
            words.dedup();
            assert_eq!(words.len(), count);
            count
        };
        assert_eq!(told((0..256).filter_map(mlx5).collect()), 13);
        assert_eq!(told((0..256).filter_map(verbs).collect()), 16);
    }
}
