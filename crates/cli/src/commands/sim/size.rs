//! The size of a case on the command line.

use anabranch_sim::{Case, CaseError, Fault, Protocol};
use clap::Args;

/// How large the world is that runs the protocol.
#[derive(Clone, Debug, Args)]
pub(crate) struct SizeArgs {
    /// Ranks, a device each.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    ranks: u32,
    /// How often the operation is done [default: 2 or more, as the protocol needs].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Tokens of a rank, or words of a message [default: 3].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    tokens: Option<u32>,
    /// Blocks of a kernel, where it takes several [default: 2].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    blocks: Option<u32>,
    /// Waves of a block [default: 2].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    waves: Option<u32>,
    /// The protocol's other form; for ep, combine from a caller's buffer.
    #[arg(long)]
    staged: bool,
    /// NVIDIA's form of the kernels, with fences that are cumulative.
    #[arg(long)]
    cumulative: bool,
    /// Judge by what a run leaves, not by races.
    #[arg(long)]
    values_only: bool,
    /// A mutant to run, by its name: kernels with one mistake, which a search must find; `--list` says which there are.
    #[arg(long, value_name = "NAME")]
    mutant: Option<String>,
    /// What goes wrong in every run of a world, as in kill:1@37; again for more. `docs/simulation.md` has the words.
    #[arg(long, value_name = "FAULT")]
    fault: Vec<Fault>,
}

impl SizeArgs {
    /// The case that they say; the error where there is no such mutant.
    pub(crate) fn case(&self, protocol: Protocol) -> Result<Case, CaseError> {
        let mut case = Case::new(protocol, self.ranks);
        let fields = [
            (&mut case.rounds, self.rounds),
            (&mut case.tokens, self.tokens),
            (&mut case.blocks, self.blocks),
            (&mut case.waves, self.waves),
        ];
        for (field, given) in fields {
            *field = given.unwrap_or(*field);
        }
        (case.staged, case.cumulative, case.values_only) = (self.staged, self.cumulative, self.values_only);
        if let Some(name) = &self.mutant {
            case.set_mutant(name)?;
        }
        case.faults.clone_from(&self.fault);
        Ok(case)
    }
}
