//! What a rank asks of the hub, what the hub answers, and both as payloads.

use crate::frame::{FrameError, Kind};
use crate::wire::{Reader, Writer};
use crate::{Loss, LossKind, OtherCall};
use anabranch_ranks::{GlobalRank, Group};
use std::cmp::Ordering;
use std::sync::Arc;

/// Which collective call: the `sequence`-th with this group and tag.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OperationKey {
    pub(crate) group: Group,
    pub(crate) tag: String,
    pub(crate) sequence: u64,
}

/// By members, tag and number, so that iterations over calls have the same order every time.
impl Ord for OperationKey {
    fn cmp(&self, other: &Self) -> Ordering {
        let members = self.group.members().cmp(other.group.members());
        members.then_with(|| self.tag.cmp(&other.tag)).then(self.sequence.cmp(&other.sequence))
    }
}

impl PartialOrd for OperationKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// What a rank asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Contribute { key: OperationKey, bytes: Vec<u8> },
    Withdraw { key: OperationKey },
    Set { key: String, value: Vec<u8> },
    Wait { key: String },
    Cancel { key: String },
    Goodbye,
}

/// Why a collective call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    Missing { by: GlobalRank, missing: Vec<GlobalRank>, elsewhere: Vec<OtherCall> },
    Lost(Loss),
    TooLarge { bytes: u64 },
}

/// What the hub answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// All parts in group order.
    Gathered(Arc<Vec<Vec<u8>>>),
    Failed(Failure),
    Value(Arc<Vec<u8>>),
    /// A notice, not an answer.
    Lost(Loss),
}

impl Request {
    pub(crate) fn encode(&self) -> (Kind, Vec<u8>) {
        let writer = Writer::default();
        match self {
            Self::Contribute { key, bytes } => (Kind::Contribute, put_key(writer, key).bytes(bytes).finish()),
            Self::Withdraw { key } => (Kind::Withdraw, put_key(writer, key).finish()),
            Self::Set { key, value } => (Kind::Set, writer.bytes(key.as_bytes()).bytes(value).finish()),
            Self::Wait { key } => (Kind::Wait, writer.bytes(key.as_bytes()).finish()),
            Self::Cancel { key } => (Kind::Cancel, writer.bytes(key.as_bytes()).finish()),
            Self::Goodbye => (Kind::Goodbye, Vec::new()),
        }
    }

    /// Reads a request of `from` in `world`; a group must be one that `from` may use.
    pub(crate) fn decode(
        kind: Kind,
        payload: &[u8],
        from: GlobalRank,
        world: &Group,
    ) -> Result<Self, FrameError> {
        let mut reader = Reader::new(payload, kind.words());
        let request = match kind {
            Kind::Contribute => {
                Self::Contribute { key: take_key(&mut reader, from, world)?, bytes: reader.bytes()?.to_vec() }
            }
            Kind::Withdraw => Self::Withdraw { key: take_key(&mut reader, from, world)? },
            Kind::Set => Self::Set { key: reader.text()?, value: reader.bytes()?.to_vec() },
            Kind::Wait => Self::Wait { key: reader.text()? },
            Kind::Cancel => Self::Cancel { key: reader.text()? },
            Kind::Goodbye => Self::Goodbye,
            _ => return Err(FrameError::Unexpected { kind: kind.words() }),
        };
        reader.finish()?;
        Ok(request)
    }
}

impl Reply {
    pub(crate) fn encode(&self) -> (Kind, Vec<u8>) {
        let writer = Writer::default();
        match self {
            Self::Gathered(parts) => {
                let writer = writer.u64(parts.len() as u64);
                (Kind::Gathered, parts.iter().fold(writer, |writer, part| writer.bytes(part)).finish())
            }
            Self::Failed(failure) => (Kind::Failed, put_failure(writer, failure).finish()),
            Self::Value(value) => (Kind::Value, writer.bytes(value).finish()),
            Self::Lost(loss) => (Kind::Lost, put_loss(writer, loss).finish()),
        }
    }

