//! The bytes by which a rank offers a region of its memory.

use anabranch_hip::IpcHandle;
use anabranch_ranks::GlobalRank;
use anabranch_transport::{Error, TransportKind};

const VERSION: u32 = 1;
const BYTES: usize = 4 + 4 + 8 + 8 + 8 + IpcHandle::BYTES;

/// A region, for threads of the same process (by address) and, with a handle, for other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// Where the exporting process finds the region.
    pub(crate) address: u64,
    /// Bytes of the region.
    pub(crate) bytes: u64,
    /// Where the region starts in its allocation: a handle names whole allocations.
    pub(crate) offset: u64,
    /// Names the allocation to other processes.
    pub(crate) handle: Option<IpcHandle>,
}

impl Offer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(BYTES);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(u32::from(self.handle.is_some()).to_le_bytes());
        bytes.extend(self.address.to_le_bytes());
        bytes.extend(self.bytes.to_le_bytes());
        bytes.extend(self.offset.to_le_bytes());
        bytes.extend(self.handle.map_or([0; IpcHandle::BYTES], IpcHandle::to_bytes));
        bytes
    }

    pub(crate) fn decode(peer: GlobalRank, bytes: &[u8]) -> Result<Self, Error> {
        let malformed = |problem| Error::Offer { peer, kind: TransportKind::P2p, problem };
        let bytes: &[u8; BYTES] = bytes.try_into().map_err(|_| malformed("another length"))?;
        let (version, rest) = take::<4>(bytes);
        let (has_handle, rest) = take::<4>(rest);
        let (address, rest) = take::<8>(rest);
        let (length, rest) = take::<8>(rest);
        let (offset, rest) = take::<8>(rest);
        let (handle, _) = take::<{ IpcHandle::BYTES }>(rest);
        if u32::from_le_bytes(version) != VERSION {
            return Err(malformed("another version"));
        }
        let handle = match u32::from_le_bytes(has_handle) {
            0 => None,
            1 => Some(IpcHandle::from_bytes(handle)),
            _ => return Err(malformed("an unknown flag")),
        };
        let offer = Self {
            address: u64::from_le_bytes(address),
            bytes: u64::from_le_bytes(length),
            offset: u64::from_le_bytes(offset),
            handle,
        };
        match offer.address.checked_add(offer.bytes) {
            Some(_) => Ok(offer),
            None => Err(malformed("a region beyond the address space")),
        }
    }
}

/// The first `N` bytes and the rest; zeros where there are fewer, which the fixed length rules out.
fn take<const N: usize>(bytes: &[u8]) -> ([u8; N], &[u8]) {
    bytes.split_first_chunk::<N>().map_or(([0; N], &[]), |(first, rest)| (*first, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_come_back_as_they_were() {
        let peer = GlobalRank::new(1);
        for handle in [None, Some(IpcHandle::from_bytes([7; 64]))] {
            let offer = Offer { address: 0x7f00_0000_0000, bytes: 4096, offset: 512, handle };
            let bytes = offer.encode();
            assert_eq!(Offer::decode(peer, &bytes).unwrap(), offer);
            assert!(Offer::decode(peer, &bytes[1..]).is_err());
            let mut other = bytes.clone();
            other[0] = 2;
            assert!(Offer::decode(peer, &other).unwrap_err().to_string().contains("another version"));
            let mut far = bytes;
            far[8..24].fill(0xff);
            assert!(Offer::decode(peer, &far).unwrap_err().to_string().contains("address space"));
        }
    }
}
