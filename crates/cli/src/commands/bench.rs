//! `anabranch bench`: starts the ranks of [`anabranch_bench::BenchCommand`].

use anabranch_bench::BenchCommand;

use crate::ranks;

/// Starts the ranks.
///
/// # Errors
/// See [`ranks::spawn`].
pub(crate) fn spawn(command: &BenchCommand) -> anyhow::Result<()> {
    if command.print_plan()? {
        return Ok(());
    }
    ranks::spawn(
        command.ranks(),
        "bench-rank",
        |config, ranks| command.kernels(config, ranks),
        |config, ranks| command.check(config, ranks),
        |context| command.measure(context),
    )
}

/// Is one of them.
///
/// # Errors
/// See [`ranks::run_rank`].
pub(crate) fn run_rank(command: &BenchCommand) -> anyhow::Result<()> {
    ranks::run_rank(command.ranks(), |context| command.measure(context))
}
