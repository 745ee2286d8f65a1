//! Free ranges of a segment: an ordered, coalesced list, and the choice of a place that is free on all members.
//! Pure; property-tested as a state machine in `ranges_tests.rs`.

use std::collections::BTreeMap;

/// A range of bytes, `offset..offset + bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub(crate) struct ByteRange {
    /// First byte.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) bytes: u64,
}

impl ByteRange {
    /// One past the last byte.
    pub(crate) const fn end(self) -> u64 {
        self.offset.saturating_add(self.bytes)
    }
}

/// Sorted ranges that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FreeRanges {
    by_offset: BTreeMap<u64, u64>,
}

impl FreeRanges {
    /// One free range; none for zero bytes.
    pub(crate) fn new(range: ByteRange) -> Self {
        let mut ranges = Self::default();
        ranges.give_back(range);
        ranges
    }

    /// The ranges in rising order.
    pub(crate) fn to_vec(&self) -> Vec<ByteRange> {
        self.by_offset.iter().map(|(offset, bytes)| ByteRange { offset: *offset, bytes: *bytes }).collect()
    }

    /// Bytes free in all.
    pub(crate) fn total(&self) -> u64 {
        self.by_offset.values().sum()
    }

    /// Bytes of the largest range; 0 when nothing is free.
    pub(crate) fn largest(&self) -> u64 {
        self.by_offset.values().copied().max().unwrap_or(0)
    }

    /// Takes a range out. Returns whether all of it was free; if not, nothing changes.
    pub(crate) fn take(&mut self, wanted: ByteRange) -> bool {
        if wanted.bytes == 0 {
            return true;
        }
        let Some((&offset, &bytes)) = self.by_offset.range(..=wanted.offset).next_back() else {
            return false;
        };
        let found = ByteRange { offset, bytes };
        if wanted.end() > found.end() {
            return false;
        }
        self.by_offset.remove(&found.offset);
        self.insert(ByteRange { offset: found.offset, bytes: wanted.offset - found.offset });
        self.insert(ByteRange { offset: wanted.end(), bytes: found.end() - wanted.end() });
        true
    }

    /// Puts a range back and joins it with its neighbours. Returns false, and changes nothing, when part of it
    /// is free already.
    pub(crate) fn give_back(&mut self, range: ByteRange) -> bool {
        if range.bytes == 0 {
            return true;
        }
        let (mut offset, mut end) = (range.offset, range.end());
        let before = self.by_offset.range(..range.offset).next_back().map(|(o, b)| (*o, *b));
        let after = self.by_offset.range(range.offset..).next().map(|(o, b)| (*o, *b));
        if before.is_some_and(|(o, b)| o + b > offset) || after.is_some_and(|(o, _)| o < end) {
            return false;
        }
        if let Some((o, b)) = before
            && o + b == offset
        {
            self.by_offset.remove(&o);
            offset = o;
        }
        if let Some((o, b)) = after
            && o == end
        {
            self.by_offset.remove(&o);
            end = o + b;
        }
        self.insert(ByteRange { offset, bytes: end - offset });
        true
    }

    /// What is free in both.
    #[must_use]
    pub(crate) fn intersection(&self, other: &[ByteRange]) -> Self {
        let mut result = Self::default();
        let mine = self.to_vec();
        let (mut i, mut j) = (0, 0);
        while let (Some(a), Some(b)) = (mine.get(i), other.get(j)) {
            let (start, end) = (a.offset.max(b.offset), a.end().min(b.end()));
            if start < end {
                result.insert(ByteRange { offset: start, bytes: end - start });
            }
            if a.end() <= b.end() { i += 1 } else { j += 1 }
        }
        result
    }

    /// The lowest offset that is a multiple of `alignment` (a power of two) with `bytes` free bytes from there on.
    pub(crate) fn lowest_fit(&self, bytes: u64, alignment: u64) -> Option<u64> {
        self.by_offset.iter().find_map(|(offset, free)| {
            let start = offset.checked_next_multiple_of(alignment)?;
            (start.checked_add(bytes)? <= offset + free).then_some(start)
        })
    }

    fn insert(&mut self, range: ByteRange) {
        if range.bytes > 0 {
            self.by_offset.insert(range.offset, range.bytes);
        }
    }
}
