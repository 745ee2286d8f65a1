//! Tests that need a process to themselves, in a binary whose tests run side by side.

use std::time::Duration;

use crate::{Ranks, role};

/// Longer than any test that passes.
const LIMIT: Duration = Duration::from_secs(600);

/// Whether this process runs only this test. The first call starts such a process, waits until it has passed, and returns `false`:
/// then the test has nothing left to do. In that process it returns `true`.
///
/// For tests that count threads, files or mappings of their process. `test` is its path, from [`test_path!`](crate::test_path).
///
/// # Panics
/// When the test fails in that process, with its output.
pub fn is_alone(test: &str) -> bool {
    if role().is_some() {
        return true;
    }
    let problem = match Ranks::start(test, 1, "").and_then(|ranks| ranks.succeed(LIMIT)) {
        Ok(outcomes) if outcomes[0].output.contains("1 passed") => None,
        // A process in which no test has this path ends well too.
        Ok(outcomes) => Some(format!("{test} did not run: {}", outcomes[0].output)),
        Err(error) => Some(error.to_string()),
    };
    assert!(problem.is_none(), "{}", problem.unwrap_or_default());
    false
}

/// A path as `module_path!()` gives it, without the name of the crate: what the test runner filters by.
#[doc(hidden)]
pub fn within_crate(path: &str) -> &str {
    path.split_once("::").map_or(path, |(_, path)| path)
}

/// The path of a test of this module, as the test runner filters it: `test_path!("name")` is `"module::name"`.
#[macro_export]
macro_rules! test_path {
    ($name:literal) => {
        $crate::within_crate(concat!(module_path!(), "::", $name))
    };
}
