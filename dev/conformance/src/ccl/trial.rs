//! What a check runs: one collective, or calls of a list.

use anabranch_hip::Stream;

use super::{Case, Failure, Filled, FilledList, ListCase, Numbers, Scratch, fill, launch, patience};
use anabranch_ccl::Result;
use anabranch_ccl::Shape;
use anabranch_ccl::{Algorithm, Choice, Communicator, DataType, Work};

/// One thing that all members do.
#[derive(Clone, Debug, PartialEq)]
pub enum Trial {
    /// A collective.
    Collective(Case),
    /// Messages, or many tensors gathered.
    List(ListCase),
}

impl From<Case> for Trial {
    fn from(case: Case) -> Self {
        Self::Collective(case)
    }
}

impl From<ListCase> for Trial {
    fn from(case: ListCase) -> Self {
        Self::List(case)
    }
}

/// A trial whose buffers are filled, on one member.
#[derive(Debug)]
pub enum FilledTrial {
    /// A collective's.
    Collective(Filled),
    /// A list's.
    List(FilledList),
}

impl FilledTrial {
    /// Compares every byte of the buffers and between them with what the calls had to make of them. They must be over.
    ///
    /// # Errors
    /// The runtime's. `Ok(Err(_))` is a wrong result.
    pub fn judge(&self, scratch: &Scratch) -> Result<Result<(), Failure>> {
        match self {
            Self::Collective(filled) => filled.judge(scratch),
            Self::List(filled) => filled.judge(scratch),
        }
    }
}

/// Of how many trials one is of a list.
const LISTS: u64 = 3;

impl Trial {
    /// A collective or list, of `types`, with fewer than `most` elements, and an algorithm that can do it.
    ///
    /// # Panics
    /// `types` is empty.
    pub fn any(numbers: &mut Numbers, members: u32, types: &[DataType], most: u64) -> (Self, Algorithm) {
        if numbers.below(LISTS) == 0 {
            let (case, algorithm) = ListCase::any(numbers, members, types, most);
            return (case.into(), algorithm);
        }
        let (case, algorithm) = Case::any(numbers, members, types, most);
        (case.into(), algorithm)
    }

    /// Bytes of [`Scratch`] that it needs in a group of `members`.
    pub fn scratch_bytes(&self, members: u32) -> u64 {
        match self {
            Self::Collective(case) => case.scratch_bytes(members),
            Self::List(case) => case.scratch_bytes(members),
        }
    }

    /// What the choice of an algorithm sees of it in a group of `members`.
    pub fn shape(&self, members: u32) -> Shape {
        match self {
            Self::Collective(case) => case.shape(members),
            Self::List(case) => case.shape(members),
        }
    }

    /// Its name in reports.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Collective(case) => case.collective.name(),
            Self::List(case) => case.form.name(),
        }
    }

    /// The same calls with other inputs.
    pub const fn set_seed(&mut self, seed: u64) {
        match self {
            Self::Collective(case) => case.seed = seed,
            Self::List(case) => case.seed = seed,
        }
    }

    /// Whether a second run without new inputs would begin with results: an output lies over an input.
    pub fn is_in_place(&self) -> bool {
        match self {
            Self::Collective(case) => case.in_place,
            Self::List(case) => case.entries.iter().any(|entry| entry.in_place),
        }
    }

    /// Fills the buffers. Not collective; nothing may be in flight on them.
    ///
    /// # Errors
    /// [`Error::Count`](anabranch_ccl::Error::Count) when the scratch is too small; the runtime's. `Ok(Err(_))` is a case that the oracle
    /// refuses.
    pub fn fill(
        &self,
        communicator: &Communicator,
        scratch: &mut Scratch,
    ) -> Result<Result<FilledTrial, Failure>> {
        match self {
            Self::Collective(case) => Ok(Ok(FilledTrial::Collective(fill(communicator, scratch, case)?))),
            Self::List(case) => Ok(case.fill(communicator, scratch)?.map(FilledTrial::List)),
        }
    }

    /// Makes the calls, in a certain way. Kernels of calls that are captured have to be loaded before, by a run. Collective over
    /// the communicator's group. The works of this member.
    ///
    /// # Errors
    /// The errors of [`Communicator::prepare_as`] and [`Communicator::launch`].
    pub fn launch(
        &self,
        communicator: &mut Communicator,
        scratch: &Scratch,
        choice: Choice,
        stream: &Stream,
    ) -> Result<Vec<Work>> {
        match self {
            Self::Collective(case) => Ok(vec![launch(communicator, scratch, case, choice, stream)?]),
            Self::List(case) => case.launch(communicator, scratch, choice, stream),
        }
    }

    /// Fills, makes the calls, waits and judges. Collective over the communicator's group. `Ok(Err(_))` is a wrong result.
    ///
    /// # Errors
    /// What a call or the world fails with.
    pub fn run(
        &self,
        communicator: &mut Communicator,
        scratch: &mut Scratch,
        choice: Choice,
        stream: &Stream,
    ) -> Result<Result<(), Failure>> {
        let filled = self.fill(communicator, scratch)?;
        let works = self.launch(communicator, scratch, choice, stream)?;
        let mut how = String::new();
        for work in works {
            work.join(patience(communicator))?;
            work.describe().clone_into(&mut how);
        }
        let verdict = match filled {
            Ok(filled) => filled.judge(scratch)?,
            Err(failure) => Err(failure),
        };
        Ok(verdict.map_err(|Failure(problem)| Failure(format!("{problem} ({how})"))))
    }
}
