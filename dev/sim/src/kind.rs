//! When two failures are of one kind.

use core::fmt;

/// The kind of a failure: its problem with every number, and every list of numbers, replaced by `#`. So a smaller case may
/// fail in another rank, round or place, but must not fail in another way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kind(String);

impl Kind {
    /// The kind of a problem.
    pub fn of(problem: &str) -> Self {
        let mut text = String::new();
        let mut rest = problem.chars().peekable();
        while let Some(next) = rest.next() {
            let starts_number = next.is_ascii_digit()
                || next == '-'
                    && rest.peek().is_some_and(char::is_ascii_digit)
                    && !text.ends_with(|last: char| last.is_alphanumeric());
            if !starts_number {
                text.push(next);
                continue;
            }
            // Hexadecimal digits and fractions belong to it.
            while rest.next_if(|more| more.is_ascii_alphanumeric() || *more == '.').is_some() {}
            text.push('#');
        }
        while text.contains("#, #") {
            text = text.replace("#, #", "#");
        }
        Self(text)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_do_not_make_a_kind() {
        let same = |a, b| assert_eq!(Kind::of(a), Kind::of(b));
        same("rank 0 has [1, 2, 3] rows", "rank 12 has [7] rows");
        same("heap0+64 holds 0x1f, not -1.5", "heap3+8 holds 0x2, not 2");
        assert_eq!(Kind::of("rank 3: counts -1").to_string(), "rank #: counts #");
        assert_ne!(Kind::of("rank 0 reads 1 rows"), Kind::of("rank 0 writes 1 rows"));
        assert_ne!(Kind::of("state-1"), Kind::of("state 1"), "a name's dash is no sign");
    }
}
