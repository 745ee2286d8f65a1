//! Calls and their checks. Pure, except for the addresses that in-place forms are recognized by.

pub(crate) mod in_place;
pub(crate) mod many;
pub(crate) mod message;
pub(crate) mod norm;
pub(crate) mod tensor;

use anabranch_elements::data_type::names;
use anabranch_ranks::GroupRank;

use crate::call::message::PointToPoint;
use crate::call::norm::RmsNorm;
use crate::call::tensor::Tensor;
use crate::types::{Collective, DATA_TYPES, DataType, Error, LocationKind, ReduceOp, Result, Shape};

/// One collective with its tensors, as seen by this rank. Arguments are in the order of torch: output, input, operator, root.
///
/// Every member makes the same call: same collective, counts, types, operator and root, and the same kind of memory of each tensor. Tensors
/// start at a multiple of the element size. Element types are [`DATA_TYPES`]. In-place forms: the same tensor for `all_reduce`, `reduce`
/// and `broadcast`; an input that is the part of this rank in the output for `all_gather` and `gather`; an output that is the part of this
/// rank in the input for `reduce_scatter`, and for `scatter` if it is local memory. Any other overlap is [`Error::Overlap`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Call<'a> {
    /// `output[i] = op over ranks of input[i]`. Equal counts.
    AllReduce {
        /// `[count]`.
        output: Tensor<'a>,
        /// `[count]`.
        input: Tensor<'a>,
        /// The operator.
        op: ReduceOp,
    },
    /// The sum over ranks of the rows of `input`, and RMSNorm of each row: what follows each tensor-parallel layer of a transformer. One
    /// kernel for short messages, else an all_reduce and a kernel. **The call uses the input up**: its contents are undefined afterwards.
    /// Equal rows, types and kinds of memory of the input on all members; the tensors of the norm are of this rank alone.
    AllReduceRmsNorm {
        /// `[rows][row]` of bf16, f16 or f32: the contribution of this rank. Symmetric or registered memory makes long messages faster.
        input: Tensor<'a>,
        /// The norm.
        norm: RmsNorm<'a>,
    },
    /// `output[i] = op over ranks of input[rank * count + i]`.
    ReduceScatter {
        /// `[count]`.
        output: Tensor<'a>,
        /// `[members * count]`.
        input: Tensor<'a>,
        /// The operator.
        op: ReduceOp,
    },
    /// [`Self::ReduceScatter`] with a count for each member. Parts are concatenated in the input. At most 64 members on one node. Not in
    /// place.
    ReduceScatterUneven {
        /// `[counts[rank]]`.
        output: Tensor<'a>,
        /// `[sum of counts]`.
        input: Tensor<'a>,
        /// The operator.
        op: ReduceOp,
        /// Elements of the part of each member, in group order; equal on all members.
        counts: &'a [u64],
    },
    /// `output[r * count + i] = input of r [i]`.
    AllGather {
        /// `[members * count]`.
        output: Tensor<'a>,
        /// `[count]`.
        input: Tensor<'a>,
    },
    /// [`Self::AllGather`] with a count for each member. Inputs are concatenated in the output. At most 64 members on one node.
    AllGatherUneven {
        /// `[sum of counts]`.
        output: Tensor<'a>,
        /// `[counts[rank]]`.
        input: Tensor<'a>,
        /// Elements of each member, in group order; equal on all members.
        counts: &'a [u64],
    },
    /// `output[r * part + i] = input of r [rank * part + i]`, with `part = count / members`.
    AllToAll {
        /// `[count]`; `count` is a multiple of the number of members.
        output: Tensor<'a>,
        /// `[count]`.
        input: Tensor<'a>,
    },
    /// [`Self::AllToAll`] with a count for each pair. Parts are concatenated in input and output. The count that a rank sends must be the
    /// count that the receiver expects. At most 64 members on one node.
    AllToAllUneven {
        /// `[sum of output_splits]`.
        output: Tensor<'a>,
        /// `[sum of input_splits]`.
        input: Tensor<'a>,
        /// Elements from each member, in group order.
        output_splits: &'a [u64],
        /// Elements to each member, in group order.
        input_splits: &'a [u64],
    },
    /// `tensor = tensor of root`.
    Broadcast {
        /// `[count]`; read at the root, written elsewhere.
        tensor: Tensor<'a>,
        /// The source.
        root: GroupRank,
    },
    /// `output[i] = op over ranks of input[i]` at the root. Other members do not write the output (torch leaves it unspecified).
    Reduce {
        /// `[count]`.
        output: Tensor<'a>,
        /// `[count]`.
        input: Tensor<'a>,
        /// The operator.
        op: ReduceOp,
        /// The destination.
        root: GroupRank,
    },
    /// `output[r * count + i] = input of r [i]` at the root.
    Gather {
        /// `[members * count]`. On other members `None`, or a tensor of the same kind of memory, which is not accessed; required there if
        /// it is symmetric or registered.
        output: Option<Tensor<'a>>,
        /// `[count]`.
        input: Tensor<'a>,
        /// The destination.
        root: GroupRank,
    },
    /// `output[i] = input of root [rank * count + i]`.
    Scatter {
        /// `[count]`.
        output: Tensor<'a>,
        /// `[members * count]`. On other members `None`, or a tensor, which is not accessed.
        input: Option<Tensor<'a>>,
        /// The source.
        root: GroupRank,
    },
    /// A barrier on the streams of all members: work before it on any stream is complete and visible to work after it on all streams.
    Barrier,
    /// [`Self::AllGather`] of several tensors in one launch, as (output, input), for example one per parameter of a sharded model. Types
    /// may differ between pairs. Each pair may be in place. The algorithm depends on the total bytes. Algorithms that write outputs
    /// directly need all outputs mapped at peers.
    AllGatherMany(&'a [(Tensor<'a>, Tensor<'a>)]),
    /// Sends a message to a member, which receives as many bytes. Not collective: sender and receiver make matching calls.
    ///
    /// Messages of a pair arrive in the order in which they were sent. The call is complete when the message is in the pipe to the
    /// receiver, received or not. A message waits for the receiver if it is longer than the capacity of the pipe (`ccl.pipe_bytes` divided
    /// by the number of members), or if four earlier messages have not been received. So two members that both send a long message first
    /// and then receive wait for each other until the deadline: put send and receive in one [`Self::Batch`]. A message without elements is
    /// a message, too. If the lengths differ, the world of the receiver fails with both lengths.
    Send {
        /// `[count]`.
        tensor: Tensor<'a>,
        /// The receiver; not this rank.
        to: GroupRank,
    },
    /// Receives a message from a member. Complete when the tensor holds it.
    Receive {
        /// `[count]`.
        tensor: Tensor<'a>,
        /// The sender. `None`, which is any source in torch, is an error.
        from: Option<GroupRank>,
    },
    /// Sends and receives that progress concurrently in one launch, in any order of the list: `batch_isend_irecv` of torch, a group of
    /// NCCL. Messages of one pair and direction are matched in list order. A rank may send to itself what it receives from itself. Tensors
    /// to receive into overlap no other tensor.
    Batch(&'a [PointToPoint<'a>]),
}

