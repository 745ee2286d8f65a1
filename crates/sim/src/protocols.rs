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
        Protocol::PutSignal => "put with signal, and the wait for it, of the device API",
    }
}

/// A mistake that `PRELUDE_MUTANT` builds into the prelude.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mutant {
    /// The parameter's value.
    pub number: u32,
    /// Where it is, and what.
    pub about: &'static str,
}

/// All mistakes, read from `anabranch/mutant.h`, which is their only list.
pub fn mutants() -> Vec<Mutant> {
    let text =
        PRELUDE.iter().find(|header| header.name == "anabranch/mutant.h").map_or("", |header| header.text);
    text.lines().filter_map(mutant_of).collect()
}

/// `MUTANT_X = 3, // where: what`; the others of the enumeration have no comment.
fn mutant_of(line: &'static str) -> Option<Mutant> {
    let (_, rest) = line.trim().strip_prefix("MUTANT_")?.split_once(" = ")?;
    let (number, about) = rest.split_once("//")?;
    let number = number.trim().trim_end_matches(',').parse().ok()?;
    Some(Mutant { number, about: about.trim() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mutants_are_those_of_the_header() {
        let numbers: Vec<u32> = mutants().iter().map(|mutant| mutant.number).collect();
        let last = numbers.len() as u32;
        assert_eq!(numbers, (1..=last).collect::<Vec<_>>(), "none is missing");
        let text = PRELUDE.iter().find(|header| header.name == "anabranch/mutant.h").unwrap().text;
        assert!(last >= 8 && text.contains(&format!("MUTANT_LAST = {last},")), "{last}");
    }
}
