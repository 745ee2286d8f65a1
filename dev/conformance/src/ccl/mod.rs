//! One collective with known inputs, judged byte by byte: for tests, and for finding out whether a machine computes right. Calls of
//! several tensors ([`ListCase`]: messages, many tensors gathered) are judged likewise; a [`Trial`] is either.
//!
//! Every buffer lies between canaries, and everything that a call must not touch is compared too.

use std::fmt;
use std::time::Duration;

pub mod arithmetic;
mod draw;
mod exists;
mod layout;
mod list;
pub mod norm;
pub mod oracle;
mod replays;
mod scratch;
mod subset;
mod sweep;
mod tally;
mod trial;

use anabranch_hip::Stream;
use anabranch_ranks::GroupRank;

use anabranch_ccl::LocationKind;
use anabranch_ccl::{Call, Collective, Shape};
use anabranch_ccl::{Choice, Communicator, DataType, ReduceOp, Work};
use anabranch_ccl::{Error, Result};
use oracle::{Data, Expected};

pub use draw::Numbers;
pub use layout::Layout;
pub use list::{Entry, FilledList, ListCase, ListForm};
pub use replays::{Captured, Replays, run_replays};
pub use scratch::Scratch;
pub use subset::{Subset, ordered_subsets};
pub use sweep::{Form, Level, Point, Sweep, run_points, sweep};
pub use tally::{LeftOut, Tally};
pub use trial::{FilledTrial, Trial};

/// The value of bytes that must stay untouched.
const UNTOUCHED: u8 = 0xa5;

/// One call on all members.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Which collective.
    pub collective: Collective,
    /// Counts that differ between members; `all_gather`, `all_to_all` and `reduce_scatter` only.
    pub uneven: bool,
    /// Type of the elements.
    pub data_type: DataType,
    /// The operator, for reductions.
    pub op: ReduceOp,
    /// Elements: of the whole message, or of one member's part; about as many where counts differ.
    pub count: u64,
    /// The root.
    pub root: GroupRank,
    /// Where inputs and outputs are.
    pub location: LocationKind,
    /// Output and input are in place.
    pub in_place: bool,
    /// Elements by which buffers start behind an aligned address.
    pub offset: u64,
    /// Which inputs.
    pub data: Data,
    /// Which of those.
    pub seed: u64,
}

impl Case {
    /// A call of the default kind: symmetric, aligned, exact inputs, plain sums, from root 0.
    pub const fn new(collective: Collective, data_type: DataType, count: u64) -> Self {
        Self {
            collective,
            uneven: false,
            data_type,
            op: ReduceOp::Sum,
            count,
            root: GroupRank::new(0),
            location: LocationKind::Symmetric,
            in_place: false,
            offset: 0,
            data: Data::Exact,
            seed: 1,
        }
    }

    /// Whether the form exists: in place, uneven, operator and type.
    pub fn is_defined(&self) -> bool {
        let has_uneven = matches!(
            self.collective,
            Collective::AllGather | Collective::AllToAll | Collective::ReduceScatter
        );
        let in_place = !matches!(self.collective, Collective::AllToAll | Collective::Barrier) && !self.uneven;
        let scatter = self.collective == Collective::Scatter && self.location != LocationKind::Local;
        let in_place = in_place && !scatter;
        (has_uneven || !self.uneven)
            && (in_place || !self.in_place)
            && (!self.collective.reduces() || self.op.check(self.data_type).is_ok())
    }

    /// What the choice of an algorithm sees of it in a group of `members`.
    pub fn shape(&self, members: u32) -> Shape {
        let (collective, local) = (self.collective, LocationKind::Local);
        let (input, output) = match collective {
            // Messages are no collective.
            Collective::Barrier | Collective::SendReceive => (local, local),
            Collective::Scatter => (local, self.location),
            _ => (self.location, self.location),
        };
        let rooted = matches!(
            collective,
            Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter
        );
        Shape {
            collective,
            data_type: self.data_type,
            op: collective.reduces().then_some(self.op),
            members,
            count: self.count,
            uneven: self.uneven,
            root: rooted.then_some(self.root),
            input,
            output,
            norm_row: None,
        }
    }

