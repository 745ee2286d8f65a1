//! What `anabranch sim --list` says: the protocols and the mistakes that can be built in.

use anabranch_hip_jit::PRELUDE;

use crate::Protocol;

/// What a protocol is, in a sentence.
pub const fn about(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Ep => {
            "slotted dispatch, experts, and the combine that pulls; --staged for a caller's buffer"
        }
        Protocol::Barrier => "the team barrier, between kernels that write and kernels that read",
        Protocol::StreamSignal => "signals and waits in the order of a stream, between kernels",
        Protocol::PutQuiet => {
            "put, then quiet or fence, then signal, over slots used again; --staged for the next rank only"
        }
        Protocol::Gather => "waits for several signals, with data behind them",
        Protocol::DeviceBarrier => "barriers within a kernel; --staged for team_barrier",
        Protocol::Atomics => "atomic operations on words that all ranks work on",
        Protocol::Ping => "a payload and a flag to and fro between two ranks",
        Protocol::World => {
            "join, dispatch, experts, combine and leave of rank threads, with --fault; --staged as for ep"
        }
        Protocol::PutSignal => "put with signal, and the wait for it, of the device API",
    }
}

/// A mistake that `PRELUDE_MUTANT` builds into the prelude.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mutant {
    /// The parameter's value.
    pub number: u32,
    /// Its name.
    pub name: &'static str,
    /// Where it is, and what; empty where the name says it.
    pub about: &'static str,
}

/// All mistakes, read from `anabranch/mutant.h`, which is their only list.
pub fn mutants() -> Vec<Mutant> {
    let text =
        PRELUDE.iter().find(|header| header.name == "anabranch/mutant.h").map_or("", |header| header.text);
    text.lines().filter_map(mutant_of).collect()
}

/// `MUTANT_NAME = 3, // where: what`; none, and the name of the last, are no mistakes.
fn mutant_of(line: &'static str) -> Option<Mutant> {
    let (name, rest) = line.trim().strip_prefix("MUTANT_")?.split_once(" = ")?;
    let (number, rest) = rest.split_once(',')?;
    let number = number.parse().ok().filter(|_| !matches!(name, "NONE" | "LAST"))?;
    let about = rest.trim().strip_prefix("//").unwrap_or_default().trim();
    Some(Mutant { number, name, about })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mutants_are_those_of_the_header() {
        let text = PRELUDE.iter().find(|header| header.name == "anabranch/mutant.h").unwrap().text;
        let mutants = mutants();
        // All but those that are no mistake: none, and the name of the last.
        assert_eq!(mutants.len(), text.matches("    MUTANT_").count() - 2, "{mutants:?}");
        assert!(mutants.is_sorted_by(|a, b| a.number < b.number), "{mutants:?}");
        let last = mutants.last().unwrap();
        assert!(last.number >= 8 && text.contains(&format!("MUTANT_LAST = {},", last.number)));
        let (name, about) = (mutants[3].name, mutants[3].about);
        assert!(
            name == "EPOCH_LOOSE" && about.ends_with("the epoch before is good enough"),
            "{name}: {about}"
        );
    }
}
