//! This library as a contender.
#![expect(unsafe_code, reason = "tensors in local memory are addresses")]

use std::cell::RefCell;
use std::rc::Rc;

use anabranch::{Error, Group, World};
use anabranch_ccl::{Algorithm, Call, CclConfig, Choice, Communicator, DataType, Prepared, Tensor};
use anabranch_hip::{DeviceBuffer, Stream};
use anabranch_hip_jit::KernelSpec;
use anabranch_shmem::SymmetricMemory;
use anyhow::Context as _;

use super::arguments::MemoryKind;
use super::collective::Collective;
use super::contender::{Area, Case, Contender, Description};

/// What reductions of this type and moves launch, among so many ranks of one node.
pub(super) fn kernels(data_type: DataType, ranks: u32) -> Vec<KernelSpec> {
    use anabranch_ccl::kernels::{
        BULK_REDUCE_UNIT, MOVE_UNIT, PACKET_REDUCE_UNIT, PUSH_TO_ROOT_UNIT, TWO_HOP_UNIT, for_members, spec,
    };
    [&MOVE_UNIT, &TWO_HOP_UNIT, &PACKET_REDUCE_UNIT, &BULK_REDUCE_UNIT, &PUSH_TO_ROOT_UNIT]
        .map(|unit| for_members(spec(unit, data_type), ranks))
        .into()
}

/// Whether a name is an algorithm's.
///
/// # Errors
/// It is not; the error says which there are.
pub(super) fn check_algorithm(name: Option<&str>) -> anyhow::Result<()> {
    algorithm(name).map(|_| ())
}

/// The algorithm of that name.
pub(super) fn algorithm(name: Option<&str>) -> anyhow::Result<Option<Algorithm>> {
    name.map(|name| name.parse().context("--algorithm")).transpose()
}

/// Input and output of all cases, on one rank of a group. Lives longer than the contenders that work on it.
#[derive(Debug)]
pub(super) enum Memory {
    Symmetric(SymmetricMemory),
    Local(DeviceBuffer),
}

impl Memory {
    /// Allocates `bytes` bytes. Collective over the group.
    ///
    /// # Errors
    /// A heap or a device that is too small, on all members alike; what made the world fail.
    pub(super) fn allocate(
        world: &World,
        group: &Group,
        kind: MemoryKind,
        bytes: u64,
    ) -> anyhow::Result<Self> {
        if kind == MemoryKind::Symmetric {
            let allocated = world.allocate(group, bytes, 4096, "bench ccl");
            return Ok(Self::Symmetric(allocated.map_err(Error::from)?));
        }
        let allocated = world.device().allocate(bytes as usize);
        world
            .agree_outcome(group, "bench ccl buffer", allocated.as_ref().err().map(|error| error as _))
            .map_err(Error::from)?;
        Ok(Self::Local(allocated.map_err(Error::from)?))
    }

    /// Gives it back. Collective over the group; the streams that used it must have been waited for.
    ///
    /// # Errors
    /// What made the world fail.
    pub(super) fn free(self) -> anyhow::Result<()> {
        match self {
            Self::Symmetric(memory) => Ok(memory.free().map_err(Error::from)?),
            Self::Local(_) => Ok(()),
        }
    }

    /// Where it lies.
    pub(super) fn area(&self) -> Area {
        match self {
            Self::Symmetric(memory) => Area { start: memory.address(), bytes: memory.bytes() },
            Self::Local(buffer) => Area { start: buffer.address(), bytes: buffer.len() as u64 },
        }
    }

    fn tensor(&self, offset: u64, data_type: DataType, count: u64) -> anyhow::Result<Tensor<'_>> {
        match self {
            Self::Symmetric(memory) => Ok(Tensor::symmetric(memory, offset, data_type, count)?),
            Self::Local(buffer) => {
                let end = offset + count * u64::from(data_type.bytes());
                anyhow::ensure!(end <= buffer.len() as u64, "{end} bytes leave a buffer of {}", buffer.len());
                // SAFETY: the range lies in the buffer (checked above), which outlives all contenders and is freed after a wait for
                // the stream; they use it in turn, in stream order.
                Ok(unsafe { Tensor::local(buffer.address().offset(offset), data_type, count) })
            }
        }
    }
}

/// This library on one rank of a group.
#[derive(Debug)]
pub(super) struct Ours<'m> {
    communicator: Rc<RefCell<Communicator>>,
    memory: &'m Memory,
    /// In place of the communicator's own.
    choice: Option<Choice>,
    prepared: Option<Prepared>,
}

impl<'m> Ours<'m> {
    /// On this memory. Collective over the group.
    ///
    /// # Errors
    /// An unknown algorithm, a heap that is too small, what made the world fail.
    pub(super) fn new(
        world: &World,
        group: &Group,
        config: CclConfig,
        algorithm_name: Option<&str>,
        memory: &'m Memory,
    ) -> anyhow::Result<Self> {
        let config = match algorithm(algorithm_name)? {
            None => config,
            asked => config.algorithm(asked),
        };
        let communicator = Rc::new(RefCell::new(Communicator::new(world, group, config)?));
        Ok(Self { communicator, memory, choice: None, prepared: None })
    }

    /// One of several on a communicator, each of which does cases in its own way. They take turns.
    pub(super) const fn sharing(
        communicator: Rc<RefCell<Communicator>>,
        memory: &'m Memory,
        choice: Choice,
    ) -> Self {
        Self { communicator, memory, choice: Some(choice), prepared: None }
    }
}

impl Contender for Ours<'_> {
    fn name(&self) -> &'static str {
        "anabranch"
    }

    fn prepare(&mut self, case: &Case) -> anyhow::Result<()> {
        self.prepared = None;
        let places = case.places();
        let input = self.memory.tensor(places.input, case.data_type, case.elements.input)?;
        let output = self.memory.tensor(places.output, case.data_type, case.elements.output)?;
        let (op, root) = (case.reduce, case.root);
        let call = match case.collective {
            Collective::AllReduce => Call::AllReduce { output, input, op },
            Collective::ReduceScatter => Call::ReduceScatter { output, input, op },
            Collective::AllGather => Call::AllGather { output, input },
            Collective::AllToAll => Call::AllToAll { output, input },
            Collective::Broadcast => Call::Broadcast { tensor: output, root },
            Collective::Reduce => Call::Reduce { output, input, op, root },
            Collective::Gather => Call::Gather { output: Some(output), input, root },
            Collective::Scatter => Call::Scatter { output, input: Some(input), root },
        };
        let mut communicator = self.communicator.borrow_mut();
        self.prepared = Some(match self.choice {
            None => communicator.prepare(&call)?,
            Some(choice) => communicator.prepare_as(&call, choice)?,
        });
        Ok(())
    }

    fn memory(&self) -> Area {
        self.memory.area()
    }

    fn enqueue(&mut self, stream: &Stream) -> anyhow::Result<()> {
        let Some(prepared) = &self.prepared else { anyhow::bail!("no case was prepared") };
        // Operations follow each other on one stream, whose order is enough.
        drop(self.communicator.borrow_mut().launch(prepared, stream)?);
        Ok(())
    }

    fn describe(&self) -> Description {
        let Some(prepared) = &self.prepared else { return Description::default() };
        Description { algorithm: Some(prepared.algorithm().to_string()), blocks: Some(prepared.blocks()) }
    }

    fn finish(self: Box<Self>) -> anyhow::Result<()> {
        Ok(())
    }
}
