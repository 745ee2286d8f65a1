//! Messages between pairs of members, and many tensors at once: what takes part in a list has a type of its own each, so the list
//! is of tensors whose types are values, made from typed ones.

use anabranch_ranks::GroupRank;

use super::{Options, TypedTensor};
use crate::call::Call;
use crate::call::message::PointToPoint;
use crate::call::tensor::Tensor;
use crate::run::{Communicator, Work};
use crate::types::{Element, Result};

impl<'a, T: Element> TypedTensor<'a, T> {
    /// An entry for [`Communicator::all_gather_many`]: this tensor, `[members * count]`, gathers all members' `input`, `[count]`.
    pub const fn gathering(self, input: Self) -> (Tensor<'a>, Tensor<'a>) {
        (self.untyped(), input.untyped())
    }
}

/// From typed tensors; what each does stands at the method of [`Communicator`] with its name.
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

/// Messages between the two members of a pair, who make matching calls, and the collective of many tensors. Errors are those of [`Communicator::run`].
impl Communicator {
    /// Sends `tensor`, `[count]`, to a member, which receives as many bytes with [`Self::recv`] or [`Self::batch_isend_irecv`].
    /// What is over when the work is, and when it waits for the receiver, stands at [`Call::Send`]: two members that first send
    /// to each other belong into one batch. Only lengths in bytes are compared between the two; that the receiver's elements
    /// are of the same type is for the callers to see to. `to` is torch's `group_dst`; `dst` goes through
    /// [`Root::from_dst`](anabranch_ranks::Root::from_dst).
    ///
    /// # Errors
    /// [`Communicator::run`]'s. When lengths differ, the receiver's world fails with both.
    #[doc(alias = "isend")]
    pub fn send<T: Element>(
        &mut self,
        tensor: TypedTensor<'_, T>,
        to: GroupRank,
        options: Options<'_>,
    ) -> Result<Work> {
        self.run(&Call::send(tensor, to), options.stream)
    }

    /// Receives a message from a member into `tensor`, `[count]`; over when it is there. `from` is torch's `group_src`; `src`
    /// goes through [`Root::from_src`](anabranch_ranks::Root::from_src), and that there is none, which is torch's any source,
    /// cannot be said.
    ///
    /// # Errors
    /// [`Communicator::run`]'s. When lengths differ, this world fails with both.
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

    /// Sends and receives that progress side by side in one launch, in whatever order they are listed, each made of a tensor by
    /// [`PointToPoint::send`] or [`PointToPoint::receive`] and of a type of its own. Several to or from one member are matched in
    /// their order; tensors to receive into overlap nothing.
    ///
    /// # Errors
    /// [`Communicator::run`]'s. When lengths differ, the receiver's world fails with both.
    #[doc(alias = "Batch")]
    pub fn batch_isend_irecv(&mut self, messages: &[PointToPoint<'_>], options: Options<'_>) -> Result<Work> {
        self.run(&Call::Batch(messages), options.stream)
    }

    /// [`Self::all_gather`] of many tensors in one launch, as (output, input), each made by [`TypedTensor::gathering`] and of a
    /// type of its own: one for each parameter of a sharded model. Each may be in place. Every member gives the same list.
    ///
    /// # Errors
    /// [`Communicator::run`]'s.
    #[doc(alias = "all_gather_coalesced")]
    pub fn all_gather_many(
        &mut self,
        tensors: &[(Tensor<'_>, Tensor<'_>)],
        options: Options<'_>,
    ) -> Result<Work> {
        self.run(&Call::AllGatherMany(tensors), options.stream)
    }
}
