//! A range of seeds on the command line.

use std::fmt;
use std::str::FromStr;

/// `A..B`, half open and not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seeds {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl fmt::Display for Seeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

impl FromStr for Seeds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bounds = text.split_once("..").map(|(start, end)| (start.parse::<u64>(), end.parse::<u64>()));
        let Some((Ok(start), Ok(end))) = bounds else {
            return Err("seeds are written like 0..10000: first, two dots, one after the last".to_owned());
        };
        if start >= end {
            return Err(format!(
                "there is no seed in it; one seed alone is {start}..{}",
                start.saturating_add(1)
            ));
        }
        Ok(Self { start, end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_half_open_and_not_empty() {
        assert_eq!("4711..4712".parse(), Ok(Seeds { start: 4711, end: 4712 }));
        assert_eq!(Seeds { start: 1, end: 3 }.to_string().parse(), Ok(Seeds { start: 1, end: 3 }));
        for (wrong, expected) in [
            ("5", "written like"),
            ("5..=6", "written like"),
            ("..6", "written like"),
            ("-1..6", "written like"),
            ("0..18446744073709551616", "written like"),
            ("6..6", "one seed alone is 6..7"),
            ("7..6", "one seed alone is 7..8"),
        ] {
            let refused = wrong.parse::<Seeds>().unwrap_err();
            assert!(refused.contains(expected), "{wrong}: {refused}");
        }
    }
}
