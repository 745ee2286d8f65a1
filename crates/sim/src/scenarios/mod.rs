//! The protocols, each with its judge.

mod barrier;

use anabranch_hip_jit::Jit;

use crate::{Case, Protocol, Scenario, ScenarioError};

/// Makes what runs a case; its kernels come from `jit`.
///
/// # Errors
/// [`ScenarioError`]: the case has a number out of range, or a kernel does not compile.
pub fn scenario(case: Case, jit: &Jit) -> Result<Box<dyn Scenario>, ScenarioError> {
    match case.protocol {
        Protocol::Barrier => Ok(Box::new(barrier::Barrier::new(case, jit)?)),
        other => Err(ScenarioError::Plan(format!("{other} has no scenario in this build"))),
    }
}
