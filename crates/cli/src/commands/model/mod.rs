//! `anabranch model`: bytes and time of a rank for numbers of ranks that are not there. Arithmetic: bytes, messages and hops are counted
//! over what kernels would do, times follow from them and the speeds of links. Nothing is started.

mod ccl;
mod ep;
mod links;
mod row;
mod scale;

use clap::Subcommand;

/// `anabranch model`.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum ModelCommand {
    /// Dispatch and combine of one rank's tokens, with random routing.
    ///
    /// `inside` and `between` are what the rank's tokens move inside nodes and between them; by symmetry, what it moves for others.
    Ep(ep::ModelEpArgs),
    /// Collectives.
    ///
    /// `inside` and `between` are bytes over the links of the rank that has most, in the direction that has more.
    Ccl(ccl::ModelCclArgs),
}

/// Prints the costs.
///
/// # Errors
/// What cannot be modelled; standard output is gone.
pub(crate) fn run(command: &ModelCommand) -> anyhow::Result<()> {
    match command {
        ModelCommand::Ep(arguments) => ep::run(arguments),
        ModelCommand::Ccl(arguments) => ccl::run(arguments),
    }
}
