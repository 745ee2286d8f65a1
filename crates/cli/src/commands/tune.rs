//! `anabranch tune`: measures what the library chooses from.

use crate::bench::tune::{self, TuneArgs};
use crate::ranks;

/// Starts the ranks.
///
/// # Errors
/// See [`ranks::spawn`].
pub(crate) fn spawn(arguments: &TuneArgs) -> anyhow::Result<()> {
    ranks::spawn(
        &arguments.ranks,
        "tune-rank",
        &tune::needed_kernels(),
        |config, ranks| tune::check(arguments, config, ranks),
        |context| tune::run(context, arguments),
    )
}

/// Is one of them.
///
/// # Errors
/// See [`ranks::run_rank`].
pub(crate) fn run_rank(arguments: &TuneArgs) -> anyhow::Result<()> {
    ranks::run_rank(&arguments.ranks, |context| tune::run(context, arguments))
}
