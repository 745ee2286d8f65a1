//! Which cases a check goes through: chosen by code so that everything is covered, and run over all groups of a world.
//!
//! The full product of collectives, types, operators, algorithms, groups, counts and places has many millions of cases. What a
//! mistake depends on is mostly two or three of them; those are covered as a whole, and the rest is picked from a fixed seed.

mod lists;

use anabranch_hip::Stream;
use anabranch_ranks::GroupRank;
use anabranch_shmem::World;

use super::exists::choices;
use super::{Case, Scratch, Subset, Tally, Trial, ordered_subsets};
use crate::ccl::oracle::inputs::mixed;
use anabranch_ccl::Collective;
use anabranch_ccl::LocationKind;
use anabranch_ccl::Result;
use anabranch_ccl::lowered::{ChannelLayout, PACKET_UNITS};
use anabranch_ccl::{Algorithm, CclConfig, Choice, Communicator, DATA_TYPES, DataType, ReduceOp};

/// How much a sweep covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// For a machine in use: every form of a collective in every group, with every type and every algorithm; every type with
    /// every operator; messages, and many tensors gathered, in every group and of every size that makes a difference.
    Sample,
    /// For tests. Besides: every form, type, operator and algorithm together, in groups of every size; every form and algorithm
    /// in every group; every form, algorithm and count, in place and not; many tensors by every algorithm in every group.
    Full,
}

/// What is swept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// Ranks of the world.
    pub ranks: u32,
    /// Blocks of the launches, as far as they are known: counts around what they carry at once are among the cases.
    pub channels: u32,
    /// [`CclConfig::staging_bytes`], likewise.
    pub staging_bytes: u64,
    /// Counts around what launches carry at once are left out where a member's input or output had more bytes: the host computes
    /// what is right.
    pub most_bytes: u64,
    /// How much.
    pub level: Level,
}

/// One trial in one group, done in one way.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// The group.
    pub subset: Subset,
    /// What is done.
    pub trial: Trial,
    /// The algorithm, or `None` for the expected fastest, and what else is chosen.
    pub choice: Choice,
}

/// A collective, and whether its counts differ between members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Form {
    /// Which collective.
    pub collective: Collective,
    /// Counts that differ.
    pub uneven: bool,
}

impl Form {
    /// All forms.
    pub fn all() -> Vec<Self> {
        let forms = Collective::ALL.map(|collective| [false, true].map(|uneven| Self { collective, uneven }));
        forms.into_iter().flatten().filter(|form| form.case(DataType::U8, 1).is_defined()).collect()
    }

    fn case(self, data_type: DataType, count: u64) -> Case {
        Case { uneven: self.uneven, ..Case::new(self.collective, data_type, count) }
    }

    /// The operators that it has for a type; one that nobody looks at, for those that reduce nothing.
    fn ops(self, data_type: DataType) -> Vec<ReduceOp> {
        if !self.collective.reduces() {
            return vec![ReduceOp::Sum];
        }
        // The scalar is a power of two: whatever is exact stays so.
        ReduceOp::all(0.5).into_iter().filter(|op| op.supports(data_type)).collect()
    }

    /// The types that make a difference: a barrier has none.
    fn types(self) -> &'static [DataType] {
        if self.collective == Collective::Barrier { &[DataType::U8] } else { &DATA_TYPES }
    }

    /// The algorithms that can do it, for buffers that peers reach.
    fn algorithms(self) -> Vec<Algorithm> {
        let shape = self.case(DataType::U8, 1).shape(2);
        Algorithm::ALL.into_iter().filter(|algorithm| algorithm.allows(&shape).is_ok()).collect()
    }
}

/// Numbers of elements worth a test, wherever they fall.
const COUNTS: [u64; 5] = [0, 1, 3, 17, 4099];
/// Of every group, as often as each of the others: most calls are quick then.
const QUICK_COUNTS: [u64; 6] = [1, 3, 17, 63, 255, 1021];

const LOCATIONS: [LocationKind; 3] = [LocationKind::Symmetric, LocationKind::Local, LocationKind::Registered];