    pub(crate) fn decode(kind: Kind, payload: &[u8]) -> Result<Self, FrameError> {
        let mut reader = Reader::new(payload, kind.words());
        let reply = match kind {
            Kind::Gathered => {
                let count = reader.count(8)?;
                let parts =
                    (0..count).map(|_| Ok(reader.bytes()?.to_vec())).collect::<Result<_, FrameError>>()?;
                Self::Gathered(Arc::new(parts))
            }
            Kind::Failed => Self::Failed(take_failure(&mut reader)?),
            Kind::Value => Self::Value(Arc::new(reader.bytes()?.to_vec())),
            Kind::Lost => Self::Lost(take_loss(&mut reader)?),
            _ => return Err(FrameError::Unexpected { kind: kind.words() }),
        };
        reader.finish()?;
        Ok(reply)
    }
}

/// The bytes that parts have as a payload.
pub(crate) fn gathered_bytes(parts: &[Vec<u8>]) -> u64 {
    8 + parts.iter().map(|part| 8 + part.len() as u64).sum::<u64>()
}

fn put_ranks(writer: Writer, ranks: &[GlobalRank]) -> Writer {
    ranks.iter().fold(writer.u64(ranks.len() as u64), |writer, rank| writer.u32(rank.get()))
}

fn take_ranks(reader: &mut Reader<'_>) -> Result<Vec<GlobalRank>, FrameError> {
    let count = reader.count(4)?;
    (0..count).map(|_| Ok(GlobalRank::new(reader.u32()?))).collect()
}

fn put_key(writer: Writer, key: &OperationKey) -> Writer {
    put_ranks(writer, key.group.members()).bytes(key.tag.as_bytes()).u64(key.sequence)
}

fn take_key(reader: &mut Reader<'_>, from: GlobalRank, world: &Group) -> Result<OperationKey, FrameError> {
    let members = take_ranks(reader)?;
    let group = world.subset_of_ranks(&members).map_err(|_| reader.malformed())?;
    if !group.contains(from) {
        return Err(reader.malformed());
    }
    Ok(OperationKey { group, tag: reader.text()?, sequence: reader.u64()? })
}

fn put_loss(writer: Writer, loss: &Loss) -> Writer {
    let kind = match loss.kind {
        LossKind::Left => 0,
        LossKind::Died => 1,
    };
    writer.u32(loss.rank.get()).u8(kind).bytes(loss.detail.as_bytes())
}

fn take_loss(reader: &mut Reader<'_>) -> Result<Loss, FrameError> {
    let rank = GlobalRank::new(reader.u32()?);
    let kind = match reader.u8()? {
        0 => LossKind::Left,
        1 => LossKind::Died,
        _ => return Err(reader.malformed()),
    };
    Ok(Loss { rank, kind, detail: reader.text()? })
}

fn put_failure(writer: Writer, failure: &Failure) -> Writer {
    match failure {
        Failure::Missing { by, missing, elsewhere } => {
            let writer = put_ranks(writer.u8(0).u32(by.get()), missing).u64(elsewhere.len() as u64);
            elsewhere
                .iter()
                .fold(writer, |writer, other| writer.u32(other.rank.get()).bytes(other.phase.as_bytes()))
        }
        Failure::Lost(loss) => put_loss(writer.u8(1), loss),
        Failure::TooLarge { bytes } => writer.u8(2).u64(*bytes),
    }
}

