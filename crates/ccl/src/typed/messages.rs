//! Sends and receives, and collectives on several tensors. Lists hold untyped [`Tensor`]s, made from typed ones, because the entries of a
//! list can have different types.

use anabranch_ranks::GroupRank;

use super::{Options, TypedTensor};
use crate::call::Call;
use crate::call::message::PointToPoint;
use crate::call::tensor::Tensor;
use crate::run::{Communicator, Work};
use crate::types::{Element, Result};

impl<'a, T: Element> TypedTensor<'a, T> {
    /// An entry for [`Communicator::all_gather_many`]: gathers `input`, `[count]`, of all members into this tensor, `[members * count]`.
    pub const fn gathering(self, input: Self) -> (Tensor<'a>, Tensor<'a>) {
        (self.untyped(), input.untyped())
    }
}

/// Constructors from typed tensors. The method of [`Communicator`] with the same name documents each.
impl<'a> Call<'a> {
    /// [`Communicator::send`].
    pub const fn send<T: Element>(tensor: TypedTensor<'a, T>, to: GroupRank) -> Self {
        Self::Send { tensor: tensor.untyped(), to }
    }

    /// [`Communicator::recv`].
    pub const fn recv<T: Element>(tensor: TypedTensor<'a, T>, from: GroupRank) -> Self {
        Self::Receive { tensor: tensor.untyped(), from: Some(from) }
    }
}

/// Sends and receives, for which only the two members of a pair make matching calls, and the collective of several tensors. Errors are
/// those of [`Communicator::run`].
impl Communicator {
    /// Sends `tensor`, `[count]`, to member `to`, which receives as many bytes with [`Self::recv`] or [`Self::batch_isend_irecv`].
    /// [`Call::Send`] states when the work is complete and when it waits for the receiver: two members that both send first need one batch.
    /// The kernels compare lengths in bytes, not element types. `to` is `group_dst` of torch; convert `dst` with
    /// [`Group::rank_of`](anabranch_ranks::Group::rank_of).
    ///
    /// # Errors
    /// As [`Communicator::run`]. If lengths differ, the world of the receiver fails with both lengths.
    #[doc(alias = "isend")]
    pub fn send<T: Element>(
        &mut self,
        tensor: TypedTensor<'_, T>,
        to: GroupRank,
        options: Options<'_>,
    ) -> Result<Work> {
        self.run(&Call::send(tensor, to), options.stream)
    }

    /// Receives a message of member `from` into `tensor`, `[count]`. Complete when the tensor holds it. `from` is `group_src` of torch;
    /// convert `src` with [`Group::rank_of`](anabranch_ranks::Group::rank_of). There is no any-source receive.
    ///
    /// # Errors
    /// As [`Communicator::run`]. If lengths differ, this world fails with both lengths.
    #[doc(alias = "irecv")]
    #[doc(alias = "receive")]
    pub fn recv<T: Element>(
        &mut self,
        tensor: TypedTensor<'_, T>,
        from: GroupRank,
        options: Options<'_>,
    ) -> Result<Work> {
        self.run(&Call::recv(tensor, from), options.stream)
    }

    /// Sends and receives that progress concurrently in one launch, in any order of the list. [`PointToPoint::send`] and
    /// [`PointToPoint::receive`] make the entries, each with its own element type. Messages of one pair and direction are matched in list
    /// order. Tensors to receive into overlap no other tensor.
    ///
    /// # Errors
    /// As [`Communicator::run`]. If lengths differ, the world of the receiver fails with both lengths.
    #[doc(alias = "Batch")]
    pub fn batch_isend_irecv(&mut self, messages: &[PointToPoint<'_>], options: Options<'_>) -> Result<Work> {
        self.run(&Call::Batch(messages), options.stream)
    }

    /// [`Self::all_gather`] of several tensors in one launch, as (output, input), for example one per parameter of a sharded model.
    /// [`TypedTensor::gathering`] makes the entries, each with its own element type. Each may be in place. Every member gives the same
    /// list.
    ///
    /// # Errors
    /// As [`Communicator::run`].
    #[doc(alias = "all_gather_coalesced")]
    pub fn all_gather_many(
        &mut self,
        tensors: &[(Tensor<'_>, Tensor<'_>)],
        options: Options<'_>,
    ) -> Result<Work> {
        self.run(&Call::AllGatherMany(tensors), options.stream)
    }
}
