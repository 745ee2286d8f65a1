//! One collective of NCCL on a stream.
#![expect(unsafe_code, reason = "calls into a C library")]

use core::ffi::c_int;

use anabranch_hip::{DeviceAddress, Stream};

use super::super::collective::Collective;
use super::super::contender::{Area, Case};
use super::communicator::{Communicator, pointer};
use super::error::NcclError;
use super::types::{NcclDataType, NcclReduceOp, moved_as, reduced_as};

/// A case in NCCL's terms.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    collective: Collective,
    input: DeviceAddress,
    output: DeviceAddress,
    data_type: NcclDataType,
    /// Elements of `data_type`: NCCL's `count`.
    count: u64,
    /// Bytes of one rank's part.
    part_bytes: u64,
    /// For collectives that reduce.
    reduce: NcclReduceOp,
    root: c_int,
}

impl Operation {
    /// # Errors
    /// [`NcclError::Unsupported`].
    pub(super) fn new(case: &Case, area: Area) -> Result<Self, NcclError> {
        let (data_type, times, reduce) = if case.collective.reduces() {
            let (data_type, reduce) = reduced_as(case.data_type, case.reduce)?;
            (data_type, 1, reduce)
        } else {
            let (data_type, times) = moved_as(case.data_type);
            (data_type, times, NcclReduceOp::Sum)
        };
        let places = case.places();
        Ok(Self {
            collective: case.collective,
            input: area.start.offset(places.input),
            output: area.start.offset(places.output),
            data_type,
            count: case.elements.count * times,
            part_bytes: case.size_of(case.elements.count),
            reduce,
            root: case.root.get() as c_int,
        })
    }

    /// Puts it on the stream. Collective over the communicator.
    ///
    /// # Errors
    /// Of NCCL's calls.
    ///
    /// # Safety
    /// The area that the operation was made with must have room for the case, as on all members, and stay until the stream
    /// has passed the operation.
    pub(super) unsafe fn enqueue(
        &self,
        communicator: &Communicator,
        stream: &Stream,
    ) -> Result<(), NcclError> {
        let _device = communicator.current()?;
        let functions = &communicator.library.functions;
        let (input, output) = (pointer(self.input).cast_const(), pointer(self.output));
        let (count, data_type, reduce) = (self.count as usize, self.data_type.code(), self.reduce.code());
        // NVIDIA's runtime below this program uses the driver's own streams, which CUDA's runtime takes as its own too.
        let (raw, stream) = (communicator.raw, stream.raw().cast());
        let done = |call, code| communicator.check(call, code);
        match self.collective {
            // SAFETY: the caller's promise, here and below; the communicator is live and the stream is of its device.
            Collective::AllReduce => done("ncclAllReduce", unsafe {
                (functions.ncclAllReduce)(input, output, count, data_type, reduce, raw, stream)
            }),
            // SAFETY: as above.
            Collective::AllGather => done("ncclAllGather", unsafe {
                (functions.ncclAllGather)(input, output, count, data_type, raw, stream)
            }),
            // SAFETY: as above.
            Collective::ReduceScatter => done("ncclReduceScatter", unsafe {
                (functions.ncclReduceScatter)(input, output, count, data_type, reduce, raw, stream)
            }),
            // SAFETY: as above.
            Collective::Broadcast => done("ncclBroadcast", unsafe {
                (functions.ncclBroadcast)(input, output, count, data_type, self.root, raw, stream)
            }),
            // SAFETY: as above.
            Collective::Reduce => done("ncclReduce", unsafe {
                (functions.ncclReduce)(input, output, count, data_type, reduce, self.root, raw, stream)
            }),
            Collective::AllToAll => {
                let Some(all_to_all) = functions.ncclAlltoAll else {
                    return self.by_messages(communicator, stream);
                };
                // SAFETY: as above.
                done("ncclAlltoAll", unsafe { all_to_all(input, output, count, data_type, raw, stream) })
            }
            Collective::Gather | Collective::Scatter => self.by_messages(communicator, stream),
        }
    }

    /// As nccl-tests does what NCCL has no collective for: one message a part, all in one group call.
    fn by_messages(
        &self,
        communicator: &Communicator,
        stream: super::library::RawStream,
    ) -> Result<(), NcclError> {
        let functions = &communicator.library.functions;
        let (sends, receives) =
            messages(self.collective, communicator.ranks, self.root, communicator.me.get() as c_int);
        let (count, data_type, raw) = (self.count as usize, self.data_type.code(), communicator.raw);
        let place = |start: DeviceAddress, part: c_int| pointer(start.offset(part as u64 * self.part_bytes));
        // SAFETY: no arguments.
        communicator.check("ncclGroupStart", unsafe { (functions.ncclGroupStart)() })?;
        let sent = sends.iter().try_for_each(|(peer, part)| {
            let from = place(self.input, *part).cast_const();
            // SAFETY: as in `enqueue`: the part lies in the input.
            communicator.check("ncclSend", unsafe {
                (functions.ncclSend)(from, count, data_type, *peer, raw, stream)
            })
        });
        let received = receives.iter().try_for_each(|(peer, part)| {
            let to = place(self.output, *part);
            // SAFETY: as in `enqueue`: the part lies in the output.
            communicator
                .check("ncclRecv", unsafe { (functions.ncclRecv)(to, count, data_type, *peer, raw, stream) })
        });
        // SAFETY: no arguments; ends the group above, whatever happened in it.
        let ended = communicator.check("ncclGroupEnd", unsafe { (functions.ncclGroupEnd)() });
        sent.and(received).and(ended)
    }
}

/// The messages of one rank: the peer, and which part of the input or output.
type Messages = Vec<(c_int, c_int)>;

/// What rank `me` sends and receives.
fn messages(collective: Collective, ranks: u32, root: c_int, me: c_int) -> (Messages, Messages) {
    let each = || (0..ranks as c_int).map(|peer| (peer, peer)).collect();
    let with_root = || vec![(root, 0)];
    match collective {
        Collective::Gather => (with_root(), if me == root { each() } else { Vec::new() }),
        Collective::Scatter => (if me == root { each() } else { Vec::new() }, with_root()),
        _ => (each(), each()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_that_is_sent_is_received() {
        for collective in [Collective::AllToAll, Collective::Gather, Collective::Scatter] {
            let (mut sent, mut received) = (Vec::new(), Vec::new());
            for me in 0..3 {
                let (sends, receives) = messages(collective, 3, 1, me);
                sent.extend(sends.iter().map(|(peer, _)| (me, *peer)));
                received.extend(receives.iter().map(|(peer, _)| (*peer, me)));
            }
            sent.sort_unstable();
            received.sort_unstable();
            assert_eq!(sent, received, "{collective}");
            assert_eq!(sent.len(), if collective == Collective::AllToAll { 9 } else { 3 }, "{collective}");
        }
    }

    #[test]
    fn parts_are_the_peers_where_there_are_parts() {
        assert_eq!(messages(Collective::Gather, 3, 1, 0), (vec![(1, 0)], vec![]));
        assert_eq!(messages(Collective::Gather, 3, 1, 1).1, [(0, 0), (1, 1), (2, 2)]);
        assert_eq!(messages(Collective::Scatter, 2, 0, 0).0, [(0, 0), (1, 1)]);
        assert_eq!(messages(Collective::Scatter, 2, 0, 1), (vec![], vec![(0, 0)]));
    }
}
