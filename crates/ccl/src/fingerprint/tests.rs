use super::*;

const fn fingerprint() -> Fingerprint {
    Fingerprint {
        sequence: 7,
        collective: 0,
        data_type: 0,
        op: 8,
        scalar: 0x4020_0000,
        count: 1024,
        root: 1,
        uneven: 0,
        input_kind: 0,
        input_registration: NOTHING,
        input_offset: NOTHING,
        output_kind: 2,
        output_registration: 12,
        output_offset: 256,
        algorithm: 3,
        blocks: 2,
    }
}

fn find(said: &[(Fingerprint, Vec<Split>)]) -> Option<Mismatch> {
    Mismatch::find(&Group::world(said.len() as u32).unwrap(), said)
}

fn all_alike(members: usize) -> Vec<(Fingerprint, Vec<Split>)> {
    vec![(fingerprint(), Vec::new()); members]
}

#[test]
fn a_call_is_described_in_full() {
    assert_eq!(
        fingerprint().describe(&[]),
        "call 7: all_reduce f32 premul_sum by 2.5 of 1024 elements with root 1 from local to registered 12 at byte 256 \
         memory by direct on 2 blocks"
    );
    let uneven = Fingerprint { collective: 3, op: NOTHING, root: NOTHING, uneven: 1, ..fingerprint() };
    let row = [Split { sent: 1, expected: 2 }, Split { sent: 3, expected: 4 }];
    let text = uneven.describe(&row);
    assert!(
        text.starts_with("call 7: all_to_all f32 with output splits [2, 4], input splits [1, 3] from"),
        "{text}"
    );
    let gather = Fingerprint { collective: 2, ..uneven }.describe(&row);
    assert!(gather.starts_with("call 7: all_gather f32 with counts [2, 4] from"), "{gather}");
}

#[test]
fn every_word_that_differs_is_named_with_both_values() {
    assert_eq!(find(&all_alike(4)), None);
    for (word, field) in FIELDS.iter().enumerate() {
        for odd in 0..3 {
            let mut said = all_alike(3);
            let mut words = fingerprint().words();
            words[word] ^= 1;
            said[odd].0 = bytemuck::cast(words);
            let found = find(&said).unwrap();
            assert_eq!((found.rank.index(), found.other.index()), (odd, usize::from(odd == 0)), "{found}");
            let fields: Vec<_> = found.differences.iter().map(|difference| difference.field).collect();
            assert_eq!(fields, [*field], "{found}");
            let Difference { value, other_value, .. } = &found.differences[0];
            assert_ne!(value, other_value, "{found}");
            assert!(found.to_string().contains(&format!("{field} ({value} and {other_value})")), "{found}");
        }
    }
}

#[test]
fn most_members_are_right_and_of_equally_many_the_first() {
    let other = Fingerprint { count: 5, ..fingerprint() };
    let said = |counts: [bool; 4]| counts.map(|is| (if is { other } else { fingerprint() }, Vec::new()));
    for (counts, odd, usual) in [
        ([true, false, false, false], 0, 1),
        ([false, true, true, true], 0, 1),
        ([false, true, false, true], 1, 0),
        ([true, true, false, true], 2, 0),
    ] {
        let found = find(&said(counts)).unwrap();
        assert_eq!((found.rank.index(), found.other.index()), (odd, usual), "{counts:?}");
    }
}

#[test]
fn splits_that_do_not_fit_are_said_with_both_numbers() {
    let uneven = Fingerprint { collective: 3, uneven: 1, ..fingerprint() };
    let split = |sent, expected| Split { sent, expected };
    let mut said = vec![
        (uneven, vec![split(1, 1), split(2, 4), split(3, 7)]),
        (uneven, vec![split(4, 2), split(5, 5), split(6, 8)]),
        (uneven, vec![split(7, 3), split(8, 6), split(9, 9)]),
    ];
    assert_eq!(find(&said), None);
    said[2].1[1].expected = 60;
    let found = find(&said).unwrap();
    let text = found.to_string();
    assert!(text.ends_with("; rank 1 sends 6 elements to rank 2, which expects 60"), "{text}");
    assert!(text.contains(&found.call) && text.contains(&found.other_call), "{text}");
    assert!(found.call.contains("input splits [4, 5, 6]"), "{text}");
    assert!(found.other_call.contains("output splits [3, 60, 9]"), "{text}");
    // Where not all have splits, their rows say nothing.
    said[0].0.uneven = 0;
    assert_eq!(find(&said).unwrap().splits, None);
}

#[test]
fn words_that_mean_nothing_are_shown_as_they_are() {
    let odd = Fingerprint { collective: 99, data_type: 98, op: 97, algorithm: 96, ..fingerprint() };
    let text = odd.describe(&[]);
    assert!(["0x63", "0x62", "0x61", "0x60"].iter().all(|word| text.contains(word)), "{text}");
}
