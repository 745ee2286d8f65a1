//! What happens before what: clocks over fences, flags, barriers, launches. `docs/memory-model.md` has the rules.
//!
//! A clock counts steps of the run, so that a lane and a step name an access. Launches of one stream follow each other, and
//! thread t of block b of the next goes on with the clock of thread t of block b before it.

use std::collections::HashMap;
use std::sync::Arc;

use super::MemoryProfile;
use super::clocks::{Known, Times};
use super::memory::Scope;
use super::world::Who;

/// A write to a flag, or an atomic, and what it carries to those who read it.
#[derive(Clone, Debug)]
struct FlagWrite {
    device: u32,
    told: Arc<Known>,
    /// For readers of the same device, and of others.
    carried: [Option<Arc<Known>>; 2],
}

#[derive(Debug)]
struct Lane {
    device: u32,
    block: u32,
    wave: u32,
    known: Arc<Known>,
    /// Carried by flags that it has read, of its own device and of others; an acquire makes it known.
    pending: [Option<Arc<Known>>; 2],
    /// As of its last release at device scope or farther, and at system scope (cumulative profile).
    released: [Option<Arc<Known>>; 2],
    /// What its launch began with.
    begun: Arc<Known>,
    last_flag: u32,
    /// Who it was from which step on: one entry a launch.
    names: Vec<(u64, Who)>,
}

/// The lanes of one block of a stream, launch after launch.
#[derive(Debug, Default)]
struct BlockLanes {
    lanes: Vec<u32>,
    /// Of the launch that runs.
    threads: usize,
}

/// Why an access is not known to come before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Missing {
    /// No flag or barrier told the second thread of the first access.
    Order,
    /// The second thread was told, but a fence is missing on the way: a release of the first access as far as the second
    /// thread, or the acquire of one that passed it on.
    Fence,
    /// It was released as far as the second thread, which has not acquired it from there, nor has its block.
    Acquire,
}

#[derive(Debug)]
pub(crate) struct Order {
    profile: MemoryProfile,
    width: u32,
    lanes: Vec<Lane>,
    blocks: Vec<BlockLanes>,
    /// By stream and block.
    block_numbers: HashMap<(usize, u32), u32>,
    /// What each stream knows when its next launch begins.
    streams: HashMap<usize, Arc<Known>>,
    flags: Vec<FlagWrite>,
}

impl Order {
    pub(crate) fn new(profile: MemoryProfile, width: u32) -> Self {
        Self {
            profile,
            width,
            lanes: Vec::new(),
            blocks: Vec::new(),
            block_numbers: HashMap::new(),
            streams: HashMap::new(),
            flags: Vec::new(),
        }
    }

    /// Begins a block: a system acquire of what the stream knows. Returns its lanes' numbers, thread by thread.
    pub(crate) fn begin_block(
        &mut self,
        stream: usize,
        step: u64,
        now: u64,
        threads: impl Iterator<Item = Who>,
    ) -> Vec<u32> {
        let mut begin = Known::clone(self.streams.entry(stream).or_default());
        begin.floor = now;
        let mut begin = Some(begin);
        let mut known: Option<Arc<Known>> = None;
        let mut numbers = Vec::new();
        for who in threads {
            let (width, blocks, lanes) = (self.width, &mut self.blocks, &mut self.lanes);
            let block = *self.block_numbers.entry((stream, who.block)).or_insert_with(|| {
                blocks.push(BlockLanes::default());
                blocks.len() as u32 - 1
            });
            let known = known.get_or_insert_with(|| {
                let mut begin = begin.take().unwrap_or_default();
                Self::see(&mut begin, lanes, who.device, Scope::System);
                Arc::new(begin)
            });
            let members = &mut blocks[block as usize];
            let thread = who.thread as usize;
            if thread >= members.lanes.len() {
                members.lanes.push(lanes.len() as u32);
                lanes.push(Lane {
                    device: who.device,
                    block,
                    wave: who.thread / width,
                    known: Arc::clone(known),
                    pending: [None, None],
                    released: [None, None],
                    begun: Arc::clone(known),
                    last_flag: 0,
                    names: Vec::new(),
                });
            }
            members.threads = thread + 1;
            let number = members.lanes[thread];
            let lane = &mut lanes[number as usize];
            (lane.known, lane.pending, lane.released) = (Arc::clone(known), [None, None], [None, None]);
            (lane.begun, lane.last_flag) = (Arc::clone(known), 0);
            lane.names.push((step, who));
            numbers.push(number);
        }
        numbers
    }

