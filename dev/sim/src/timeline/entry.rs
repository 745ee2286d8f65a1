//! What stands on one line of a timeline: an event, a repetition of events, or what lanes of a wave did one after the other.

use std::collections::BTreeMap;
use std::sync::Arc;

use anabranch_weakmem::{Action, Event};

/// The longest repetition that is looked for: a poll loads the flag, looks at the abort word, and gives way.
const MOST_PERIOD: usize = 4;
/// Fewer are shown as they are.
const LEAST_REPEATS: usize = 3;

/// One entry.
#[derive(Clone, Debug)]
pub(super) struct Entry<'a> {
    /// The place of the last event in the run.
    pub(super) position: usize,
    /// What is done once; several only in a repetition.
    pub(super) body: Vec<&'a Event>,
    /// How often the body is done.
    pub(super) repeats: usize,
    /// The first step.
    pub(super) since: u64,
    /// The last step.
    pub(super) step: u64,
    /// Lanes of the wave beyond the first that did the same, in their order.
    more: Vec<&'a Event>,
}

impl<'a> Entry<'a> {
    /// What tells device, kernel and wave.
    pub(super) fn event(&self) -> &'a Event {
        self.body[0]
    }

    /// How many events it stands for.
    #[cfg(test)]
    pub(super) fn events(&self) -> usize {
        self.body.len() * self.repeats + self.more.len()
    }

    /// Every access to memory in it.
    pub(super) fn accesses(&self) -> impl Iterator<Item = (&str, u32, u32)> {
        self.body.iter().chain(&self.more).filter_map(|event| match &event.action {
            Action::Access(_, name, byte, bytes) => Some((&**name, *byte, *byte + *bytes)),
            Action::Sync(_) => None,
        })
    }

    /// The text, without step and device.
    pub(super) fn text(&self) -> String {
        let Event { block, wave, .. } = self.event();
        let threads: Vec<u32> =
            self.body[..1].iter().chain(&self.more).filter_map(|event| event.thread).collect();
        let who = if threads.is_empty() { "~".to_owned() } else { format!("t{}", list(&threads)) };
        let mut what: Vec<String> = self.body.iter().map(|event| action(&event.action)).collect();
        if let (Some(last), Action::Access(word, name, first, _)) = (self.more.last(), &self.event().action)
            && let Action::Access(_, _, byte, bytes) = &last.action
        {
            what = vec![format!("{word} {name}+{first}..{}", byte + bytes)];
        }
        let mut text = format!("b{block} w{wave} {who} {}", what.join(", "));
        if self.repeats > 1 {
            text = format!("{text} x {}, since {}", self.repeats, self.since);
        }
        text
    }

    /// Whether `next` is the same by another lane of the wave, and right behind.
    fn takes(&self, next: &Self, neighbours: bool) -> bool {
        if self.repeats > 1 || next.repeats > 1 {
            return false;
        }
        let (last, event) = (*self.more.last().unwrap_or(&self.body[0]), next.event());
        let place = |event: &Event| (event.device, event.block, event.wave, Arc::clone(&event.kernel));
        if place(last) != place(event) {
            return false;
        }
        match (&last.action, &event.action) {
            (Action::Sync(one), Action::Sync(other)) => {
                let seen = self.body.iter().chain(&self.more).any(|before| before.thread == event.thread);
                one == other && !seen
            }
            (Action::Access(one, name, byte, bytes), Action::Access(other, next_name, next_byte, _)) => {
                // The order of accesses among devices matters: only neighbours in the whole run are joined.
                let adjoins = one == other && name == next_name && byte + bytes == *next_byte;
                let other_lane = last.thread.is_none() == event.thread.is_none()
                    && (last.thread.is_none() || last.thread != event.thread);
                neighbours && adjoins && other_lane
            }
            _ => false,
        }
    }
}

fn action(action: &Action) -> String {
    match action {
        Action::Access(what, name, byte, bytes) => format!("{what} {name}+{byte}..{}", byte + bytes),
        Action::Sync(what) => (*what).to_owned(),
    }
}

/// `0-3,7` for 0, 1, 2, 3, 7.
fn list(threads: &[u32]) -> String {
    let mut sorted = threads.to_vec();
    sorted.sort_unstable();
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for thread in sorted {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == thread => *last = thread,
            _ => runs.push((thread, thread)),
        }
    }
    let text = |(first, last): &(u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    runs.iter().map(text).collect::<Vec<_>>().join(",")
}

/// The entries of a run, by the place of their last event.
pub(super) fn entries(events: &[Event]) -> Vec<Entry<'_>> {
    let mut by_lane: BTreeMap<(u32, u32, u32, Option<u32>), Vec<usize>> = BTreeMap::new();
    for (position, event) in events.iter().enumerate() {
        by_lane.entry((event.device, event.block, event.wave, event.thread)).or_default().push(position);
    }
    let mut found = Vec::new();
    for (lane, positions) in &by_lane {
        // What the fabric does is no loop.
        let most_period = if lane.3.is_some() { MOST_PERIOD } else { 0 };
        repetitions(events, positions, most_period, &mut found);
    }
    found.sort_unstable_by_key(|entry| entry.position);
    join_lanes(found)
}

/// The events of one lane, repetitions folded.
fn repetitions<'a>(events: &'a [Event], positions: &[usize], most_period: usize, found: &mut Vec<Entry<'a>>) {
    let event = |index: usize| &events[positions[index]];
    let same = |a: usize, b: usize| event(a).action == event(b).action && event(a).kernel == event(b).kernel;
    let mut next = 0;
    while next < positions.len() {
        let (mut period, mut repeats) = (1, 1);
        for candidate in 1..=most_period {
            let mut end = next + candidate;
            while end < positions.len() && same(end, end - candidate) {
                end += 1;
            }
            let count = (end - next) / candidate;
            // The shortest that covers the most.
            if count >= LEAST_REPEATS && count * candidate > period * repeats {
                (period, repeats) = (candidate, count);
            }
        }
        let last = next + period * repeats - 1;
        found.push(Entry {
            position: positions[last],
            body: (next..next + period).map(event).collect(),
            repeats,
            since: event(next).step,
            step: event(last).step,
            more: Vec::new(),
        });
        next = last + 1;
    }
}

fn join_lanes(entries: Vec<Entry<'_>>) -> Vec<Entry<'_>> {
    let mut joined: Vec<Entry<'_>> = Vec::new();
    let mut last_of: BTreeMap<u32, usize> = BTreeMap::new();
    for entry in entries {
        let device = entry.event().device;
        let last = last_of.get(&device).copied();
        if let Some(before) = last
            && let neighbours = joined[before].position + 1 == entry.position
            && joined[before].takes(&entry, neighbours)
        {
            let before = &mut joined[before];
            (before.position, before.step) = (entry.position, entry.step);
            before.more.push(entry.body[0]);
            continue;
        }
        last_of.insert(device, joined.len());
        joined.push(entry);
    }
    joined
}
