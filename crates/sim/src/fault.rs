//! What goes wrong in a run of a world, as words of a command line.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use anabranch_hip::HipError;
use anabranch_hip_host::seeded::{Fault as MachineFault, Loss};

/// One thing that goes wrong, of the machine or of the link to the rendezvous. `docs/simulation.md` has the words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The machine's.
    Machine(MachineFault),
    /// A rank's link to the rendezvous is cut before its `call`-th call, counted from 0.
    Cut {
        /// Who.
        rank: u32,
        /// When.
        call: u64,
    },
    /// Each call of a rank to the rendezvous is late by a time below this.
    Slow {
        /// Who.
        rank: u32,
        /// Below which time.
        by: Duration,
    },
}

/// Words that are no fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{given:?} is no fault; written are kill:RANK@PRIMITIVE, stall:RANK@PRIMITIVE:TIME, lose:FROM>TO@STORE or \
     lose:FROM>TO~PARTS-OF-256 (with :told, the sender learns of it), repeat:RANK@FLAG, fail:RANK@CALL:CODE \
     (out-of-memory, invalid-handle, launch-failure or a number), cut:RANK@CALL, slow:RANK:TIME; a TIME is like 5ms"
)]
pub struct FaultWords {
    given: String,
}

/// Codes that have words here.
const CODES: [(&str, HipError); 3] = [
    ("out-of-memory", HipError::OUT_OF_MEMORY),
    ("invalid-handle", HipError::INVALID_HANDLE),
    ("launch-failure", HipError::LAUNCH_FAILURE),
];

/// Units of time, the largest first.
const UNITS: [(&str, u64); 4] = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];

impl Fault {
    /// Every rank that it names.
    pub fn ranks(&self) -> Vec<u32> {
        match *self {
            Self::Machine(MachineFault::LoseStore { from, to, .. }) => vec![from, to],
            Self::Machine(
                MachineFault::Kill { rank, .. }
                | MachineFault::Stall { rank, .. }
                | MachineFault::FailCall { rank, .. }
                | MachineFault::RepeatFlag { from: rank, .. },
            )
            | Self::Cut { rank, .. }
            | Self::Slow { rank, .. } => vec![rank],
            // Faults that later machines may have name nobody here.
            Self::Machine(_) => Vec::new(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Machine(MachineFault::Kill { rank, at }) => write!(f, "kill:{rank}@{at}"),
            Self::Machine(MachineFault::Stall { rank, at, ns }) => {
                write!(f, "stall:{rank}@{at}:{}", time_text(ns))
            }
            Self::Machine(MachineFault::LoseStore { from, to, which, told }) => {
                write!(f, "lose:{from}>{to}")?;
                match which {
                    Loss::Nth(nth) => write!(f, "@{nth}")?,
                    Loss::Chance(parts) => write!(f, "~{parts}")?,
                }
                f.write_str(if told { ":told" } else { "" })
            }
            Self::Machine(MachineFault::RepeatFlag { from, nth }) => write!(f, "repeat:{from}@{nth}"),
            Self::Machine(MachineFault::FailCall { rank, nth, code }) => {
                write!(f, "fail:{rank}@{nth}:")?;
                match CODES.iter().find(|(_, known)| *known == code) {
                    Some((word, _)) => f.write_str(word),
                    None => write!(f, "{}", code.0),
                }
            }
            Self::Machine(other) => write!(f, "{other:?}"),
            Self::Cut { rank, call } => write!(f, "cut:{rank}@{call}"),
            Self::Slow { rank, by } => {
                write!(f, "slow:{rank}:{}", time_text(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
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
    let machine = |fault| Some(Fault::Machine(fault));
    let place = |text: &str| -> Option<(u32, u64)> {
        let (rank, at) = text.split_once('@')?;
        Some((rank.parse().ok()?, at.parse().ok()?))
    };
    match kind {
        "kill" => place(rest).and_then(|(rank, at)| machine(MachineFault::Kill { rank, at })),
        "repeat" => place(rest).and_then(|(from, nth)| machine(MachineFault::RepeatFlag { from, nth })),
        "cut" => place(rest).map(|(rank, call)| Fault::Cut { rank, call }),
        "slow" => {
            let (rank, time) = rest.split_once(':')?;
            Some(Fault::Slow { rank: rank.parse().ok()?, by: Duration::from_nanos(time_of(time)?) })
        }
        "stall" => {
            let (at, time) = rest.split_once(':')?;
            let ((rank, at), ns) = (place(at)?, time_of(time)?);
            machine(MachineFault::Stall { rank, at, ns })
        }
        "fail" => {
            let (at, code) = rest.split_once(':')?;
            let (rank, nth) = place(at)?;
            let named = CODES.iter().find(|(word, _)| *word == code).map(|(_, code)| *code);
            let code = named.or_else(|| code.parse().ok().map(HipError))?;
            machine(MachineFault::FailCall { rank, nth, code })
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
            machine(MachineFault::LoseStore { from, to, which, told })
        }
        _ => None,
    }
}

fn time_text(ns: u64) -> String {
    let fits = |(_, unit): &&(&str, u64)| ns.is_multiple_of(*unit);
    UNITS.iter().find(fits).map_or_else(String::new, |(word, unit)| format!("{}{word}", ns / unit))
}

fn time_of(text: &str) -> Option<u64> {
    let digits = text.find(|next: char| !next.is_ascii_digit())?;
    let (number, word) = text.split_at(digits);
    let (_, unit) = UNITS.iter().find(|(unit, _)| *unit == word)?;
    number.parse::<u64>().ok()?.checked_mul(*unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_written_as_they_are_read() {
        for text in [
            "kill:1@37",
            "stall:0@12:5ms",
            "stall:0@12:1500us",
            "stall:2@0:0s",
            "lose:0>1@3",
            "lose:0>1~8:told",
            "lose:2>1@0:told",
            "repeat:0@2",
            "fail:2@5:out-of-memory",
            "fail:2@5:700",
            "cut:1@4",
            "slow:1:3ms",
        ] {
            assert_eq!(text.parse::<Fault>().map(|fault| fault.to_string()), Ok(text.to_owned()));
        }
        let fail = MachineFault::FailCall { rank: 1, nth: 2, code: HipError::LAUNCH_FAILURE };
        assert_eq!("fail:1@2:719".parse::<Fault>(), Ok(Fault::Machine(fail)), "a number is a code too");
        assert_eq!("lose:0>2@1".parse::<Fault>().map(|fault| fault.ranks()), Ok(vec![0, 2]));
    }

    #[test]
    fn other_words_are_refused_with_what_there_is() {
        for text in ["", "kill", "kill:1", "kill:x@1", "stall:0@1", "stall:0@1:5", "stall:0@1:5min"] {
            let refused = text.parse::<Fault>().unwrap_err().to_string();
            assert!(refused.starts_with(&format!("{text:?} is no fault; written are kill:")), "{refused}");
        }
        for text in ["lose:0@1", "lose:0>1~257", "fail:0@1:odd", "slow:1", "slow:1:99999999999s", "die:1@1"] {
            assert!(text.parse::<Fault>().is_err(), "{text}");
        }
    }
}
