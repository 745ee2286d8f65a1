//! An error and its causes in one line, for reports that have no room for a chain.

use std::error::Error;
use std::iter::successors;

/// The error's text, then that of each cause, with a colon between.
pub fn with_causes(error: &(dyn Error + '_)) -> String {
    causes(error).fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// As [`with_causes`], without causes whose text is part of the line already: some libraries put it into their own.
pub fn with_distinct_causes(error: &(dyn Error + '_)) -> String {
    causes(error).map(ToString::to_string).fold(error.to_string(), |text, cause| {
        if text.contains(&cause) { text } else { format!("{text}: {cause}") }
    })
}

fn causes<'a>(error: &'a (dyn Error + 'a)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    successors(error.source(), |cause| (*cause).source())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer: middle")]
    struct Outer(#[source] Middle);

    #[derive(Debug, thiserror::Error)]
    #[error("middle")]
    struct Middle(#[source] std::fmt::Error);

    #[test]
    fn causes_follow_the_error() {
        let error = Outer(Middle(std::fmt::Error));
        let last = std::fmt::Error.to_string();
        assert_eq!(with_causes(&error), format!("outer: middle: middle: {last}"));
        assert_eq!(with_distinct_causes(&error), format!("outer: middle: {last}"));
        assert_eq!(with_causes(&std::fmt::Error), last);
    }
}
