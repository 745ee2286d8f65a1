//! NCCL as a contender: the same case, on the same buffers if possible, with the same timing.

mod communicator;
mod error;
mod library;
mod nvls;
mod operation;
#[cfg(test)]
mod tests;
mod types;

use anabranch::{Group, GroupRank, World};
use anabranch_hip::Stream;

use super::contender::{Area, Case, Contender, Description};
use communicator::{Communicator, SymmetricWindow};
use operation::Operation;

pub(crate) use error::NcclError;
pub(crate) use library::NcclLibrary;
pub(crate) use nvls::nvls;

/// Checks that NCCL can do a collective at all, without a communicator.
///
/// # Errors
/// [`NcclError::Unsupported`].
pub(crate) fn check(
    collective: super::collective::Collective,
    data_type: anabranch_ccl::DataType,
    reduce: anabranch_ccl::ReduceOp,
) -> Result<(), NcclError> {
    if collective.reduces() { types::reduced_as(data_type, reduce).map(|_| ()) } else { Ok(()) }
}

/// The memory that NCCL works on.
#[derive(Debug)]
enum Memory {
    /// The same as the other contenders'.
    Shared(Area),
    /// Its own: symmetric windows need memory of `ncclMemAlloc`.
    Own(SymmetricWindow),
}

/// NCCL on one rank of a group.
#[derive(Debug)]
pub(crate) struct Nccl {
    communicator: Communicator,
    memory: Memory,
    operation: Option<Operation>,
}

impl Nccl {
    /// On memory that the other contenders use too, with nothing registered. Collective over the group.
    ///
    /// # Errors
    /// Of NCCL's calls; what made the world fail.
    pub(crate) fn on(
        world: &World,
        group: &Group,
        me: GroupRank,
        library: NcclLibrary,
        area: Area,
    ) -> anyhow::Result<Self> {
        let communicator = Communicator::new(world, group, me, library)?;
        Ok(Self { communicator, memory: Memory::Shared(area), operation: None })
    }

    /// On `bytes` bytes of its own in a symmetric window (`ncclCommWindowRegister`), which lets it use its kernels for
    /// symmetric memory. Collective over the group.
    ///
    /// # Errors
    /// [`NcclError::TooOld`]; of NCCL's calls; what made the world fail.
    pub(crate) fn symmetric(
        world: &World,
        group: &Group,
        me: GroupRank,
        library: NcclLibrary,
        bytes: u64,
    ) -> anyhow::Result<Self> {
        let communicator = Communicator::new(world, group, me, library)?;
        let window = communicator.symmetric_memory(bytes);
        world
            .agree_outcome(group, "nccl window", window.as_ref().err().map(|error| error as _))
            .map_err(anabranch::Error::from)?;
        Ok(Self { communicator, memory: Memory::Own(window?), operation: None })
    }
}

impl Contender for Nccl {
    fn name(&self) -> &'static str {
        match self.memory {
            Memory::Shared(_) => "nccl",
            Memory::Own(_) => "nccl_sym",
        }
    }

    fn prepare(&mut self, case: &Case) -> anyhow::Result<()> {
        self.operation = None;
        let area = self.memory();
        let needed = case.places().end;
        if needed > area.bytes {
            anyhow::bail!("{} needs {needed} bytes, and the buffer has {}", case.collective, area.bytes);
        }
        self.operation = Some(Operation::new(case, area)?);
        Ok(())
    }

    fn memory(&self) -> Area {
        match &self.memory {
            Memory::Shared(area) => *area,
            Memory::Own(window) => window.area,
        }
    }

    #[expect(unsafe_code, reason = "what NCCL is given are addresses")]
    fn enqueue(&mut self, stream: &Stream) -> anyhow::Result<()> {
        let Some(operation) = &self.operation else { anyhow::bail!("NCCL was not prepared for a case") };
        // SAFETY: `prepare` has compared the case with the area, on every member; an own area is freed by `finish` only, a
        // shared one by the benchmark after all contenders are finished, both after the stream was waited for.
        unsafe { operation.enqueue(&self.communicator, stream) }?;
        Ok(())
    }

    fn describe(&self) -> Description {
        Description::default()
    }

    fn finish(self: Box<Self>) -> anyhow::Result<()> {
        let Self { communicator, memory, .. } = *self;
        if let Memory::Own(window) = memory {
            communicator.free(&window)?;
        }
        Ok(communicator.destroy()?)
    }
}
