//! NCCL's collectives, sends and receives, each also with the prefix `p` for profilers. Their contracts are those of `nccl.h`.
#![expect(non_snake_case, reason = "NCCL's names")]

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::abi::{self, CallConfig, Handle, RawStream};
use crate::error::Failure;
use crate::export::{export, with};
use crate::group;
use crate::operation::{Kind, Operation, rank_of};

/// An operation with its arguments in NCCL's order.
struct Arguments {
    kind: Kind,
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    data_type: c_int,
    op: Option<c_int>,
    root: c_int,
    comm: Handle,
    stream: RawStream,
}

fn operation(arguments: &Arguments) -> Result<Operation, Failure> {
    with(arguments.comm, |comm| {
        let operation = Operation {
            kind: arguments.kind,
            stream: arguments.stream as usize,
            send: arguments.send as u64,
            receive: arguments.receive as u64,
            count: arguments.count as u64,
            data_type: abi::data_type(arguments.data_type)?,
            op: arguments.op.map(|op| comm.operator(op)).transpose()?,
            root: rank_of(arguments.root)?,
            comm: Arc::clone(comm),
        };
        operation.check()?;
        Ok(operation)
    })
}

fn submit(arguments: &Arguments) -> Result<(), Failure> {
    group::noted(operation(arguments).and_then(group::submit))
}

/// The part of a rank in a buffer of `ncclAllToAllv`: its address and its elements.
///
/// # Safety
/// `counts` and `displacements` are null or have an element of that rank.
unsafe fn part(
    buffer: *const c_void,
    counts: *const usize,
    displacements: *const usize,
    rank: usize,
    element: usize,
) -> Result<(*mut c_void, usize), Failure> {
    if counts.is_null() || displacements.is_null() {
        return Err(Failure::argument("the counts or displacements are null"));
    }
    // SAFETY: the caller's contract.
    let (count, displacement) = unsafe { (counts.add(rank).read(), displacements.add(rank).read()) };
    let at = displacement.checked_mul(element).and_then(|bytes| (buffer as usize).checked_add(bytes));
    let at = at.ok_or_else(|| {
        Failure::argument(format!(
            "the displacement of rank {rank} is {displacement}: more than memory can hold"
        ))
    })?;
    Ok((at as *mut c_void, count))
}

