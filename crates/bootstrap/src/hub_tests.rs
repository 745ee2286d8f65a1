//! The hub without any transport: every way a call can end, one step at a time.

use super::*;
use anabranch_ranks::{Group, GroupRank};
use proptest::prelude::*;

fn rank(number: u32) -> GlobalRank {
    GlobalRank::new(number)
}

fn key(group: &Group, sequence: u64) -> OperationKey {
    OperationKey { group: group.clone(), tag: "t".into(), sequence }
}

fn gather(group: &Group, sequence: u64, bytes: &[u8]) -> Request {
    Request::Contribute { key: key(group, sequence), bytes: bytes.to_vec() }
}

fn died(number: u32) -> Loss {
    Loss { rank: rank(number), kind: LossKind::Died, detail: "gone".into() }
}

#[test]
fn a_withdrawal_fails_the_call_for_all_and_names_who_is_missing_and_where() {
    let world = Group::world(4).unwrap();
    let mut hub = Hub::new(4, u64::MAX);
    assert!(hub.handle(rank(0), 1, gather(&world, 0, b"")).is_empty());
    assert!(hub.handle(rank(2), 9, gather(&world, 0, b"")).is_empty());
    assert!(hub.handle(rank(3), 4, Request::Wait { key: "k".into() }).is_empty());
    let out = hub.handle(rank(2), 9, Request::Withdraw { key: key(&world, 0) });
    let failure = Failure::Missing {
        by: rank(2),
        missing: vec![rank(1), rank(3)],
        elsewhere: vec![OtherCall { rank: rank(3), phase: "wait for key 'k'".into() }],
    };
    let expected: Vec<_> = [(0, 1), (2, 9)]
        .map(|(to, request)| Delivery { to: rank(to), request, reply: Reply::Failed(failure.clone()) })
        .into();
    assert_eq!(out, expected);
    // Latecomers fail at once, and then nothing of the call is kept.
    for late in [1, 3] {
        let out = hub.handle(rank(late), 5, gather(&world, 0, b""));
        assert_eq!(out, [Delivery { to: rank(late), request: 5, reply: Reply::Failed(failure.clone()) }]);
    }
    assert!(hub.handle(rank(3), 4, Request::Cancel { key: "k".into() }).is_empty());
    assert_eq!(hub.pending(), 0);
}

#[test]
fn of_several_waiting_calls_the_same_one_is_reported_each_time() {
    let world = Group::world(3).unwrap();
    let mut hub = Hub::new(3, u64::MAX);
    for tag in ["g", "c", "a", "f", "b", "e", "d", "h"] {
        let key = OperationKey { group: world.clone(), tag: tag.into(), sequence: 0 };
        hub.handle(rank(1), 1, Request::Contribute { key, bytes: Vec::new() });
    }
    hub.handle(rank(0), 1, gather(&world, 0, b""));
    let out = hub.handle(rank(0), 1, Request::Withdraw { key: key(&world, 0) });
    let Reply::Failed(Failure::Missing { elsewhere, .. }) = &out[0].reply else { panic!("{out:?}") };
    assert_eq!(elsewhere[0].phase, "all_gather 'a' (call 0 over 3 ranks)");
}

#[test]
fn a_loss_ends_exactly_the_calls_that_need_the_rank() {
    let world = Group::world(3).unwrap();
    let pair = world.subset(&[GroupRank::new(0), GroupRank::new(1)]).unwrap();
    let mut hub = Hub::new(3, u64::MAX);
    hub.handle(rank(0), 1, gather(&world, 0, b""));
    hub.handle(rank(1), 2, gather(&pair, 0, b"b"));
    let out = hub.lose(&died(2));
    assert_eq!(out.iter().filter(|delivery| delivery.reply == Reply::Lost(died(2))).count(), 2);
    assert_eq!(out[2], Delivery { to: rank(0), request: 1, reply: Reply::Failed(Failure::Lost(died(2))) });
    assert_eq!(out.len(), 3);
    assert!(hub.lose(&died(2)).is_empty(), "a loss is told once");
    let out = hub.handle(rank(0), 3, gather(&pair, 0, b"a"));
    assert!(out.iter().all(|d| d.reply == Reply::Gathered(Arc::new(vec![b"a".to_vec(), b"b".to_vec()]))));
    let out = hub.handle(rank(1), 4, gather(&world, 0, b""));
    assert_eq!(out, [Delivery { to: rank(1), request: 4, reply: Reply::Failed(Failure::Lost(died(2))) }]);
    assert_eq!(hub.pending(), 0);
}

#[test]
fn answers_over_the_limit_fail_on_all() {
    let world = Group::world(2).unwrap();
    let mut hub = Hub::new(2, 30);
    hub.handle(rank(0), 1, gather(&world, 0, &[0; 10]));
    let out = hub.handle(rank(1), 1, gather(&world, 0, &[0; 10]));
    assert_eq!(out.len(), 2);
    assert!(out.iter().all(|d| d.reply == Reply::Failed(Failure::TooLarge { bytes: 44 })));
}

proptest! {
    /// Whatever the order of arrival, each call ends with the members' own bytes in group order, and
    /// nothing is kept.
    #[test]
    fn every_order_of_arrival_gives_group_order(
        arrivals in Just((0_u32..5).flat_map(|r| (0_u64..3).map(move |s| (r, s))).collect::<Vec<_>>()).prop_shuffle(),
        members in Just((0_u32..5).map(GroupRank::new).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let group = Group::world(5).unwrap().subset(&members).unwrap();
        let mut hub = Hub::new(5, u64::MAX);
        let mut answers = 0;
        for (who, sequence) in arrivals {
            let bytes = [who as u8, sequence as u8];
            for delivery in hub.handle(rank(who), sequence + 1, gather(&group, sequence, &bytes)) {
                let Reply::Gathered(parts) = delivery.reply else { panic!("{delivery:?}") };
                prop_assert_eq!(delivery.request, sequence + 1);
                for (part, member) in parts.iter().zip(group.members()) {
                    prop_assert_eq!(part.as_slice(), [member.get() as u8, sequence as u8]);
                }
                answers += 1;
            }
        }
        prop_assert_eq!(answers, 15);
        prop_assert_eq!(hub.pending(), 0);
    }
}
