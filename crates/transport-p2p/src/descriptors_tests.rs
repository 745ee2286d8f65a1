//! Exchanges among mailboxes of one process, where every fault can be made.

use std::cell::Cell;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;

use super::*;

fn rank(number: u32) -> GlobalRank {
    GlobalRank::new(number)
}

/// A file in memory that says which rank's it is.
fn file(number: u32) -> std::fs::File {
    let descriptor = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let mut file = std::fs::File::from(descriptor);
    file.write_all(&number.to_le_bytes()).unwrap();
    file
}

fn number_in(descriptor: OwnedFd) -> u32 {
    // At a place of its own: all who got the descriptor share the file's position.
    let mut bytes = [0; 4];
    std::fs::File::from(descriptor).read_exact_at(&mut bytes, 0).unwrap();
    u32::from_le_bytes(bytes)
}

/// Time that passes by being looked at: `looks` times, each of which waits for a moment.
fn looks(count: u32) -> impl Fn() -> (Duration, Duration) {
    let left = Cell::new(count);
    move || {
        left.set(left.get().saturating_sub(1));
        (Duration::from_millis(u64::from(left.get())), Duration::from_millis(u64::from(count - left.get())))
    }
}

fn nobody_lost(_: GlobalRank) -> Option<String> {
    None
}

fn exchange(
    mailbox: &Mailbox,
    own: u32,
    peers: &[(GlobalRank, Address)],
    patient: u32,
) -> Result<BTreeMap<GlobalRank, OwnedFd>, ExchangeError> {
    let patience = Patience { time: &looks(patient), lost: &nobody_lost };
    mailbox.exchange(rank(own), file(own).as_fd(), peers, &patience)
}

fn others(all: &[(GlobalRank, Address)], own: u32) -> Vec<(GlobalRank, Address)> {
    all.iter().filter(|(peer, _)| *peer != rank(own)).copied().collect()
}

#[test]
fn everybody_gets_everybodys_descriptor() {
    for size in [1, 2, 3, 9, 24] {
        let mailboxes: Vec<_> = (0..size).map(|_| Mailbox::open().unwrap()).collect();
        let all: Vec<_> = (0..size).map(rank).zip(mailboxes.iter().map(Mailbox::address)).collect();
        std::thread::scope(|scope| {
            for (own, mailbox) in (0..size).zip(&mailboxes) {
                let peers = others(&all, own);
                scope.spawn(move || {
                    let received = exchange(mailbox, own, &peers, 5_000).unwrap();
                    assert_eq!(received.len(), peers.len());
                    for (peer, descriptor) in received {
                        assert!(
                            rustix::io::fcntl_getfd(&descriptor)
                                .unwrap()
                                .contains(rustix::io::FdFlags::CLOEXEC)
                        );
                        assert_eq!(number_in(descriptor), peer.get());
                    }
                });
            }
        });
    }
}

#[test]
fn what_was_sent_stays_when_its_sender_is_gone() {
    let (here, there) = (Mailbox::open().unwrap(), Mailbox::open().unwrap());
    // Nothing comes back to it, so it gives up; its letter is under way, and it ends.
    let error = exchange(&there, 1, &[(rank(0), here.address())], 3).unwrap_err();
    assert!(matches!(&error, ExchangeError::Expired { missing, .. } if *missing == [rank(0)]), "{error}");
    let peers = [(rank(1), there.address())];
    let received = exchange(&here, 0, &peers, 1_000).unwrap();
    assert_eq!(received.into_values().map(number_in).collect::<Vec<_>>(), [1]);
}

#[test]
fn who_is_missing_lost_or_gone_is_named() {
    let mailbox = Mailbox::open().unwrap();
    let silent: Vec<_> = (0..2).map(|_| Mailbox::open().unwrap()).collect();
    let peers = [(rank(4), silent[0].address()), (rank(2), silent[1].address())];
    let text = exchange(&mailbox, 0, &peers, 3).unwrap_err().to_string();
    assert!(text.contains("no file descriptor came from rank 2, rank 4"), "{text}");

    let mailbox = Mailbox::open().unwrap();
    let lost = |peer: GlobalRank| (peer == rank(4)).then(|| "rank 4 died (of this test)".to_owned());
    let patience = Patience { time: &|| (Duration::from_secs(60), Duration::ZERO), lost: &lost };
    let error = mailbox.exchange(rank(0), file(0).as_fd(), &peers, &patience).unwrap_err();
    let ExchangeError::Lost { peer, detail } = &error else { panic!("{error}") };
    assert_eq!((peer.get(), detail.contains("of this test")), (4, true));

    let mailbox = Mailbox::open().unwrap();
    let gone = Mailbox::open().unwrap().address();
    let error = exchange(&mailbox, 0, &[(rank(7), gone)], 1_000).unwrap_err();
    assert!(matches!(error, ExchangeError::Unreachable { peer } if peer == rank(7)), "{error}");
    assert!(error.to_string().contains("network namespace"), "{error}");
}

