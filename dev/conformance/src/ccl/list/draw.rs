//! Lists drawn from a seed.

use super::super::Numbers;
use super::{Entry, LOCATIONS, ListCase, ListForm};
use anabranch_ccl::LocationKind;
use anabranch_ccl::{Algorithm, DataType};

/// How many tensors a list has: none, few, and more than the arguments of a launch have room for.
const LENGTHS: [u64; 7] = [0, 1, 2, 3, 6, 13, 70];
/// Elements worth a test, wherever they fall.
const COUNTS: [u64; 6] = [0, 1, 3, 17, 255, 4099];

impl ListCase {
    /// A list of any form, of tensors of `types` with fewer than `most` elements in all, and an algorithm that can do it.
    ///
    /// # Panics
    /// `types` is empty.
    pub fn any(numbers: &mut Numbers, members: u32, types: &[DataType], most: u64) -> (Self, Algorithm) {
        let form = numbers.pick(&ListForm::ALL);
        let case = Self::of_form(form, numbers, members, types, most);
        let algorithms = case.algorithms(members);
        (case, numbers.pick(&algorithms))
    }

    /// A list of this form; one of messages one by one has none between a member and itself, and so none in a group of one.
    pub(in super::super) fn of_form(
        form: ListForm,
        numbers: &mut Numbers,
        members: u32,
        types: &[DataType],
        most: u64,
    ) -> Self {
        // Each message by itself is a launch.
        let lengths = if form == ListForm::SendReceive { &LENGTHS[..6] } else { &LENGTHS[..] };
        let length = numbers.pick(lengths);
        // Some lists are reached by peers as a whole, so that they can be gathered straight.
        let are_reached = numbers.below(2) == 0;
        let most = most / length.max(1) + 1;
        let entries = (0..length).map(|_| Entry::any(form, numbers, members, types, most, are_reached));
        let is_a_circle = |entry: &Entry| form == ListForm::SendReceive && entry.route.0 == entry.route.1;
        // Drawn before they are left out: all members have drawn as often.
        let entries: Vec<_> =
            entries.collect::<Vec<_>>().into_iter().filter(|entry| !is_a_circle(entry)).collect();
        Self { form, entries, seed: numbers.next() }
    }

    /// The algorithms that can do it.
    pub(in super::super) fn algorithms(&self, members: u32) -> Vec<Algorithm> {
        let shape = self.shape(members);
        let all = Algorithm::ALL.into_iter().chain([Algorithm::Pipes]);
        all.filter(|algorithm| algorithm.allows(&shape).is_ok()).collect()
    }
}

impl Entry {
    fn any(
        form: ListForm,
        numbers: &mut Numbers,
        members: u32,
        types: &[DataType],
        most: u64,
        are_reached: bool,
    ) -> Self {
        let mut location = || {
            let reached = [LocationKind::Symmetric, LocationKind::Registered];
            if are_reached { numbers.pick(&reached) } else { numbers.pick(&LOCATIONS) }
        };
        let (mut input, output) = (location(), location());
        let in_place = form == ListForm::GatherMany && numbers.below(4) == 0;
        if in_place {
            input = output;
        }
        let edge = numbers.pick(&COUNTS);
        let drawn = numbers.below(most);
        let count = if edge < most && numbers.below(2) == 0 { edge } else { drawn };
        let member = |numbers: &mut Numbers| numbers.below(members.into()) as u32;
        let route = (member(numbers), member(numbers));
        Self {
            data_type: numbers.pick(types),
            count,
            input,
            output,
            offset: numbers.below(4),
            in_place,
            route,
        }
    }
}
