//! The steps of an operation, for either order of the experts' rows.

use anabranch::Error;
use anabranch_ep::{Dispatched, ExpertOutput};

use super::EpBench;
use crate::device;

impl EpBench<'_> {
    /// Dispatches, and in the expert-major layout expands.
    pub(super) fn dispatch(&mut self) -> Result<Dispatched, Error> {
        let tokens = self.tokens();
        match &mut self.expert_major {
            Some(bench) => bench.dispatch(&self.ep, &self.stream, &tokens),
            None => Ok(self.ep.dispatch(&self.stream, &tokens)?),
        }
    }

    pub(super) fn combine(&self, dispatched: Dispatched) -> Result<(), Error> {
        let output = device::slice(&self.tensors.output);
        if let Some(bench) = &self.expert_major {
            let buffer = self.tensors.experts.as_ref();
            return bench.combine(&self.ep, &self.stream, dispatched, buffer, output);
        }
        let experts = match &self.tensors.experts {
            Some(buffer) => ExpertOutput::Staged(device::slice(buffer)),
            None => ExpertOutput::InWindow,
        };
        Ok(self.ep.combine(&self.stream, experts, dispatched, output)?)
    }

    /// Expands received rows, in the expert-major layout with steps.
    pub(super) fn expand(&mut self, dispatched: &Dispatched) -> Result<(), Error> {
        self.expert_major.as_mut().map_or(Ok(()), |bench| bench.expand(&self.stream, dispatched))
    }

    pub(super) fn run_experts(&self, dispatched: &Dispatched) -> Result<(), Error> {
        if let Some(bench) = &self.expert_major {
            return bench.run_experts(&self.stream);
        }
        device::run_expert(&self.expert, &self.stream, dispatched, self.tensors.experts.as_ref())
    }

    /// Contracts the experts' output of the expert-major layout with steps to the combine window or to the buffer that is pushed.
    pub(super) fn contract(&self, dispatched: &Dispatched) -> Result<(), Error> {
        let buffer = self.tensors.experts.as_ref();
        self.expert_major.as_ref().map_or(Ok(()), |bench| bench.contract(&self.stream, dispatched, buffer))
    }
}
