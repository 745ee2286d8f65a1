//! Which lists of tensors a sweep goes through.

use super::super::{Entry, ListCase, ListForm, Numbers, Subset};
use super::{Chosen, Form, Level, Point};
use anabranch_ccl::Collective;
use anabranch_ccl::LocationKind;
use anabranch_ccl::{Algorithm, Choice, DATA_TYPES, DataType};

/// Elements of a list in every group: most calls are quick then.
const QUICK: u64 = 3000;
/// Bytes of messages around what pipes have to round: the pieces that they cut, a message's least chunk, and a slot.
const MESSAGE_BYTES: [u64; 9] = [255, 256, 257, 8191, 8192, 8193, 16383, 16384, 16385];
/// So many lists of a form there are at the least, however few groups.
const FEW_GROUPS: usize = 40;
/// The algorithms that gather many tensors.
const GATHERS: [Algorithm; 4] =
    [Algorithm::Packets, Algorithm::Staged, Algorithm::Direct, Algorithm::CopyEngine];

impl Chosen {
    /// Every form in every group; in that of all ranks, sizes around every threshold.
    pub(super) fn lists(&mut self) {
        let mut numbers = Numbers(self.below(u64::MAX));
        // Few groups get more each.
        let times = 1 + FEW_GROUPS / self.subsets.len();
        for subset in self.subsets.clone() {
            for form in ListForm::ALL.repeat(times) {
                self.list(form, &mut numbers, &subset, None);
            }
            if self.sweep.level == Level::Full {
                for algorithm in GATHERS {
                    self.list(ListForm::GatherMany, &mut numbers, &subset, Some(algorithm));
                }
                self.list(ListForm::Batch, &mut numbers, &subset, None);
            }
        }
        let gather = Form { collective: Collective::AllGather, uneven: false };
        for algorithm in GATHERS {
            let subset = self.any_of(self.sweep.ranks);
            for bytes in self.counts(gather, DataType::U8, subset.len()) {
                let case = gathered(&mut numbers, bytes, algorithm);
                self.push_list(&subset, case, Some(algorithm));
            }
        }
        for bytes in MESSAGE_BYTES.into_iter().chain([self.sweep.most_bytes / 4 + 1]) {
            for form in [ListForm::Batch, ListForm::SendReceive] {
                let subset = self.any_of(self.sweep.ranks);
                if subset.len() == 1 && form == ListForm::SendReceive {
                    continue;
                }
                let case = round(form, &mut numbers, subset.len(), bytes);
                self.push_list(&subset, case, None);
            }
        }
    }

    /// A list with something in it, where the form allows that in this group.
    fn list(&mut self, form: ListForm, numbers: &mut Numbers, subset: &Subset, algorithm: Option<Algorithm>) {
        if subset.len() == 1 && form == ListForm::SendReceive {
            return;
        }
        loop {
            let case = ListCase::of_form(form, numbers, subset.len(), &DATA_TYPES, QUICK);
            let is_possible = algorithm.is_none_or(|wanted| case.algorithms(subset.len()).contains(&wanted));
            if is_possible && !case.entries.is_empty() {
                return self.push_list(subset, case, algorithm);
            }
        }
    }

    fn push_list(&mut self, subset: &Subset, case: ListCase, algorithm: Option<Algorithm>) {
        let choice = Choice { algorithm, ..Choice::default() };
        self.points.push(Point { subset: subset.clone(), trial: case.into(), choice });
    }
}

fn any_location(numbers: &mut Numbers, algorithm: Option<Algorithm>) -> LocationKind {
    let all = [LocationKind::Symmetric, LocationKind::Registered, LocationKind::Local];
    // Peers have to reach what goes straight.
    let straight = matches!(algorithm, Some(Algorithm::Direct | Algorithm::CopyEngine));
    let allowed = if straight { 2 } else { all.len() };
    numbers.pick(&all[..allowed])
}

/// Tensors of different types that make so many bytes when they are laid out, each from a multiple of 16 on.
fn gathered(numbers: &mut Numbers, bytes: u64, algorithm: Algorithm) -> ListCase {
    let mut left = bytes;
    let mut entries = Vec::new();
    let mut push = |numbers: &mut Numbers, data_type, count| {
        entries.push(Entry {
            data_type,
            count,
            input: any_location(numbers, None),
            output: any_location(numbers, Some(algorithm)),
            offset: numbers.below(4),
            in_place: false,
            route: (0, 0),
        });
    };
    for (data_type, count) in
        [(DataType::Bf16, 5), (DataType::F64, 3), (DataType::U8, 17), (DataType::F32, 0)]
    {
        let laid_out = (count * u64::from(data_type.bytes())).next_multiple_of(16);
        if laid_out <= left {
            left -= laid_out;
            push(numbers, data_type, count);
        }
    }
    push(numbers, DataType::U8, left);
    ListCase { form: ListForm::GatherMany, entries, seed: numbers.next() }
}

/// A message of so many bytes from every member to the next and to the one before.
fn round(form: ListForm, numbers: &mut Numbers, members: u32, bytes: u64) -> ListCase {
    let mut entries = Vec::new();
    for from in 0..members {
        for to in [(from + 1) % members, (from + members - 1) % members] {
            if form == ListForm::Batch || from != to {
                entries.push(Entry {
                    data_type: DataType::U8,
                    count: bytes,
                    input: any_location(numbers, None),
                    output: any_location(numbers, None),
                    offset: numbers.below(4),
                    in_place: false,
                    route: (from, to),
                });
            }
        }
    }
    ListCase { form, entries, seed: numbers.next() }
}
