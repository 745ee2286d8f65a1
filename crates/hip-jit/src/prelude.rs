//! The lowest headers: every file of `device/anabranch`, and the host machine's kernel ABI.

use crate::Header;

/// The prelude. Every kernel may include its headers (`#include "anabranch/prelude.h"`).
pub const PRELUDE: &[Header] = include!(concat!(env!("OUT_DIR"), "/prelude.rs"));

#[cfg(test)]
mod tests {
    use super::PRELUDE;

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
            let found = anabranch_testkit::lint::lint_source(header.name, header.text);
            assert!(found.is_empty(), "{}: {found:#?}", header.name);
        }
    }
}
