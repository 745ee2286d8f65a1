//! Cases drawn from a seed.

use anabranch_ranks::GroupRank;

use super::{Case, Form};
use crate::ccl::oracle::inputs::mixed;
use anabranch_ccl::LocationKind;
use anabranch_ccl::{Algorithm, DataType, ReduceOp};

/// A sequence that all ranks draw alike from one seed.
#[derive(Clone, Copy, Debug)]
pub struct Numbers(pub u64);

impl Numbers {
    /// The next one, of 64 bits.
    #[expect(clippy::should_implement_trait, reason = "it has no end, and nobody iterates")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mixed(self.0)
    }

    /// A number below `bound`; 0 where that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// One of these.
    ///
    /// # Panics
    /// There is none.
    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize].clone()
    }
}

impl Case {
    /// A case of any form, of one of `types`, with fewer than `most` elements, and an algorithm that can do it.
    ///
    /// # Panics
    /// `types` is empty.
    pub fn any(numbers: &mut Numbers, members: u32, types: &[DataType], most: u64) -> (Self, Algorithm) {
        let form = numbers.pick(&Form::all());
        let data_type = numbers.pick(types);
        let ops = ReduceOp::all(0.5).into_iter().filter(|op| op.supports(data_type)).collect::<Vec<_>>();
        let mut case = Self {
            uneven: form.uneven,
            op: numbers.pick(&ops),
            root: GroupRank::new(numbers.below(members.into()) as u32),
            offset: numbers.below(4),
            seed: numbers.next(),
            location: numbers.pick(&[LocationKind::Symmetric, LocationKind::Local, LocationKind::Registered]),
            in_place: numbers.below(2) == 1,
            ..Self::new(form.collective, data_type, numbers.below(most))
        };
        case.in_place = case.in_place && case.is_defined();
        let shape = case.shape(members);
        let algorithms: Vec<_> =
            Algorithm::ALL.into_iter().filter(|algorithm| algorithm.allows(&shape).is_ok()).collect();
        (case, numbers.pick(&algorithms))
    }
}
