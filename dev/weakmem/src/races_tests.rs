//! Each rule of the order, with what it asks for and without: clean, and a race.

use super::MemoryProfile::{self, Cumulative, PerWave};
use super::memory::Scope::{self, Device, System};
use super::order::{Missing, Order};
use super::races::{Access, Races, Whole};
use super::world::Who;

/// A lane: device, block, thread.
type At = (u32, u32, u32);

const DATA: u32 = 0;
const OTHER: u32 = 1;
const FLAG: u32 = 2;
const SECOND_FLAG: u32 = 3;

/// Lanes of some devices, one stream each, two blocks of two waves of two lanes; memory is the newest flag write alone.
struct Lanes {
    order: Order,
    races: Races,
    numbers: Vec<Vec<Vec<u32>>>,
    newest: [u32; 4],
    step: u64,
}

impl Lanes {
    fn new(profile: MemoryProfile, devices: u32) -> Self {
        let order = Order::new(profile, 2);
        let mut lanes = Self { order, races: Races::default(), numbers: Vec::new(), newest: [0; 4], step: 1 };
        lanes.numbers = (0..devices).map(|device| lanes.begin(device)).collect();
        lanes
    }

    fn begin(&mut self, device: u32) -> Vec<Vec<u32>> {
        let step = self.tick();
        let who = |block, thread| Who {
            device,
            kernel: "kernel".into(),
            block,
            thread,
            wave: thread / 2,
            view: 0,
            lane: 0,
        };
        let order = &mut self.order;
        let mut begin =
            |block| order.begin_block(device as usize, step, step, (0..4).map(|thread| who(block, thread)));
        (0..2).map(&mut begin).collect()
    }

    /// The launch of a device ends and the next one of its stream begins.
    fn next_launch(&mut self, device: u32) {
        let step = self.tick();
        self.order.end_launch(device as usize, 2, step);
        self.numbers[device as usize] = self.begin(device);
    }

    fn tick(&mut self) -> u64 {
        self.step += 1;
        self.step
    }

    fn lane(&self, (device, block, thread): At) -> u32 {
        self.numbers[device as usize][block as usize][thread as usize]
    }

    fn access(&mut self, at: At, whole: Whole, bytes: u8) -> Access {
        let step = self.tick();
        Access { lane: self.lane(at), device: at.0, step, bytes, whole, latest: false, primitive: "access" }
    }

    fn store(&mut self, at: At, word: u32) -> Option<Missing> {
        let access = self.access(at, Whole::No, 0xff);
        self.races.store(&self.order, word, access).map(|(.., missing)| missing)
    }

    fn load(&mut self, at: At, word: u32) -> Option<Missing> {
        let access = self.access(at, Whole::No, 0xff);
        self.races.load(&self.order, word, access).map(|(.., missing)| missing)
    }

    fn flag(&mut self, at: At, word: u32) -> Option<Missing> {
        let access = self.access(at, Whole::System, 0xff);
        self.newest[word as usize] = self.order.write_flag(access.lane, System, access.step);
        self.races.store(&self.order, word, access).map(|(.., missing)| missing)
    }

    fn poll(&mut self, at: At, word: u32, acquires: bool) -> Option<Missing> {
        let access = self.access(at, Whole::System, 0xff);
        self.order.read_flag(access.lane, self.newest[word as usize], acquires, access.step);
        self.races.load(&self.order, word, access).map(|(.., missing)| missing)
    }

    fn add(&mut self, at: At, word: u32, scope: Scope) -> Option<Missing> {
        let access = self.access(at, if scope == System { Whole::System } else { Whole::Device }, 0xff);
        let before = std::mem::take(&mut self.newest[word as usize]);
        let flag = self.order.write_flag(access.lane, scope, access.step);
        self.order.pass_on(flag, before, true);
        self.order.read_flag(access.lane, before, false, access.step);
        self.newest[word as usize] = flag;
        let access = Access { latest: true, ..access };
        self.races.store(&self.order, word, access).map(|(.., missing)| missing)
    }

    fn fence(&mut self, at: At, releases: bool, scope: Scope) {
        let (lane, step) = (self.lane(at), self.tick());
        self.order.fence(lane, releases, scope, step, step);
    }

