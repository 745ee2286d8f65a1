//! The calls, and what is right about them. Pure, but for the addresses that in-place forms are told from.

pub(crate) mod in_place;
pub(crate) mod many;
pub(crate) mod message;
pub(crate) mod tensor;

use anabranch_elements::data_type::names;
use anabranch_ranks::GroupRank;

use crate::call::message::PointToPoint;
use crate::call::tensor::Tensor;
use crate::types::{Collective, DATA_TYPES, Error, LocationKind, ReduceOp, Result, Shape};

/// One collective with its tensors, from this rank's point of view. Output first, then input, operator, root: torch's order.
///
/// Every member makes the same call: same collective, counts, types, operator, root, and kinds of location. In place is: for
/// `all_reduce`, `reduce` and `broadcast` the same tensor; for `all_gather` and `gather` an input that is this rank's part of
/// the output; for `reduce_scatter` an output that is this rank's part of the input, for `scatter` too where it is local. Any other
/// overlap is an error.
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
    /// `output[i] = op over ranks of input[rank * count + i]`.
    ReduceScatter {
        /// `[count]`.
        output: Tensor<'a>,
        /// `[members * count]`.
        input: Tensor<'a>,
        /// The operator.
        op: ReduceOp,
    },
    /// `output[r * count + i] = input of r [i]`.
    AllGather {
        /// `[members * count]`.
        output: Tensor<'a>,
        /// `[count]`.
        input: Tensor<'a>,
    },
    /// [`Self::AllGather`] with a count for each member: inputs lie in the output one after the other.
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
        /// `[count]`, a multiple of the members.
        output: Tensor<'a>,
        /// `[count]`.
        input: Tensor<'a>,
    },
    /// [`Self::AllToAll`] with a count for each pair: parts lie in input and output one after the other. What this rank sends to
    /// a member has to be what that member expects from it.
    AllToAllUneven {
        /// `[sum of output_splits]`.
        output: Tensor<'a>,
        /// `[sum of input_splits]`.
        input: Tensor<'a>,
        /// Elements that come from each member, in group order.
        output_splits: &'a [u64],
        /// Elements that go to each member, in group order.
        input_splits: &'a [u64],
    },
    /// `tensor = tensor of root`.
    Broadcast {
        /// `[count]`; read at the root, written elsewhere.
        tensor: Tensor<'a>,
        /// Whose.
        root: GroupRank,
    },
    /// `output[i] = op over ranks of input[i]` at the root. Elsewhere the output is not touched (torch leaves it unspecified).
    Reduce {
        /// `[count]`.
        output: Tensor<'a>,
        /// `[count]`.
        input: Tensor<'a>,
        /// The operator.
        op: ReduceOp,
        /// Who gets it.
        root: GroupRank,
    },
    /// `output[r * count + i] = input of r [i]` at the root.
    Gather {
        /// `[members * count]`. Elsewhere than at the root nothing, or a tensor of the same kind, which is not touched; needed when
        /// it is symmetric or registered.
        output: Option<Tensor<'a>>,
        /// `[count]`.
        input: Tensor<'a>,
        /// Who gets them.
        root: GroupRank,
    },
    /// `output[i] = input of root [rank * count + i]`.
    Scatter {
        /// `[count]`.
        output: Tensor<'a>,
        /// `[members * count]`. Elsewhere than at the root nothing, or a tensor, which is not touched.
        input: Option<Tensor<'a>>,
        /// Whose.
        root: GroupRank,
    },
    /// All members meet: what came before it on their streams is done and visible to what comes after.
    Barrier,
    /// [`Self::AllGather`] of many tensors in one launch, as (output, input): one for each parameter of a sharded model. Types
    /// may differ between pairs; each pair may be in place. The algorithm is chosen by the bytes of all together, and goes
    /// straight to the outputs only if peers reach them all.
    AllGatherMany(&'a [(Tensor<'a>, Tensor<'a>)]),
    /// Sends a message to a member, which receives as many bytes. Not collective: the two make matching calls.
    ///
    /// Messages of a pair arrive in the order in which they were sent. The call is over when the message is in the pipe to the
    /// receiver or received: that a send is over does not mean that it was received. A message waits for the receiver when it is
    /// longer than the pipe's room (`ccl.pipe_bytes` divided by the members), or when four others have not been received. So two members that first send long messages to each
    /// other and then receive wait for each other until the deadline: send and receive in one [`Self::Batch`]. A message
    /// without elements is a message, too. When the lengths differ, the receiver's world fails with both.
    Send {
        /// `[count]`.
        tensor: Tensor<'a>,
        /// To whom; another member than this rank.
        to: GroupRank,
    },
    /// Receives a message from a member. Over when the tensor holds it.
    Receive {
        /// `[count]`.
        tensor: Tensor<'a>,
        /// From whom; `None`, which is torch's any source, is refused.
        from: Option<GroupRank>,
    },
    /// Sends and receives that progress side by side in one launch, in whatever order they are listed: torch's
    /// `batch_isend_irecv`, NCCL's group. Several to or from one member are matched in their order. A rank may send to itself
    /// what it receives from itself. Tensors to receive into overlap nothing.
    Batch(&'a [PointToPoint<'a>]),
}

