//! Sends and receives, and the checks of a list of them.

use std::borrow::Cow;

use anabranch_ranks::GroupRank;
use anabranch_shmem::Team;

use crate::call::tensor::Tensor;
use crate::call::{Call, in_place};
use crate::types::{Collective, Error, Result, Shape};

/// One message of a batch.
#[derive(Clone, Copy, Debug)]
pub enum PointToPoint<'a> {
    /// A send.
    Send {
        /// `[count]`.
        tensor: Tensor<'a>,
        /// The receiver.
        to: GroupRank,
    },
    /// A receive.
    Receive {
        /// `[count]`, as many bytes as are sent.
        tensor: Tensor<'a>,
        /// The sender. `None`, which is any source in torch, is an error: a kernel waits for one known peer.
        from: Option<GroupRank>,
    },
}

impl<'a> PointToPoint<'a> {
    /// A send of a [`Tensor`] or a [`TypedTensor`](crate::TypedTensor).
    pub fn send(tensor: impl Into<Tensor<'a>>, to: GroupRank) -> Self {
        Self::Send { tensor: tensor.into(), to }
    }

    /// A receive into a [`Tensor`] or a [`TypedTensor`](crate::TypedTensor).
    pub fn receive(tensor: impl Into<Tensor<'a>>, from: GroupRank) -> Self {
        Self::Receive { tensor: tensor.into(), from: Some(from) }
    }

    /// The tensor.
    pub const fn tensor(&self) -> &Tensor<'a> {
        match self {
            Self::Send { tensor, .. } | Self::Receive { tensor, .. } => tensor,
        }
    }

    /// Whether it is a receive.
    pub const fn is_receive(&self) -> bool {
        matches!(self, Self::Receive { .. })
    }

    pub(crate) fn peer(&self) -> Result<GroupRank> {
        match self {
            Self::Send { to, .. } => Ok(*to),
            Self::Receive { from, .. } => from.ok_or(Error::Missing {
                collective: Collective::SendReceive,
                what: "a receive needs the member that sends (any source is not possible)",
            }),
        }
    }
}

impl<'a> Call<'a> {
    /// The messages of a call that sends and receives; `None` for a collective.
    pub(crate) fn messages(&self) -> Option<Cow<'a, [PointToPoint<'a>]>> {
        match *self {
            Self::Send { tensor, to } => Some(Cow::Owned(vec![PointToPoint::Send { tensor, to }])),
            Self::Receive { tensor, from } => Some(Cow::Owned(vec![PointToPoint::Receive { tensor, from }])),
            Self::Batch(messages) => Some(Cow::Borrowed(messages)),
            _ => None,
        }
    }
}

/// The shape of a list of messages.
///
/// # Errors
/// [`Error::Missing`], [`Error::Member`], [`Error::SelfMessages`].
pub(crate) fn shape(messages: &[PointToPoint<'_>], members: u32, rank: GroupRank) -> Result<Shape> {
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    for message in messages {
        let peer = message.peer()?;
        if peer.get() >= members {
            let (collective, what) = (Collective::SendReceive, "a message's peer");
            return Err(Error::Member { collective, what, given: peer, members });
        }
        if peer == rank {
            let list = if message.is_receive() { &mut received } else { &mut sent };
            list.push(message.tensor().bytes());
        }
    }
    if sent != received {
        return Err(Error::SelfMessages { rank, sent, received });
    }
    let bytes = messages.iter().map(|message| message.tensor().bytes()).sum();
    Ok(Shape::of_bytes(Collective::SendReceive, members, bytes))
}

/// Checks that tensors are aligned to their elements, and that no tensor to receive into overlaps another.
///
/// # Errors
/// [`Error::Alignment`], [`Error::Overlap`], [`Error::Foreign`].
pub(crate) fn check(messages: &[PointToPoint<'_>], team: &Team) -> Result<()> {
    let places = messages.iter().map(|message| (*message.tensor(), message.is_receive()));
    in_place::check_apart(Collective::SendReceive, places, team)
}
