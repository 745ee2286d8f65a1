//! One constructor and one method for each collective.

use anabranch_ranks::GroupRank;

use super::{Options, TypedTensor};
use crate::call::Call;
use crate::run::{Communicator, Work};
use crate::types::{Element, ReduceOperator, Result};

/// From typed tensors; what each does stands at the method of [`Communicator`] with its name.
impl<'a> Call<'a> {
    /// [`Communicator::all_reduce`].
    pub fn all_reduce<T: Element>(tensor: TypedTensor<'a, T>, op: impl ReduceOperator<T>) -> Self {
        Self::all_reduce_into(tensor, tensor, op)
    }

    /// [`Communicator::all_reduce_into`].
    pub fn all_reduce_into<T: Element>(
        output: TypedTensor<'a, T>,
        input: TypedTensor<'a, T>,
        op: impl ReduceOperator<T>,
    ) -> Self {
        Self::AllReduce { output: output.untyped(), input: input.untyped(), op: op.reduce_op() }
    }

    /// [`Communicator::reduce_scatter`].
    pub fn reduce_scatter<T: Element>(
        output: TypedTensor<'a, T>,
        input: TypedTensor<'a, T>,
        op: impl ReduceOperator<T>,
    ) -> Self {
        Self::ReduceScatter { output: output.untyped(), input: input.untyped(), op: op.reduce_op() }
    }

    /// [`Communicator::all_gather`].
    pub const fn all_gather<T: Element>(output: TypedTensor<'a, T>, input: TypedTensor<'a, T>) -> Self {
        Self::AllGather { output: output.untyped(), input: input.untyped() }
    }

    /// [`Communicator::all_gather_uneven`].
    pub const fn all_gather_uneven<T: Element>(
        output: TypedTensor<'a, T>,
        input: TypedTensor<'a, T>,
        counts: &'a [u64],
    ) -> Self {
        Self::AllGatherUneven { output: output.untyped(), input: input.untyped(), counts }
    }

    /// [`Communicator::all_to_all`].
    pub const fn all_to_all<T: Element>(output: TypedTensor<'a, T>, input: TypedTensor<'a, T>) -> Self {
        Self::AllToAll { output: output.untyped(), input: input.untyped() }
    }

    /// [`Communicator::all_to_all_single`].
    pub const fn all_to_all_single<T: Element>(
        output: TypedTensor<'a, T>,
        input: TypedTensor<'a, T>,
        output_splits: &'a [u64],
        input_splits: &'a [u64],
    ) -> Self {
        let (output, input) = (output.untyped(), input.untyped());
        Self::AllToAllUneven { output, input, output_splits, input_splits }
    }

    /// [`Communicator::broadcast`].
    pub const fn broadcast<T: Element>(tensor: TypedTensor<'a, T>, root: GroupRank) -> Self {
        Self::Broadcast { tensor: tensor.untyped(), root }
    }

    /// [`Communicator::reduce`].
    pub fn reduce<T: Element>(
        tensor: TypedTensor<'a, T>,
        root: GroupRank,
        op: impl ReduceOperator<T>,
    ) -> Self {
        Self::reduce_into(tensor, tensor, root, op)
    }

    /// [`Communicator::reduce_into`].
    pub fn reduce_into<T: Element>(
        output: TypedTensor<'a, T>,
        input: TypedTensor<'a, T>,
        root: GroupRank,
        op: impl ReduceOperator<T>,
    ) -> Self {
        Self::Reduce { output: output.untyped(), input: input.untyped(), op: op.reduce_op(), root }
    }

    /// [`Communicator::gather`].
    pub fn gather<T: Element>(
        tensor: TypedTensor<'a, T>,
        output: Option<TypedTensor<'a, T>>,
        root: GroupRank,
    ) -> Self {
        Self::Gather { output: output.map(TypedTensor::untyped), input: tensor.untyped(), root }
    }

    /// [`Communicator::scatter`].
    pub fn scatter<T: Element>(
        tensor: TypedTensor<'a, T>,
        input: Option<TypedTensor<'a, T>>,
        root: GroupRank,
    ) -> Self {
        Self::Scatter { output: tensor.untyped(), input: input.map(TypedTensor::untyped), root }
    }
}

