//! One constructor and one method for each collective.

use anabranch_ranks::GroupRank;

use super::{Options, TypedTensor};
use crate::call::Call;
use crate::run::{Communicator, Work};
use crate::types::{Element, ReduceOperator, Result};

/// Constructors from typed tensors. The method of [`Communicator`] with the same name documents each.
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

    /// [`Communicator::reduce_scatter_uneven`].
    pub fn reduce_scatter_uneven<T: Element>(
        output: TypedTensor<'a, T>,
        input: TypedTensor<'a, T>,
        op: impl ReduceOperator<T>,
        counts: &'a [u64],
    ) -> Self {
        let (output, input, op) = (output.untyped(), input.untyped(), op.reduce_op());
        Self::ReduceScatterUneven { output, input, op, counts }
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

/// Collectives with torch's names and order of arguments (see [`typed`](crate::typed)). Collective over the group: every member makes the
/// same calls in the same order, with equal counts, operators, roots and kinds of memory. Tensors start at a multiple of the element size.
/// A method returns when the work is enqueued on the stream of `options`, and does not wait. Errors are those of [`Communicator::run`]:
/// invalid calls are refused before anything is launched; after an error of the world or the runtime the communicator is unusable.
impl Communicator {
    /// `tensor[i]` of every member becomes the reduction of `tensor[i]` of all members, with the same bits on all members. In place.
    /// `tensor` is `[count]`.
    ///
    /// # Errors
    /// As [`Communicator::run`].
    pub fn all_reduce<T: Element>(
        &mut self,
        tensor: TypedTensor<'_, T>,
        op: impl ReduceOperator<T>,
        options: Options<'_>,
    ) -> Result<Work> {
        self.run(&Call::all_reduce(tensor, op), options.stream)
    }

    /// [`Self::all_reduce`] out of place: `output` and `input` are `[count]`. The input is not modified.
    ///
    /// # Errors
    /// As [`Communicator::run`].
    pub fn all_reduce_into<T: Element>(
        &mut self,
        output: TypedTensor<'_, T>,
        input: TypedTensor<'_, T>,
        op: impl ReduceOperator<T>,
        options: Options<'_>,
    ) -> Result<Work> {
        self.run(&Call::all_reduce_into(output, input, op), options.stream)
    }

    /// `output[i]` becomes the reduction of `input[rank * count + i]` of all members. `output` is `[count]`, `input` `[members * count]`.
    /// In place, the output is the part of this rank in the input.
    ///
    /// # Errors
    /// As [`Communicator::run`].
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

    /// [`Self::reduce_scatter`] with parts of different lengths: member r gets `counts[r]` elements. `counts` is in group order and equal on
    /// all members. `output` is `[counts[rank]]`, `input` `[sum of counts]`; they do not overlap. At most 64 members on one node.
    ///
    /// # Errors
    /// As [`Communicator::run`].
    pub fn reduce_scatter_uneven<T: Element>(
        &mut self,
        output: TypedTensor<'_, T>,
        input: TypedTensor<'_, T>,
        op: impl ReduceOperator<T>,
        counts: &[u64],
        options: Options<'_>,
    ) -> Result<Work> {
        self.run(&Call::reduce_scatter_uneven(output, input, op, counts), options.stream)
    }

    /// `output[r * count + i]` becomes `input[i]` of member r. `output` is `[members * count]`, `input` `[count]`. In place, the input is
    /// the part of this rank in the output ([`TypedTensor::narrow`]).
    ///
    /// # Errors
    /// As [`Communicator::run`].
    #[doc(alias = "all_gather_into_tensor")]
    pub fn all_gather<T: Element>(
        &mut self,
        output: TypedTensor<'_, T>,
        input: TypedTensor<'_, T>,
        options: Options<'_>,
    ) -> Result<Work> {
        self.run(&Call::all_gather(output, input), options.stream)
    }

    /// [`Self::all_gather`] with inputs of different lengths: member r gives `counts[r]` elements. `counts` is in group order and equal on
    /// all members. `output` is `[sum of counts]`, `input` `[counts[rank]]`. At most 64 members on one node.
    ///
    /// # Errors
    /// As [`Communicator::run`].
    pub fn all_gather_uneven<T: Element>(
        &mut self,
        output: TypedTensor<'_, T>,
        input: TypedTensor<'_, T>,
        counts: &[u64],
        options: Options<'_>,
    ) -> Result<Work> {
        self.run(&Call::all_gather_uneven(output, input, counts), options.stream)
    }

    /// `output[r * part + i]` becomes `input[rank * part + i]` of member r, with `part = count / members`. `output` and `input` are
    /// `[count]`, a multiple of the number of members, and do not overlap.
    ///
    /// # Errors
    /// As [`Communicator::run`].
    pub fn all_to_all<T: Element>(
        &mut self,
        output: TypedTensor<'_, T>,
        input: TypedTensor<'_, T>,
        options: Options<'_>,
    ) -> Result<Work> {
        self.run(&Call::all_to_all(output, input), options.stream)
    }

    /// [`Self::all_to_all`] with parts of different lengths: `output_splits[r]` elements come from member r and `input_splits[r]` go to it;
    /// parts are concatenated. The number of elements that a rank sends must be the number that the receiver expects. Splits count
    /// elements; those of torch count rows of the first dimension. At most 64 members on one node.
    ///
    /// # Errors
    /// As [`Communicator::run`].
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

    /// `tensor`, `[count]`, becomes the tensor of the root on every member. The root is `group_src` of torch; convert `src` with
    /// [`Group::rank_of`](anabranch_ranks::Group::rank_of).
    ///
    /// # Errors
    /// As [`Communicator::run`].
    pub fn broadcast<T: Element>(
        &mut self,
        tensor: TypedTensor<'_, T>,
        root: GroupRank,
        options: Options<'_>,
    ) -> Result<Work> {
        self.run(&Call::broadcast(tensor, root), options.stream)
    }

    /// `tensor[i]` of the root becomes the reduction of `tensor[i]` of all members. In place. `tensor` is `[count]`. Other members keep
    /// their tensor (torch leaves it unspecified). The root is `group_dst` of torch; convert `dst` with
    /// [`Group::rank_of`](anabranch_ranks::Group::rank_of).
    ///
    /// # Errors
    /// As [`Communicator::run`].
    pub fn reduce<T: Element>(
        &mut self,
        tensor: TypedTensor<'_, T>,
        root: GroupRank,
        op: impl ReduceOperator<T>,
        options: Options<'_>,
    ) -> Result<Work> {
        self.run(&Call::reduce(tensor, root, op), options.stream)
    }

    /// [`Self::reduce`] out of place: `output` and `input` are `[count]`. Every member gives an output; only that of the root is written.
    ///
    /// # Errors
    /// As [`Communicator::run`].
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

    /// `output[r * count + i]` of the root becomes `tensor[i]` of member r. `tensor` is `[count]` and, as in torch, the first argument.
    /// `output` is `[members * count]` at the root. On other members it is `None`, or a tensor of the same kind of memory, which is not
    /// accessed; required there if it is symmetric or registered. In place, the tensor is the part of the root in the output.
    ///
    /// # Errors
    /// As [`Communicator::run`].
    pub fn gather<T: Element>(
        &mut self,
        tensor: TypedTensor<'_, T>,
        output: Option<TypedTensor<'_, T>>,
        root: GroupRank,
        options: Options<'_>,
    ) -> Result<Work> {
        self.run(&Call::gather(tensor, output, root), options.stream)
    }

    /// `tensor[i]` becomes `input[rank * count + i]` of the root. `tensor` is `[count]`. `input` is `[members * count]` at the root; on
    /// other members it is `None`, or a tensor, which is not accessed.
    ///
    /// # Errors
    /// As [`Communicator::run`].
    pub fn scatter<T: Element>(
        &mut self,
        tensor: TypedTensor<'_, T>,
        input: Option<TypedTensor<'_, T>>,
        root: GroupRank,
        options: Options<'_>,
    ) -> Result<Work> {
        self.run(&Call::scatter(tensor, input, root), options.stream)
    }

    /// A barrier on the streams of all members: work before it on any stream is complete and visible to work after it on all streams.
    ///
    /// # Errors
    /// As [`Communicator::run`].
    pub fn barrier(&mut self, options: Options<'_>) -> Result<Work> {
        self.run(&Call::Barrier, options.stream)
    }
}