/// The points of a sweep, those of one group next to each other. The same on all ranks.
pub fn sweep(sweep: &Sweep) -> Vec<Point> {
    let mut chosen =
        Chosen { sweep: *sweep, subsets: ordered_subsets(sweep.ranks), turn: 0, points: Vec::new() };
    match sweep.level {
        Level::Sample => chosen.sample(),
        Level::Full => chosen.full(),
    }
    chosen.lists();
    let mut points = chosen.points;
    points.sort_by(|one, other| one.subset.cmp(&other.subset));
    points
}

struct Chosen {
    sweep: Sweep,
    subsets: Vec<Subset>,
    turn: u64,
    points: Vec<Point>,
}

impl Chosen {
    fn sample(&mut self) {
        for form in Form::all() {
            for subset in self.subsets.clone() {
                let data_type = self.pick(form.types());
                self.add(form, data_type, &subset, None, None);
            }
            for data_type in form.types() {
                let world = self.world();
                self.add(form, *data_type, &world, None, None);
            }
            for algorithm in form.algorithms() {
                let (subset, data_type) = (self.any_of(self.sweep.ranks), self.pick(form.types()));
                for count in self.counts(form, data_type, subset.len()) {
                    self.add(form, data_type, &subset, Some(algorithm), Some(count));
                }
            }
        }
        let reducing: Vec<_> = Form::all().into_iter().filter(|form| form.collective.reduces()).collect();
        for data_type in DATA_TYPES {
            for op in ReduceOp::all(0.5).into_iter().filter(|op| op.supports(data_type)) {
                let form = self.pick(&reducing);
                let (algorithm, subset) = (self.pick(&form.algorithms()), self.any_of(self.sweep.ranks));
                self.add_op(form, data_type, op, &subset, Some(algorithm), None);
            }
        }
    }

    fn full(&mut self) {
        for form in Form::all() {
            for members in 1..=self.sweep.ranks {
                for data_type in form.types() {
                    for op in form.ops(*data_type) {
                        for algorithm in form.algorithms() {
                            let subset = self.any_of(members);
                            self.add_op(form, *data_type, op, &subset, Some(algorithm), None);
                        }
                    }
                }
            }
            for subset in self.subsets.clone() {
                // Neighbours in the list, so that each group has several.
                let start = self.below(form.types().len() as u64) as usize;
                let types = form.types().iter().cycle().skip(start);
                let algorithms = [None].into_iter().chain(form.algorithms().into_iter().map(Some));
                for (algorithm, data_type) in algorithms.zip(types) {
                    self.add(form, *data_type, &subset, algorithm, None);
                }
            }
            for algorithm in form.algorithms() {
                let (data_type, subset) = (self.pick(form.types()), self.any_of(self.sweep.ranks));
                for count in self.counts(form, data_type, subset.len()) {
                    for in_place in [false, true] {
                        let mut case = self.case(form, data_type, Some(algorithm), Some(count), &subset);
                        case.in_place = in_place;
                        // Of a scatter in place where peers reach it there is none.
                        if case.is_defined() {
                            self.push(&subset, case, Some(algorithm));
                        }
                    }
                }
            }
        }
    }

    fn add(
        &mut self,
        form: Form,
        data_type: DataType,
        subset: &Subset,
        algorithm: Option<Algorithm>,
        count: Option<u64>,
    ) {
        let case = self.case(form, data_type, algorithm, count, subset);
        self.push(subset, case, algorithm);
    }

    fn add_op(
        &mut self,
        form: Form,
        data_type: DataType,
        op: ReduceOp,
        subset: &Subset,
        algorithm: Option<Algorithm>,
        count: Option<u64>,
    ) {
        let case = Case { op, ..self.case(form, data_type, algorithm, count, subset) };
        self.push(subset, case, algorithm);
    }

    fn push(&mut self, subset: &Subset, case: Case, algorithm: Option<Algorithm>) {
        // Messages of a test are too small for phases to be planned.
        let phased = (algorithm == Some(Algorithm::Push)).then(|| self.pick(&[false, true]));
        let choice = Choice { algorithm, phased, ..Choice::default() };
        self.points.push(Point { subset: subset.clone(), trial: case.into(), choice });
    }