/// Collectives with torch's names and order of arguments (see [`typed`](crate::typed)). Every member makes the same calls in the
/// same order, with equal counts, operators, roots and kinds of location. All return as soon as one kernel is on the stream;
/// their errors are those of [`Communicator::run`]. Wrong calls are refused before anything is launched; an error of the world or
/// of the runtime leaves it open, and the communicator is of no more use then.
impl Communicator {
    /// Every member's `tensor[i]` becomes the reduction of all members' `tensor[i]`: the same bits everywhere. In place; `tensor`
    /// is `[count]`.
    ///
    /// # Errors
    /// [`Communicator::run`]'s.
    pub fn all_reduce<T: Element>(
        &mut self,
        tensor: TypedTensor<'_, T>,
        op: impl ReduceOperator<T>,
        options: Options<'_>,
    ) -> Result<Work> {
        self.run(&Call::all_reduce(tensor, op), options.stream)
    }

    /// [`Self::all_reduce`] out of place: `output` and `input` are `[count]`; the input stays as it is.
    ///
    /// # Errors
    /// [`Communicator::run`]'s.
    pub fn all_reduce_into<T: Element>(
        &mut self,
        output: TypedTensor<'_, T>,
        input: TypedTensor<'_, T>,
        op: impl ReduceOperator<T>,
        options: Options<'_>,
    ) -> Result<Work> {
        self.run(&Call::all_reduce_into(output, input, op), options.stream)
    }

    /// `output[i]` becomes the reduction of all members' `input[rank * count + i]`. `output` is `[count]`, `input`
    /// `[members * count]`; in place the output is this rank's part of the input.
    ///
    /// # Errors
    /// [`Communicator::run`]'s.
    #[doc(alias = "reduce_scatter_tensor")]
    pub fn reduce_scatter<T: Element>(
        &mut self,
        output: TypedTensor<'_, T>,
        input: TypedTensor<'_, T>,
        op: impl ReduceOperator<T>,
        options: Options<'_>,
    ) -> Result<Work> {
        self.run(&Call::reduce_scatter(output, input, op), options.stream)
    }

    /// `output[r * count + i]` becomes `input[i]` of member r. `output` is `[members * count]`, `input` `[count]`; in place the
    /// input is this rank's part of the output ([`TypedTensor::narrow`]).
    ///
    /// # Errors
    /// [`Communicator::run`]'s.
    #[doc(alias = "all_gather_into_tensor")]
    pub fn all_gather<T: Element>(
        &mut self,
        output: TypedTensor<'_, T>,
        input: TypedTensor<'_, T>,
        options: Options<'_>,
    ) -> Result<Work> {
        self.run(&Call::all_gather(output, input), options.stream)
    }

    /// [`Self::all_gather`] of inputs that differ in length: `counts[r]` elements of member r, in group order, equal on all
    /// members. `output` is `[sum of counts]`, `input` `[counts[rank]]`.
    ///
    /// # Errors
    /// [`Communicator::run`]'s.
    pub fn all_gather_uneven<T: Element>(
        &mut self,
        output: TypedTensor<'_, T>,
        input: TypedTensor<'_, T>,
        counts: &[u64],
        options: Options<'_>,
    ) -> Result<Work> {
        self.run(&Call::all_gather_uneven(output, input, counts), options.stream)
    }

    /// `output[r * part + i]` becomes `input[rank * part + i]` of member r, with `part = count / members`. `output` and `input`
    /// are `[count]`, a multiple of the members, and do not overlap.
    ///
    /// # Errors
    /// [`Communicator::run`]'s.
    pub fn all_to_all<T: Element>(
        &mut self,
        output: TypedTensor<'_, T>,
        input: TypedTensor<'_, T>,
        options: Options<'_>,
    ) -> Result<Work> {
        self.run(&Call::all_to_all(output, input), options.stream)
    }

