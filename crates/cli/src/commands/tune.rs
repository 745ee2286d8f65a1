//! `anabranch tune`: starts the ranks of [`anabranch_bench::TuneCommand`].

use anabranch_bench::TuneCommand;

use crate::ranks;

/// Starts the ranks.
///
/// # Errors
/// See [`ranks::spawn`].
pub(crate) fn spawn(command: &TuneCommand) -> anyhow::Result<()> {
    ranks::spawn(
        command.ranks(),
        "tune-rank",
        |config, ranks| command.kernels(config, ranks),
        |config, ranks| command.check(config, ranks),
        |context| command.measure(context),
    )
}

/// Is one of them.
///
/// # Errors
/// See [`ranks::run_rank`].
pub(crate) fn run_rank(command: &TuneCommand) -> anyhow::Result<()> {
    ranks::run_rank(command.ranks(), |context| command.measure(context))
}
