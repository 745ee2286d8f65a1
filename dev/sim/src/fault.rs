//! What goes wrong in a run of a world, as words of a command line.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use anabranch_weakmem::{
    Fault as MachineFault, FaultWords as MachineWords, nanoseconds_of, nanoseconds_text,
};

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

/// Words that are no fault of a world.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no fault; written are {}; and cut:RANK@CALL, slow:RANK:TIME", MachineWords::FORMS)]
pub struct FaultWords {
    given: String,
}

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
            // Faults that later machines may have name no rank here.
            Self::Machine(_) => Vec::new(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Machine(fault) => fault.fmt(f),
            Self::Cut { rank, call } => write!(f, "cut:{rank}@{call}"),
            Self::Slow { rank, by } => {
                write!(
                    f,
                    "slow:{rank}:{}",
                    nanoseconds_text(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX))
                )
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
    match kind {
        "cut" => {
            let (rank, call) = rest.split_once('@')?;
            Some(Fault::Cut { rank: rank.parse().ok()?, call: call.parse().ok()? })
        }
        "slow" => {
            let (rank, time) = rest.split_once(':')?;
            Some(Fault::Slow { rank: rank.parse().ok()?, by: Duration::from_nanos(nanoseconds_of(time)?) })
        }
        _ => text.parse().ok().map(Fault::Machine),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_hip::HipError;

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
