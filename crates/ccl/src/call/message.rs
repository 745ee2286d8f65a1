//! Messages between pairs of members: what is right about a list of them.

use std::borrow::Cow;

use anabranch_ranks::GroupRank;
use anabranch_shmem::Team;

use crate::call::tensor::Tensor;
use crate::call::{Call, in_place};
use crate::types::{Collective, Error, Result, Shape};

/// One message of a call that sends and receives.
#[derive(Clone, Copy, Debug)]
pub enum PointToPoint<'a> {
    /// To a member.
    Send {
        /// What; `[count]`.
        tensor: Tensor<'a>,
        /// To whom.
        to: GroupRank,
    },
    /// From a member.
    Receive {
        /// Where it goes; `[count]`, of as many bytes as are sent.
        tensor: Tensor<'a>,
        /// From whom. `None`, which is torch's any source, is refused: a kernel waits for one peer by name.
        from: Option<GroupRank>,
    },
}

impl<'a> PointToPoint<'a> {
    /// A send, of a tensor or a typed one.
    pub fn send(tensor: impl Into<Tensor<'a>>, to: GroupRank) -> Self {
        Self::Send { tensor: tensor.into(), to }
    }

    /// A receive, into a tensor or a typed one.
    pub fn receive(tensor: impl Into<Tensor<'a>>, from: GroupRank) -> Self {
        Self::Receive { tensor: tensor.into(), from: Some(from) }
    }

    /// Its tensor.
    pub const fn tensor(&self) -> &Tensor<'a> {
        match self {
            Self::Send { tensor, .. } | Self::Receive { tensor, .. } => tensor,
        }
    }

    /// Whether this rank receives it.
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

/// What is known of messages without their addresses.
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

/// Checks where tensors are: aligned to their elements, and nothing that is received on top of another message.
///
/// # Errors
/// [`Error::Alignment`], [`Error::Overlap`], [`Error::Foreign`].
pub(crate) fn check(messages: &[PointToPoint<'_>], team: &Team) -> Result<()> {
    let places = messages.iter().map(|message| (*message.tensor(), message.is_receive()));
    in_place::check_apart(Collective::SendReceive, places, team)
}