fn take_failure(reader: &mut Reader<'_>) -> Result<Failure, FrameError> {
    match reader.u8()? {
        0 => {
            let by = GlobalRank::new(reader.u32()?);
            let missing = take_ranks(reader)?;
            let count = reader.count(12)?;
            let elsewhere = (0..count)
                .map(|_| Ok(OtherCall { rank: GlobalRank::new(reader.u32()?), phase: reader.text()? }))
                .collect::<Result<_, FrameError>>()?;
            Ok(Failure::Missing { by, missing, elsewhere })
        }
        1 => Ok(Failure::Lost(take_loss(reader)?)),
        2 => Ok(Failure::TooLarge { bytes: reader.u64()? }),
        _ => Err(reader.malformed()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: u32 = 9;

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(any::<u8>(), 0..40)
    }

    fn any_rank() -> impl Strategy<Value = GlobalRank> {
        (0..SIZE).prop_map(GlobalRank::new)
    }

    /// A key, and a member of its group.
    fn key() -> impl Strategy<Value = (OperationKey, GlobalRank)> {
        let order = Just((0..SIZE).map(GlobalRank::new).collect::<Vec<_>>()).prop_shuffle();
        (order, 1..=SIZE as usize, ".{0,8}", any::<u64>()).prop_map(|(order, size, tag, sequence)| {
            let group = Group::world(SIZE).unwrap().subset_of_ranks(&order[..size]).unwrap();
            (OperationKey { group, tag, sequence }, order[0])
        })
    }

    fn request() -> impl Strategy<Value = (Request, GlobalRank)> {
        let contribute =
            (key(), bytes()).prop_map(|((key, from), bytes)| (Request::Contribute { key, bytes }, from));
        let named = ".{0,8}".prop_map(|key| (Request::Wait { key }, GlobalRank::new(0)));
        let cancel = ".{0,8}".prop_map(|key| (Request::Cancel { key }, GlobalRank::new(0)));
        let set =
            (".{0,8}", bytes()).prop_map(|(key, value)| (Request::Set { key, value }, GlobalRank::new(0)));
        prop_oneof![
            contribute,
            key().prop_map(|(key, from)| (Request::Withdraw { key }, from)),
            named,
            cancel,
            set,
            Just((Request::Goodbye, GlobalRank::new(1))),
        ]
    }

    fn loss() -> impl Strategy<Value = Loss> {
        (any_rank(), any::<bool>(), ".{0,8}").prop_map(|(rank, left, detail)| Loss {
            rank,
            kind: if left { LossKind::Left } else { LossKind::Died },
            detail,
        })
    }

    fn failure() -> impl Strategy<Value = Failure> {
        let elsewhere = (any_rank(), ".{0,8}").prop_map(|(rank, phase)| OtherCall { rank, phase });
        prop_oneof![
            (any_rank(), prop::collection::vec(any_rank(), 0..4), prop::collection::vec(elsewhere, 0..3))
                .prop_map(|(by, missing, elsewhere)| Failure::Missing { by, missing, elsewhere }),
            loss().prop_map(Failure::Lost),
            any::<u64>().prop_map(|bytes| Failure::TooLarge { bytes }),
        ]
    }

    fn reply() -> impl Strategy<Value = Reply> {
        prop_oneof![
            prop::collection::vec(bytes(), 0..5).prop_map(|parts| Reply::Gathered(Arc::new(parts))),
            failure().prop_map(Reply::Failed),
            bytes().prop_map(|value| Reply::Value(Arc::new(value))),
            loss().prop_map(Reply::Lost),
        ]
    }

    proptest! {
        #[test]
        fn requests_read_back((request, from) in request()) {
            let (kind, payload) = request.encode();
            prop_assert_eq!(Request::decode(kind, &payload, from, &Group::world(SIZE).unwrap()), Ok(request));
        }

        #[test]
        fn replies_read_back(reply in reply()) {
            let (kind, payload) = reply.encode();
            if let Reply::Gathered(parts) = &reply {
                prop_assert_eq!(gathered_bytes(parts), payload.len() as u64);
            }
            prop_assert_eq!(Reply::decode(kind, &payload), Ok(reply));
        }

        #[test]
        fn shortened_payloads_are_refused((request, from) in request(), cut in 1_usize..10) {
            let (kind, payload) = request.encode();
            prop_assume!(!payload.is_empty());
            let shorter = &payload[..payload.len().saturating_sub(cut)];
            prop_assert!(Request::decode(kind, shorter, from, &Group::world(SIZE).unwrap()).is_err());
        }

        #[test]
        fn noise_never_panics(
            kind in prop::sample::select(Kind::ALL),
            noise in prop::collection::vec(any::<u8>(), 0..60),
        ) {
            let world = Group::world(SIZE).unwrap();
            // Only reaching the end matters: noise may spell a message.
            drop(Request::decode(kind, &noise, GlobalRank::new(0), &world));
            drop(Reply::decode(kind, &noise));
        }
    }

    #[test]
    fn a_group_without_its_sender_is_refused() {
        let world = Group::world(SIZE).unwrap();
        let key = OperationKey { group: world.clone(), tag: "t".into(), sequence: 0 };
        let (kind, payload) = Request::Withdraw { key }.encode();
        let two = Group::world(2).unwrap();
        assert!(Request::decode(kind, &payload, GlobalRank::new(0), &two).is_err());
        assert!(Request::decode(kind, &payload, GlobalRank::new(SIZE), &world).is_err());
    }
}
