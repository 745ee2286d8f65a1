//! The lowest headers: every file of `device/anabranch`, and the host machine's kernel ABI.

use crate::Header;

/// The prelude. A kernel says `#include "anabranch/prelude.h"` and lists this in [`crate::KernelUnit::headers`].
pub const PRELUDE: &[Header] = include!(concat!(env!("OUT_DIR"), "/prelude.rs"));

/// The broken twins of `anabranch/mutant.h`: names without `MUTANT_`, and numbers for the parameter `PRELUDE_MUTANT`. The
/// first is `NONE`, 0.
pub fn mutants() -> impl Iterator<Item = (&'static str, u32)> {
    let text =
        PRELUDE.iter().find(|header| header.name == "anabranch/mutant.h").map_or("", |header| header.text);
    text.lines().filter_map(|line| {
        let (name, rest) = line.trim_start().strip_prefix("MUTANT_")?.split_once(" = ")?;
        let number = rest.split_once(',')?.0.parse().ok()?;
        (name != "LAST").then_some((name, number))
    })
}

/// The number of the broken twin of that name.
pub fn mutant(name: &str) -> Option<u32> {
    mutants().find(|(other, _)| *other == name).map(|(_, number)| number)
}

#[cfg(test)]
mod tests {
    use super::{PRELUDE, mutant, mutants};

    #[test]
    fn twins_have_names_and_numbers_of_their_own() {
        let all: Vec<_> = mutants().collect();
        assert_eq!(all[0], ("NONE", 0));
        assert!(all.windows(2).all(|pair| pair[0].1 < pair[1].1), "{all:?}");
        let header = PRELUDE.iter().find(|header| header.name == "anabranch/mutant.h").unwrap();
        assert_eq!(header.text.matches("    MUTANT_").count(), all.len() + 1);
        assert!(header.text.contains(&format!("MUTANT_LAST = {},", all[all.len() - 1].1)));
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
