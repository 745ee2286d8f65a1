//! Operations of NCCL as calls of a communicator.

use std::ffi::c_int;
use std::sync::{Arc, Mutex};

use anabranch::GroupRank;
use anabranch::ccl::{Call, Communicator, DataType, PointToPoint, Prepared, ReduceOp, Tensor};
use anabranch::hip::{DeviceAddress, RelaxedCapture, Stream};
use anabranch::shmem::LaunchEvent;

use crate::comm::{Comm, lock};
use crate::error::Failure;
use crate::joined::Joined;
use crate::process::Process;
use crate::scratch::{Copy, LEAST_BESIDE, aligned, overlap};
use crate::window::Window;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    AllToAll,
    Gather,
    Scatter,
    Send,
    Receive,
}

/// An operation of one rank. `count` is NCCL's: of one rank's part where there are parts.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) comm: Arc<Comm>,
    /// The address of the stream.
    pub(crate) stream: usize,
    pub(crate) kind: Kind,
    pub(crate) send: u64,
    pub(crate) receive: u64,
    pub(crate) count: u64,
    pub(crate) data_type: DataType,
    pub(crate) op: Option<ReduceOp>,
    /// The root, or the peer.
    pub(crate) root: u32,
}

/// A call that is ready to be launched.
struct ReadyCall {
    /// The input times this rank's scalar, before the call. Dropped before the communicator that it may keep.
    scaling: Option<Scaling>,
    joined: Arc<Joined>,
    prepared: Prepared,
    stream: Stream,
    /// Before the call.
    copies: Vec<Copy>,
    /// Beside the call, which does not write the source, nor uses the target.
    beside: Option<Copy>,
    /// Other streams of the messages of a batch.
    others: Vec<Stream>,
}

/// This rank's input times its scalar, in the output or in memory of the communicator.
struct Scaling {
    communicator: Arc<Mutex<Communicator>>,
    prepared: Prepared,
    target: u64,
}

