//! What a request in the send queue asks for, for people. Kernels write it (`device/rdma/mlx5.h`).

use super::completion::ENTRY;

/// Bytes of a segment.
const SEGMENT: usize = 16;
/// Of the word that says how many bytes follow: they stand in the entry itself.
const INLINE: u32 = 1 << 31;

type Entry = [u8; ENTRY as usize];

/// Whether a request of the queue pair `number` with that index, of which the entry says 16 bits, starts here: not one of another lap, and no
/// second entry of a request.
pub(super) fn starts(request: &Entry, index: u16, number: u32) -> bool {
    (word(request, 0) >> 8) as u16 == index && word(request, 4) >> 8 == number
}

fn word(request: &Entry, offset: usize) -> u32 {
    let bytes = request.get(offset..offset + 4).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u32::from_be_bytes)
}

/// The operation, its bytes and where they are at the peer, by the request's first entry.
pub(super) fn request_words(request: &Entry) -> String {
    let operation = match request[3] {
        0x08 => "a write",
        0x09 => "a write with an immediate value",
        0x10 => "a read",
        0x11 | 0x14 => "a compare-and-swap",
        0x12 | 0x15 => "a fetch-and-add",
        // It has no address at the peer.
        0x23 => return "a DUMP, which completes a read".to_owned(),
        other => return format!("an operation of number {other:#04x}"),
    };
    let remote = u64::from(word(request, SEGMENT)) << 32 | u64::from(word(request, SEGMENT + 4));
    // Operands and masks of atomic operations come before the segment that says their bytes, which may be in the next entry.
    let bytes = match request[3] {
        0x11 | 0x12 => 8,
        // The operation's modifier is the exponent of its bytes, less 6.
        0x14 | 0x15 => 1 << request[0].saturating_sub(6).min(3),
        _ if request[7] & 0x3f < 3 => 0,
        _ => word(request, 2 * SEGMENT) & !INLINE,
    };
    format!("{operation} of {bytes} bytes at {remote:#x} of the peer")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request: operation, modifier, segments, bytes.
    fn request(operation: u8, modifier: u8, segments: u8, bytes: u32) -> Entry {
        let mut entry = [0; ENTRY as usize];
        (entry[0], entry[3], entry[7]) = (modifier, operation, segments);
        entry[16..24].copy_from_slice(&0x7f00_1234_5678_u64.to_be_bytes());
        entry[32..36].copy_from_slice(&bytes.to_be_bytes());
        entry
    }

    #[test]
    fn a_request_has_words() {
        for (entry, words) in [
            (request(0x08, 0, 3, 1024), "a write of 1024 bytes at 0x7f0012345678 of the peer"),
            (request(0x08, 0, 3, INLINE | 8), "a write of 8 bytes at"),
            (request(0x09, 0, 2, 0), "a write with an immediate value of 0 bytes at"),
            (request(0x10, 0, 3, 64), "a read of 64 bytes at"),
            (request(0x12, 0, 4, 0), "a fetch-and-add of 8 bytes at"),
            (request(0x15, 8, 4, 0), "a fetch-and-add of 4 bytes at"),
            (request(0x14, 9, 5, 0), "a compare-and-swap of 8 bytes at"),
            (request(0x23, 0, 2, 0), "a DUMP, which completes a read"),
            (request(0x00, 0, 0, 0), "an operation of number 0x00"),
        ] {
            assert!(request_words(&entry).starts_with(words), "{}", request_words(&entry));
        }
    }

    #[test]
    fn a_request_starts_where_its_index_and_its_queue_pair_say() {
        let mut entry = request(0x08, 0, 3, 8);
        entry[..8].copy_from_slice(&[0, 0x12, 0x34, 0x08, 0xab, 0xcd, 0xef, 3]);
        assert!(starts(&entry, 0x1234, 0x00ab_cdef));
        assert!(!starts(&entry, 0x1235, 0x00ab_cdef) && !starts(&entry, 0x1234, 0x00ab_cdee));
    }
}
