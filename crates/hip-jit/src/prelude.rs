//! The lowest headers: every file of `device/anabranch`, and the host machine's kernel ABI.

use crate::Header;

/// The prelude. A kernel says `#include "anabranch/prelude.h"` and lists this in [`crate::KernelUnit::headers`].
pub const PRELUDE: &[Header] = include!(concat!(env!("OUT_DIR"), "/prelude.rs"));

/// A broken twin: a mistake that the parameter `PRELUDE_MUTANT` builds in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mutant {
    /// The parameter's value; 0 is no mistake.
    pub number: u32,
    /// Its name in `anabranch/mutant.h`, without `MUTANT_`.
    pub name: &'static str,
    /// Where it is, and what; empty where the name says it.
    pub about: &'static str,
}

/// All broken twins, read from `anabranch/mutant.h`, which is their only list.
pub fn mutants() -> impl Iterator<Item = Mutant> {
    let text =
        PRELUDE.iter().find(|header| header.name == "anabranch/mutant.h").map_or("", |header| header.text);
    text.lines().filter_map(mutant_of)
}

/// `MUTANT_NAME = 3, // where: what`; none, and the name of the last, are no mistakes.
fn mutant_of(line: &'static str) -> Option<Mutant> {
    let (name, rest) = line.trim().strip_prefix("MUTANT_")?.split_once(" = ")?;
    let (number, rest) = rest.split_once(',')?;
    let number = number.parse().ok().filter(|_| !matches!(name, "NONE" | "LAST"))?;
    let about = rest.trim().strip_prefix("//").unwrap_or_default().trim();
    Some(Mutant { number, name, about })
}

/// The number of the broken twin of that name.
pub fn mutant(name: &str) -> Option<u32> {
    mutants().find(|other| other.name == name).map(|other| other.number)
}

#[cfg(test)]
mod tests {
    use super::{PRELUDE, mutant, mutants};

    #[test]
    fn twins_have_names_and_numbers_of_their_own() {
        let all: Vec<_> = mutants().collect();
        assert!(all.windows(2).all(|pair| pair[0].number < pair[1].number), "{all:?}");
        let header = PRELUDE.iter().find(|header| header.name == "anabranch/mutant.h").unwrap();
        // All but those that are no mistake: none, and the name of the last.
        assert_eq!(header.text.matches("    MUTANT_").count(), all.len() + 2);
        assert!(header.text.contains(&format!("MUTANT_LAST = {},", all[all.len() - 1].number)));
        let loose = all.iter().find(|one| one.name == "EPOCH_LOOSE").unwrap();
        assert!(loose.number == 4 && loose.about.ends_with("the epoch before is good enough"), "{loose:?}");
        assert_eq!(mutant("NO_RELEASE"), Some(2));
        assert_eq!(mutant("LAST"), None);
    }

    #[test]
    fn names_are_unique_and_include_only_each_other() {
        for (index, header) in PRELUDE.iter().enumerate() {
            assert!(PRELUDE[..index].iter().all(|other| other.name != header.name), "{}", header.name);
            for include in crate::source::includes(header.text) {
                assert!(
                    include.name == crate::source::LAYOUTS_HEADER
                        || PRELUDE.iter().any(|other| other.name == include.name),
                    "{}:{}: {} is not in the prelude",
                    header.name,
                    include.line,
                    include.name
                );
            }
        }
    }

    #[test]
    fn sources_pass_the_lints() {
        for header in PRELUDE {
            let found = crate::lint::lint_source(header.name, header.text);
            assert!(found.is_empty(), "{}: {found:#?}", header.name);
        }
    }
}
