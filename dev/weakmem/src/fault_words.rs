//! Faults as words of a command line or a configuration.

use core::fmt;
use core::str::FromStr;

use anabranch_hip::HipError;

use super::fault::{Fault, Loss};

/// Words that are no fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no fault; written are {}", Self::FORMS)]
pub struct FaultWords {
    given: String,
}

impl FaultWords {
    /// How the faults of a machine are written.
    pub const FORMS: &str = "kill:RANK@PRIMITIVE, stall:RANK@PRIMITIVE:TIME, lose:FROM>TO@STORE or \
                             lose:FROM>TO~PARTS-OF-256 (with :told, the sender learns of it), repeat:RANK@FLAG, \
                             fail:RANK@CALL:CODE (out-of-memory, invalid-handle, launch-failure or a number); a TIME is \
                             like 5ms";
}

/// Codes that have words here.
const CODES: [(&str, HipError); 3] = [
    ("out-of-memory", HipError::OUT_OF_MEMORY),
    ("invalid-handle", HipError::INVALID_HANDLE),
    ("launch-failure", HipError::LAUNCH_FAILURE),
];

/// Units of time, the largest first.
const UNITS: [(&str, u64); 4] = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Kill { rank, at } => write!(f, "kill:{rank}@{at}"),
            Self::Stall { rank, at, ns } => write!(f, "stall:{rank}@{at}:{}", nanoseconds_text(ns)),
            Self::LoseStore { from, to, which, told } => {
                write!(f, "lose:{from}>{to}")?;
                match which {
                    Loss::Nth(nth) => write!(f, "@{nth}")?,
                    Loss::Chance(parts) => write!(f, "~{parts}")?,
                }
                f.write_str(if told { ":told" } else { "" })
            }
            Self::RepeatFlag { from, nth } => write!(f, "repeat:{from}@{nth}"),
            Self::FailCall { rank, nth, code } => {
                write!(f, "fail:{rank}@{nth}:")?;
                match CODES.iter().find(|(_, known)| *known == code) {
                    Some((word, _)) => f.write_str(word),
                    None => write!(f, "{}", code.0),
                }
            }
        }
    }
}

impl FromStr for Fault {
    type Err = FaultWords;

    fn from_str(text: &str) -> Result<Self, FaultWords> {
        parse(text).ok_or_else(|| FaultWords { given: text.to_owned() })
    }
}

fn parse(text: &str) -> Option<Fault> {
    let (kind, rest) = text.split_once(':')?;
    let place = |text: &str| -> Option<(u32, u64)> {
        let (rank, at) = text.split_once('@')?;
        Some((rank.parse().ok()?, at.parse().ok()?))
    };
    match kind {
        "kill" => place(rest).map(|(rank, at)| Fault::Kill { rank, at }),
        "repeat" => place(rest).map(|(from, nth)| Fault::RepeatFlag { from, nth }),
        "stall" => {
            let (at, time) = rest.split_once(':')?;
            let ((rank, at), ns) = (place(at)?, nanoseconds_of(time)?);
            Some(Fault::Stall { rank, at, ns })
        }
        "fail" => {
            let (at, code) = rest.split_once(':')?;
            let (rank, nth) = place(at)?;
            let named = CODES.iter().find(|(word, _)| *word == code).map(|(_, code)| *code);
            let code = named.or_else(|| code.parse().ok().map(HipError))?;
            Some(Fault::FailCall { rank, nth, code })
        }
        "lose" => {
            let (way, told) = rest.strip_suffix(":told").map_or((rest, false), |way| (way, true));
            let (from, rest) = way.split_once('>')?;
            let (to, which) = if let Some((to, nth)) = rest.split_once('@') {
                (to, Loss::Nth(nth.parse().ok()?))
            } else {
                let (to, parts) = rest.split_once('~')?;
                (to, Loss::Chance(parts.parse().ok().filter(|parts| *parts <= 256)?))
            };
            let (from, to) = (from.parse().ok()?, to.parse().ok()?);
            Some(Fault::LoseStore { from, to, which, told })
        }
        _ => None,
    }
}

/// A time as faults are written: the largest unit in which it is whole.
pub fn nanoseconds_text(ns: u64) -> String {
    let fits = |(_, unit): &&(&str, u64)| ns.is_multiple_of(*unit);
    UNITS.iter().find(fits).map_or_else(String::new, |(word, unit)| format!("{}{word}", ns / unit))
}

/// The nanoseconds of a time like `5ms`; `None` for other words and for more than 64 bits hold.
pub fn nanoseconds_of(text: &str) -> Option<u64> {
    let digits = text.find(|next: char| !next.is_ascii_digit())?;
    let (number, word) = text.split_at(digits);
    let (_, unit) = UNITS.iter().find(|(unit, _)| *unit == word)?;
    number.parse::<u64>().ok()?.checked_mul(*unit)
}
