//! What memory holds before a list's calls, and what it must hold behind them.

use std::ops::Range;

use anabranch_ranks::GroupRank;

use super::super::{Failure, Scratch, UNTOUCHED, put};
use super::{LOCATIONS, ListCase, ListForm};
use crate::ccl::oracle;
use anabranch_ccl::{Communicator, LocationKind};
use anabranch_ccl::{Error, Result};

/// A list whose tensors are filled, on one member: what must be in memory when its calls are over.
#[derive(Debug)]
pub struct FilledList {
    case: ListCase,
    /// Of each kind of memory.
    after: [Vec<u8>; LOCATIONS.len()],
    /// What this member gets of each entry, where it gets any: the kind of memory, and the bytes there.
    outputs: Vec<Option<(LocationKind, Range<usize>)>>,
}

fn image_of(
    images: &mut [Vec<u8>; LOCATIONS.len()],
    location: LocationKind,
) -> impl Iterator<Item = &mut Vec<u8>> {
    images.iter_mut().zip(LOCATIONS).filter(move |(_, kind)| *kind == location).map(|(image, _)| image)
}

impl ListCase {
    /// What is in this member's memory before the calls, and all that is judged behind them.
    pub(super) fn images(
        &self,
        members: u32,
        me: u32,
    ) -> Result<([Vec<u8>; LOCATIONS.len()], FilledList), Failure> {
        let (slots, ends) = self.layout(members, me);
        let mut before = ends.map(|end| vec![UNTOUCHED; end as usize]);
        let is_message = self.form != ListForm::GatherMany;
        for ((index, entry), slot) in self.entries.iter().enumerate().zip(&slots) {
            if !is_message || entry.route.0 == me {
                let input = self.input(index, entry, members, me);
                image_of(&mut before, entry.input).for_each(|image| put(image, slot.input, &input));
            }
        }
        let mut after = before.clone();
        let mut outputs = Vec::new();
        for ((index, entry), slot) in self.entries.iter().enumerate().zip(&slots) {
            let expected = if is_message {
                (entry.route.1 == me).then(|| self.input(index, entry, members, entry.route.0))
            } else {
                let inputs: Vec<_> =
                    (0..members).map(|rank| self.input(index, entry, members, rank)).collect();
                let gathered = oracle::all_gather(entry.data_type, &inputs)
                    .map_err(|error| Failure(format!("{self}: {error}")))?;
                gathered.output(GroupRank::new(me)).map(<[u8]>::to_vec)
            };
            outputs.push(expected.map(|expected| {
                image_of(&mut after, entry.output).for_each(|image| put(image, slot.output, &expected));
                let start = slot.output as usize;
                (entry.output, start..start + expected.len())
            }));
        }
        Ok((before, FilledList { case: self.clone(), after, outputs }))
    }

    /// Fills its tensors. Not collective; nothing may be in flight on them.
    ///
    /// # Errors
    /// [`Error::Count`] when the scratch is too small; the runtime's. `Ok(Err(_))` is a case that the oracle refuses.
    pub fn fill(
        &self,
        communicator: &Communicator,
        scratch: &mut Scratch,
    ) -> Result<Result<FilledList, Failure>> {
        let members = communicator.size();
        let needed = self.scratch_bytes(members);
        if needed > scratch.bytes {
            let rule = format!("scratch memory of {needed} bytes, and there are {}", scratch.bytes);
            let (given, collective) = (self.entries.len() as u64, self.shape(members).collective);
            return Err(Error::Count { collective, what: "the list", given, rule });
        }
        let (before, filled) = match self.images(members, communicator.rank().get()) {
            Ok(images) => images,
            Err(failure) => return Ok(Err(failure)),
        };
        for (image, location) in before.iter().zip(LOCATIONS) {
            scratch.write(location, image)?;
        }
        Ok(Ok(filled))
    }
}

impl FilledList {
    /// Compares every byte of the tensors and between them with what the calls had to make of them. They must be over.
    ///
    /// # Errors
    /// The runtime's. `Ok(Err(_))` is a wrong result.
    pub fn judge(&self, scratch: &Scratch) -> Result<Result<(), Failure>> {
        let mut seen = self.after.clone();
        for (image, location) in seen.iter_mut().zip(LOCATIONS) {
            scratch.read(location, image)?;
        }
        Ok(self.compare(&seen))
    }

    pub(super) fn compare(&self, seen: &[Vec<u8>; LOCATIONS.len()]) -> Result<(), Failure> {
        for ((expected, seen), location) in self.after.iter().zip(seen).zip(LOCATIONS) {
            let differs =
                expected.iter().zip(seen).enumerate().find(|(_, (expected, seen))| expected != seen);
            let Some((at, (expected, seen))) = differs else { continue };
            let output = self.outputs.iter().position(|output| {
                output.as_ref().is_some_and(|(kind, bytes)| *kind == location && bytes.contains(&at))
            });
            let place = output.map_or_else(
                || "that is not this member's to write".to_owned(),
                |index| format!("in the output of tensor {index}"),
            );
            return Err(Failure(format!(
                "byte {at} of {location:?} memory, {place}, is {seen:#04x}; it must be {expected:#04x} ({})",
                self.case
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Numbers;
    use super::*;
    use anabranch_ccl::DataType;

    /// Every byte that is looked at counts: outputs, inputs, and what lies around them.
    #[test]
    #[ignore = "extended"]
    fn a_wrong_byte_anywhere_is_found() {
        let mut found = [0; 2];
        for seed in 0..60 {
            let (case, _) = ListCase::any(&mut Numbers(seed), 3, &[DataType::Bf16, DataType::F64], 40);
            for me in 0..3 {
                let (before, filled) = case.images(3, me).unwrap();
                assert_eq!(filled.compare(&filled.after), Ok(()));
                // Without the calls nothing is where it must be, unless there is nothing, or all is in place.
                let gets_any = filled.after != before;
                assert_eq!(filled.compare(&before).is_err(), gets_any, "{case}");
                for location in 0..LOCATIONS.len() {
                    for at in (0..filled.after[location].len()).step_by(1 + seed as usize % 7) {
                        let mut seen = filled.after.clone();
                        seen[location][at] ^= 0x10;
                        let text = filled.compare(&seen).unwrap_err().to_string();
                        assert!(
                            text.starts_with(&format!("byte {at} of {:?}", LOCATIONS[location])),
                            "{text}"
                        );
                        found[usize::from(text.contains("in the output of tensor"))] += 1;
                    }
                }
            }
        }
        assert!(found.iter().all(|found| *found > 1000), "{found:?}");
    }

    /// Members see different things: an expectation of another member's place is refused.
    #[test]
    fn what_one_member_must_hold_another_must_not() {
        let mut differ = 0;
        for seed in 0..60 {
            let (case, _) = ListCase::any(&mut Numbers(seed), 3, &[DataType::I32], 40);
            let filled: Vec<_> = (0..3).map(|me| case.images(3, me).unwrap().1).collect();
            for (one, other) in [(0, 1), (1, 2), (2, 0)] {
                differ += u32::from(filled[one].compare(&filled[other].after).is_err());
            }
        }
        assert!(differ > 100, "{differ}");
    }
}
