//! A queue pair connected with itself, polled by the test: what it moves, and that each broken rule is counted.

use std::path::PathBuf;

use super::super::memory::{Region, access};
use super::*;
use crate::controls::{Controls, Failure};

const KEY: u32 = 0x1100;
const BLOCKS: usize = 4;
const NUMBER: u32 = 0x0012_3456;

/// A program's memory, and the NIC that looks there.
struct Bench {
    entries: Box<[u64; BLOCKS * BLOCK / 8]>,
    completions: Box<[u64; BLOCKS * 8]>,
    page: Box<[u64; 512]>,
    record: Box<[u32; 2]>,
    data: Box<[u64; 4]>,
    posted: u16,
    nic: Arc<Nic>,
    folder: PathBuf,
}

impl Bench {
    fn new(name: &str, controls: &Controls) -> Self {
        let folder = std::env::temp_dir().join(format!("softhca-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let nic = Arc::new(Nic::new(Controls { folder: folder.clone(), ..controls.clone() }));
        let mut bench = Self {
            entries: Box::new([0; _]),
            completions: Box::new([0; _]),
            page: Box::new([0; _]),
            record: Box::new([0; _]),
            data: Box::new([7, 8, 9, 10]),
            posted: 0,
            nic,
            folder,
        };
        let place = Place {
            entries: bench.entries.as_mut_ptr() as usize,
            blocks: BLOCKS as u32,
            record: &raw mut bench.record[1] as usize,
            page: bench.page.as_mut_ptr() as usize,
        };
        let rights = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ;
        let address = bench.data.as_mut_ptr() as usize;
        // SAFETY: all of it lives as long as the bench, at places that do not move, and is aligned.
        unsafe {
            let ring = Ring::new(bench.completions.as_mut_ptr() as usize, BLOCKS as u32, false, None);
            let queue = SendQueue::new(NUMBER, place, Arc::new(Mutex::new(ring)));
            bench.nic.add(queue).unwrap();
            bench.nic.memory.add(Region { key: KEY, named: 0x1000, bytes: 32, address, access: rights });
        }
        bench
    }

    fn connected(name: &str, controls: &Controls) -> Self {
        let bench = Self::new(name, controls);
        bench.nic.connect(NUMBER, NUMBER);
        bench
    }

    /// Posts a write of `bytes` from the first word to the third, changed by `change`, and rings for it.
    fn post(&mut self, bytes: u8, change: impl FnOnce(&mut [u8])) {
        let slot = usize::from(self.posted) % BLOCKS;
        let entry = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut self.entries[..])[slot * BLOCK..][..BLOCK];
        entry[..16].copy_from_slice(&[
            0,
            0,
            self.posted as u8,
            8,
            0x12,
            0x34,
            0x56,
            3,
            0,
            0,
            0,
            8,
            0,
            0,
            0,
            0,
        ]);
        entry[16..32].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0x10, 0x10, 0, 0, 0x11, 0, 0, 0, 0, 0]);
        entry[32..48].copy_from_slice(&[0, 0, 0, bytes, 0, 0, 0x11, 0, 0, 0, 0, 0, 0, 0, 0x10, 0]);
        change(entry);
        let mut doorbell = [0; 8];
        doorbell.copy_from_slice(&entry[..8]);
        self.posted += 1;
        self.record[1] = u32::from(self.posted).to_be();
        self.page[FIRST_REGISTER / 8] = u64::from_ne_bytes(doorbell);
        assert!(self.nic.poll());
        assert!(!self.nic.poll(), "nothing new");
    }

    /// Syndrome and kind of a completion.
    fn completion(&self, index: usize) -> (u8, u8) {
        let bytes = bytemuck::cast_slice::<u64, u8>(&self.completions[8 * index..][..8]);
        (bytes[55], bytes[63] >> 4)
    }

    fn violations(&self) -> usize {
        self.nic.violations.list().len()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.nic.remove(NUMBER);
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn a_write_arrives_and_breaks_no_rule() {
    let mut bench = Bench::connected("write", &Controls::default());
    for lap in 0..5 {
        bench.data[0] = 100 + lap;
        bench.post(8, |_| {});
        assert_eq!(bench.data[2], 100 + lap);
    }
    assert_eq!((bench.completion(0), bench.violations()), ((0, 0), 0));
}

#[test]
fn every_wrong_entry_is_counted() {
    type Change = fn(&mut [u8]);
    let wrong: [(&str, Change); 4] = [
        ("index", |entry| entry[2] = 9),
        ("queue", |entry| entry[6] = 0x57),
        ("reserved", |entry| entry[11] |= 0x10),
        ("size", |entry| entry[7] = 5),
    ];
    for (name, change) in wrong {
        let mut bench = Bench::connected(name, &Controls::default());
        bench.post(8, change);
        assert_eq!(bench.violations(), 1, "{name}: {:?}", bench.nic.violations.list());
        let listed = std::fs::read_to_string(bench.folder.join("violations")).unwrap();
        assert_eq!(listed.lines().count(), 1, "{listed}");
    }
}

#[test]
fn a_doorbell_that_is_not_the_entry_is_counted() {
    let mut bench = Bench::connected("doorbell", &Controls::default());
    bench.post(8, |_| {});
    let other = bench.page[FIRST_REGISTER / 8].to_ne_bytes();
    bench.record[1] = 2u32.to_be();
    // An entry of 2 segments is rung for; there is what `post` left, which is nothing.
    let doorbell = [other[0], 0, 1, 8, 0x12, 0x34, 0x56, 2];
    bench.page[FIRST_REGISTER / 8] = u64::from_ne_bytes(doorbell);
    bench.nic.poll();
    assert!(bench.nic.violations.list()[0].contains("is not the begin of entry 1"));
}

#[test]
fn a_doorbell_record_beyond_the_queue_is_counted() {
    let mut bench = Bench::connected("record", &Controls::default());
    bench.record[1] = 5u32.to_be();
    bench.page[FIRST_REGISTER / 8] = 1;
    bench.nic.poll();
    assert_eq!(bench.violations(), 1);
}

#[test]
fn an_entry_before_the_queue_pair_is_ready_is_counted() {
    let mut bench = Bench::new("early", &Controls::default());
    bench.post(8, |_| {});
    assert_eq!(bench.violations(), 1);
}

#[test]
fn the_damaged_entry_is_counted() {
    let mut bench = Bench::connected("damage", &Controls { damaged_entry: Some(2), ..Controls::default() });
    bench.post(8, |_| {});
    assert_eq!(bench.violations(), 0);
    bench.post(8, |_| {});
    assert_eq!(bench.violations(), 1);
}

#[test]
fn after_an_error_entries_are_flushed() {
    let failure = Failure { from_request: 2, syndrome: 0x12 };
    let mut bench = Bench::connected("flush", &Controls { failure: Some(failure), ..Controls::default() });
    bench.post(8, |_| {});
    assert_eq!(bench.nic.first_error(NUMBER), None);
    bench.post(8, |_| {});
    bench.post(8, |_| {});
    assert_eq!(bench.nic.first_error(NUMBER), Some(Syndrome::REMOTE_INVALID_REQUEST), "and not 'flushed'");
    let told: Vec<_> = (0..3).map(|index| bench.completion(index)).collect();
    assert_eq!(told, [(0, 0), (0x12, 13), (0x05, 13)]);
    assert_eq!(bench.violations(), 0);
}

#[test]
fn memory_that_is_not_registered_is_refused_on_either_side() {
    let mut bench = Bench::connected("local", &Controls::default());
    bench.post(8, |entry| entry[39] = 1);
    assert_eq!(bench.completion(0), (0x04, 13));
    let mut bench = Bench::connected("remote", &Controls::default());
    bench.post(32, |_| {});
    assert_eq!(bench.completion(0), (0x13, 13));
    assert_eq!(bench.data[2], 9);
}

/// Makes a DUMP of an entry as `post` has it: so many bytes of the first word, behind the reads before it.
fn dump(entry: &mut [u8], bytes: u8) {
    (entry[3], entry[7], entry[11]) = (0x23, 2, 0x88);
    entry[16..32].copy_from_slice(&[0, 0, 0, bytes, 0, 0, 0x11, 0, 0, 0, 0, 0, 0, 0, 0x10, 0]);
    entry[32..].fill(0);
}

#[test]
fn a_dump_completes_after_the_earlier_read_and_moves_nothing() {
    let mut bench = Bench::connected("dump", &Controls::default());
    // A read from the third word to the first, of which nothing is told.
    bench.post(8, |entry| (entry[3], entry[11]) = (0x10, 0));
    assert_eq!(bench.completions[..8], [0; 8], "nothing was told");
    bench.post(8, |entry| dump(entry, 1));
    assert_eq!(*bench.data, [9, 8, 9, 10], "what the read brought");
    let told: &[u8] = bytemuck::cast_slice(&bench.completions[..8]);
    // Bytes; opcode and queue pair; the DUMP's index.
    assert_eq!((&told[44..48], &told[56..62]), (&[0; 4][..], &[0x23, 0x12, 0x34, 0x56, 0, 1][..]));
    assert_eq!((bench.completion(0), bench.violations()), ((0, 0), 0));
}

#[test]
fn a_dump_after_a_failed_read_is_flushed() {
    let failure = Failure { from_request: 1, syndrome: 0x13 };
    let mut bench =
        Bench::connected("dump-late", &Controls { failure: Some(failure), ..Controls::default() });
    bench.post(8, |entry| (entry[3], entry[11]) = (0x10, 0));
    bench.post(8, |entry| dump(entry, 1));
    // The error is told although the read has no completion.
    assert_eq!([bench.completion(0), bench.completion(1)], [(0x13, 13), (0x05, 13)]);
    assert_eq!((*bench.data, bench.violations()), ([7, 8, 9, 10], 0));
}

#[test]
fn a_dump_reads_memory_of_its_own_side_alone() {
    // There is no peer to ask.
    let mut bench = Bench::new("dump-alone", &Controls::default());
    bench.nic.connect(NUMBER, NUMBER + 1);
    bench.post(8, |entry| dump(entry, 32));
    bench.post(8, |entry| dump(entry, 33));
    assert_eq!([bench.completion(0), bench.completion(1)], [(0, 0), (0x04, 13)], "within its registration");
    let mut bench = Bench::connected("dump-wide", &Controls::default());
    bench.post(8, |entry| {
        dump(entry, 1);
        entry[7] = 3;
    });
    assert_eq!((bench.completion(0), bench.violations()), ((0x01, 13), 0));
}

#[test]
fn a_peer_that_is_gone_does_not_answer() {
    let mut bench = Bench::new("gone", &Controls::default());
    bench.nic.connect(NUMBER, NUMBER + 1);
    bench.post(8, |_| {});
    assert_eq!(bench.completion(0), (0x15, 13));
}
