//! `anabranch model`: bytes and time of a rank for numbers of ranks that are not there. Arithmetic: bytes, messages and hops are counted
//! over what kernels would do, times follow from them and the speeds of links. Nothing is started.

mod ccl;
mod ep;
mod links;
mod row;
mod scale;

use clap::Subcommand;

pub use self::ccl::ModelCclArgs;
pub use self::ep::ModelEpArgs;

/// `anabranch model`.
#[derive(Clone, Debug, Subcommand)]
pub enum ModelCommand {
    /// Dispatch and combine of one rank's tokens, with random routing.
    ///
    /// `inside` and `between` are what the rank's tokens move inside nodes and between them; by symmetry, what it moves for others.
    Ep(ModelEpArgs),
    /// Collectives.
    ///
    /// `inside` and `between` are bytes over the links of the rank that has most, in the direction that has more.
    Ccl(ModelCclArgs),
}

impl ModelCommand {
    /// Prints the costs.
    ///
    /// # Errors
    /// What cannot be modelled; standard output is gone.
    pub fn print(&self) -> anyhow::Result<()> {
        match self {
            Self::Ep(arguments) => ep::run(arguments),
            Self::Ccl(arguments) => ccl::run(arguments),
        }
    }
}
