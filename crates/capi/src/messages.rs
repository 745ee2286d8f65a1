//! Sends and receives.

use std::ffi::c_void;

use anabranch::GroupRank;
use anabranch::ccl::{Call, PointToPoint};

use crate::communicator::{anabranch_comm, anabranch_work};
use crate::handle::{Out, with};
use crate::status::{Failure, Result, anabranch_status};
use crate::types::anabranch_data_type;
use crate::versioned::{self, Versioned};

/// Sends `[count]` to `peer`, a rank of the group, which calls `anabranch_recv`. In the order of the stream: two ranks that first send long
/// messages to each other and then receive wait for each other until the deadline; use `anabranch_batch`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_send(
    comm: *const anabranch_comm,
    tensor: *const c_void,
    count: u64,
    data_type: anabranch_data_type,
    peer: u32,
    stream: *mut c_void,
    work: *mut *mut anabranch_work,
) -> anabranch_status {
    let work = Out::optional(work);
    with(comm, |comm| {
        let tensor = comm.buffer("tensor", tensor, count, data_type)?;
        comm.launch(&Call::Send { tensor: tensor.tensor()?, to: GroupRank::new(peer) }, stream, work)
    })
}

/// Receives `[count]` from `peer`, a rank of the group: as many bytes as it sends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_recv(
    comm: *const anabranch_comm,
    tensor: *mut c_void,
    count: u64,
    data_type: anabranch_data_type,
    peer: u32,
    stream: *mut c_void,
    work: *mut *mut anabranch_work,
) -> anabranch_status {
    let work = Out::optional(work);
    with(comm, |comm| {
        let tensor = comm.buffer("tensor", tensor, count, data_type)?;
        comm.launch(
            &Call::Receive { tensor: tensor.tensor()?, from: Some(GroupRank::new(peer)) },
            stream,
            work,
        )
    })
}

/// A message of `anabranch_batch`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct anabranch_message {
    /// `sizeof(anabranch_message)`.
    pub size: usize,
    /// `[count]`; read for a send, written for a receive.
    pub tensor: *mut c_void,
    /// Elements.
    pub count: u64,
    /// Their type.
    pub data_type: anabranch_data_type,
    /// The other rank, of the group.
    pub peer: u32,
    /// 0: a send; 1: a receive.
    pub is_receive: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: pointers and numbers, the size first.
unsafe impl Versioned for anabranch_message {
    const NAME: &'static str = "anabranch_message";
    const LEAST: usize = std::mem::offset_of!(Self, is_receive) + 4;

    fn reserved(&self) -> u32 {
        self.reserved
    }
}

/// Sends and receives that make progress together in one launch, as between `ncclGroupStart` and `ncclGroupEnd`. Messages of one pair and
/// direction are matched in the order of the list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_batch(
    comm: *const anabranch_comm,
    messages: *const anabranch_message,
    message_count: usize,
    stream: *mut c_void,
    work: *mut *mut anabranch_work,
) -> anabranch_status {
    let work = Out::optional(work);
    with(comm, |comm| {
        let given = versioned::read_all(messages, message_count)?;
        let buffer = |message: &anabranch_message| {
            comm.buffer("tensor", message.tensor, message.count, message.data_type)
        };
        let buffers = given.iter().map(buffer).collect::<Result<Vec<_>>>()?;
        let mut all = Vec::with_capacity(given.len());
        for (message, buffer) in given.iter().zip(&buffers) {
            let (tensor, peer) = (buffer.tensor()?, GroupRank::new(message.peer));
            all.push(match message.is_receive {
                0 => PointToPoint::send(tensor, peer),
                1 => PointToPoint::receive(tensor, peer),
                other => return Err(Failure::usage(format!("is_receive is {other}; allowed are 0 and 1"))),
            });
        }
        comm.launch(&Call::Batch(&all), stream, work)
    })
}