    /// [`Self::all_to_all`] of parts that differ in length: `output_splits[r]` elements come from member r, `input_splits[r]`
    /// go to it, one part after the other. What this rank sends to a member has to be what that member expects from it. Splits
    /// count elements; torch's count rows of the first dimension, so multiply by the elements of a row.
    ///
    /// # Errors
    /// [`Communicator::run`]'s.
    pub fn all_to_all_single<T: Element>(
        &mut self,
        output: TypedTensor<'_, T>,
        input: TypedTensor<'_, T>,
        output_splits: &[u64],
        input_splits: &[u64],
        options: Options<'_>,
    ) -> Result<Work> {
        self.run(&Call::all_to_all_single(output, input, output_splits, input_splits), options.stream)
    }

    /// `tensor`, `[count]`, becomes the root's on every member. Roots that come as torch's `src` go through
    /// [`Root::from_src`](anabranch_ranks::Root::from_src).
    ///
    /// # Errors
    /// [`Communicator::run`]'s.
    pub fn broadcast<T: Element>(
        &mut self,
        tensor: TypedTensor<'_, T>,
        root: GroupRank,
        options: Options<'_>,
    ) -> Result<Work> {
        self.run(&Call::broadcast(tensor, root), options.stream)
    }

    /// The root's `tensor[i]` becomes the reduction of all members' `tensor[i]`. In place; elsewhere than at the root nothing is
    /// written (torch leaves it unspecified). `tensor` is `[count]`. The root is torch's `group_dst`; `dst` goes through
    /// [`Root::from_dst`](anabranch_ranks::Root::from_dst).
    ///
    /// # Errors
    /// [`Communicator::run`]'s.
    pub fn reduce<T: Element>(
        &mut self,
        tensor: TypedTensor<'_, T>,
        root: GroupRank,
        op: impl ReduceOperator<T>,
        options: Options<'_>,
    ) -> Result<Work> {
        self.run(&Call::reduce(tensor, root, op), options.stream)
    }

    /// [`Self::reduce`] out of place: `output` and `input` are `[count]`; the output is written at the root alone, and given on all
    /// members.
    ///
    /// # Errors
    /// [`Communicator::run`]'s.
    pub fn reduce_into<T: Element>(
        &mut self,
        output: TypedTensor<'_, T>,
        input: TypedTensor<'_, T>,
        root: GroupRank,
        op: impl ReduceOperator<T>,
        options: Options<'_>,
    ) -> Result<Work> {
        self.run(&Call::reduce_into(output, input, root, op), options.stream)
    }

    /// The root's `output[r * count + i]` becomes `tensor[i]` of member r. `tensor` is `[count]` and, as in torch, comes first.
    /// `output` is `[members * count]` at the root; elsewhere nothing, or a tensor of the same kind, which is not touched and is
    /// needed when it is symmetric or registered. In place the tensor is the root's part of the output.
    ///
    /// # Errors
    /// [`Communicator::run`]'s.
    pub fn gather<T: Element>(
        &mut self,
        tensor: TypedTensor<'_, T>,
        output: Option<TypedTensor<'_, T>>,
        root: GroupRank,
        options: Options<'_>,
    ) -> Result<Work> {
        self.run(&Call::gather(tensor, output, root), options.stream)
    }

    /// `tensor[i]` becomes the root's `input[rank * count + i]`. `tensor` is `[count]`; `input` is `[members * count]` at the root;
    /// elsewhere nothing, or a tensor, which is not touched.
    ///
    /// # Errors
    /// [`Communicator::run`]'s.
    pub fn scatter<T: Element>(
        &mut self,
        tensor: TypedTensor<'_, T>,
        input: Option<TypedTensor<'_, T>>,
        root: GroupRank,
        options: Options<'_>,
    ) -> Result<Work> {
        self.run(&Call::scatter(tensor, input, root), options.stream)
    }

    /// All members meet: what came before it on their streams is done and visible to what comes after it.
    ///
    /// # Errors
    /// [`Communicator::run`]'s.
    pub fn barrier(&mut self, options: Options<'_>) -> Result<Work> {
        self.run(&Call::Barrier, options.stream)
    }
}
