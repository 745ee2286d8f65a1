//! Reads entries, by the offsets of each provider's tables.

use anabranch_transport_rdma::Provider;

use super::{Asked, Kind, Nic};

impl Nic {
    /// Words of the ring from a byte on, which wraps.
    fn words<const COUNT: usize>(&self, byte: u64, ring: u64) -> Result<[u64; COUNT], String> {
        let mut words = [0; COUNT];
        for (word, index) in words.iter_mut().zip(0..) {
            *word = self.load(self.queue.ring.address().0 + (byte + 8 * index) % ring)?;
        }
        Ok(words)
    }

    pub(super) fn decode(&self) -> Result<Asked, String> {
        let place = self.done & (u64::from(self.queue.entries) - 1);
        let ring = u64::from(self.queue.entries) * 64;
        match self.provider {
            Provider::Mlx5 => self.mlx5(self.words(place * 64, ring)?),
            Provider::Bnxt => self.bnxt(self.words(place * 48, ring)?, place),
            Provider::Ionic => self.ionic(self.words(place * 64, ring)?),
            Provider::Posted => self.posted(self.words(place * 64, ring)?),
        }
    }

    fn mlx5(&self, words: [u64; 10]) -> Result<Asked, String> {
        // Numbers are big-endian: as they stand in 32-bit pieces.
        let piece = |index: usize| ((words[index / 2] >> (index % 2 * 32)) as u32).swap_bytes();
        let pair = |index: usize| words[index / 2].swap_bytes();
        let (head, segments, flags) = (piece(0), piece(1) & 0xff, piece(2));
        let wrong = |what: &str| Err(format!("entry {:#x}: {what}: {words:x?}", self.done));
        if u64::from(head >> 8 & 0xffff) != self.done & 0xffff {
            return wrong("index");
        }
        if piece(1) >> 8 != self.queue.number || flags & !0x80 != 8 || piece(7) != 0 {
            return wrong("number, flags or what is reserved");
        }
        let mut asked = Asked { blocks: 1, remote: pair(4), remote_key: piece(6), ..Asked::default() };
        let (code, opmod) = (head & 0xff, head >> 24);
        let size = match opmod {
            0 | 9 => 8,
            8 => 4,
            _ => return wrong("opmod"),
        };
        let mut data = 8;
        match (code, opmod, segments) {
            (0x09, 0, 2) => {
                asked.immediate = Some(piece(3));
                return Ok(asked);
            }
            (0x08, 0, 3) if piece(8) >> 31 == 1 => {
                let value = u64::from(piece(10).swap_bytes()) << 32 | u64::from(piece(9).swap_bytes());
                let bytes = u64::from(piece(8) & 0x7fff_ffff);
                return Ok(Asked { opcode: Kind::Value, bytes, value, ..asked });
            }
            (0x08, 0, 3) => {}
            (0x09, 0, 3) => asked.immediate = Some(piece(3)),
            (0x10, 0, 3) => asked.opcode = Kind::Read,
            (0x11 | 0x12, 0, 4) => {
                (asked.value, asked.compare, data) = (pair(8), pair(10), 12);
                (asked.swap_mask, asked.compare_mask) = (u64::MAX, u64::MAX);
                asked.opcode = if code == 0x12 { Kind::Add } else { Kind::Swap };
            }
            (0x15, 9, 4) => {
                (asked.opcode, asked.value, asked.tops, data) = (Kind::Add, pair(8), pair(10), 12);
            }
            (0x15, 8, 4) if pair(10) == 0 => {
                asked.opcode = Kind::Add;
                (asked.value, asked.tops, data) = (piece(8).into(), piece(9).into(), 12);
            }
            (0x14, 8, 4) => {
                asked.opcode = Kind::Swap;
                (asked.value, asked.compare) = (piece(8).into(), piece(9).into());
                (asked.swap_mask, asked.compare_mask, data) = (piece(10).into(), piece(11).into(), 12);
            }
            (0x14, 9, 5) => {
                asked.opcode = Kind::Swap;
                (asked.value, asked.compare) = (pair(8), pair(10));
                (asked.swap_mask, asked.compare_mask) = (pair(12), pair(14));
                (data, asked.blocks) = (16, 2);
            }
            _ => return wrong("operation and segments"),
        }
        (asked.bytes, asked.local_key, asked.local) = (piece(data).into(), piece(data + 1), pair(data + 2));
        let is_word = matches!(asked.opcode, Kind::Add | Kind::Swap);
        if asked.bytes == 0 || asked.bytes >> 31 != 0 || (is_word && asked.bytes != size) {
            return wrong("bytes");
        }
        Ok(asked)
    }

