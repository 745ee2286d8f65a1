//! This library as a contender.
#![expect(unsafe_code, reason = "tensors in local memory are addresses")]

use anabranch::ccl::{Algorithm, Call, CclConfig, Communicator, DataType, Prepared, Tensor};
use anabranch::hip::{DeviceBuffer, Stream};
use anabranch::jit::KernelSpec;
use anabranch::shmem::SymmetricMemory;
use anabranch::{Error, Group, World};
use anyhow::Context as _;

use super::arguments::{CclArgs, MemoryKind};
use super::collective::Collective;
use super::contender::{Area, Case, Contender, Description};

/// What reductions of this type and moves launch.
pub(super) fn kernels(data_type: DataType) -> Vec<KernelSpec> {
    use anabranch::ccl::kernels::{bulk_reduce, move_bytes, packet_reduce};
    vec![move_bytes(), packet_reduce(data_type), bulk_reduce(data_type)]
}

/// Whether a name is an algorithm's.
///
/// # Errors
/// It is not; the error says which there are.
pub(super) fn check_algorithm(name: Option<&str>) -> anyhow::Result<()> {
    algorithm(name).map(|_| ())
}

fn algorithm(name: Option<&str>) -> anyhow::Result<Option<Algorithm>> {
    name.map(|name| name.parse().context("--algorithm")).transpose()
}

/// Input and output of all cases.
#[derive(Debug)]
enum Memory {
    Symmetric(SymmetricMemory),
    Local(DeviceBuffer),
}

impl Memory {
    fn area(&self) -> Area {
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
                // SAFETY: the range lies in the buffer (checked above), which `Ours` keeps until it is finished, behind a wait
                // for the stream; contenders use it in turn, in stream order.
                Ok(unsafe { Tensor::local(buffer.address().offset(offset), data_type, count) })
            }
        }
    }
}

/// This library on one rank of a group.
#[derive(Debug)]
pub(super) struct Ours {
    communicator: Communicator,
    memory: Memory,
    prepared: Option<Prepared>,
}

impl Ours {
    /// With `bytes` bytes for input and output. Collective over the group.
    ///
    /// # Errors
    /// An unknown algorithm, a heap that is too small, what made the world fail.
    pub(super) fn new(
        world: &World,
        group: &Group,
        arguments: &CclArgs,
        bytes: u64,
    ) -> anyhow::Result<Self> {
        let memory = match arguments.memory {
            MemoryKind::Symmetric => {
                Memory::Symmetric(world.allocate(group, bytes, 4096, "bench ccl").map_err(Error::from)?)
            }
            MemoryKind::Local => {
                let allocated = world.device().allocate(bytes as usize);
                world
                    .agree_outcome(group, "bench ccl buffer", allocated.as_ref().err().map(|error| error as _))
                    .map_err(Error::from)?;
                Memory::Local(allocated.map_err(Error::from)?)
            }
        };
        let config = CclConfig::default().algorithm(algorithm(arguments.algorithm.as_deref())?);
        Ok(Self { communicator: Communicator::new(world, group, config)?, memory, prepared: None })
    }
}

impl Contender for Ours {
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
        self.prepared = Some(self.communicator.prepare(&call)?);
        Ok(())
    }

    fn memory(&self) -> Area {
        self.memory.area()
    }

    fn enqueue(&mut self, stream: &Stream) -> anyhow::Result<()> {
        let Some(prepared) = &self.prepared else { anyhow::bail!("no case was prepared") };
        // The operations of a sample follow each other on one stream: it need not wait for its own work.
        self.communicator.launch(prepared, stream)?.wait_on(stream)?;
        Ok(())
    }

    fn describe(&self) -> Description {
        let Some(prepared) = &self.prepared else { return Description::default() };
        Description { algorithm: Some(prepared.algorithm().to_string()), blocks: Some(prepared.blocks()) }
    }

    fn finish(self: Box<Self>) -> anyhow::Result<()> {
        let Self { communicator, memory, prepared } = *self;
        drop(prepared);
        drop(communicator);
        if let Memory::Symmetric(memory) = memory {
            memory.free().map_err(Error::from)?;
        }
        Ok(())
    }
}