export! {
    fn ncclReduce(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, op: c_int, root: c_int, comm: Handle,
        stream: RawStream,
    ) {
        submit(&Arguments { kind: Kind::Reduce, send, receive, count, data_type, op: Some(op), root, comm, stream })
    }

    fn ncclBcast(buffer: *mut c_void, count: usize, data_type: c_int, root: c_int, comm: Handle, stream: RawStream) {
        let (kind, send, receive) = (Kind::Broadcast, buffer, buffer);
        submit(&Arguments { kind, send, receive, count, data_type, op: None, root, comm, stream })
    }

    fn ncclBroadcast(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, root: c_int, comm: Handle,
        stream: RawStream,
    ) {
        submit(&Arguments { kind: Kind::Broadcast, send, receive, count, data_type, op: None, root, comm, stream })
    }

    fn ncclAllReduce(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, op: c_int, comm: Handle,
        stream: RawStream,
    ) {
        submit(&Arguments { kind: Kind::AllReduce, send, receive, count, data_type, op: Some(op), root: 0, comm, stream })
    }

    fn ncclReduceScatter(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, op: c_int, comm: Handle,
        stream: RawStream,
    ) {
        submit(&Arguments { kind: Kind::ReduceScatter, send, receive, count, data_type, op: Some(op), root: 0, comm, stream })
    }

    fn ncclAllGather(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, comm: Handle, stream: RawStream,
    ) {
        submit(&Arguments { kind: Kind::AllGather, send, receive, count, data_type, op: None, root: 0, comm, stream })
    }

    fn ncclAlltoAll(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, comm: Handle, stream: RawStream,
    ) {
        submit(&Arguments { kind: Kind::AllToAll, send, receive, count, data_type, op: None, root: 0, comm, stream })
    }

    /// RCCL's spelling.
    fn ncclAllToAll(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, comm: Handle, stream: RawStream,
    ) {
        submit(&Arguments { kind: Kind::AllToAll, send, receive, count, data_type, op: None, root: 0, comm, stream })
    }

    /// RCCL's: `sendcounts[r]` elements at `sdispls[r]` go to rank r, `recvcounts[r]` of rank r come to `rdispls[r]`.
    fn ncclAllToAllv(
        send: *const c_void, send_counts: *const usize, send_at: *const usize, receive: *mut c_void,
        receive_counts: *const usize, receive_at: *const usize, data_type: c_int, comm: Handle, stream: RawStream,
    ) {
        group::start();
        let calls = group::noted(with(comm, |comm| Ok((comm.size, abi::data_type(data_type)?.bytes() as usize)))).and_then(|(size, element)| {
            (0..size as usize).try_for_each(|rank| {
                let root = rank as c_int;
                // SAFETY: the caller's contract: an element for each rank.
                let (to, from) = unsafe { (
                    group::noted(part(send, send_counts, send_at, rank, element))?,
                    group::noted(part(receive, receive_counts, receive_at, rank, element))?,
                ) };
                submit(&Arguments { kind: Kind::Send, send: to.0, receive: std::ptr::null_mut(), count: to.1, data_type, op: None, root, comm, stream })?;
                submit(&Arguments { kind: Kind::Receive, send: std::ptr::null(), receive: from.0, count: from.1, data_type, op: None, root, comm, stream })
            })
        });
        let ended = group::end();
        calls.and(ended)
    }

    fn ncclGather(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, root: c_int, comm: Handle,
        stream: RawStream,
    ) {
        submit(&Arguments { kind: Kind::Gather, send, receive, count, data_type, op: None, root, comm, stream })
    }

    fn ncclScatter(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, root: c_int, comm: Handle,
        stream: RawStream,
    ) {
        submit(&Arguments { kind: Kind::Scatter, send, receive, count, data_type, op: None, root, comm, stream })
    }

    fn ncclSend(send: *const c_void, count: usize, data_type: c_int, root: c_int, comm: Handle, stream: RawStream) {
        let receive = std::ptr::null_mut();
        submit(&Arguments { kind: Kind::Send, send, receive, count, data_type, op: None, root, comm, stream })
    }

    fn ncclRecv(receive: *mut c_void, count: usize, data_type: c_int, root: c_int, comm: Handle, stream: RawStream) {
        let send = std::ptr::null();
        submit(&Arguments { kind: Kind::Receive, send, receive, count, data_type, op: None, root, comm, stream })
    }

    fn ncclAllReduceConfig(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, op: c_int, comm: Handle,
        stream: RawStream, config: *const CallConfig,
    ) {
        // SAFETY: the caller's contract.
        group::noted(unsafe { CallConfig::check(config) })?;
        submit(&Arguments { kind: Kind::AllReduce, send, receive, count, data_type, op: Some(op), root: 0, comm, stream })
    }

    fn ncclBroadcastConfig(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, root: c_int, comm: Handle,
        stream: RawStream, config: *const CallConfig,
    ) {
        // SAFETY: the caller's contract.
        group::noted(unsafe { CallConfig::check(config) })?;
        submit(&Arguments { kind: Kind::Broadcast, send, receive, count, data_type, op: None, root, comm, stream })
    }

    fn ncclReduceConfig(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, op: c_int, root: c_int, comm: Handle,
        stream: RawStream, config: *const CallConfig,
    ) {
        // SAFETY: the caller's contract.
        group::noted(unsafe { CallConfig::check(config) })?;
        submit(&Arguments { kind: Kind::Reduce, send, receive, count, data_type, op: Some(op), root, comm, stream })
    }

    fn ncclAllGatherConfig(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, comm: Handle, stream: RawStream,
        config: *const CallConfig,
    ) {
        // SAFETY: the caller's contract.
        group::noted(unsafe { CallConfig::check(config) })?;
        submit(&Arguments { kind: Kind::AllGather, send, receive, count, data_type, op: None, root: 0, comm, stream })
    }

    fn ncclReduceScatterConfig(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, op: c_int, comm: Handle,
        stream: RawStream, config: *const CallConfig,
    ) {
        // SAFETY: the caller's contract.
        group::noted(unsafe { CallConfig::check(config) })?;
        submit(&Arguments { kind: Kind::ReduceScatter, send, receive, count, data_type, op: Some(op), root: 0, comm, stream })
    }

    fn ncclAlltoAllConfig(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, comm: Handle, stream: RawStream,
        config: *const CallConfig,
    ) {
        // SAFETY: the caller's contract.
        group::noted(unsafe { CallConfig::check(config) })?;
        submit(&Arguments { kind: Kind::AllToAll, send, receive, count, data_type, op: None, root: 0, comm, stream })
    }

    fn ncclGatherConfig(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, root: c_int, comm: Handle,
        stream: RawStream, config: *const CallConfig,
    ) {
        // SAFETY: the caller's contract.
        group::noted(unsafe { CallConfig::check(config) })?;
        submit(&Arguments { kind: Kind::Gather, send, receive, count, data_type, op: None, root, comm, stream })
    }

    fn ncclScatterConfig(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, root: c_int, comm: Handle,
        stream: RawStream, config: *const CallConfig,
    ) {
        // SAFETY: the caller's contract.
        group::noted(unsafe { CallConfig::check(config) })?;
        submit(&Arguments { kind: Kind::Scatter, send, receive, count, data_type, op: None, root, comm, stream })
    }
}
