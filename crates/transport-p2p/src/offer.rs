//! The bytes by which a rank offers a region of its memory.

use anabranch_hip::{IpcHandle, PhysicalHandle};
use anabranch_ranks::GlobalRank;
use anabranch_transport::{Error, TransportKind};

use crate::descriptors::Address;

const VERSION: u32 = 2;
const BYTES: usize = 4 + 4 + 8 + 8 + 8 + NAME_BYTES;
/// Room for the longest [`Name`].
const NAME_BYTES: usize = IpcHandle::BYTES;

const _: () = assert!(8 + Address::BYTES <= NAME_BYTES);

/// How the allocation that a region lies in is found by others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    /// Only by the region's address.
    Address,
    /// By a handle, for other processes.
    Ipc(IpcHandle),
    /// Physical memory for flat ranges: by a handle within the process; by a file descriptor, which comes to whoever has a
    /// mailbox, for other processes.
    Physical { handle: PhysicalHandle, mailbox: Option<Address> },
}

/// A region, for threads of the same process (by address) and, with a name, for other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// Where the exporting process finds the region.
    pub(crate) address: u64,
    /// Bytes of the region.
    pub(crate) bytes: u64,
    /// Where the region starts in its allocation: a handle names whole allocations.
    pub(crate) offset: u64,
    /// The allocation.
    pub(crate) name: Name,
}

impl Offer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(BYTES);
        bytes.extend(VERSION.to_le_bytes());
        let (kind, name) = self.name.encode();
        bytes.extend(kind.to_le_bytes());
        bytes.extend(self.address.to_le_bytes());
        bytes.extend(self.bytes.to_le_bytes());
        bytes.extend(self.offset.to_le_bytes());
        bytes.extend(name);
        bytes
    }

    pub(crate) fn decode(peer: GlobalRank, bytes: &[u8]) -> Result<Self, Error> {
        let malformed = |problem| Error::Offer { peer, kind: TransportKind::P2p, problem };
        let bytes: &[u8; BYTES] = bytes.try_into().map_err(|_| malformed("another length"))?;
        let (version, rest) = take::<4>(bytes);
        let (kind, rest) = take::<4>(rest);
        let (address, rest) = take::<8>(rest);
        let (length, rest) = take::<8>(rest);
        let (offset, rest) = take::<8>(rest);
        let (name, _) = take::<NAME_BYTES>(rest);
        if u32::from_le_bytes(version) != VERSION {
            return Err(malformed("another version"));
        }
        let name = Name::decode(u32::from_le_bytes(kind), name)
            .ok_or_else(|| malformed("an unknown kind of memory"))?;
        let offer = Self {
            address: u64::from_le_bytes(address),
            bytes: u64::from_le_bytes(length),
            offset: u64::from_le_bytes(offset),
            name,
        };
        match offer.address.checked_add(offer.bytes) {
            Some(_) => Ok(offer),
            None => Err(malformed("a region beyond the address space")),
        }
    }
}

impl Name {
    /// The kind's number and the name's bytes.
    fn encode(&self) -> (u32, [u8; NAME_BYTES]) {
        let mut bytes = [0; NAME_BYTES];
        match self {
            Self::Address => (0, bytes),
            Self::Ipc(handle) => (1, handle.to_bytes()),
            Self::Physical { handle, mailbox } => {
                bytes[..8].copy_from_slice(&handle.0.to_le_bytes());
                let Some(mailbox) = mailbox else { return (2, bytes) };
                bytes[8..8 + Address::BYTES].copy_from_slice(&mailbox.to_bytes());
                (3, bytes)
            }
        }
    }

    fn decode(kind: u32, bytes: [u8; NAME_BYTES]) -> Option<Self> {
        let (handle, rest) = take::<8>(&bytes);
        let handle = PhysicalHandle(u64::from_le_bytes(handle));
        match kind {
            0 => Some(Self::Address),
            1 => Some(Self::Ipc(IpcHandle::from_bytes(bytes))),
            2 => Some(Self::Physical { handle, mailbox: None }),
            3 => {
                let (mailbox, _) = take::<{ Address::BYTES }>(rest);
                Some(Self::Physical { handle, mailbox: Some(Address::from_bytes(mailbox)) })
            }
            _ => None,
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
        let (handle, mailbox) = (PhysicalHandle(0x77), Some(Address::from_bytes([9; 32])));
        for name in [
            Name::Address,
            Name::Ipc(IpcHandle::from_bytes([7; 64])),
            Name::Physical { handle, mailbox: None },
            Name::Physical { handle, mailbox },
        ] {
            let offer = Offer { address: 0x7f00_0000_0000, bytes: 4096, offset: 512, name };
            let bytes = offer.encode();
            assert_eq!(Offer::decode(peer, &bytes).unwrap(), offer);
            assert!(Offer::decode(peer, &bytes[1..]).is_err());
            let mut other = bytes.clone();
            other[0] = 1;
            assert!(Offer::decode(peer, &other).unwrap_err().to_string().contains("another version"));
            other.clone_from(&bytes);
            other[4] = 9;
            assert!(Offer::decode(peer, &other).unwrap_err().to_string().contains("unknown kind"));
            let mut far = bytes;
            far[8..24].fill(0xff);
            assert!(Offer::decode(peer, &far).unwrap_err().to_string().contains("address space"));
        }
    }
}
