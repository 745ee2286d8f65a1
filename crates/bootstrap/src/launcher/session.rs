//! Which run of a job a process belongs to, by its launcher's variables.

use super::{Launcher, Variables};
use crate::{Error, Session};

/// Variables by which a launcher names a run, the first that is set, and the one that counts its starts.
fn names(launcher: Launcher) -> (&'static [&'static str], Option<&'static str>) {
    match launcher {
        Launcher::Explicit => (&["ANABRANCH_RUN_ID"], Some("ANABRANCH_RESTART_COUNT")),
        Launcher::Torchrun => (&["TORCHELASTIC_RUN_ID"], Some("TORCHELASTIC_RESTART_COUNT")),
        Launcher::OpenMpi => (&["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"], None),
        Launcher::Flux => (&["FLUX_JOB_ID"], None),
        Launcher::Mpich => (&["PMI_JOBID", "PALS_APID"], None),
        Launcher::Slurm => (&["SLURM_JOB_ID"], Some("SLURM_RESTART_COUNT")),
    }
}

/// The session. Of torchrun, restarts count only where all ranks have one agent (`one_machine`): each agent counts the failures
/// of its own ranks, and restarts them uncounted when another agent's failed.
pub(super) fn of(variables: &Variables<'_>, one_machine: bool) -> Result<Session, Error> {
    let (runs, starts) = names(variables.launcher);
    let mut run = runs.iter().find_map(|name| variables.get(name)).unwrap_or_default();
    if variables.launcher == Launcher::Slurm
        && let Some(step) = variables.get("SLURM_STEP_ID")
    {
        run = format!("{run}.{step}");
    }
    if run.len() > Session::MAX_RUN_BYTES {
        let expected = format!("at most {} bytes", Session::MAX_RUN_BYTES);
        return Err(super::malformed(runs[0], &run, &expected));
    }
    let shared = variables.launcher != Launcher::Torchrun || one_machine;
    let generation = match starts.filter(|name| shared && variables.get(name).is_some()) {
        Some(name) => variables.number(name, "how often the run was started again")?,
        None => 0,
    };
    Ok(Session { run, generation })
}
