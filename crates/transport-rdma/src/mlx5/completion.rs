//! What the collapsed completion queue entry says (`struct mlx5_cqe64` and `struct mlx5_err_cqe` of `mlx5dv.h`).
//!
//! Every completion overwrites the one before. When a queue pair fails, the first error completion is followed by one for each request that
//! is flushed, so that the last entry seldom says why. The NIC itself keeps the error: `QUERY_QP` gives it (`error_syndrome` of the context's
//! extension), which Linux prints for queue pairs that fail without a completion.

use crate::provider::Provider;
use crate::syndrome::syndrome_words;

/// Bytes of an entry, of either queue.
pub(super) const ENTRY: u64 = 64;
/// What completion entries are filled with: opcode 15, which says that nothing was written yet.
pub(super) const INVALID: u8 = 0xff;

const REQUESTER: u8 = 0;
const REQUESTER_ERROR: u8 = 13;
const RESPONDER_ERROR: u8 = 14;
/// `MLX5_CQE_SYNDROME_WR_FLUSH_ERR`.
const FLUSHED: u8 = 0x05;
/// `MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR`: a request of the peer's was refused here.
const LOCAL_ACCESS: u8 = 0x11;

type Entry = [u8; ENTRY as usize];

fn opcode(entry: &Entry) -> u8 {
    entry[63] >> 4
}

fn index(entry: &Entry) -> u16 {
    u16::from_be_bytes([entry[60], entry[61]])
}

/// The index of the first entry of the last request that was done; `None` before any was, and of an error.
pub(super) fn last_done(entry: &Entry) -> Option<u16> {
    (opcode(entry) == REQUESTER).then(|| index(entry))
}

/// The last completion of a queue pair that has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ErrorCompletion {
    syndrome: u8,
    vendor: u8,
    index: u16,
}

impl ErrorCompletion {
    /// `None` for a completion that is no error.
    pub(super) fn of(entry: &Entry) -> Option<Self> {
        let is_error = [REQUESTER_ERROR, RESPONDER_ERROR].contains(&opcode(entry));
        is_error.then(|| Self { syndrome: entry[55], vendor: entry[54], index: index(entry) })
    }

    /// Whether it says no more than that something else had failed before.
    fn is_flushed(self) -> bool {
        self.syndrome == FLUSHED
    }

    /// For people.
    fn words(self) -> String {
        format!("{} at entry {} (16 bits)", words(self.syndrome, self.vendor), self.index)
    }
}

fn words(syndrome: u8, vendor: u8) -> String {
    syndrome_words(Provider::Mlx5, u64::from(vendor) << 8 | u64::from(syndrome))
}

/// What the NIC reports about the error whose completion was overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstError {
    /// The syndromes, its own and the vendor's.
    Said { syndrome: u8, vendor: u8 },
    /// It answers, and has no error to report.
    Nothing,
    /// It refuses `QUERY_QP`.
    Refused,
    /// It has no `qp_error_syndrome`.
    Unsupported,
}

impl FirstError {
    /// What an answer to `QUERY_QP` says.
    pub(super) fn said(syndrome: u8, vendor: u8) -> Self {
        match syndrome {
            0 | FLUSHED => Self::Nothing,
            _ => Self::Said { syndrome, vendor },
        }
    }

    /// Whether the peer may know more: the error is not known here, or a request of the peer's was refused.
    fn is_consequence(self) -> bool {
        !matches!(self, Self::Said { syndrome, .. } if syndrome != LOCAL_ACCESS)
    }

    /// For people, with the last completion, which says that requests were flushed.
    fn words(self, last: ErrorCompletion) -> String {
        let unknown = |why: &str| {
            format!("{}; the completion of the first error was overwritten, and {why}", last.words())
        };
        match self {
            Self::Said { syndrome, vendor } => {
                let first = words(syndrome, vendor);
                format!(
                    "{first}, by QUERY_QP; later requests were flushed, the last at entry {} (16 bits)",
                    last.index
                )
            }
            Self::Nothing => unknown("QUERY_QP says nothing of it"),
            Self::Refused => unknown("the NIC refuses QUERY_QP"),
            Self::Unsupported => unknown("the NIC cannot say it (no qp_error_syndrome)"),
        }
    }
}

