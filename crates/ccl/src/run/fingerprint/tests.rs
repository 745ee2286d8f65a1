use super::*;
use crate::device::args::{ListedTensor, MOST_LISTED, Split};

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
        phased: 0,
        tensors: NOTHING,
        list: NOTHING,
        norm_row: NOTHING,
    }
}

const fn plain(fingerprint: Fingerprint) -> CallRecord {
    CallRecord { fingerprint, splits: Vec::new(), tensors: Vec::new() }
}

fn with_splits(fingerprint: Fingerprint, splits: &[Split]) -> CallRecord {
    CallRecord { splits: splits.into(), ..plain(fingerprint) }
}

/// A call on a list of tensors with these counts, alternately f32 and f16. Only the first tensors are in the row.
fn with_list(counts: &[u64]) -> CallRecord {
    let mut tensors: Vec<_> = counts
        .iter()
        .zip(0usize..)
        .map(|(count, index)| ListedTensor {
            data_type: place_in(&DATA_TYPES, [DataType::F32, DataType::F16][index % 2]),
            count: *count,
            registration: NOTHING,
            offset: NOTHING,
        })
        .collect();
    let call = Fingerprint {
        collective: 2,
        data_type: place_in(&DATA_TYPES, DataType::U8),
        op: NOTHING,
        root: NOTHING,
        ..fingerprint()
    };
    let fingerprint = Fingerprint { tensors: counts.len() as u64, list: list::digest_of(&tensors), ..call };
    tensors.truncate(MOST_LISTED);
    CallRecord { tensors, ..plain(fingerprint) }
}

fn find(records: &[CallRecord]) -> Option<Mismatch> {
    Mismatch::find(&Group::world(records.len() as u32).unwrap(), records)
}

fn all_alike(members: usize) -> Vec<CallRecord> {
    vec![plain(fingerprint()); members]
}

#[test]
fn description_names_every_property_of_a_call() {
    assert_eq!(
        plain(fingerprint()).describe(),
        "call 7: all_reduce f32 premul_sum by 2.5 of 1024 elements with root 1 from local to registered 12 at byte 256 \
         memory by direct on 2 blocks"
    );
    let uneven = Fingerprint { collective: 3, op: NOTHING, root: NOTHING, uneven: 1, ..fingerprint() };
    let row = [Split { sent: 1, expected: 2 }, Split { sent: 3, expected: 4 }];
    let text = with_splits(uneven, &row).describe();
    assert!(
        text.starts_with("call 7: all_to_all f32 with output splits [2, 4], input splits [1, 3] from"),
        "{text}"
    );
    let gather = with_splits(Fingerprint { collective: 2, ..uneven }, &row).describe();
    assert!(gather.starts_with("call 7: all_gather f32 with counts [2, 4] from"), "{gather}");
    let phased = plain(Fingerprint { algorithm: 5, phased: 1, ..fingerprint() }).describe();
    assert!(phased.ends_with("by push in phases on 2 blocks"), "{phased}");
    let many = with_list(&[5, 7]).describe();
    assert!(many.starts_with("call 7: all_gather of 2 tensors [5 f32, 7 f16] from local"), "{many}");
    let more = with_list(&[5; MOST_LISTED + 1]).describe();
    assert!(more.contains("of 33 tensors [5 f32, ") && more.contains(" 5 f16, ..] from"), "{more}");
}