impl Operation {
    /// Checks what only this library demands, before the operation joins a group.
    ///
    /// # Errors
    /// A nonblocking communicator that is still being initialised; a root or peer outside the communicator; a null buffer; an operator that the type does not have.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let reject = |text: String| Err(Failure::argument(text));
        self.comm.check_joined()?;
        if self.root >= self.comm.size {
            return reject(format!(
                "root or peer is {}; the communicator has ranks 0 to {}",
                self.root,
                self.comm.size - 1
            ));
        }
        if let Some(op) = self.op
            && let Err(error) = op.check(self.data_type)
        {
            return reject(error.to_string());
        }
        let is_root = self.root == self.comm.rank;
        let (reads, writes) = match self.kind {
            Kind::Send => (true, false),
            Kind::Receive => (false, true),
            Kind::Reduce | Kind::Gather => (true, is_root),
            Kind::Broadcast | Kind::Scatter => (is_root, true),
            Kind::AllReduce | Kind::AllGather | Kind::ReduceScatter | Kind::AllToAll => (true, true),
        };
        if self.count > 0 && (reads && self.send == 0 || writes && self.receive == 0) {
            return reject(format!("a buffer of {:?} is null", self.kind));
        }
        let most = u64::MAX / u64::from(self.data_type.bytes()) / u64::from(self.comm.size);
        if self.count > most {
            return reject(format!("count is {}; at most {most} elements are allowed", self.count));
        }
        Ok(())
    }

    fn is_message(&self) -> bool {
        matches!(self.kind, Kind::Send | Kind::Receive)
    }

    /// Local memory.
    fn local(&self, address: u64, count: u64) -> Tensor<'static> {
        // SAFETY: NCCL's contract is the same: the buffers are device memory of this rank, and are free for the call until its work is over.
        unsafe { Tensor::local(DeviceAddress(address), self.data_type, count) }
    }

    /// Memory of a window, where it is in one.
    fn windowed<'a>(&self, windows: &'a [Arc<Window>], address: u64, count: u64) -> Option<Tensor<'a>> {
        windows.iter().find_map(|window| window.tensor(address, self.data_type, count))
    }

    fn tensor<'a>(&self, windows: &'a [Arc<Window>], address: u64, count: u64) -> Tensor<'a> {
        self.windowed(windows, address, count).unwrap_or_else(|| self.local(address, count))
    }

    /// The bytes that a message reads or writes.
    fn range(&self) -> (u64, u64) {
        let address = if self.kind == Kind::Send { self.send } else { self.receive };
        (address, self.count * u64::from(self.data_type.bytes()))
    }

    /// The message; a send reads from `source`.
    fn message(&self, source: u64) -> PointToPoint<'static> {
        let peer = GroupRank::new(self.root);
        match self.kind {
            Kind::Send => PointToPoint::send(self.local(source, self.count), peer),
            _ => PointToPoint::receive(self.local(self.receive, self.count), peer),
        }
    }

    /// Prepares a collective. What is a window on one rank must be one on all: so buffers that some rank may leave out are local.
    fn prepare(&self, joined: &Arc<Joined>) -> Result<ReadyCall, Failure> {
        let windows = self.comm.windows();
        let (count, all) = (self.count, self.count * u64::from(self.comm.size));
        let (root, is_root) = (GroupRank::new(self.root), self.root == self.comm.rank);
        // Each rank has a scalar of its own, where this library's operator has one for all: so each scales its input, then they sum.
        let (op, scaling) = match self.op.unwrap_or(ReduceOp::Sum) {
            op @ (ReduceOp::PreMulSum(_) | ReduceOp::PreMulSumAt(_)) if self.comm.size > 1 => {
                let elements = if self.kind == Kind::ReduceScatter { all } else { count };
                let bytes = elements * u64::from(self.data_type.bytes());
                let is_window = self.windowed(&windows, self.receive, count).is_some();
                let target = match (self.kind, op) {
                    // A scalar in device memory may lie in the output. Other ranks may have one: the input is local memory on all.
                    (Kind::AllReduce, ReduceOp::PreMulSum(_)) if !is_window => self.receive,
                    _ => joined.scratch.address(&joined.world, bytes)?,
                };
                let (output, input) = (self.local(target, elements), self.local(self.send, elements));
                let communicator = joined.alone()?;
                let prepared = lock(&communicator).prepare(&Call::AllReduce { output, input, op })?;
                (ReduceOp::Sum, Some(Scaling { communicator, prepared, target }))
            }
            op => (op, None),
        };
        let source = scaling.as_ref().map_or(self.send, |scaling| scaling.target);
        let send = |count| self.tensor(&windows, source, count);
        let receive = |count| self.tensor(&windows, self.receive, count);
        let (mut copies, mut beside) = (Vec::new(), None);
        let call = match self.kind {
            Kind::AllReduce => Call::AllReduce { output: receive(count), input: send(count), op },
            Kind::ReduceScatter => Call::ReduceScatter { output: receive(count), input: send(all), op },
            Kind::AllGather => Call::AllGather { output: receive(all), input: send(count) },
            Kind::AllToAll => {
                let bytes = all * u64::from(self.data_type.bytes());
                let input = if overlap((self.send, bytes), (self.receive, bytes)) {
                    let target = joined.scratch.address(&joined.world, bytes)?;
                    copies.push(Copy { target, source: self.send, bytes });
                    self.local(target, all)
                } else {
                    send(all)
                };
                Call::AllToAll { output: receive(all), input }
            }
            Kind::Reduce => {
                // Off the root the output is not written, and may be null.
                let output = if is_root { self.receive } else { source };
                Call::Reduce { output: self.local(output, count), input: self.local(source, count), op, root }
            }
            Kind::Broadcast if is_root && self.send != self.receive => {
                let bytes = count * u64::from(self.data_type.bytes());
                let copy = Copy { target: self.receive, source: self.send, bytes };
                // The others receive into a window then, and peers read from it here.
                let window = self.windowed(&windows, self.receive, count);
                if window.is_none() && bytes >= LEAST_BESIDE {
                    beside = Some(copy);
                } else {
                    copies.push(copy);
                }
                Call::Broadcast { tensor: window.unwrap_or_else(|| self.local(self.send, count)), root }
            }
            Kind::Broadcast => Call::Broadcast { tensor: receive(count), root },
            Kind::Gather => {
                let output = is_root.then(|| self.local(self.receive, all));
                Call::Gather { output, input: self.local(self.send, count), root }
            }
            Kind::Scatter => {
                let input = is_root.then(|| self.local(self.send, all));
                Call::Scatter { output: self.local(self.receive, count), input, root }
            }
            Kind::Send | Kind::Receive => Call::Batch(&[]),
        };
        let stream = borrow(joined, self.stream);
        let prepared = lock(&joined.communicator).prepare(&call)?;
        Ok(ReadyCall {
            joined: Arc::clone(joined),
            prepared,
            stream,
            copies,
            beside,
            scaling,
            others: Vec::new(),
        })
    }
}

/// A stream of the program.
fn borrow(joined: &Joined, stream: usize) -> Stream {
    // SAFETY: NCCL's contract: the argument is a stream of the communicator's device, which outlives the call.
    unsafe { joined.world.device().borrow_stream(stream as *mut _) }
}

/// All sends and receives of a communicator in a group, as one batch.
fn prepare_messages(joined: &Arc<Joined>, messages: &[&Operation]) -> Result<ReadyCall, Failure> {
    let received: Vec<_> = messages
        .iter()
        .filter(|message| message.kind == Kind::Receive)
        .map(|message| message.range())
        .collect();
    // Sends that a receive of the batch would overwrite.
    let is_overwritten = |message: &&&Operation| {
        message.kind == Kind::Send && received.iter().any(|range| overlap(*range, message.range()))
    };
    let bytes = messages.iter().filter(is_overwritten).map(|message| aligned(message.range().1)).sum();
    let mut target = if bytes > 0 { joined.scratch.address(&joined.world, bytes)? } else { 0 };
    let mut copies = Vec::new();
    let mut list = Vec::new();
    for message in messages {
        let (mut source, bytes) = message.range();
        if is_overwritten(&message) {
            copies.push(Copy { target, source, bytes });
            source = target;
            target += aligned(bytes);
        }
        list.push(message.message(source));
    }
    let prepared = lock(&joined.communicator).prepare(&Call::Batch(&list))?;
    let mut streams: Vec<usize> = Vec::new();
    for operation in messages {
        if !streams.contains(&operation.stream) {
            streams.push(operation.stream);
        }
    }
    let mut streams = streams.into_iter().map(|stream| borrow(joined, stream));
    let stream = streams.next().ok_or_else(|| Failure::argument("a batch without messages"))?;
    Ok(ReadyCall {
        joined: Arc::clone(joined),
        prepared,
        stream,
        copies,
        beside: None,
        scaling: None,
        others: streams.collect(),
    })
}