    /// Elements that go from one member to another.
    #[doc(hidden)]
    pub fn pair(&self, from: u64, to: u64) -> u64 {
        // With no elements there are none between any two: that is a call, too.
        if self.uneven && self.count > 0 {
            (self.count + 5 * from + 3 * to) % (self.count + 4)
        } else {
            self.count
        }
    }

    /// Elements of each member's part, where all know them.
    #[doc(hidden)]
    pub fn counts(&self, members: u64) -> Vec<u64> {
        (0..members).map(|member| self.pair(member, 0)).collect()
    }

    /// Elements of a member's input and output.
    fn lengths(&self, members: u64, me: u64) -> (u64, u64) {
        let all = |pair: &dyn Fn(u64) -> u64| (0..members).map(pair).sum::<u64>();
        match self.collective {
            Collective::AllReduce | Collective::Reduce | Collective::Broadcast => (self.count, self.count),
            Collective::Scatter => (members * self.count, self.count),
            Collective::ReduceScatter => (all(&|member| self.pair(member, 0)), self.pair(me, 0)),
            Collective::AllGather | Collective::Gather => {
                (self.pair(me, 0), all(&|member| self.pair(member, 0)))
            }
            Collective::AllToAll => (all(&|to| self.pair(me, to)), all(&|from| self.pair(from, me))),
            Collective::Barrier | Collective::SendReceive => (0, 0),
        }
    }

    /// Bytes of [`Scratch`] that it needs in a group of `members`.
    pub fn scratch_bytes(&self, members: u32) -> u64 {
        (0..members).map(|me| Layout::of(self, members, me).end).max().unwrap_or(0)
    }

    /// Every member's input.
    #[doc(hidden)]
    pub fn inputs(&self, members: u32) -> Vec<Vec<u8>> {
        let all = self.data.of(self.data_type, self.op, members, self.seed);
        (0..members)
            .map(|rank| all.bytes(GroupRank::new(rank), 0..self.lengths(members.into(), rank.into()).0))
            .collect()
    }

    /// What every member must hold.
    fn expected(&self, inputs: &[Vec<u8>]) -> Result<Option<Expected>, Failure> {
        let (data_type, op, root) = (self.data_type, self.op, self.root);
        let members = inputs.len() as u64;
        let expected = match self.collective {
            Collective::AllReduce => oracle::all_reduce(data_type, op, inputs),
            Collective::Reduce => oracle::reduce_to_root(data_type, op, inputs, root),
            Collective::ReduceScatter if self.uneven => {
                oracle::reduce_scatter_uneven(data_type, op, inputs, &self.counts(members))
            }
            Collective::ReduceScatter => oracle::reduce_scatter(data_type, op, inputs),
            Collective::AllGather if self.uneven => {
                oracle::all_gather_uneven(data_type, inputs, &self.counts(members))
            }
            Collective::AllGather => oracle::all_gather(data_type, inputs),
            Collective::AllToAll => {
                let splits: Vec<Vec<u64>> =
                    (0..members).map(|from| (0..members).map(|to| self.pair(from, to)).collect()).collect();
                oracle::all_to_all_splits(data_type, inputs, &splits)
            }
            Collective::Broadcast => oracle::broadcast(data_type, inputs, root),
            Collective::Gather => oracle::gather(data_type, inputs, root),
            Collective::Scatter => {
                let input = inputs.get(root.index()).map_or(&[][..], Vec::as_slice);
                oracle::scatter(data_type, input, inputs.len(), root)
            }
            Collective::Barrier | Collective::SendReceive => return Ok(None),
        };
        expected.map(Some).map_err(|error| Failure(format!("{self}: {error}")))
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { collective, data_type, count, location, .. } = self;
        write!(f, "{collective} {data_type}")?;
        if collective.reduces() {
            write!(f, " {}", self.op.name())?;
        }
        write!(f, " of {count} elements, root {}, {location:?}, offset {}", self.root.get(), self.offset)?;
        write!(f, "{}", if self.in_place { ", in place" } else { "" })?;
        write!(f, "{}", if self.uneven { ", uneven" } else { "" })?;
        write!(f, ", {:?} inputs {}", self.data, self.seed)
    }
}