#[test]
fn differing_words_are_reported_with_both_values() {
    assert_eq!(find(&all_alike(4)), None);
    for (word, field) in FIELDS.iter().enumerate() {
        for odd in 0..3 {
            let mut records = all_alike(3);
            let mut words = fingerprint().words();
            words[word] ^= 1;
            records[odd].fingerprint = bytemuck::cast(words);
            let found = find(&records).unwrap();
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
fn most_frequent_call_is_the_reference_with_ties_to_the_first() {
    let other = Fingerprint { count: 5, ..fingerprint() };
    let records = |counts: [bool; 4]| counts.map(|is| plain(if is { other } else { fingerprint() }));
    for (counts, odd, usual) in [
        ([true, false, false, false], 0, 1),
        ([false, true, true, true], 0, 1),
        ([false, true, false, true], 1, 0),
        ([true, true, false, true], 2, 0),
    ] {
        let found = find(&records(counts)).unwrap();
        assert_eq!((found.rank.index(), found.other.index()), (odd, usual), "{counts:?}");
    }
}

#[test]
fn split_mismatch_reports_both_counts() {
    let uneven = Fingerprint { collective: 3, uneven: 1, ..fingerprint() };
    let split = |sent, expected| Split { sent, expected };
    let mut records = vec![
        with_splits(uneven, &[split(1, 1), split(2, 4), split(3, 7)]),
        with_splits(uneven, &[split(4, 2), split(5, 5), split(6, 8)]),
        with_splits(uneven, &[split(7, 3), split(8, 6), split(9, 9)]),
    ];
    assert_eq!(find(&records), None);
    records[2].splits[1].expected = 60;
    let found = find(&records).unwrap();
    let text = found.to_string();
    assert!(text.ends_with("; rank 1 sends 6 elements to rank 2, which expects 60"), "{text}");
    assert!(text.contains(&found.call) && text.contains(&found.other_call), "{text}");
    assert!(found.call.contains("input splits [4, 5, 6]"), "{text}");
    assert!(found.other_call.contains("output splits [3, 60, 9]"), "{text}");
    // Without splits of all members, rows are not compared.
    records[0].fingerprint.uneven = 0;
    assert_eq!(find(&records).unwrap().splits, None);
}

#[test]
fn unknown_values_are_shown_in_hex() {
    let odd = Fingerprint { collective: 99, data_type: 98, op: 97, algorithm: 96, ..fingerprint() };
    let text = plain(odd).describe();
    assert!(["0x63", "0x62", "0x61", "0x60"].iter().all(|word| text.contains(word)), "{text}");
}

#[test]
fn first_differing_tensor_is_reported_with_both_values() {
    let counts: Vec<u64> = (10..60).collect();
    let swapped = |first: usize| {
        let mut counts = counts.clone();
        counts.swap(first, first + 2);
        with_list(&counts)
    };
    let usual = with_list(&counts);
    let differing = |odd: &CallRecord| {
        let found = find(&[usual.clone(), odd.clone(), usual.clone()]).unwrap();
        let fields: Vec<_> = found.differences.iter().map(|difference| difference.field).collect();
        assert!(fields.contains(&"the list of tensors"), "{found}");
        (found.list.clone().unwrap(), found.to_string())
    };
    assert_eq!(find(&[usual.clone(), usual.clone()]), None);
    for index in [0, 3, MOST_LISTED - 1] {
        let (found, text) = differing(&swapped(index));
        let tensor = |count: u64| format!("{count} {}", if index % 2 == 0 { "f32" } else { "f16" });
        let (value, other_value) = (tensor(index as u64 + 12), tensor(index as u64 + 10));
        assert!(text.ends_with(&format!("is number {index} ({value} and {other_value})")), "{text}");
        assert_eq!(found, ListMismatch::Tensor { index, value, other_value });
    }
    let (found, text) = differing(&swapped(MOST_LISTED));
    assert_eq!(found, ListMismatch::Later { alike: MOST_LISTED }, "{text}");
    let (found, text) = differing(&with_list(&counts[..4]));
    let (value, other_value) = ("none".to_owned(), "14 f32".to_owned());
    assert_eq!(found, ListMismatch::Tensor { index: 4, value, other_value }, "{text}");
    assert!(text.contains("the number of tensors (4 and 50)"), "{text}");
    // A single tensor is no list of one.
    assert_eq!(find(&[usual.clone(), plain(fingerprint()), usual]).unwrap().list, None);
}

#[test]
fn rows_decode_to_their_records() {
    let uneven = Fingerprint { uneven: 1, ..fingerprint() };
    let split = |sent| Split { sent, expected: sent + 1 };
    for record in [
        plain(fingerprint()),
        with_splits(uneven, &[split(1), split(5), split(9)]),
        with_list(&[]),
        with_list(&[4, 5]),
        with_list(&[7; MOST_LISTED]),
        with_list(&[7; MOST_LISTED + 9]),
    ] {
        let (row, words) = record.row();
        assert_eq!(words as usize, CallRecord::row_words(&record.fingerprint, 3));
        let read = CallRecord::of(record.fingerprint, &row, 3);
        assert_eq!((read.splits, read.tensors), (record.splits, record.tensors));
    }
}
