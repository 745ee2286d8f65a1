//! The size of a case on the command line.

use anabranch_sim::{Case, CaseError, Fault, Protocol};
use clap::Args;

/// How large the world is that runs the protocol.
#[derive(Clone, Debug, Args)]
pub(crate) struct SizeArgs {
    /// Number of ranks, each with one device.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    ranks: u32,
    /// Number of operations [default: 2 or more, depending on the protocol].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Tokens per rank, or words per message [default: 3].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    tokens: Option<u32>,
    /// Blocks per kernel, if it allows several [default: 2].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    blocks: Option<u32>,
    /// Waves per block [default: 2].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    waves: Option<u32>,
    /// The protocol's other form; for ep, combine from a caller's buffer.
    #[arg(long)]
    staged: bool,
    /// NVIDIA's form of the kernels, with fences that are cumulative.
    #[arg(long)]
    cumulative: bool,
    /// Judge a run by its results, not by races.
    #[arg(long)]
    values_only: bool,
    /// Run this mutant: kernels with one deliberate defect, which a search must find; `--list` prints the names.
    #[arg(long, value_name = "NAME")]
    mutant: Option<String>,
    /// Inject this fault in every run of a world, for example kill:1@37; repeatable. `docs/simulation.md` lists the faults.
    #[arg(long, value_name = "FAULT")]
    fault: Vec<Fault>,
}

impl SizeArgs {
    /// The case of these arguments; an error for an unknown mutant.
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
