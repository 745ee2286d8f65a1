//! The bytes by which a rank offers its memory to peers' NICs.

use anabranch_ranks::GlobalRank;
use anabranch_transport::{Error, TransportKind};

use crate::driver::Atomics;
use crate::provider::Provider;

const MAGIC: [u8; 4] = *b"ardm";
const VERSION: u32 = 2;
/// The longest description of a queue pair that is read: far more than any driver writes.
const MOST_ENDPOINT: usize = 4096;

/// A region, and for the heap the queue pairs to each rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// Whose entries the rank's kernels write. Both ends of a queue pair have the same.
    pub(crate) provider: Provider,
    /// What atomic operations they ask for. Equal on both ends.
    pub(crate) atomics: Atomics,
    /// Where the region starts, by the address that the rank's NIC knows it by.
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    /// The key for peers; `None` of regions that only this rank reaches.
    pub(crate) key: Option<u32>,
    /// By rank of the world: the queue pairs that were made for it, none for the rank itself.
    pub(crate) endpoints: Vec<Vec<Vec<u8>>>,
}

impl Offer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(MAGIC);
        for word in [VERSION, self.provider.number(), self.atomics.number()] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.base.to_le_bytes());
        bytes.extend(self.bytes.to_le_bytes());
        bytes.extend(u32::from(self.key.is_some()).to_le_bytes());
        bytes.extend(self.key.unwrap_or(0).to_le_bytes());
        bytes.extend((self.endpoints.len() as u32).to_le_bytes());
        for queues in &self.endpoints {
            bytes.extend((queues.len() as u32).to_le_bytes());
            for endpoint in queues {
                bytes.extend((endpoint.len() as u32).to_le_bytes());
                bytes.extend(endpoint);
            }
        }
        bytes
    }

    pub(crate) fn decode(peer: GlobalRank, bytes: &[u8]) -> Result<Self, Error> {
        let malformed = |problem| Error::Offer { peer, kind: TransportKind::Rdma, problem };
        let mut rest = bytes;
        let mut reader = Reader { rest: &mut rest };
        let short = || malformed("cut short");
        if reader.take(4).ok_or_else(short)? != MAGIC {
            return Err(malformed("it does not begin like one"));
        }
        if reader.word().ok_or_else(short)? != VERSION {
            return Err(malformed("another version"));
        }
        let number = reader.word().ok_or_else(short)?;
        let provider = Provider::ALL.into_iter().find(|provider| provider.number() == number);
        let provider = provider.ok_or_else(|| malformed("an unknown provider"))?;
        let number = reader.word().ok_or_else(short)?;
        let atomics = Atomics::ALL.into_iter().find(|atomics| atomics.number() == number);
        let atomics = atomics.ok_or_else(|| malformed("unknown atomic operations"))?;
        let (base, length) = (reader.long().ok_or_else(short)?, reader.long().ok_or_else(short)?);
        if base.checked_add(length).is_none() {
            return Err(malformed("a region beyond the address space"));
        }
        let (has_key, key) = (reader.word().ok_or_else(short)?, reader.word().ok_or_else(short)?);
        let key = match has_key {
            0 => None,
            1 => Some(key),
            _ => {
                return Err(malformed("a word that says neither that there is a key nor that there is none"));
            }
        };
        let ranks = reader.word().ok_or_else(short)?;
        let mut endpoints = Vec::new();
        for _ in 0..ranks {
            let queues = reader.word().ok_or_else(short)?;
            let mut list = Vec::new();
            for _ in 0..queues {
                let length = reader.word().ok_or_else(short)? as usize;
                if length > MOST_ENDPOINT {
                    return Err(malformed("an endpoint longer than any"));
                }
                list.push(reader.take(length).ok_or_else(short)?.to_vec());
            }
            endpoints.push(list);
        }
        if !rest.is_empty() {
            return Err(malformed("bytes after its end"));
        }
        Ok(Self { provider, atomics, base, bytes: length, key, endpoints })
    }
}

struct Reader<'a, 'b> {
    rest: &'b mut &'a [u8],
}

impl<'a> Reader<'a, '_> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(bytes)?;
        *self.rest = rest;
        Some(taken)
    }

    fn word(&mut self) -> Option<u32> {
        let (taken, rest) = self.rest.split_first_chunk::<4>()?;
        *self.rest = rest;
        Some(u32::from_le_bytes(*taken))
    }

    fn long(&mut self) -> Option<u64> {
        let (taken, rest) = self.rest.split_first_chunk::<8>()?;
        *self.rest = rest;
        Some(u64::from_le_bytes(*taken))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_offer() -> impl Strategy<Value = Offer> {
        let endpoint = prop::collection::vec(any::<u8>(), 0..40);
        let endpoints = prop::collection::vec(prop::collection::vec(endpoint, 0..3), 0..5);
        let region = (any::<u32>(), any::<u32>(), any::<Option<u32>>());
        let kind = (prop::sample::select(&Provider::ALL[..]), prop::sample::select(&Atomics::ALL[..]));
        (kind, region, endpoints).prop_map(|((provider, atomics), (base, bytes, key), endpoints)| Offer {
            provider,
            atomics,
            base: base.into(),
            bytes: bytes.into(),
            key,
            endpoints,
        })
    }

    proptest! {
        #[test]
        fn offers_come_back(offer in any_offer()) {
            prop_assert_eq!(Offer::decode(GlobalRank::new(0), &offer.encode()).unwrap(), offer);
        }

        #[test]
        fn what_is_cut_or_longer_is_refused(offer in any_offer(), cut in any::<prop::sample::Index>()) {
            let mut bytes = offer.encode();
            let at = cut.index(bytes.len());
            prop_assert!(Offer::decode(GlobalRank::new(0), &bytes[..at]).is_err());
            bytes.push(0);
            prop_assert!(Offer::decode(GlobalRank::new(0), &bytes).is_err());
        }

        #[test]
        fn arbitrary_bytes_are_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Offer::decode(GlobalRank::new(0), &bytes);
            let mut led = MAGIC.to_vec();
            led.extend(VERSION.to_le_bytes());
            led.extend(bytes);
            let _ = Offer::decode(GlobalRank::new(0), &led);
        }
    }

    /// Offset of the flag for a key: after four words and two long ones.
    const HAS_KEY: usize = 4 * 4 + 2 * 8;

    #[test]
    fn damage_has_a_name() {
        let atomics = Atomics::Masked;
        let offer =
            Offer { provider: Provider::Mlx5, atomics, base: 1, bytes: 2, key: Some(3), endpoints: vec![] };
        let decode = |bytes: &[u8]| Offer::decode(GlobalRank::new(5), bytes).unwrap_err().to_string();
        let changed = |at: usize, to: u8| {
            let mut bytes = offer.encode();
            bytes[at] = to;
            decode(&bytes)
        };
        assert_eq!(changed(0, 0), "the offer of rank 5 is not one of rdma: it does not begin like one");
        assert_eq!(changed(4, 9), "the offer of rank 5 is not one of rdma: another version");
        assert_eq!(changed(8, 9), "the offer of rank 5 is not one of rdma: an unknown provider");
        assert_eq!(changed(12, 9), "the offer of rank 5 is not one of rdma: unknown atomic operations");
        assert!(changed(HAS_KEY, 2).contains("neither that there is a key"), "{}", changed(HAS_KEY, 2));
    }
}