impl Call<'_> {
    /// Which collective it is.
    pub const fn collective(&self) -> Collective {
        match self {
            Self::AllReduce { .. } => Collective::AllReduce,
            Self::ReduceScatter { .. } => Collective::ReduceScatter,
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

    /// Checks counts, types, operator and root for a member of a group of `members`, and says what is left of the call without
    /// its addresses.
    ///
    /// # Errors
    /// [`Error::Count`], [`Error::Type`], [`Error::Unsupported`], [`Error::Member`], [`Error::Missing`],
    /// [`Error::SelfMessages`].
    ///
    /// # Panics
    /// When `rank` is no member.
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
        };
        match self {
            Self::AllReduce { output, input, op } => {
                self.same_type(output, input)?;
                self.count("output", output.count(), "the input's", input.count())?;
                op.check(input.data_type())?;
                Ok(Shape { op: Some(*op), ..shape(input, input.count(), input.kind(), output.kind()) })
            }
            Self::Reduce { output, input, op, root } => {
                self.same_type(output, input)?;
                self.count("output", output.count(), "the input's", input.count())?;
                op.check(input.data_type())?;
                let shape = shape(input, input.count(), input.kind(), output.kind());
                Ok(Shape { op: Some(*op), root: self.root(*root, members)?, ..shape })
            }
            Self::ReduceScatter { output, input, op } => {
                self.same_type(output, input)?;
                self.times("input", input.count(), n, "output", output.count())?;
                op.check(input.data_type())?;
                Ok(Shape { op: Some(*op), ..shape(input, output.count(), input.kind(), output.kind()) })
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
                // Nobody reads the input from elsewhere: its kind does not matter.
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
        // 2^48 bytes and their sums are far from the end of 64 bits.
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
        if let Some(messages) = self.messages() {
            all.extend(messages.iter().map(|message| *message.tensor()));
        }
        all
    }

    /// The tensors that this rank reads and writes, where there is one of each: output, input.
    pub(crate) const fn tensors(&self) -> (Option<Tensor<'a>>, Option<Tensor<'a>>) {
        match *self {
            Self::AllReduce { output, input, .. }
            | Self::ReduceScatter { output, input, .. }
            | Self::AllGather { output, input }
            | Self::AllGatherUneven { output, input, .. }
            | Self::AllToAll { output, input }
            | Self::AllToAllUneven { output, input, .. }
            | Self::Reduce { output, input, .. } => (Some(output), Some(input)),
            Self::Broadcast { tensor, .. } => (Some(tensor), Some(tensor)),
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
