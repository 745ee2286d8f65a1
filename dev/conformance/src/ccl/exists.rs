//! Which of a check's trials exist in a communicator, and in which ways. Across machines there are two algorithms, which all trials go
//! by, and no messages; what does not exist is counted with the reason.

use super::{Tally, Trial};
use anabranch_ccl::{Algorithm, Choice, Communicator};
use anabranch_ccl::{Error, Result};

/// The algorithms of communicators across machines.
const ACROSS: [Algorithm; 2] = [Algorithm::NetworkDirect, Algorithm::NetworkByNode];

/// The algorithms that a trial uses: on one machine the chosen one; across machines every one that can do it, whatever was chosen.
/// The tally counts what is left out. All members get the same result.
///
/// # Errors
/// What the communicator cannot plan for another reason than that it has no such algorithm.
pub(super) fn choices(
    communicator: &Communicator,
    trial: &Trial,
    choice: Choice,
    tally: &mut Tally,
) -> Result<Vec<Choice>> {
    if !communicator.is_internode() {
        return Ok(vec![choice]);
    }
    let shape = trial.shape(communicator.size());
    let plain = Choice { algorithm: None, ..choice };
    if let Err(error @ Error::Unmapped { .. }) = communicator.explain_as(&shape, plain) {
        tally.leave_out(trial.name(), &error);
        return Ok(Vec::new());
    }
    if choice.algorithm.is_some_and(|algorithm| !ACROSS.contains(&algorithm)) {
        // The calls themselves are made by what there is.
        if let Err(error) = communicator.explain_as(&shape, choice) {
            let chosen = choice.algorithm.map_or("", Algorithm::name);
            tally.leave_out(chosen, &error);
        }
    }
    let mut ways = Vec::new();
    for algorithm in ACROSS {
        let choice = Choice { algorithm: Some(algorithm), phased: None, ..choice };
        match communicator.explain_as(&shape, choice) {
            Ok(plan) if plan.algorithm == algorithm => ways.push(choice),
            // A barrier has one way.
            Ok(_) => {}
            Err(error @ Error::Algorithm { .. }) => tally.leave_out(algorithm.name(), &error),
            Err(error) => return Err(error),
        }
    }
    Ok(ways)
}