impl ReadyCall {
    /// Begins the copy beside the call, if there is one, after what is on the stream; the event after it. In a capture the copy is on the
    /// stream itself: the other stream would be in the capture until its end, and no other call could use it.
    fn copy_beside(&self, is_captured: bool) -> Result<Option<LaunchEvent>, Failure> {
        let Some(copy) = &self.beside else { return Ok(None) };
        if is_captured {
            return copy.queue(&self.stream).map(|()| None);
        }
        let (world, side) = (&self.joined.world, &self.joined.side);
        let before = world.event_after(&self.stream)?;
        side.wait_event(&before)?;
        copy.queue(side)?;
        Ok(Some(world.event_after(side)?))
    }

    fn launch(&self) -> Result<(), Failure> {
        let world = &self.joined.world;
        for other in &self.others {
            let before = world.event_after(other)?;
            self.stream.wait_event(&before)?;
        }
        // Not in the turn of the order, whose lock other threads wait for: after a fault this asks peers.
        world.check()?;
        let mut turn = self.joined.order.begin(&self.stream)?;
        let copied = self.copy_beside(turn.is_captured());
        let queue = || -> Result<LaunchEvent, Failure> {
            self.copies.iter().try_for_each(|copy| copy.queue(&self.stream))?;
            if let Some(Scaling { communicator, prepared, .. }) = &self.scaling {
                drop(lock(communicator).launch(prepared, &self.stream)?);
            }
            Ok(lock(&self.joined.communicator).launch(&self.prepared, &self.stream)?.event().clone())
        };
        let queued = copied.and_then(|copied| {
            let launched = queue();
            match copied {
                // The next call comes after the copy, too.
                Some(copied) => {
                    let joined = self.stream.wait_event(&copied);
                    launched?;
                    joined?;
                    Ok(world.event_after(&self.stream)?)
                }
                None => launched,
            }
        });
        let event = match queued {
            Ok(event) => event,
            Err(failure) => {
                // It may have left something on the stream. The failure says more than one to note that.
                drop(turn.launched(&self.stream));
                return Err(failure);
            }
        };
        turn.launched_with(&self.stream, event.clone())?;
        Ok(self.others.iter().try_for_each(|other| other.wait_event(&event))?)
    }
}

/// Launches the operations of a group: for each communicator, in the order of their first operations, the messages as one batch, then the
/// collectives in order. Everything is prepared first: a kernel that waits for a peer could hold up what preparing asks of the device.
///
/// # Errors
/// The first failure, with the rank.
pub(crate) fn launch(operations: &[Operation]) -> Result<(), Failure> {
    let operations: Vec<_> = operations.iter().filter(|operation| operation.count > 0).collect();
    let mut comms: Vec<&Arc<Comm>> = Vec::new();
    for operation in &operations {
        if !comms.iter().any(|comm| Arc::ptr_eq(comm, &operation.comm)) {
            comms.push(&operation.comm);
        }
    }
    if comms.is_empty() {
        return Ok(());
    }
    let process = Process::get()?;
    let mut calls: Vec<(&Arc<Comm>, ReadyCall)> = Vec::new();
    let mut streams = Vec::new();
    for operation in &operations {
        let joined = operation.comm.joined()?;
        streams.push(borrow(&joined, operation.stream));
    }
    let relaxed = RelaxedCapture::for_streams(process.platform.runtime(), &streams)?;
    for comm in &comms {
        let joined = comm.joined()?;
        let (messages, collectives): (Vec<_>, Vec<_>) = operations
            .iter()
            .copied()
            .filter(|operation| Arc::ptr_eq(&operation.comm, comm))
            .partition(|operation| operation.is_message());
        let explain = |failure| comm.explain(failure);
        if !messages.is_empty() {
            calls.push((comm, prepare_messages(&joined, &messages).map_err(explain)?));
        }
        for operation in collectives {
            calls.push((comm, operation.prepare(&joined).map_err(explain)?));
        }
    }
    for (comm, call) in &calls {
        call.launch().map_err(|failure| comm.explain(failure))?;
    }
    drop(relaxed);
    Ok(())
}

/// A root or peer as NCCL gives it.
///
/// # Errors
/// A negative number.
pub(crate) fn rank_of(given: c_int) -> Result<u32, Failure> {
    u32::try_from(given)
        .map_err(|_| Failure::argument(format!("root or peer is {given}; it is a rank of the communicator")))
}