    /// A launch has ended: a system release of all its lanes.
    pub(crate) fn end_launch(&mut self, stream: usize, blocks: u32, step: u64) {
        let mut all = Known::default();
        let mut last: Option<&Arc<Known>> = None;
        for block in 0..blocks {
            let Some(number) = self.block_numbers.get(&(stream, block)) else { continue };
            let members = &self.blocks[*number as usize];
            for lane in &members.lanes[..members.threads] {
                let known = &self.lanes[*lane as usize].known;
                if last.is_none_or(|last| !Arc::ptr_eq(last, known)) {
                    all.join(known);
                }
                *all.of_mut(*lane) = Times::all(step);
                last = Some(known);
            }
        }
        self.streams.insert(stream, Arc::new(all));
    }

    /// What is known becomes visible to loads, as far as an acquire at `scope` by a lane of `device` reaches.
    fn see(known: &mut Known, lanes: &[Lane], device: u32, scope: Scope) {
        for (number, times) in known.iter_mut() {
            let near = lanes.get(number as usize).is_some_and(|lane| lane.device == device);
            if near {
                times.visible = times.visible.max(times.device);
            } else if scope == Scope::System {
                times.visible = times.visible.max(times.system);
            }
        }
    }

    /// The lanes of a block have met: each knows what any of them knows.
    pub(crate) fn meet_block(&mut self, lane: u32, step: u64) {
        let members = &self.blocks[self.lanes[lane as usize].block as usize];
        Self::meet(&mut self.lanes, &members.lanes[..members.threads], step);
    }

    /// The lanes of a wave have met.
    pub(crate) fn meet_wave(&mut self, lane: u32, step: u64) {
        let Lane { block, wave, .. } = self.lanes[lane as usize];
        let members = &self.blocks[block as usize];
        let first = (wave * self.width) as usize;
        let end = (first + self.width as usize).min(members.threads);
        Self::meet(&mut self.lanes, &members.lanes[first..end], step);
    }

    fn meet(lanes: &mut [Lane], members: &[u32], step: u64) {
        let mut all = Arc::default();
        for member in members {
            // Taken, so that lanes that have shared it since they last met leave it to one, which need not copy it.
            let known = core::mem::take(&mut lanes[*member as usize].known);
            if Arc::ptr_eq(&all, &known) {
                continue;
            }
            if *member == members[0] {
                all = known;
            } else {
                Arc::make_mut(&mut all).join(&known);
            }
        }
        let times = Arc::make_mut(&mut all);
        for member in members {
            let mine = times.of_mut(*member);
            (mine.told, mine.block) = (step, step);
        }
        for member in members {
            lanes[*member as usize].known = Arc::clone(&all);
        }
    }

    /// A fence of a lane. In the cumulative profile every fence releases and acquires, as PTX's do.
    pub(crate) fn fence(&mut self, lane: u32, releases: bool, scope: Scope, step: u64, now: u64) {
        let cumulative = self.profile == MemoryProfile::Cumulative;
        if cumulative || !releases {
            let pending = self.lanes[lane as usize].pending.clone();
            let reach = if scope == Scope::System { 2 } else { 1 };
            for carried in pending.iter().take(reach).flatten() {
                self.acquire(lane, carried);
            }
            let Self { lanes, .. } = self;
            let device = lanes[lane as usize].device;
            let mut known = core::mem::take(&mut lanes[lane as usize].known);
            let changed = Arc::make_mut(&mut known);
            if scope == Scope::System {
                changed.floor = now;
            }
            Self::see(changed, lanes, device, scope);
            lanes[lane as usize].known = known;
        }
        if cumulative {
            let lane_state = &mut self.lanes[lane as usize];
            Arc::make_mut(&mut lane_state.known).of_mut(lane).block = step;
            let reach = if scope == Scope::System { 2 } else { 1 };
            for released in &mut lane_state.released[..reach] {
                *released = Some(Arc::clone(&lane_state.known));
            }
        } else if releases {
            self.release_wave(lane, scope, step);
        }
    }

    /// A lane names earlier work: its flags carry what its launch began with, besides what it has released itself.
    pub(crate) fn name_earlier(&mut self, lane: u32) {
        let Lane { released, begun, .. } = &mut self.lanes[lane as usize];
        for released in released {
            Arc::make_mut(released.get_or_insert_default()).join(begun);
        }
    }

    fn acquire(&mut self, lane: u32, carried: &Known) {
        let known = Arc::make_mut(&mut self.lanes[lane as usize].known);
        match self.profile {
            MemoryProfile::Cumulative => known.join(carried),
            MemoryProfile::PerWave => known.join_released(carried),
        }
    }

    /// What the wave has done so far is released, as far as the lane knows of it.
    fn release_wave(&mut self, lane: u32, scope: Scope, step: u64) {
        let Lane { block, wave, .. } = self.lanes[lane as usize];
        let members = &self.blocks[block as usize];
        let first = (wave * self.width) as usize;
        let end = (first + self.width as usize).min(members.threads);
        let known = Arc::make_mut(&mut self.lanes[lane as usize].known);
        known.of_mut(lane).block = step;
        for member in &members.lanes[first..end] {
            let times = known.of_mut(*member);
            times.device = times.device.max(times.block);
            if scope == Scope::System {
                times.system = times.system.max(times.block);
            }
        }
    }