    fn bnxt(&self, words: [u64; 6], place: u64) -> Result<Asked, String> {
        let wrong = |what: &str| Err(format!("entry {:#x}: {what}: {words:x?}", self.done));
        let (code, flags) = (words[0] & 0xff, words[0] >> 8 & 0xff);
        if words[0] >> 16 & 0xffff != 3 || flags & !0x13 != 0 || flags & 1 == 0 {
            return wrong("slots or flags");
        }
        let second = (words[0] >> 32) as u32;
        let local = Asked {
            blocks: 1,
            local: words[4],
            local_key: words[5] as u32,
            bytes: words[5] >> 32,
            ..Asked::default()
        };
        let asked = Asked { remote: words[2], remote_key: words[3] as u32, ..local };
        let word = Asked {
            remote: words[1],
            remote_key: second,
            value: words[2],
            compare: words[3],
            swap_mask: u64::MAX,
            compare_mask: u64::MAX,
            ..local
        };
        let is_short = words[3] >> 32 == 0 && words[1] == asked.bytes;
        let asked = match (code, flags & 0x10 != 0) {
            (0x04, true) if words[3] >> 32 == 0 && words[5] == 0 => {
                Asked { opcode: Kind::Value, bytes: words[1], value: words[4], local: 0, ..asked }
            }
            (0x04, false) if is_short => asked,
            (0x05, false) if is_short => Asked { immediate: Some(second), ..asked },
            (0x06, false) if is_short => Asked { opcode: Kind::Read, ..asked },
            (0x08, false) if local.bytes == 8 => Asked { opcode: Kind::Swap, ..word },
            (0x0b, false) if local.bytes == 8 => Asked { opcode: Kind::Add, ..word },
            _ => return wrong("operation"),
        };
        let rows = 2 * u64::from(self.queue.entries);
        let row = self.load(self.queue.sequence_table.address().0 + 8 * (self.done % rows))?;
        let is_word = matches!(asked.opcode, Kind::Add | Kind::Swap);
        let packets = if is_word { 1 } else { asked.bytes.div_ceil(self.queue.path_mtu.into()).max(1) };
        let (slot, next, first) = (row >> 48, row >> 24 & 0xff_ffff, row & 0xff_ffff);
        let before = self.sequence.lock().unwrap().replace(next);
        let follows = before.is_none_or(|before| before == first);
        if slot != place * 3 || next != (first + packets) & 0xff_ffff || !follows {
            return wrong(&format!("sequence numbers {row:#x} of {packets} packets behind {before:x?}"));
        }
        Ok(asked)
    }

    fn ionic(&self, words: [u64; 8]) -> Result<Asked, String> {
        let piece = |index: usize| ((words[index / 2] >> (index % 2 * 32)) as u32).swap_bytes();
        let pair = |index: usize| words[index / 2].swap_bytes();
        let wrong = |what: &str| Err(format!("entry {:#x}: {what}: {words:x?}", self.done));
        let (code, ranges, flags) = (piece(2) >> 24, piece(2) >> 16 & 0xff, piece(2) & 0xffff);
        let colour = if self.done & u64::from(self.queue.entries) == 0 { 0x10 } else { 0 };
        if words[0] != self.done || flags & !0x15 != 8 || flags & 0x10 != colour {
            return wrong("index, flags or colour");
        }
        let common = Asked { blocks: 1, remote: pair(4), remote_key: piece(6), ..Asked::default() };
        let moved = Asked { bytes: piece(7).into(), local: pair(8), local_key: piece(11), ..common };
        let value = u64::from(piece(7)) << 32 | u64::from(piece(8));
        let compare = u64::from(piece(9)) << 32 | u64::from(piece(10));
        let masks = Asked { swap_mask: u64::MAX, compare_mask: u64::MAX, ..common };
        let word = Asked { bytes: 8, value, compare, local_key: piece(11), local: pair(12), ..masks };
        let is_whole = piece(10) == piece(7) && ranges == u32::from(piece(7) != 0);
        Ok(match (code, flags & 4 != 0) {
            (0x21, true) if ranges == 0 => {
                Asked { opcode: Kind::Value, bytes: piece(7).into(), value: words[4], ..common }
            }
            (0x21, false) if is_whole => moved,
            (0x61, false) if is_whole => Asked { immediate: Some(piece(3)), ..moved },
            (0x02, false) if is_whole => Asked { opcode: Kind::Read, ..moved },
            (0x04, false) if ranges == 1 => Asked { opcode: Kind::Swap, ..word },
            (0x05, false) if ranges == 1 => Asked { opcode: Kind::Add, ..word },
            _ => return wrong("operation"),
        })
    }

    fn posted(&self, words: [u64; 8]) -> Result<Asked, String> {
        let wrong = |what: &str| Err(format!("entry {:#x}: {what}: {words:x?}", self.done));
        if words[0] != self.done + 1 {
            return wrong("stamp");
        }
        let (bytes, code) = (words[5] & 0xffff_ffff, words[5] >> 32);
        let all = Asked {
            blocks: 1,
            local: words[1],
            remote: words[2],
            value: words[3],
            compare: words[4],
            bytes,
            local_key: words[6] as u32,
            remote_key: (words[6] >> 32) as u32,
            swap_mask: u64::MAX,
            compare_mask: u64::MAX,
            ..Asked::default()
        };
        let opcode = match code {
            1 | 2 => Kind::Write,
            3 => Kind::Read,
            4 => Kind::Value,
            5 => Kind::Add,
            6 => Kind::Swap,
            _ => return wrong("operation"),
        };
        Ok(Asked { opcode, immediate: (code == 2).then_some(words[7] as u32), ..all })
    }
}
