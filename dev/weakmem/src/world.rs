//! The state of one run that lanes share: memory, chance, clock, log.

use std::sync::Arc;

use super::error::SeededError;
use super::event::{Action, Event};
use super::explore::{Allowance, Bounds};
use super::injected::InjectedFaults;
use super::memory::{Memory, Place, StoreOdds};
use super::order::Order;
use super::races::Races;
use super::random::Random;
use super::resolve::{Resolver, Toucher};
use super::{Allocated, MemoryProfile, Owner, SeededConfig};

/// Bit 62 makes an address that no processor accepts: a kernel that goes around the primitives dies at once.
const ADDRESS_TAG: u64 = 1 << 62;

/// The address of an allocation by its number.
pub(crate) fn address_of(allocation: u32) -> u64 {
    ADDRESS_TAG | (u64::from(allocation) + 1) << 32
}

/// Who executes a primitive.
#[derive(Clone, Debug)]
pub(crate) struct Who {
    pub(crate) device: u32,
    pub(crate) kernel: Arc<str>,
    pub(crate) block: u32,
    pub(crate) thread: u32,
    /// The wave of the block, and the number of the wave in the run.
    pub(crate) wave: u32,
    pub(crate) view: u32,
    /// The number of the lane in [`Order`], if one is kept.
    pub(crate) lane: u32,
}

impl Who {
    /// A host thread by its seat, or what a device's streams do.
    pub(crate) fn host(device: u32, seat: u32, what: &str) -> Self {
        Self { device, kernel: what.into(), block: seat, thread: 0, wave: 0, view: u32::MAX - seat, lane: 0 }
    }
}

/// How lanes take turns; drawn from the seed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Whether every switch chooses evenly; else the wave of highest priority runs on, and a switch gives it a new one.
    pub(crate) even: bool,
    /// That a lane gives way at a primitive, parts of 256.
    pub(crate) switch: u32,
}

impl Pace {
    fn draw(random: &mut Random) -> Self {
        if random.is_script() {
            // At every primitive the runner chooses, among all lanes.
            return Self { even: true, switch: 256 };
        }
        Self { even: random.chance(128), switch: random.pick([2, 8, 32, 128]) }
    }
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) memory: Memory,
    /// The happens-before order, if it is checked.
    pub(crate) order: Option<Order>,
    pub(crate) races: Option<Races>,
    /// Whether fences are; then there is an order.
    pub(crate) cumulative: bool,
    pub(crate) random: Random,
    pub(crate) odds: StoreOdds,
    pub(crate) pace: Pace,
    /// Switches of lanes that could have gone on.
    pub(crate) switches: Allowance,
    /// Stores moved on while lanes could have.
    landings: Allowance,
    pub(crate) steps: u64,
    pub(crate) most_steps: u64,
    /// What waiting has added to the clock.
    pub(crate) waited_ns: u64,
    pub(crate) failure: Option<SeededError>,
    pub(crate) allocations: Vec<Allocated>,
    /// On a machine with real memory.
    pub(crate) resolver: Option<Resolver>,
    pub(crate) injected: InjectedFaults,
    /// `Some` keeps events.
    pub(crate) events: Option<Vec<Event>>,
    /// By number of the wave, for what the fabric does: device, kernel, block, wave.
    pub(crate) waves: Vec<Who>,
    pub(crate) digest: u64,
}

/// The kinds of access, by the numbers of `host_abi.h`.
const ACCESS_PRIVATE: u32 = 1;

impl World {
    pub(crate) fn new(
        mut random: Random,
        bounds: Option<Bounds>,
        allocations: Vec<Allocated>,
        contents: Vec<Vec<u64>>,
        config: &SeededConfig,
    ) -> Self {
        let cumulative = config.profile == MemoryProfile::Cumulative;
        let asked = config.find_races || cumulative;
        let odds = StoreOdds::draw(&mut random);
        let pace = Pace::draw(&mut random);
        let switches = bounds.map_or(config.most_switches, |bounds| Some(bounds.switches));
        Self {
            memory: Memory::new(contents),
            order: asked.then(|| Order::new(config.profile, config.wave_width)),
            cumulative,
            races: config.find_races.then(Races::default),
            random,
            odds,
            pace,
            switches: Allowance::new(switches),
            landings: Allowance::new(bounds.map(|bounds| bounds.landings)),
            steps: 0,
            most_steps: config.most_steps,
            waited_ns: 0,
            failure: None,
            allocations,
            resolver: None,
            injected: InjectedFaults::default(),
            events: config.keep_events.then(Vec::new),
            waves: Vec::new(),
            digest: 0xcbf2_9ce4_8422_2325,
        }
    }

    pub(crate) fn name_of(&self, allocation: u32) -> Arc<str> {
        Arc::clone(&self.allocations[allocation as usize].name)
    }

    pub(crate) fn clock_ns(&self) -> u64 {
        self.waited_ns.saturating_add(self.steps)
    }