    /// A lane writes a flag, or an atomic at a scope; returns the write's number, from 1.
    pub(crate) fn write_flag(&mut self, lane: u32, scope: Scope, step: u64) -> u32 {
        let cumulative = self.profile == MemoryProfile::Cumulative;
        let writer = &mut self.lanes[lane as usize];
        Arc::make_mut(&mut writer.known).of_mut(lane).told = step;
        let told = Arc::clone(&writer.known);
        let [near, far] = if cumulative {
            writer.released.clone()
        } else {
            [Some(Arc::clone(&told)), Some(Arc::clone(&told))]
        };
        // An atomic among the lanes of one device tells others nothing.
        let carried = [near, far.filter(|_| scope == Scope::System)];
        self.flags.push(FlagWrite { device: writer.device, told, carried });
        self.flags.len() as u32
    }

    /// An atomic, whose write is `flag`, has read the write `before`: it carries on what that carried. One that
    /// `wrote` nothing carries nothing of its own.
    pub(crate) fn pass_on(&mut self, flag: u32, before: u32, wrote: bool) {
        let Some(before) = before.checked_sub(1).map(|index| self.flags[index as usize].clone()) else {
            return;
        };
        let flag = &mut self.flags[flag as usize - 1];
        Arc::make_mut(&mut flag.told).join_told(&before.told);
        for (mine, theirs) in flag.carried.iter_mut().zip(before.carried) {
            match (mine, theirs) {
                (mine, theirs) if !wrote => *mine = theirs,
                (Some(mine), Some(theirs)) => Arc::make_mut(mine).join(&theirs),
                (mine @ None, theirs) => *mine = theirs,
                (Some(_), None) => {}
            }
        }
    }

    /// A lane has read a flag as a write left it; `acquires` at once and at system scope, for this write alone.
    pub(crate) fn read_flag(&mut self, lane: u32, flag: u32, acquires: bool, now: u64) {
        let reader = &mut self.lanes[lane as usize];
        if flag != 0 && reader.last_flag != flag {
            reader.last_flag = flag;
            let FlagWrite { device, told, carried } = &self.flags[flag as usize - 1];
            Arc::make_mut(&mut reader.known).join_told(told);
            let far = usize::from(*device != reader.device);
            match (&mut reader.pending[far], &carried[far]) {
                (Some(pending), Some(carried)) => Arc::make_mut(pending).join(carried),
                (pending @ None, carried) => pending.clone_from(carried),
                (Some(_), None) => {}
            }
        }
        if !acquires {
            return;
        }
        let device = reader.device;
        let carried = flag.checked_sub(1).and_then(|index| {
            let write = &self.flags[index as usize];
            write.carried[usize::from(write.device != device)].clone()
        });
        if let Some(carried) = carried {
            self.acquire(lane, &carried);
        }
        let known = Arc::make_mut(&mut self.lanes[lane as usize].known);
        known.floor = now;
    }

    /// What a lane knows.
    pub(crate) fn known(&self, lane: u32) -> &Known {
        &self.lanes[lane as usize].known
    }

    /// What is missing between an access and one that a lane makes now; a load has to see a store, not just to follow it.
    pub(crate) fn missing(&self, first: (u32, u64), lane: u32, must_see: bool) -> Option<Missing> {
        let (other, step) = first;
        if other == lane {
            return None;
        }
        let (mine, theirs) = (&self.lanes[lane as usize], &self.lanes[other as usize]);
        let times = mine.known.of(other);
        let same_block = mine.block == theirs.block;
        let far = mine.device != theirs.device;
        let reached = |times: Times| match self.profile {
            MemoryProfile::Cumulative => times.block,
            MemoryProfile::PerWave if same_block => times.block,
            MemoryProfile::PerWave if far => times.system,
            MemoryProfile::PerWave => times.device,
        };
        if reached(times) >= step {
            let seen = self.profile == MemoryProfile::Cumulative || same_block || times.visible >= step;
            return (must_see && !seen).then_some(Missing::Acquire);
        }
        let waits = mine.pending[usize::from(far)..].iter().flatten();
        if waits.into_iter().any(|pending| reached(pending.of(other)) >= step) {
            return Some(Missing::Acquire);
        }
        Some(if times.told >= step { Missing::Fence } else { Missing::Order })
    }

    /// Who a lane was at a step.
    pub(crate) fn name(&self, lane: u32, step: u64) -> Option<&Who> {
        let names = &self.lanes[lane as usize].names;
        let after = names.partition_point(|(from, _)| *from < step);
        names.get(after.checked_sub(1)?).map(|(_, who)| who)
    }
}