    fn release(&mut self, at: At, scope: Scope) {
        self.fence(at, true, scope);
    }

    fn acquire(&mut self, at: At, scope: Scope) {
        self.fence(at, false, scope);
    }

    fn meet(&mut self, at: At) {
        let (lane, step) = (self.lane(at), self.tick());
        self.order.meet_block(lane, step);
    }

    fn meet_wave(&mut self, at: At) {
        let (lane, step) = (self.lane(at), self.tick());
        self.order.meet_wave(lane, step);
    }
}

const BOTH: [MemoryProfile; 2] = [PerWave, Cumulative];
const WRITER: At = (0, 0, 0);
const READER: At = (1, 0, 0);

/// A message from a wave to another device; the scopes of its two fences, if they are there.
fn message(profile: MemoryProfile, release: Option<Scope>, acquire: Option<Scope>) -> Option<Missing> {
    let mut lanes = Lanes::new(profile, 2);
    assert_eq!(lanes.store(WRITER, DATA), None);
    if let Some(scope) = release {
        lanes.release(WRITER, scope);
    }
    assert_eq!(lanes.flag(WRITER, FLAG), None);
    assert_eq!(lanes.poll(READER, FLAG, false), None, "flags do not race with flags");
    if let Some(scope) = acquire {
        lanes.acquire(READER, scope);
    }
    lanes.load(READER, DATA)
}

#[test]
fn a_message_needs_both_fences_at_system_scope() {
    for profile in BOTH {
        assert_eq!(message(profile, Some(System), Some(System)), None);
        assert_eq!(message(profile, None, Some(System)), Some(Missing::Fence));
        assert_eq!(message(profile, Some(Device), Some(System)), Some(Missing::Fence));
        assert_eq!(message(profile, Some(System), None), Some(Missing::Acquire));
        assert_eq!(message(profile, Some(System), Some(Device)), Some(Missing::Acquire));
    }
}

#[test]
fn unordered_accesses_race_in_either_order() {
    for profile in BOTH {
        let mut lanes = Lanes::new(profile, 2);
        assert_eq!(lanes.store(WRITER, DATA), None);
        assert_eq!(lanes.load(READER, DATA), Some(Missing::Order));
        let mut lanes = Lanes::new(profile, 2);
        assert_eq!(lanes.load(READER, DATA), None);
        assert_eq!(lanes.store(WRITER, DATA), Some(Missing::Order));
        let mut lanes = Lanes::new(profile, 2);
        assert_eq!(lanes.load(READER, DATA), None);
        assert_eq!(lanes.load(WRITER, DATA), None, "loads do not race");
        assert_eq!(lanes.store(WRITER, OTHER), None);
        assert_eq!(lanes.flag(READER, OTHER), Some(Missing::Order), "a flag against data does");
    }
}

#[test]
fn a_load_has_to_be_released_before_a_peer_stores() {
    for profile in BOTH {
        for released in [true, false] {
            let mut lanes = Lanes::new(profile, 2);
            lanes.load(WRITER, DATA);
            if released {
                lanes.release(WRITER, System);
            }
            lanes.flag(WRITER, FLAG);
            lanes.poll(READER, FLAG, false);
            lanes.acquire(READER, System);
            assert_eq!(lanes.store(READER, DATA), (!released).then_some(Missing::Fence));
        }
    }
}

#[test]
fn bytes_that_do_not_overlap_do_not_race() {
    let mut lanes = Lanes::new(PerWave, 2);
    let halves = [(WRITER, 0x0f, false), (READER, 0xf0, false), (READER, 0x18, true)];
    for (at, bytes, races) in halves {
        let access = lanes.access(at, Whole::No, bytes);
        let found = lanes.races.store(&lanes.order, DATA, access);
        assert_eq!(found.map(|(_, _, byte, _)| byte), races.then_some(3));
    }
}