/// What was wrong with a result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Failure(String);

/// A case whose buffers are filled, on one member: what they held, and what they must hold.
#[derive(Debug)]
pub struct Filled {
    case: Case,
    layout: Layout,
    /// Of all members.
    inputs: Vec<Vec<u8>>,
    me: GroupRank,
    image: Vec<u8>,
}

/// Fills the buffers of a case. Not collective; nothing may be in flight on them.
///
/// # Errors
/// [`Error::Count`] when the scratch is too small; the runtime's.
pub fn fill(communicator: &Communicator, scratch: &mut Scratch, case: &Case) -> Result<Filled> {
    let (members, me) = (communicator.size(), communicator.rank());
    let layout = Layout::of(case, members, me.get());
    if layout.end > scratch.bytes {
        let rule = format!("scratch memory of {} bytes, and there are {}", layout.end, scratch.bytes);
        let given = case.count;
        return Err(Error::Count { collective: case.collective, what: "the case", given, rule });
    }
    let inputs = case.inputs(members);
    let mut image = vec![UNTOUCHED; layout.end as usize];
    if case.collective != Collective::Scatter || me == case.root {
        put(&mut image, layout.input, inputs.get(me.index()).map_or(&[][..], Vec::as_slice));
    }
    scratch.write(case.location, &image)?;
    Ok(Filled { case: case.clone(), layout, inputs, me, image })
}

/// Makes the call of a case: prepares and launches it. The kernels of a call that is captured have to be loaded before: by an
/// eager call of the same collective, type and algorithm. Collective over the communicator's group.
///
/// # Errors
/// The errors of [`Communicator::prepare_as`] and [`Communicator::launch`].
pub fn launch(
    communicator: &mut Communicator,
    scratch: &Scratch,
    case: &Case,
    choice: Choice,
    stream: &Stream,
) -> Result<Work> {
    let (members, me) = (communicator.size(), communicator.rank());
    let layout = Layout::of(case, members, me.get());
    let (inputs, outputs) = case.lengths(members.into(), me.get().into());
    let (input, output) =
        (scratch.tensor_of(case, layout.input, inputs)?, scratch.tensor_of(case, layout.output, outputs)?);
    let group: Vec<u64> = (0..u64::from(members)).collect();
    let here = u64::from(me.get());
    let (counts, to, from) = (
        case.counts(members.into()),
        group.iter().map(|to| case.pair(here, *to)).collect::<Vec<_>>(),
        group.iter().map(|from| case.pair(*from, here)).collect::<Vec<_>>(),
    );
    let (op, root) = (case.op, case.root);
    let call = match case.collective {
        Collective::AllReduce => Call::AllReduce { output, input, op },
        Collective::Reduce => Call::Reduce { output, input, op, root },
        Collective::ReduceScatter if case.uneven => {
            Call::ReduceScatterUneven { output, input, op, counts: &counts }
        }
        Collective::ReduceScatter => Call::ReduceScatter { output, input, op },
        Collective::AllGather if case.uneven => Call::AllGatherUneven { output, input, counts: &counts },
        Collective::AllGather => Call::AllGather { output, input },
        Collective::AllToAll if case.uneven => {
            Call::AllToAllUneven { output, input, output_splits: &from, input_splits: &to }
        }
        Collective::AllToAll => Call::AllToAll { output, input },
        Collective::Broadcast => Call::Broadcast { tensor: output, root },
        Collective::Gather => Call::Gather { output: Some(output), input, root },
        Collective::Scatter => Call::Scatter { output, input: (me == root).then_some(input), root },
        Collective::Barrier => Call::Barrier,
        Collective::SendReceive => Call::Batch(&[]),
    };
    let prepared = communicator.prepare_as(&call, choice)?;
    communicator.launch(&prepared, stream)
}

impl Filled {
    /// Compares every byte of the buffers and between them with what the call had to make of them. The call must be over.
    ///
    /// # Errors
    /// The runtime's. `Ok(Err(_))` is a wrong result.
    pub fn judge(&self, scratch: &Scratch) -> Result<Result<(), Failure>> {
        let mut seen = vec![0; self.image.len()];
        scratch.read(self.case.location, &mut seen)?;
        Ok(judge(&self.case, &self.layout, &self.inputs, self.me, &self.image, &seen)
            .map_err(|Failure(problem)| Failure(format!("{}: {problem}", self.case))))
    }

