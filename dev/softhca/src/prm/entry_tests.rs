//! Entries written out by hand, by the tables of the PRM.

use super::*;

/// A control segment: opcode's modifier, index, opcode, queue pair 0x123456, segments, a completion in any case.
fn control(modifier: u8, opcode: u8, segments: u8) -> Vec<u8> {
    vec![modifier, 0, 7, opcode, 0x12, 0x34, 0x56, segments, 0, 0, 0, 8, 0, 0, 0, 0]
}

/// A remote address segment: 0x1000, key 0x22.
fn remote_segment() -> Vec<u8> {
    vec![0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0x22, 0, 0, 0, 0]
}

/// A data segment: so many bytes at 0x2000, key 0x11.
fn data_segment(bytes: u8) -> Vec<u8> {
    vec![0, 0, 0, bytes, 0, 0, 0, 0x11, 0, 0, 0, 0, 0, 0, 0x20, 0]
}

fn local(bytes: u64) -> Area {
    Area { key: 0x11, address: 0x2000, bytes }
}

fn far(bytes: u64) -> Area {
    Area { key: 0x22, address: 0x1000, bytes }
}

#[test]
fn a_write_gathers_memory_and_inline_data() {
    let inline = [&[0x80, 0, 0, 5][..], b"hello", &[0; 7]].concat();
    let entry = [control(0, 0x08, 4), remote_segment(), data_segment(32), inline].concat();
    let sources = vec![Source::Memory(local(32)), Source::Inline(b"hello".to_vec())];
    assert_eq!(decode(&entry), Ok(Operation::Write { remote: far(37), sources }));
    assert!(irregularities(&entry, 0x0012_3456, 7).is_empty());
    let wanted = Control { opcode: 8, index: 7, queue: 0x0012_3456, segments: 4, is_signaled: true };
    assert_eq!(Control::of(&entry), wanted);
}

#[test]
fn a_read_cannot_be_inline() {
    let entry = [control(0, 0x10, 3), remote_segment(), data_segment(8)].concat();
    assert_eq!(decode(&entry), Ok(Operation::Read { remote: far(8), targets: vec![local(8)] }));
    let inline = [&[0x80, 0, 0, 5][..], b"hello", &[0; 7]].concat();
    let entry = [control(0, 0x10, 3), remote_segment(), inline].concat();
    assert_eq!(decode(&entry), Err(Syndrome::LOCAL_QP_OPERATION));
}

#[test]
fn atomics_of_8_bytes() {
    let segment = [1u64.to_be_bytes(), 2u64.to_be_bytes()].concat();
    let entry = |opcode| [control(0, opcode, 4), remote_segment(), segment.clone(), data_segment(8)].concat();
    let of = |change| Ok(Operation::Atomic { remote: far(8), change, result: local(8) });
    assert_eq!(decode(&entry(0x12)), of(Change::Add { value: 1, boundary: 0 }));
    let swap = Change::Swap { value: 1, compare: 2, mask: u64::MAX, compare_mask: u64::MAX };
    assert_eq!(decode(&entry(0x11)), of(swap));
}

#[test]
fn masked_atomics_of_4_and_8_bytes() {
    let words = [1u32, 2, 3, 4].map(u32::to_be_bytes).concat();
    let entry = [control(8, 0x14, 4), remote_segment(), words, data_segment(4)].concat();
    let swap = Change::Swap { value: 1, compare: 2, mask: 3, compare_mask: 4 };
    assert_eq!(decode(&entry), Ok(Operation::Atomic { remote: far(4), change: swap, result: local(4) }));
    let words = [1u64, 2, 3, 4].map(u64::to_be_bytes).concat();
    let entry = [control(9, 0x14, 5), remote_segment(), words, data_segment(8)].concat();
    assert_eq!(decode(&entry), Ok(Operation::Atomic { remote: far(8), change: swap, result: local(8) }));
    let words = [1u64, 2].map(u64::to_be_bytes).concat();
    let entry = [control(9, 0x15, 4), remote_segment(), words, data_segment(8)].concat();
    let add = Change::Add { value: 1, boundary: 2 };
    assert_eq!(decode(&entry), Ok(Operation::Atomic { remote: far(8), change: add, result: local(8) }));
    assert!(irregularities(&entry, 0x0012_3456, 7).is_empty());
}

#[test]
fn a_dump_has_one_data_segment_with_a_pointer() {
    let entry = [control(0, 0x23, 2), data_segment(1)].concat();
    assert_eq!(decode(&entry), Ok(Operation::Dump { source: local(1) }));
    assert!(irregularities(&entry, 0x0012_3456, 7).is_empty());
    let inline = [&[0x80, 0, 0, 5][..], b"hello", &[0; 7]].concat();
    let wrong = [
        (control(0, 0x23, 1), Syndrome::LOCAL_LENGTH),
        ([control(0, 0x23, 3), data_segment(1), data_segment(1)].concat(), Syndrome::LOCAL_LENGTH),
        ([control(0, 0x23, 3), remote_segment(), data_segment(1)].concat(), Syndrome::LOCAL_LENGTH),
        ([control(0, 0x23, 2), inline].concat(), Syndrome::LOCAL_QP_OPERATION),
    ];
    for (entry, syndrome) in wrong {
        assert_eq!(decode(&entry), Err(syndrome), "{entry:02x?}");
    }
    let modified = [control(8, 0x23, 2), data_segment(1)].concat();
    assert_eq!(irregularities(&modified, 0x0012_3456, 7).len(), 1, "it has no modifier");
}

#[test]
fn wrong_sizes_and_operations_are_errors_of_the_queue_pair() {
    let cut = [control(0, 0x08, 3), remote_segment(), data_segment(32)[..8].to_vec()].concat();
    assert_eq!(decode(&cut), Err(Syndrome::LOCAL_LENGTH));
    let unknown = [control(0, 0x0a, 2), data_segment(32)].concat();
    assert_eq!(decode(&unknown), Err(Syndrome::LOCAL_QP_OPERATION));
    let mut reserved = [control(0, 0x08, 3), remote_segment(), data_segment(32)].concat();
    reserved[31] = 1;
    assert_eq!(decode(&reserved), Err(Syndrome::LOCAL_QP_OPERATION));
    let long = [control(0, 0x12, 5), remote_segment(), vec![0; 16], data_segment(8), vec![0; 16]].concat();
    assert_eq!(decode(&long), Err(Syndrome::LOCAL_LENGTH));
    let mut odd = [control(0, 0x12, 4), remote_segment(), vec![0; 16], data_segment(8)].concat();
    odd[23] = 4;
    assert_eq!(decode(&odd), Err(Syndrome::REMOTE_INVALID_REQUEST));
}

#[test]
fn every_broken_rule_is_found() {
    let entry = [control(0, 0x08, 3), remote_segment(), data_segment(32)].concat();
    assert_eq!(irregularities(&entry, 0x0012_3457, 8).len(), 2);
    // The byte and what is put there: opcode's modifier, reserved bits, signature, stream, fence, completion.
    for (at, value) in [(0, 1), (7, 0x43), (8, 1), (9, 1), (11, 0x18), (11, 0xa8), (11, 4)] {
        let mut wrong = entry.clone();
        wrong[at] = value;
        assert_eq!(irregularities(&wrong, 0x0012_3456, 7).len(), 1, "byte {at}");
    }
    let mut wrong = entry.clone();
    damage(&mut wrong);
    assert_eq!(irregularities(&wrong, 0x0012_3456, 7).len(), 1);
}