/// A wave writes, its block meets, thread 0 flags: who releases?
fn block_message(profile: MemoryProfile, writer: bool, before: bool, behind: bool) -> Option<Missing> {
    let other_wave = (0, 0, 2);
    let mut lanes = Lanes::new(profile, 2);
    lanes.store(other_wave, DATA);
    if writer {
        lanes.release(other_wave, System);
    }
    if before {
        lanes.release(WRITER, System);
    }
    lanes.meet(WRITER);
    if behind {
        lanes.release(WRITER, System);
    }
    lanes.flag(WRITER, FLAG);
    lanes.poll(READER, FLAG, false);
    lanes.acquire(READER, System);
    lanes.meet(READER);
    lanes.load((1, 0, 3), DATA)
}

#[test]
fn a_barrier_releases_nothing_and_only_cumulative_releases_after_it_cover_others() {
    assert_eq!(block_message(PerWave, true, true, false), None);
    assert_eq!(block_message(PerWave, true, false, false), None, "drained, then ordered by the barrier");
    assert_eq!(block_message(PerWave, false, true, true), Some(Missing::Fence));
    assert_eq!(block_message(Cumulative, false, false, true), None);
    assert_eq!(block_message(Cumulative, true, true, false), Some(Missing::Fence));
}

#[test]
fn a_barrier_orders_its_block_and_no_other() {
    for profile in BOTH {
        let mut lanes = Lanes::new(profile, 1);
        lanes.store((0, 0, 0), DATA);
        assert_eq!(lanes.load((0, 0, 2), DATA), Some(Missing::Order));
        let mut lanes = Lanes::new(profile, 1);
        lanes.store((0, 0, 0), DATA);
        lanes.meet((0, 0, 0));
        assert_eq!(lanes.load((0, 0, 2), DATA), None);
        assert_eq!(lanes.load((0, 1, 2), DATA), Some(Missing::Order));
    }
}

#[test]
fn lanes_of_a_wave_have_to_meet() {
    for profile in BOTH {
        for meets in [true, false] {
            let mut lanes = Lanes::new(profile, 1);
            lanes.store((0, 0, 0), DATA);
            if meets {
                lanes.meet_wave((0, 0, 0));
            }
            assert_eq!(lanes.load((0, 0, 1), DATA), (!meets).then_some(Missing::Order));
            assert_eq!(lanes.load((0, 0, 2), DATA), Some(Missing::Order), "another wave did not meet");
        }
    }
}

/// Two blocks count themselves; the second, which is the last, flags another device.
fn counted(profile: MemoryProfile, system: bool, acquires: bool, releases: bool) -> Option<Missing> {
    let (first, last) = ((0, 0, 0), (0, 1, 0));
    let mut lanes = Lanes::new(profile, 2);
    lanes.store(first, DATA);
    lanes.release(first, if system { System } else { Device });
    lanes.add(first, SECOND_FLAG, Device);
    lanes.add(last, SECOND_FLAG, Device);
    if acquires {
        lanes.acquire(last, Device);
    }
    if releases {
        lanes.release(last, System);
    }
    lanes.flag(last, FLAG);
    lanes.poll(READER, FLAG, false);
    lanes.acquire(READER, System);
    lanes.load(READER, DATA)
}

#[test]
fn the_last_block_passes_on_what_it_has_acquired() {
    assert_eq!(counted(PerWave, true, true, true), None);
    assert_eq!(counted(PerWave, true, false, true), Some(Missing::Fence), "no acquire between the blocks");
    assert_eq!(counted(PerWave, false, true, true), Some(Missing::Fence), "no fence drains another wave");
    assert_eq!(counted(Cumulative, false, true, true), None);
    assert_eq!(counted(Cumulative, false, false, true), None, "one fence is both");
    assert_eq!(counted(Cumulative, true, true, false), Some(Missing::Fence));
}

#[test]
fn an_acquire_reaches_as_far_as_its_scope_also_through_others() {
    for (profile, missing) in [(PerWave, Some(Missing::Acquire)), (Cumulative, None)] {
        // Device 1's first block learns of device 0's store and tells its second block, which acquires from it alone.
        let mut lanes = Lanes::new(profile, 2);
        lanes.store(WRITER, DATA);
        lanes.release(WRITER, System);
        lanes.flag(WRITER, FLAG);
        lanes.poll(READER, FLAG, false);
        lanes.acquire(READER, System);
        lanes.release(READER, Device);
        lanes.flag(READER, SECOND_FLAG);
        let second = (1, 1, 0);
        lanes.poll(second, SECOND_FLAG, false);
        lanes.acquire(second, Device);
        assert_eq!(lanes.load(second, DATA), missing);
        lanes.acquire(second, System);
        assert_eq!(lanes.load(second, DATA), None);
    }
}