    /// Expects what were right if these two members had each other's place: a mistake that [`Self::judge`] has to find.
    #[must_use]
    pub fn with_swapped(mut self, first: GroupRank, second: GroupRank) -> Self {
        self.inputs.swap(first.index(), second.index());
        self.me = match self.me {
            me if me == first => second,
            me if me == second => first,
            me => me,
        };
        self
    }
}

/// Runs a case: fills the buffers, makes the call, waits, and compares every byte of the buffers and between them. Collective
/// over the communicator's group. `Ok(Err(_))` is a wrong result.
///
/// # Errors
/// What the call or the world fails with; [`Error::Count`] when the scratch is too small.
pub fn run(
    communicator: &mut Communicator,
    scratch: &mut Scratch,
    case: &Case,
    stream: &Stream,
) -> Result<Result<(), Failure>> {
    let choice = Choice { algorithm: communicator.config().algorithm, ..Choice::default() };
    run_as(communicator, scratch, case, choice, stream)
}

/// [`run`], done in a certain way.
///
/// # Errors
/// The errors of [`run`] and of [`Communicator::prepare_as`].
pub fn run_as(
    communicator: &mut Communicator,
    scratch: &mut Scratch,
    case: &Case,
    choice: Choice,
    stream: &Stream,
) -> Result<Result<(), Failure>> {
    let filled = fill(communicator, scratch, case)?;
    let work = launch(communicator, scratch, case, choice, stream)?;
    work.join(patience(communicator))?;
    let verdict = filled.judge(scratch)?;
    Ok(verdict.map_err(|Failure(problem)| Failure(format!("{problem} ({})", work.describe()))))
}

/// How long a call may take: its kernels' waits fail before, and say for whom.
pub(crate) fn patience(communicator: &Communicator) -> Duration {
    communicator.world().operation_deadline() + Duration::from_secs(1)
}

fn put(image: &mut [u8], at: u64, bytes: &[u8]) {
    let at = at as usize;
    if let Some(place) = image.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

/// Compares what is there with what was there and what the call had to write.
#[doc(hidden)]
pub fn judge(
    case: &Case,
    layout: &Layout,
    inputs: &[Vec<u8>],
    me: GroupRank,
    before: &[u8],
    seen: &[u8],
) -> Result<(), Failure> {
    let expected = case.expected(inputs)?;
    let result = expected.as_ref().and_then(|expected| expected.output(me)).unwrap_or_default();
    let at = layout.output as usize;
    let end = at + result.len();
    let written = seen.get(at..end).unwrap_or_default();
    if let Some(expected) = &expected
        && !result.is_empty()
    {
        expected.check(me, written).map_err(|mismatch| Failure(mismatch.to_string()))?;
    }
    let outside = before.iter().zip(seen).enumerate().find(|(index, (before, seen))| {
        let index = *index;
        !(at..end).contains(&index) && before != seen
    });
    match outside {
        None => Ok(()),
        Some((index, (before, seen))) => Err(Failure(format!(
            "byte {index} was {before:#x} and is {seen:#x}, outside of the output at {at}..{end} of {me}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_byte_is_found_at_any_offset() {
        let case = Case::new(Collective::AllReduce, DataType::I32, 5);
        let layout = Layout::of(&case, 2, 0);
        let inputs = case.inputs(2);
        let mut before = vec![UNTOUCHED; layout.end as usize];
        put(&mut before, layout.input, &inputs[0]);
        let mut right = before.clone();
        let expected = case.expected(&inputs).unwrap().unwrap();
        put(&mut right, layout.output, expected.output(GroupRank::new(0)).unwrap());
        let judge = |seen: &[u8]| judge(&case, &layout, &inputs, GroupRank::new(0), &before, seen);
        judge(&right).unwrap();
        for index in 0..right.len() {
            let mut wrong = right.clone();
            wrong[index] ^= 1;
            assert!(judge(&wrong).is_err(), "byte {index}");
        }
    }
}