    /// A case with everything else picked.
    fn case(
        &mut self,
        form: Form,
        data_type: DataType,
        algorithm: Option<Algorithm>,
        count: Option<u64>,
        subset: &Subset,
    ) -> Case {
        let members = subset.len();
        let mut case = form.case(data_type, count.unwrap_or_else(|| self.pick(&QUICK_COUNTS)));
        case.op = self.pick(&form.ops(data_type));
        case.root = GroupRank::new(self.below(members.into()) as u32);
        case.offset = self.pick(&[0, 0, 1, 3]);
        case.seed = self.turn;
        case.location = self.pick(&LOCATIONS);
        let is_allowed =
            |case: &Case| algorithm.is_none_or(|algorithm| algorithm.allows(&case.shape(members)).is_ok());
        if !is_allowed(&case) {
            case.location = self.pick(&[LocationKind::Symmetric, LocationKind::Registered]);
        }
        case.in_place = self.pick(&[false, true]);
        if !case.is_defined() {
            case.in_place = false;
        }
        case
    }

    /// [`COUNTS`], and one less, as many and one more than the launch carries at once: packets of all channels for a message or a
    /// part, a piece of the staging of one channel or of all.
    fn counts(&self, form: Form, data_type: DataType, members: u32) -> Vec<u64> {
        let Sweep { channels, staging_bytes, most_bytes, .. } = self.sweep;
        let layout = ChannelLayout::new(members, channels, PACKET_UNITS, staging_bytes);
        let parts = if form.collective.reduces() { u64::from(members) } else { 1 };
        let packets = u64::from(PACKET_UNITS) * 8 * u64::from(channels);
        let (piece, pieces) = (layout.staging_bytes, layout.staging_bytes * u64::from(channels));
        let around = [packets, packets * parts, piece * parts, pieces * parts].map(|bytes| {
            let count = bytes / u64::from(data_type.bytes());
            [count.saturating_sub(1), count, count + 1]
        });
        let fits = |count: &u64| {
            let (input, output) = form.case(data_type, *count).lengths(members.into(), 0);
            input.max(output) * u64::from(data_type.bytes()) <= most_bytes
        };
        let around = around.into_iter().flatten().filter(fits);
        let mut all: Vec<u64> = COUNTS.into_iter().chain(around).collect();
        if form.collective == Collective::Barrier {
            all = vec![0];
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    fn world(&self) -> Subset {
        Subset::new(0..self.sweep.ranks)
    }

    /// A group of this many members.
    fn any_of(&mut self, members: u32) -> Subset {
        let fitting: Vec<_> = self.subsets.iter().filter(|subset| subset.len() == members).cloned().collect();
        let index = self.below(fitting.len() as u64) as usize;
        fitting.get(index).cloned().unwrap_or_else(|| self.world())
    }

    /// A number below `bound`, from a fixed sequence.
    fn below(&mut self, bound: u64) -> u64 {
        self.turn += 1;
        mixed(self.turn) % bound.max(1)
    }

    /// One of these, of which there is one at least.
    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        let index = self.below(from.len() as u64) as usize;
        from[index].clone()
    }
}

/// Runs points: one communicator for each run of points with the same group, made and dropped again. Collective over the world;
/// ranks take part in the groups that they are members of. Goes on behind wrong results. In groups whose members are on several machines
/// each point goes by every algorithm that there is for it between machines, whatever its choice, and [`Tally::left_out`] counts what does
/// not exist there.
///
/// # Errors
/// What a call or the world fails with.
pub fn run_points(world: &World, config: &CclConfig, points: &[Point], stream: &Stream) -> Result<Tally> {
    let mut tally = Tally::default();
    for points in points.chunk_by(|one, other| one.subset == other.subset) {
        let Some(first) = points.first() else { continue };
        let group = first.subset.group(world.group()).map_err(anabranch_shmem::Error::from)?;
        if !group.contains(world.rank()) {
            continue;
        }
        tally.groups += 1;
        let mut communicator = Communicator::new(world, &group, config.clone())?;
        let bytes = points.iter().map(|point| point.trial.scratch_bytes(group.size())).max();
        let mut scratch = Scratch::new(world, &communicator, bytes.unwrap_or(0))?;
        for point in points {
            for choice in choices(&communicator, &point.trial, point.choice, &mut tally)? {
                let verdict = point.trial.run(&mut communicator, &mut scratch, choice, stream)?;
                tally.judged(&point.subset, [&point.trial], verdict, "");
                tally.internode += u64::from(communicator.is_internode());
            }
        }
        scratch.release()?;
    }
    Ok(tally)
}

#[cfg(test)]
mod tests;