    fn mix(&mut self, word: u64) {
        self.digest = (self.digest ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }

    /// Notes an event, in the digest always, in the log if one is kept.
    fn note(&mut self, who: &Who, thread: Option<u32>, what: &'static str, place: Option<(Place, u32)>) {
        self.mix(u64::from(who.view) << 32 | u64::from(thread.unwrap_or(u32::MAX)));
        self.mix(what.bytes().fold(0, |word, byte| word << 5 ^ u64::from(byte)));
        if let Some(((allocation, byte), bytes)) = place {
            self.mix(u64::from(allocation) << 40 | u64::from(byte) << 8 | u64::from(bytes));
        }
        let Some(events) = &mut self.events else { return };
        let action = match place {
            Some(((allocation, byte), bytes)) => {
                let name = Arc::clone(&self.allocations[allocation as usize].name);
                Action::Access(what, name, byte, bytes)
            }
            None => Action::Sync(what),
        };
        let (device, block, wave) = (who.device, who.block, who.wave);
        let kernel = Arc::clone(&who.kernel);
        events.push(Event { step: self.steps, device, kernel, block, wave, thread, action });
    }

    /// Counts a primitive that touches no memory; false when its rank is dead and must not do it.
    pub(crate) fn sync(&mut self, who: &Who, what: &'static str) -> bool {
        self.step();
        self.note(who, Some(who.thread), what, None);
        self.injected.count(who.device, self.clock_ns())
    }

    /// Counts a look at the clock; `None` when its rank is dead. No store lands then under a script, which tries that at the
    /// primitives on either side.
    pub(crate) fn look_at_clock(&mut self, who: &Who) -> Option<u64> {
        if self.random.is_script() {
            self.count();
        } else {
            self.step();
        }
        self.note(who, Some(who.thread), "looks at the clock", None);
        let now = self.clock_ns();
        self.injected.count(who.device, now).then_some(now)
    }

    fn count(&mut self) {
        self.steps += 1;
        self.memory.tick();
        if self.steps > self.most_steps && self.failure.is_none() {
            self.failure = Some(SeededError::Steps { steps: self.most_steps });
        }
    }

    fn step(&mut self) {
        self.count();
        let may_land = self.memory.is_unsettled() && self.landings.is_left();
        if self.random.chance_if(may_land, self.odds.land) {
            self.landings.used += 1;
            self.settle_one();
        }
    }

    /// Lets the fabric move a store on; false when there is none.
    pub(crate) fn settle_one(&mut self) -> bool {
        if self.memory.has_echoes()
            && (!self.memory.is_unsettled() || self.random.chance(64))
            && let Some((wave, place)) = self.memory.echo()
        {
            let who = self.waves[wave as usize].clone();
            self.note(&who, None, "lands again", Some((place, 8)));
            return true;
        }
        let Some((wave, place)) = self.memory.settle_one(self.odds, &mut self.random) else {
            return false;
        };
        let who = self.waves[wave as usize].clone();
        self.note(&who, None, "lands", Some((place, 8)));
        true
    }

    /// Whether the lane that has just done a primitive gives way.
    pub(crate) fn wants_switch(&mut self) -> bool {
        let wants = self.random.chance(self.pace.switch);
        let injected_now = core::mem::take(&mut self.injected.injected_now);
        // By a script it always does, and the runner counts whom it chooses.
        injected_now || if self.random.is_script() { wants } else { self.switches.takes(wants) }
    }

    /// Finds what an address means and whether it may be touched so; `None` after noting the failure.
    pub(crate) fn access(
        &mut self,
        who: &Who,
        what: &'static str,
        address: u64,
        bytes: u32,
        kind: u32,
    ) -> Option<Place> {
        match self.resolve(who, address, bytes, kind) {
            Ok(place) => {
                self.step();
                self.note(who, Some(who.thread), what, Some((place, bytes)));
                self.injected.count(who.device, self.clock_ns()).then_some(place)
            }
            Err(problem) => {
                self.failure.get_or_insert(SeededError::Access {
                    device: who.device,
                    kernel: who.kernel.to_string(),
                    block: who.block,
                    thread: who.thread,
                    operation: what,
                    bytes,
                    problem,
                });
                None
            }
        }
    }

    fn resolve(&mut self, who: &Who, address: u64, bytes: u32, kind: u32) -> Result<Place, String> {
        if let Some(resolver) = &mut self.resolver {
            let toucher = Toucher { device: who.device, private: kind == ACCESS_PRIVATE };
            let name = |number: u32| Arc::clone(&self.allocations[number as usize].name);
            return resolver.resolve(address as usize, bytes, toucher, name);
        }
        let (number, byte) = ((address ^ ADDRESS_TAG) >> 32, address as u32);
        let allocation = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
        let Some((index, allocation)) =
            allocation.and_then(|index| self.allocations.get(index).map(|found| (index, found)))
        else {
            return Err(format!("{address:#x} is no address of this machine"));
        };
        let name = &allocation.name;
        if !matches!(bytes, 1 | 2 | 4 | 8) || !byte.is_multiple_of(bytes) {
            return Err(format!("{name}+{byte} is not aligned to it"));
        }
        if u64::from(byte) + u64::from(bytes) > allocation.bytes {
            return Err(format!("{name}+{byte} is outside its {} bytes", allocation.bytes));
        }
        match allocation.owner {
            Owner::Device(device) if device != who.device => {
                Err(format!("{name} is private to device {device}"))
            }
            Owner::Shared if kind == ACCESS_PRIVATE => {
                Err(format!("{name} is shared with peers, and a primitive for private memory was used"))
            }
            _ => Ok((index as u32, byte)),
        }
    }
}