impl Call<'_> {
    /// The collective.
    pub const fn collective(&self) -> Collective {
        match self {
            Self::AllReduce { .. } | Self::AllReduceRmsNorm { .. } => Collective::AllReduce,
            Self::ReduceScatter { .. } | Self::ReduceScatterUneven { .. } => Collective::ReduceScatter,
            Self::AllGather { .. } | Self::AllGatherUneven { .. } | Self::AllGatherMany(_) => {
                Collective::AllGather
            }
            Self::AllToAll { .. } | Self::AllToAllUneven { .. } => Collective::AllToAll,
            Self::Broadcast { .. } => Collective::Broadcast,
            Self::Reduce { .. } => Collective::Reduce,
            Self::Gather { .. } => Collective::Gather,
            Self::Scatter { .. } => Collective::Scatter,
            Self::Barrier => Collective::Barrier,
            Self::Send { .. } | Self::Receive { .. } | Self::Batch(_) => Collective::SendReceive,
        }
    }

    /// Checks counts, types, operator and root for member `rank` of a group of `members`, and returns the shape of the call.
    ///
    /// # Errors
    /// [`Error::Count`], [`Error::Type`], [`Error::Unsupported`], [`Error::Member`], [`Error::Missing`],
    /// [`Error::SelfMessages`].
    ///
    /// # Panics
    /// If `rank` is not below `members`.
    #[expect(clippy::too_many_lines, reason = "one arm for each call")]
    pub(crate) fn shape(&self, members: u32, rank: GroupRank) -> Result<Shape> {
        let n = u64::from(members);
        let (collective, local) = (self.collective(), LocationKind::Local);
        for given in self.all_tensors().iter().map(Tensor::data_type) {
            if !DATA_TYPES.contains(&given) {
                return Err(Error::Type { collective, what: "a tensor", given, allowed: names(&DATA_TYPES) });
            }
        }
        let shape = |tensor: &Tensor<'_>, count: u64, input: LocationKind, output: LocationKind| Shape {
            collective,
            data_type: tensor.data_type(),
            op: None,
            members,
            count,
            uneven: false,
            root: None,
            input,
            output,
            norm_row: None,
        };
        match self {
            Self::AllReduce { output, input, op } => {
                self.same_type(output, input)?;
                self.count("output", output.count(), "the input's", input.count())?;
                self.operator(*op, input.data_type())?;
                Ok(Shape { op: Some(*op), ..shape(input, input.count(), input.kind(), output.kind()) })
            }
            Self::AllReduceRmsNorm { input, norm } => {
                norm.check(input)?;
                let shape = shape(input, input.count(), input.kind(), input.kind());
                Ok(Shape { op: Some(ReduceOp::Sum), norm_row: Some(norm.row()), ..shape })
            }
            Self::Reduce { output, input, op, root } => {
                self.same_type(output, input)?;
                self.count("output", output.count(), "the input's", input.count())?;
                self.operator(*op, input.data_type())?;
                let shape = shape(input, input.count(), input.kind(), output.kind());
                Ok(Shape { op: Some(*op), root: self.root(*root, members)?, ..shape })
            }
            Self::ReduceScatter { output, input, op } => {
                self.same_type(output, input)?;
                self.times("input", input.count(), n, "output", output.count())?;
                self.operator(*op, input.data_type())?;
                Ok(Shape { op: Some(*op), ..shape(input, output.count(), input.kind(), output.kind()) })
            }
            Self::ReduceScatterUneven { output, input, op, counts } => {
                self.same_type(output, input)?;
                let sum = self.splits("counts", counts, members)?;
                self.count("input", input.count(), "the sum of the counts:", sum)?;
                self.count("output", output.count(), "this rank's count:", counts[rank.index()])?;
                self.operator(*op, input.data_type())?;
                // Every member takes part in all steps of the longest part.
                let longest = counts.iter().copied().max().unwrap_or(0);
                let shape = shape(input, longest, input.kind(), output.kind());
                Ok(Shape { op: Some(*op), uneven: true, ..shape })
            }
            Self::AllGather { output, input } => {
                self.same_type(output, input)?;
                self.times("output", output.count(), n, "input", input.count())?;
                Ok(shape(input, input.count(), input.kind(), output.kind()))
            }
            Self::AllGatherUneven { output, input, counts } => {
                self.same_type(output, input)?;
                let sum = self.splits("counts", counts, members)?;
                self.count("output", output.count(), "the sum of the counts:", sum)?;
                let mine = counts[rank.index()];
                self.count("input", input.count(), "this rank's count:", mine)?;
                Ok(Shape { uneven: true, ..shape(input, sum / n, input.kind(), output.kind()) })
            }
            Self::AllToAll { output, input } => {
                self.same_type(output, input)?;
                self.count("output", output.count(), "the input's", input.count())?;
                Ok(shape(input, self.part(input.count(), members)?, input.kind(), output.kind()))
            }
            Self::AllToAllUneven { output, input, output_splits, input_splits } => {
                self.same_type(output, input)?;
                let sent = self.splits("input_splits", input_splits, members)?;
                let received = self.splits("output_splits", output_splits, members)?;
                self.count("input", input.count(), "the sum of input_splits:", sent)?;
                self.count("output", output.count(), "the sum of output_splits:", received)?;
                let own = |splits: &[u64]| splits[rank.index()];
                let rule = "what this rank sends itself:";
                self.count("the part from itself", own(output_splits), rule, own(input_splits))?;
                Ok(Shape { uneven: true, ..shape(input, sent / n, input.kind(), output.kind()) })
            }
            Self::Broadcast { tensor, root } => {
                let shape = shape(tensor, tensor.count(), tensor.kind(), tensor.kind());
                Ok(Shape { root: self.root(*root, members)?, ..shape })
            }
            Self::Gather { output, input, root } => {
                let root_here = self.root(*root, members)?;
                if let Some(output) = output {
                    self.same_type(output, input)?;
                }
                if *root == rank {
                    let output = output
                        .as_ref()
                        .ok_or(Error::Missing { collective, what: "the root needs an output" })?;
                    self.times("output", output.count(), n, "input", input.count())?;
                }
                let kind = output.as_ref().map_or(local, Tensor::kind);
                Ok(Shape { root: root_here, ..shape(input, input.count(), input.kind(), kind) })
            }
            Self::Scatter { output, input, root } => {
                let root_here = self.root(*root, members)?;
                if let Some(input) = input {
                    self.same_type(output, input)?;
                }
                if *root == rank {
                    let input = input
                        .as_ref()
                        .ok_or(Error::Missing { collective, what: "the root needs an input" })?;
                    self.times("input", input.count(), n, "output", output.count())?;
                }
                // Peers do not access the input: its kind does not matter.
                Ok(Shape { root: root_here, ..shape(output, output.count(), local, output.kind()) })
            }
            Self::AllGatherMany(pairs) => many::shape(pairs, members),
            Self::Send { .. } | Self::Receive { .. } | Self::Batch(_) => {
                #[expect(clippy::expect_used, reason = "these three variants are what messages() takes")]
                let messages = self.messages().expect("the call sends or receives");
                message::shape(&messages, members, rank)
            }
            Self::Barrier => Ok(Shape::of_bytes(collective, members, 0)),
        }
    }

    fn same_type(&self, output: &Tensor<'_>, input: &Tensor<'_>) -> Result<()> {
        let (output, input) = (output.data_type(), input.data_type());
        if output == input {
            Ok(())
        } else {
            Err(Error::Type {
                collective: self.collective(),
                what: "the output",
                given: output,
                allowed: format!("the input's {input}"),
            })
        }
    }

    fn operator(&self, op: ReduceOp, data_type: DataType) -> Result<()> {
        op.check(data_type)?;
        let Some(scalar) = op.device_scalar() else { return Ok(()) };
        let (address, given) = (scalar.address().0, scalar.data_type());
        if given != data_type {
            let allowed = format!("the tensors' {data_type}");
            return Err(Error::Type { collective: self.collective(), what: "the scalar", given, allowed });
        }
        // Kernels take address 0 for a scalar of the host.
        if address == 0 || !address.is_multiple_of(u64::from(data_type.bytes())) {
            return Err(Error::Alignment { address, data_type });
        }
        Ok(())
    }

    fn count(&self, what: &'static str, given: u64, rule: &'static str, needed: u64) -> Result<()> {
        if given == needed {
            Ok(())
        } else {
            let rule = format!("{rule} {needed}");
            Err(Error::Count { collective: self.collective(), what, given, rule })
        }
    }

    fn times(&self, what: &'static str, given: u64, n: u64, other: &'static str, one: u64) -> Result<()> {
        if one.checked_mul(n) == Some(given) {
            Ok(())
        } else {
            let rule = format!("{n} (the group's size) times the {other}'s {one}");
            Err(Error::Count { collective: self.collective(), what, given, rule })
        }
    }

    fn part(&self, count: u64, members: u32) -> Result<u64> {
        if count.is_multiple_of(members.into()) {
            return Ok(count / u64::from(members));
        }
        let rule = format!("a multiple of {members} (the group's size); give splits instead");
        Err(Error::Count { collective: self.collective(), what: "input", given: count, rule })
    }

    fn splits(&self, what: &'static str, splits: &[u64], members: u32) -> Result<u64> {
        let collective = self.collective();
        if splits.len() != members as usize {
            let rule = format!("one for each of the {members} members");
            return Err(Error::Count { collective, what, given: splits.len() as u64, rule });
        }
        // Sums below 2^48 elements cannot overflow 64 bits in bytes.
        let sum = splits.iter().fold(0u64, |sum, split| sum.saturating_add(*split));
        if sum < 1 << 48 {
            Ok(sum)
        } else {
            Err(Error::Count { collective, what, given: sum, rule: "a sum below 2^48".to_owned() })
        }
    }

    fn root(&self, root: GroupRank, members: u32) -> Result<Option<GroupRank>> {
        if root.get() < members {
            Ok(Some(root))
        } else {
            Err(Error::Member { collective: self.collective(), what: "the root", given: root, members })
        }
    }
}

