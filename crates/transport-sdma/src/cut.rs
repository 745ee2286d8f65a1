//! A length, divided into copies that an engine takes.

use crate::generation::Generation;

/// One copy of several that make a long one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it begins, in bytes from the start.
    pub offset: u64,
    /// Its bytes, at least one.
    pub bytes: u32,
}

/// The copies of `bytes` bytes, in order: all as long as the generation allows, a multiple of 32, but the last. None for no bytes.
/// A signal follows the last.
pub fn cut(bytes: u64, generation: &Generation) -> impl ExactSizeIterator<Item = Piece> + use<> {
    let most = u64::from(generation.most_copy_bytes);
    let pieces = bytes.div_ceil(most) as usize;
    (0..pieces).map(move |index| {
        let offset = index as u64 * most;
        Piece { offset, bytes: most.min(bytes - offset) as u32 }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GENERATIONS;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_byte_is_in_one_piece(generation in 0..GENERATIONS.len(), around in 0u64..40, off in -3i64..4) {
            let generation = &GENERATIONS[generation];
            let most = u64::from(generation.most_copy_bytes);
            let bytes = (around * most).saturating_add_signed(off);
            let pieces = cut(bytes, generation);
            prop_assert_eq!(pieces.len() as u64, bytes.div_ceil(most));
            let mut end = 0;
            for piece in pieces {
                prop_assert_eq!(piece.offset, end);
                prop_assert!(piece.bytes >= 1 && u64::from(piece.bytes) <= most);
                prop_assert!(piece.offset.is_multiple_of(32));
                end += u64::from(piece.bytes);
            }
            prop_assert_eq!(end, bytes);
        }
    }

    #[test]
    fn no_bytes_are_no_copy() {
        assert!(GENERATIONS.iter().all(|generation| cut(0, generation).next().is_none()));
    }
}