#[test]
fn a_load_that_acquires_needs_no_fence() {
    for acquires in [true, false] {
        let mut lanes = Lanes::new(Cumulative, 2);
        lanes.store(WRITER, DATA);
        lanes.release(WRITER, System);
        lanes.flag(WRITER, FLAG);
        lanes.poll(READER, FLAG, acquires);
        assert_eq!(lanes.load(READER, DATA), (!acquires).then_some(Missing::Acquire));
    }
}

#[test]
fn launches_of_a_stream_follow_each_other_and_release_to_all() {
    for profile in BOTH {
        let mut lanes = Lanes::new(profile, 2);
        lanes.store((0, 0, 3), DATA);
        lanes.next_launch(0);
        assert_eq!(lanes.load((0, 1, 0), DATA), None);
        // Another stream is told by a flag of the next launch alone.
        assert_eq!(lanes.load(READER, DATA), Some(Missing::Order));
        lanes.release((0, 1, 0), System);
        lanes.flag((0, 1, 0), FLAG);
        lanes.poll(READER, FLAG, false);
        lanes.acquire(READER, System);
        assert_eq!(lanes.load(READER, DATA), None);
    }
}

#[test]
fn named_earlier_work_is_carried_without_a_fence_and_own_work_is_not() {
    for names in [true, false] {
        let mut lanes = Lanes::new(Cumulative, 2);
        lanes.store((0, 0, 3), DATA);
        lanes.next_launch(0);
        let offerer = (0, 1, 0);
        lanes.store(offerer, OTHER);
        if names {
            let lane = lanes.lane(offerer);
            lanes.order.name_earlier(lane);
        }
        lanes.flag(offerer, FLAG);
        lanes.poll(READER, FLAG, true);
        assert_eq!(lanes.load(READER, DATA), (!names).then_some(Missing::Fence));
        assert_eq!(lanes.load(READER, OTHER), Some(Missing::Fence));
    }
}

#[test]
fn an_atomic_among_one_device_is_one_among_it_only() {
    for profile in BOTH {
        let mut lanes = Lanes::new(profile, 2);
        assert_eq!(lanes.add(WRITER, FLAG, Device), None);
        assert_eq!(lanes.add((0, 1, 0), FLAG, Device), None);
        assert_eq!(lanes.add(READER, FLAG, System), Some(Missing::Fence));
        let mut lanes = Lanes::new(profile, 2);
        assert_eq!(lanes.add(WRITER, FLAG, System), None);
        assert_eq!(lanes.add(READER, FLAG, System), None);
    }
}

#[test]
fn a_flag_orders_only_earlier_accesses() {
    for profile in BOTH {
        let mut lanes = Lanes::new(profile, 2);
        assert_eq!(lanes.poll(READER, FLAG, false), None);
        assert_eq!(lanes.flag(WRITER, FLAG), None);
        assert_eq!(lanes.store(WRITER, FLAG), Some(Missing::Order), "{profile:?}: the reader polls it still");

        let mut lanes = Lanes::new(profile, 2);
        assert_eq!(lanes.flag(READER, FLAG), None);
        assert_eq!(lanes.flag(WRITER, FLAG), None);
        assert_eq!(lanes.load(WRITER, FLAG), Some(Missing::Order), "{profile:?}: which of the two flags?");

        // The last to count is behind all counts, by coherence.
        let mut lanes = Lanes::new(profile, 1);
        let other = (0, 1, 0);
        assert_eq!(lanes.add(other, FLAG, Device), None);
        assert_eq!(lanes.add(WRITER, FLAG, Device), None);
        assert_eq!(lanes.store(WRITER, FLAG), None);
        let mut lanes = Lanes::new(profile, 1);
        assert_eq!(lanes.add(other, FLAG, Device), None);
        assert_eq!(lanes.store(WRITER, FLAG), Some(Missing::Order));
    }
}