#[test]
fn a_failing_rank_tells_those_that_would_wait_for_it() {
    let mailboxes: Vec<_> = (0..2).map(|_| Mailbox::open().unwrap()).collect();
    let gone = Mailbox::open().unwrap().address();
    // Rank 0 meets a dead socket first, and has sent rank 1 nothing.
    let peers = [(rank(2), gone), (rank(1), mailboxes[1].address())];
    let error = exchange(&mailboxes[0], 0, &peers, 1_000).unwrap_err();
    assert!(matches!(error, ExchangeError::Unreachable { .. }), "{error}");
    let error = exchange(&mailboxes[1], 1, &[(rank(0), mailboxes[0].address())], 60_000).unwrap_err();
    let ExchangeError::FailedOn { peer, cause } = &error else { panic!("{error}") };
    assert_eq!((peer.get(), cause.contains("the socket of rank 2 is not there")), (0, true), "{cause}");
}

#[test]
fn strangers_change_nothing() {
    let (here, there) = (Mailbox::open().unwrap(), Mailbox::open().unwrap());
    let letter = Letter::descriptor(rank(1));
    let stranger = |secret: [u8; 16], bytes: &[u8], rights: &[BorrowedFd<'_>]| {
        let address = Address { secret, ..here.address() };
        let socket = unix_socket().unwrap();
        connect(&socket, &address.socket().unwrap()).unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(rights)));
        sendmsg(&socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL).unwrap();
        socket
    };
    // As long as anybody holds the end that strangers send, the other one does not come to an end.
    let (watched, wrong) = rustix::pipe::pipe().unwrap();
    // The name alone, which anybody can list, another rank's number, and one who says nothing.
    let secret = here.address().secret;
    let unknown = stranger([0; 16], &letter.encode(&[0; 16]), &[wrong.as_fd()]);
    let strange_rank = stranger(secret, &Letter::descriptor(rank(5)).encode(&secret), &[wrong.as_fd()]);
    let silent = unix_socket().unwrap();
    connect(&silent, &here.address().socket().unwrap()).unwrap();
    std::thread::scope(|scope| {
        let (here, there) = (&here, &there);
        for (own, mailbox, peer) in [(0, here, there), (1, there, here)] {
            scope.spawn(move || {
                let peers = [(rank(1 - own), peer.address())];
                let received = exchange(mailbox, own, &peers, 5_000).unwrap();
                assert_eq!(received.into_values().map(number_in).collect::<Vec<_>>(), [1 - own]);
            });
        }
    });
    drop((unknown, strange_rank, silent));

    // Two descriptors are as good as none: which one is meant?
    let (here, there) = (Mailbox::open().unwrap(), Mailbox::open().unwrap());
    let socket = unix_socket().unwrap();
    connect(&socket, &here.address().socket().unwrap()).unwrap();
    let rights = [wrong.as_fd(), wrong.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&rights)));
    let bytes = letter.encode(&here.address().secret);
    sendmsg(&socket, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL).unwrap();
    let error = exchange(&here, 0, &[(rank(1), there.address())], 1_000).unwrap_err();
    assert!(matches!(error, ExchangeError::FailedOn { peer, .. } if peer == rank(1)), "{error}");
    drop((here, there, socket, wrong));
    assert_eq!(std::fs::File::from(watched).read(&mut [0]).unwrap(), 0, "what strangers sent was closed");
}

#[test]
fn names_differ_and_go_with_their_sockets() {
    let listed = |address: &Address| {
        let name = format!("@anabranch-{:032x}", u128::from_be_bytes(address.name));
        std::fs::read_to_string("/proc/net/unix").unwrap().contains(&name)
    };
    let (one, other) = (Mailbox::open().unwrap(), Mailbox::open().unwrap());
    let address = one.address();
    assert_ne!(address.to_bytes()[..16], other.address().to_bytes()[..16]);
    assert_ne!(address.to_bytes()[16..], other.address().to_bytes()[16..]);
    assert_eq!(Address::from_bytes(address.to_bytes()), address);
    assert!(listed(&address) && one.socket.as_raw_fd() >= 0);
    drop(one);
    assert!(!listed(&address));
    assert_eq!(format!("{address:?}"), "Address(..)");
}