/// Why a queue pair stopped, as one look saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The completion of the first error itself.
    Seen(ErrorCompletion),
    /// A flush has overwritten it: the last completion, and what the NIC reports about the first error.
    Flushed(ErrorCompletion, FirstError),
}

impl Stop {
    /// By the last completion; `ask` asks the NIC where that says only that requests were flushed.
    pub(super) fn of(last: ErrorCompletion, ask: impl FnOnce() -> FirstError) -> Self {
        if last.is_flushed() { Self::Flushed(last, ask()) } else { Self::Seen(last) }
    }

    /// Whether the peer may know more ([`NicQueue::is_consequence`](crate::NicQueue::is_consequence)).
    pub(super) fn is_consequence(self) -> bool {
        match self {
            Self::Seen(first) => first.syndrome == LOCAL_ACCESS,
            Self::Flushed(_, first) => first.is_consequence(),
        }
    }

    /// For people.
    pub(super) fn words(self) -> String {
        match self {
            Self::Seen(first) => first.words(),
            Self::Flushed(last, first) => first.words(last),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(syndrome: u8, index: u16) -> ErrorCompletion {
        ErrorCompletion { syndrome, vendor: 0x88, index }
    }

    #[test]
    fn an_error_completion_has_words() {
        let mut entry = [INVALID; ENTRY as usize];
        assert_eq!((ErrorCompletion::of(&entry), last_done(&entry)), (None, None), "nothing was written yet");
        (entry[60], entry[61], entry[63]) = (0x01, 0x02, 0x01);
        assert_eq!((ErrorCompletion::of(&entry), last_done(&entry)), (None, Some(258)), "a request was done");
        (entry[54], entry[55], entry[63]) = (0x88, 0x13, 0xd1);
        let completion = ErrorCompletion::of(&entry).unwrap();
        assert_eq!((completion, last_done(&entry)), (error(0x13, 258), None));
        assert_eq!(
            completion.words(),
            "access refused by the peer's NIC (syndrome 0x13, vendor's 0x88) at entry 258 (16 bits)"
        );
        assert!(error(0x77, 0).words().starts_with("an unknown syndrome"));
    }

    #[test]
    fn the_first_error_comes_before_the_requests_that_were_flushed() {
        let last = error(FLUSHED, 9);
        let said = FirstError::said(0x12, 0x68);
        assert_eq!(
            said.words(last),
            "invalid request at the peer (syndrome 0x12, vendor's 0x68), by QUERY_QP; later requests were flushed, the last at entry 9 (16 bits)"
        );
        let flushed = "flushed, as the queue pair had failed before (syndrome 0x05, vendor's 0x88) at entry 9 (16 bits); ";
        for (first, why) in [
            (FirstError::said(0, 0), "QUERY_QP says nothing of it"),
            (FirstError::said(FLUSHED, 0x88), "QUERY_QP says nothing of it"),
            (FirstError::Refused, "the NIC refuses QUERY_QP"),
            (FirstError::Unsupported, "the NIC cannot say it (no qp_error_syndrome)"),
        ] {
            let words = first.words(last);
            assert!(words.starts_with(flushed) && words.ends_with(why), "{words}");
            assert!(first.is_consequence(), "{words}");
        }
        assert!(!said.is_consequence(), "a request of this rank was refused");
        assert!(FirstError::said(LOCAL_ACCESS, 0).is_consequence(), "a request of the peer's was refused");
        // The completion itself says the same.
        for (syndrome, is_consequence) in [(LOCAL_ACCESS, true), (0x13, false)] {
            let seen = Stop::of(error(syndrome, 9), || unreachable!("it is not flushed"));
            assert_eq!(seen.is_consequence(), is_consequence, "{syndrome:#x}");
            let asked = Stop::of(last, || FirstError::said(syndrome, 0));
            assert_eq!(asked.is_consequence(), is_consequence, "{syndrome:#x}");
        }
    }
}
