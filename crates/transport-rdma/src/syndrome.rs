//! What NICs say of requests that failed, in words.

use crate::provider::Provider;

/// The number in a fault record of [`crate::device::PHASE_NIC_ERROR`] (`seen`) in words.
///
/// mlx5: `vendor_syndrome << 8 | syndrome` of an error completion, after rdma-core's `MLX5_CQE_SYNDROME_*`; posted by the host: a
/// verbs work completion status (`ibv_wc_status`). Others as numbers.
pub fn syndrome_words(provider: Provider, seen: u64) -> String {
    let (vendor, syndrome) = (seen >> 8, seen & 0xff);
    match provider {
        Provider::Mlx5 => {
            let word = mlx5(syndrome).unwrap_or("an unknown syndrome");
            format!("{word} (syndrome {syndrome:#04x}, vendor's {vendor:#04x})")
        }
        Provider::Posted => {
            let word = verbs(syndrome).unwrap_or("an unknown status");
            format!("{word} (verbs status {syndrome})")
        }
        Provider::Bnxt | Provider::Ionic => format!("status {seen:#x}"),
    }
}

const fn mlx5(syndrome: u64) -> Option<&'static str> {
    Some(match syndrome {
        0x01 => "local length error",
        0x02 => "local queue pair operation error",
        0x04 => "local protection error",
        0x05 => "flushed, as the queue pair had failed before",
        0x06 => "memory window bind error",
        0x10 => "bad response",
        0x11 => "local access error",
        0x12 => "invalid request at the peer",
        0x13 => "access refused by the peer's NIC",
        0x14 => "operation error at the peer",
        0x15 => "transport retries exceeded: the peer's NIC does not answer",
        0x16 => "receiver-not-ready retries exceeded",
        0x22 => "aborted by the peer",
        _ => return None,
    })
}

const fn verbs(status: u64) -> Option<&'static str> {
    Some(match status {
        1 => "local length error",
        2 => "local queue pair operation error",
        3 => "local end-to-end context operation error",
        4 => "local protection error",
        5 => "flushed, as the queue pair had failed before",
        6 => "memory window bind error",
        7 => "bad response",
        8 => "local access error",
        9 => "invalid request at the peer",
        10 => "access refused by the peer's NIC",
        11 => "operation error at the peer",
        12 => "transport retries exceeded: the peer's NIC does not answer",
        13 => "receiver-not-ready retries exceeded",
        16 => "aborted by the peer",
        19 => "fatal error",
        20 => "response timeout",
        21 => "general error",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_peer_has_one_name_whoever_says_so() {
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
    }
}