impl<'a> Call<'a> {
    /// Every tensor that this rank reads or writes.
    pub(crate) fn all_tensors(&self) -> Vec<Tensor<'a>> {
        let (output, input) = self.tensors();
        let mut all: Vec<_> = [output, input].into_iter().flatten().collect();
        if let Self::AllGatherMany(pairs) = self {
            all.extend(pairs.iter().flat_map(|(output, input)| [*output, *input]));
        }
        if let Self::AllReduceRmsNorm { norm, .. } = self {
            all.extend(norm.tensors());
        }
        if let Some(messages) = self.messages() {
            all.extend(messages.iter().map(|message| *message.tensor()));
        }
        all
    }

    /// The output and the input, for calls with at most one of each.
    pub(crate) const fn tensors(&self) -> (Option<Tensor<'a>>, Option<Tensor<'a>>) {
        match *self {
            Self::AllReduce { output, input, .. }
            | Self::ReduceScatter { output, input, .. }
            | Self::ReduceScatterUneven { output, input, .. }
            | Self::AllGather { output, input }
            | Self::AllGatherUneven { output, input, .. }
            | Self::AllToAll { output, input }
            | Self::AllToAllUneven { output, input, .. }
            | Self::Reduce { output, input, .. } => (Some(output), Some(input)),
            Self::Broadcast { tensor, .. } | Self::AllReduceRmsNorm { input: tensor, .. } => {
                (Some(tensor), Some(tensor))
            }
            Self::Gather { output, input, .. } => (output, Some(input)),
            Self::Scatter { output, input, .. } => (Some(output), input),
            Self::AllGatherMany(_)
            | Self::Send { .. }
            | Self::Receive { .. }
            | Self::Batch(_)
            | Self::Barrier => (None, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use anabranch_hip::DeviceAddress;

    use super::*;

    #[test]
    fn uneven_reduce_scatter_is_planned_by_its_longest_part() {
        let counts = [5, 0, 41];
        for (rank, count) in (0..).zip(counts) {
            // SAFETY: a shape reads no memory.
            let tensor = |count| unsafe { Tensor::local(DeviceAddress(4096), DataType::F32, count) };
            let (output, input) = (tensor(count), tensor(46));
            let call = Call::ReduceScatterUneven { output, input, op: ReduceOp::Sum, counts: &counts };
            let shape = call.shape(3, GroupRank::new(rank)).unwrap();
            assert_eq!((shape.count, shape.uneven), (41, true), "rank {rank}");
        }
    }
}
