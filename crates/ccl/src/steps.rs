//! What a prepared call puts on a stream: one kernel, or kernels that meet and the copies between them.

use anabranch_hip::Stream;
use anabranch_hip_jit::TypedKernel;
use anabranch_ranks::GroupRank;
use anabranch_shmem::{Leg, StreamMeeting, Team};

use crate::args::Channel;
use crate::call::{Call, Collective, Shape};
use crate::engine::{self, EngineStep};
use crate::error::Result;
use crate::lower::{Arguments, Buffers, Counts};
use crate::many;
use crate::plan::Plan;

/// A kernel and how it is launched.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) kernel: TypedKernel,
    pub(crate) arguments: Arguments,
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    pub(crate) local_bytes: u32,
}

/// One thing that goes onto the stream.
#[derive(Debug)]
pub(crate) enum Step {
    Kernel(Box<Launch>),
    /// A kernel in which all meet, in whose place streams may.
    Meeting(Box<Launch>),
    Legs(Vec<Leg>),
}

impl Step {
    /// Puts it on the stream; in the closure of [`Team::launch_in_order`].
    ///
    /// # Safety
    /// The lanes' memory and the call's tensors stay until the stream has passed the call.
    pub(crate) unsafe fn enqueue(
        &self,
        team: &Team,
        meeting: Option<&mut StreamMeeting>,
        stream: &Stream,
    ) -> anabranch_shmem::Result<()> {
        match self {
            // SAFETY: by the caller's promise the legs' memory stays; that nobody else uses it meanwhile is the argument of `engine.rs`.
            Self::Legs(legs) => unsafe { team.enqueue_legs(stream, legs) },
            // SAFETY: the caller's promise.
            Self::Kernel(launch) => unsafe { launch.enqueue(stream) },
            Self::Meeting(launch) => match meeting {
                Some(meeting) if !stream.is_capturing()? => meeting.enqueue(team, stream),
                // SAFETY: the caller's promise.
                _ => unsafe { launch.enqueue(stream) },
            },
        }
    }

    /// The same as a meeting.
    pub(crate) fn into_meeting(self) -> Self {
        match self {
            Self::Kernel(launch) => Self::Meeting(launch),
            other => other,
        }
    }
}

impl Launch {
    /// # Safety
    /// That of [`Step::enqueue`].
    unsafe fn enqueue(&self, stream: &Stream) -> anabranch_shmem::Result<()> {
        let Self { kernel, arguments, blocks, threads, local_bytes } = self;
        let (blocks, threads, local) = (*blocks, *threads, *local_bytes);
        // SAFETY: the argument structs are the kernels' own, and what they name stays by the caller's promise.
        unsafe {
            match arguments {
                Arguments::Move(args) => kernel.launch(blocks, threads, local, stream, args),
                Arguments::Uneven(args) => kernel.launch(blocks, threads, local, stream, &**args),
                Arguments::Reduce(args) => kernel.launch(blocks, threads, local, stream, args),
                Arguments::EngineReduce(args) => kernel.launch(blocks, threads, local, stream, &**args),
                Arguments::GatherMany(args) => kernel.launch(blocks, threads, local, stream, &**args),
                Arguments::Pipes(args) => kernel.launch(blocks, threads, local, stream, &**args),
                Arguments::Network(args) => kernel.launch(blocks, threads, local, stream, &**args),
            }
        }?;
        Ok(())
    }
}

/// The steps of a call by copy engine, that was checked and planned so.
///
/// # Errors
/// [`Error::Foreign`](crate::Error::Foreign) for memory that not all members have.
pub(crate) fn by_engine(
    team: &Team,
    (channel, lanes): (&Channel, u32),
    call: &Call<'_>,
    (shape, plan): (&Shape, &Plan),
    (buffers, counts): (&Buffers, Counts<'_>),
) -> Result<Vec<EngineStep>> {
    if let Call::AllGatherMany(pairs) = call {
        let legs = engine::gathers(team.rank().get(), &many::gathered(pairs, team)?);
        return Ok(engine::between_meetings(legs));
    }
    let addresses = |address: &dyn Fn(GroupRank) -> Result<u64>| {
        team.group().ranks().map(address).collect::<Result<Vec<_>>>()
    };
    let outputs = match call.tensors().0 {
        // Each member keeps its part.
        _ if shape.collective == Collective::ReduceScatter => Vec::new(),
        Some(output) => addresses(&|member| Ok(output.address_at(team, member)?.0))?,
        None => Vec::new(),
    };
    Ok(match Arguments::new(channel, shape, plan, buffers, counts) {
        Arguments::Uneven(args) => engine::between_meetings(engine::uneven_gather(&args, &outputs)),
        Arguments::Reduce(args) => {
            let bases = addresses(&|member| Ok(team.peer_base(member).map_or(0, |base| base.0)))?;
            engine::reduces(&args, lanes, shape.data_type.bytes().into(), &bases, &outputs)
        }
        Arguments::Move(args) => engine::between_meetings(engine::moves(&args, &outputs)),
        // No call that is planned so has such.
        Arguments::EngineReduce(_)
        | Arguments::GatherMany(_)
        | Arguments::Pipes(_)
        | Arguments::Network(_) => Vec::new(),
    })
}
