//! Parts of ranks to one file of Chrome's trace events: a process for each rank, a thread for each thread of the host and each stream.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::line::{Call, Line, Wait, Work};

/// Tracks of a rank: its host threads come first, then its streams, then who started late, then waits for each rank.
const FIRST_STREAM: u64 = 1000;
const FIRST_WAIT: u64 = 10_000;
const LATE: u64 = 9999;
/// In ns: in this time a clock drifts by less than a look is wrong.
const NEAR: i64 = 100_000_000;

/// What one rank of one world recorded.
#[derive(Debug)]
pub(crate) struct Part {
    rank: u32,
    machine: String,
    device: String,
    threads: BTreeMap<u32, String>,
    calls: Vec<Call>,
    work: Vec<Work>,
    waits: Vec<Wait>,
    clocks: Vec<(i64, u64, u64)>,
    /// Looks at the clock of kernels.
    kernel_clocks: Vec<(i64, u64, u64)>,
    rounds: Vec<(u64, u64)>,
    untraced: Option<(u64, u64)>,
}

impl Part {
    /// Reads a part; a line that was cut off ends it. `None` where not even the first line is whole.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines().map_while(|line| serde_json::from_str::<Line>(line).ok());
        let Some(Line::Rank { rank, machine, device }) = lines.next() else { return None };
        let mut part = Self {
            rank,
            machine,
            device,
            threads: BTreeMap::new(),
            calls: Vec::new(),
            work: Vec::new(),
            waits: Vec::new(),
            clocks: Vec::new(),
            kernel_clocks: Vec::new(),
            rounds: Vec::new(),
            untraced: None,
        };
        for line in lines {
            match line {
                Line::Rank { .. } => {}
                Line::Thread { thread, name } => {
                    part.threads.insert(thread, name.unwrap_or_else(|| format!("thread {thread}")));
                }
                Line::Call(call) => part.calls.push(call),
                Line::Work(work) => part.work.push(work),
                Line::Wait(wait) => part.waits.push(wait),
                Line::KernelClock { kernel, host, error } => {
                    part.kernel_clocks.push((kernel as i64, host, error));
                }
                Line::Clocks { device, host, error } => part.clocks.push((device, host, error)),
                Line::Round { sent, received } => part.rounds.push((sent, received)),
                Line::Untraced { lost, captured } => part.untraced = Some((lost, captured)),
            }
        }
        part.clocks = apart(part.clocks);
        part.kernel_clocks = apart(part.kernel_clocks);
        Some(part)
    }

    /// Waits of kernels, by their clock. Those of several threads of a kernel for one rank are one.
    fn whole_waits(&self) -> Vec<Wait> {
        let mut waits = self.waits.clone();
        let what = |wait: &Wait| (wait.peer, wait.operation.clone(), wait.phase.clone(), wait.epoch);
        waits.sort_by_key(|wait| (what(wait), wait.begin));
        let mut whole: Vec<Wait> = Vec::new();
        for wait in waits {
            match whole.last_mut() {
                // Calls of two communicators may have one number.
                Some(last) if what(last) == what(&wait) && wait.begin <= last.end => {
                    last.end = last.end.max(wait.end);
                }
                _ => whole.push(wait),
            }
        }
        whole
    }

    /// A time of the device by the host's clock: between two looks at both by interpolation, outside by the nearest.
    fn on_host(clocks: &[(i64, u64, u64)], device: i64) -> i64 {
        let after = clocks.partition_point(|(at, ..)| *at <= device);
        let at = |index: usize| clocks.get(index).map(|(at, host, _)| (*at, *host as i64));
        match (after.checked_sub(1).and_then(at), at(after)) {
            (Some((d0, h0)), Some((d1, h1))) => {
                let share = (device - d0) as f64 / (d1 - d0) as f64;
                h0 + (share * (h1 - h0) as f64) as i64
            }
            (Some((d, h)), None) | (None, Some((d, h))) => h + (device - d),
            // A part without a look has no work: the look comes first.
            (None, None) => device,
        }
    }

    /// A track for each thread that made calls, from 0. Threads of one name, of which each began after the end of the one before, share one: a
    /// program may make each call on a thread of its own.
    fn thread_tracks(&self) -> BTreeMap<u32, u64> {
        let mut times: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for call in &self.calls {
            let time = times.entry(call.thread).or_insert((call.begin, call.end));
            *time = (time.0.min(call.begin), time.1.max(call.end));
        }
        let mut threads: Vec<_> = times.into_iter().collect();
        threads.sort_by_key(|(_, (begin, _))| *begin);
        let mut tracks: Vec<(Option<&String>, u64)> = Vec::new();
        let place = |(thread, (begin, end))| {
            let name = self.threads.get(&thread);
            let free = tracks.iter().position(|(other, over)| *other == name && *over <= begin);
            let track = free.unwrap_or(tracks.len());
            match tracks.get_mut(track) {
                Some(found) => found.1 = end,
                None => tracks.push((name, end)),
            }
            (thread, track as u64)
        };
        threads.into_iter().map(place).collect()
    }

    /// By how much this part's clock is ahead of the other's, and by how much that may be wrong. An exchange returns after every rank has
    /// sent, so that each of two ranks bounds the other's clock from one side.
    fn ahead_of(&self, other: &Self) -> (i64, i64) {
        if self.machine == other.machine {
            return (0, 0);
        }
        let rounds = || self.rounds.iter().zip(&other.rounds);
        let least = rounds().map(|((sent, _), (_, received))| *sent as i64 - *received as i64).max();
        let most = rounds().map(|((_, received), (sent, _))| *received as i64 - *sent as i64).min();
        match (least, most) {
            (Some(least), Some(most)) => (i64::midpoint(least, most), (most - least).max(0) / 2),
            _ => (0, 0),
        }
    }
}

/// Looks at both clocks, of those that are near each other only the one with the least error: between them it would look like drift.
fn apart(mut looks: Vec<(i64, u64, u64)>) -> Vec<(i64, u64, u64)> {
    looks.sort_unstable();
    let mut kept: Vec<(i64, u64, u64)> = Vec::new();
    for look in looks {
        match kept.last_mut() {
            Some(last) if look.0 - last.0 < NEAR => {
                if look.2 < last.2 {
                    *last = look;
                }
            }
            _ => kept.push(look),
        }
    }
    kept
}

/// Times of one part by the clock of the first.
struct Times<'a> {
    part: &'a Part,
    ahead: i64,
    error: i64,
}

impl Times<'_> {
    fn host(&self, host: u64) -> i64 {
        host as i64 - self.ahead
    }

    fn device(&self, device: i64) -> i64 {
        Part::on_host(&self.part.clocks, device) - self.ahead
    }

    fn kernel(&self, kernel: u64) -> i64 {
        Part::on_host(&self.part.kernel_clocks, kernel as i64) - self.ahead
    }

    fn begin(&self) -> Option<i64> {
        let calls = self.part.calls.iter().map(|call| self.host(call.begin));
        calls.chain(self.part.work.iter().map(|work| self.device(work.begin))).min()
    }
}

/// The file. Times count from the first thing that is recorded, in µs.
///
/// # Errors
/// None that these values can have.
pub(crate) fn picture(mut parts: Vec<Part>) -> serde_json::Result<String> {
    parts.sort_by_key(|part| part.rank);
    let times: Vec<Times<'_>> = parts
        .iter()
        .map(|part| {
            let (ahead, error) = parts.first().map_or((0, 0), |first| part.ahead_of(first));
            Times { part, ahead, error }
        })
        .collect();
    let origin = times.iter().filter_map(Times::begin).min().unwrap_or(0);
    let mut events = Events { origin, all: Vec::new(), flows: 0 };
    let mut about = serde_json::Map::new();
    let mut tracks: BTreeMap<u32, Tracks> = BTreeMap::new();
    for times in &times {
        let part = times.part;
        let tracks = tracks.entry(part.rank).or_insert_with(|| {
            let name = format!("rank {}: {}", part.rank, part.device);
            events.name("process_name", part.rank, 0, &name);
            events.all.push(json!({"ph": "M", "name": "process_sort_index", "pid": part.rank, "args": {"sort_index": part.rank}}));
            Tracks { threads: 0, streams: FIRST_STREAM, waits: FIRST_WAIT }
        });
        let worst = |clocks: &[(i64, u64, u64)]| clocks.iter().map(|(.., error)| *error).max().unwrap_or(0);
        let worst_device = worst(&part.clocks);
        let waits = match (part.kernel_clocks.is_empty(), part.waits.len()) {
            (false, _) => format!("clock of waits within {} ns", worst(&part.kernel_clocks)),
            (true, 0) => "waits of kernels not noted (kernels.note_waits)".to_owned(),
            (true, count) => format!("{count} waits left out: the device did not answer with its clock"),
        };
        let untraced = part.untraced.map_or_else(
            || "the rank ended without an end of its trace".to_owned(),
            |(lost, captured)| format!("{lost} entries lost, {captured} launches captured into graphs"),
        );
        let about_rank = format!(
            "{untraced}; device clock within {worst_device} ns of the host's, {waits}, host clock within {} ns of the \
             first rank's",
            times.error
        );
        about.insert(format!("rank {}, part {}", part.rank, about.len()), about_rank.into());
        events.part(times, tracks);
        events.waits(times, tracks);
    }
    events.late(&times);
    serde_json::to_string(&json!({"traceEvents": events.all, "displayTimeUnit": "ns", "otherData": about}))
}

/// The next tracks of a rank.
struct Tracks {
    threads: u64,
    streams: u64,
    waits: u64,
}

struct Events {
    origin: i64,
    all: Vec<Value>,
    flows: u64,
}

impl Events {
    fn name(&mut self, what: &str, rank: u32, track: u64, name: &str) {
        self.all.push(json!({"ph": "M", "name": what, "pid": rank, "tid": track, "args": {"name": name}}));
    }

    fn micros(&self, time: i64) -> f64 {
        (time - self.origin) as f64 / 1000.0
    }

    fn span(
        &mut self,
        (rank, track): (u32, u64),
        kind: &str,
        name: &str,
        (begin, end): (i64, i64),
        args: &Value,
    ) {
        let args: serde_json::Map<_, _> = args
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let (at, lasted) = (self.micros(begin), (end - begin).max(0) as f64 / 1000.0);
        self.all.push(json!({
            "ph": "X", "cat": kind, "name": name, "pid": rank, "tid": track, "ts": at, "dur": lasted, "args": args,
        }));
    }

    fn part(&mut self, times: &Times<'_>, tracks: &mut Tracks) {
        let (part, rank) = (times.part, times.part.rank);
        let threads = part.thread_tracks();
        let first_thread = tracks.threads + 1;
        for (number, track) in &threads {
            let name = part.threads.get(number).map_or("thread", String::as_str);
            self.name("thread_name", rank, first_thread + track, name);
            tracks.threads = tracks.threads.max(first_thread + track);
        }
        let mut calls = BTreeMap::new();
        for call in &part.calls {
            let track = first_thread + threads.get(&call.thread).copied().unwrap_or(0);
            let (begin, end) = (times.host(call.begin), times.host(call.end));
            let args = json!({"of": call.of, "sequence": call.sequence, "bytes": call.bytes});
            self.span((rank, track), "call", &call.name, (begin, end), &args);
            calls.insert(call.id, (track, begin, call));
        }
        let mut streams = BTreeMap::new();
        for work in &part.work {
            let (track, over) = streams.entry(work.stream).or_insert_with(|| {
                tracks.streams += 1;
                self.name("thread_name", rank, tracks.streams, &format!("stream {:#x}", work.stream));
                (tracks.streams, i64::MIN)
            });
            // A stream does one thing after the other; by the last digits of the times it may seem otherwise.
            let begin = times.device(work.begin).max(*over);
            let end = times.device(work.end).max(begin);
            *over = end;
            let track = *track;
            let by = work.call.and_then(|id| calls.get(&id));
            let args = json!({
                "blocks": work.grid.map(|grid| grid.0),
                "threads": work.grid.map(|grid| grid.1),
                "call": by.map(|(.., call)| &call.name),
                "of": by.map(|(.., call)| &call.of),
                "sequence": by.map(|(.., call)| call.sequence),
                "bytes": work.bytes.or_else(|| by.and_then(|(.., call)| call.bytes)),
            });
            self.span((rank, track), "device", &work.name, (begin, end), &args);
            if let Some((thread, called, _)) = by {
                self.flows += 1;
                let flow = |phase: &str, track: u64, at: f64| {
                    json!({
                        "ph": phase, "bp": "e", "cat": "launch", "name": "launch", "id": self.flows, "pid": rank, "tid": track, "ts": at,
                    })
                };
                let arrow = [flow("s", *thread, self.micros(*called)), flow("f", track, self.micros(begin))];
                self.all.extend(arrow);
            }
        }
    }

    /// Waits inside kernels: a track for each rank that was waited for.
    fn waits(&mut self, times: &Times<'_>, tracks: &mut Tracks) {
        let part = times.part;
        if part.kernel_clocks.is_empty() {
            return;
        }
        let mut waits = part.whole_waits();
        waits.sort_by_key(|wait| wait.begin);
        let mut of_peers = BTreeMap::new();
        for wait in waits {
            let (track, over) = of_peers.entry(wait.peer).or_insert_with(|| {
                tracks.waits += 1;
                self.name("thread_name", part.rank, tracks.waits, &format!("waits for rank {}", wait.peer));
                (tracks.waits, i64::MIN)
            });
            // Of waits at one time for one rank, each is shown after the one before it.
            let (begin, end) = (times.kernel(wait.begin).max(*over), times.kernel(wait.end));
            if end <= *over {
                continue;
            }
            *over = end;
            let text = format!("{}: {}", wait.operation, wait.phase);
            self.span((part.rank, *track), "wait", &text, (begin, end), &json!({"epoch": wait.epoch}));
        }
    }

    /// For each call that has one number on all its ranks: how long the work of each rank ran before that of the last rank began.
    fn late(&mut self, times: &[Times<'_>]) {
        let mut worlds: BTreeMap<u32, usize> = BTreeMap::new();
        let mut calls: BTreeMap<_, Vec<(u32, i64, i64)>> = BTreeMap::new();
        for times in times {
            let part = times.part;
            let world = worlds.entry(part.rank).or_insert(0);
            *world += 1;
            let mut spans: BTreeMap<u64, (i64, i64)> = BTreeMap::new();
            for (id, work) in part.work.iter().filter_map(|work| Some((work.call?, work))) {
                let (begin, end) = (times.device(work.begin), times.device(work.end));
                let span = spans.entry(id).or_insert((begin, end));
                *span = (span.0.min(begin), span.1.max(end));
            }
            for call in part.calls.iter().filter(|call| call.name != "send_receive") {
                if let (Some(of), Some(sequence), Some(span)) = (&call.of, call.sequence, spans.get(&call.id))
                {
                    let key = (*world, of, &call.name, sequence);
                    calls.entry(key).or_default().push((part.rank, span.0, span.1));
                }
            }
        }
        let mut named = BTreeSet::new();
        for ((_, of, name, sequence), ranks) in calls {
            let Some((last, began, _)) = ranks.iter().max_by_key(|(_, begin, _)| *begin).copied() else {
                continue;
            };
            for (rank, begin, end) in ranks.into_iter().filter(|(rank, ..)| *rank != last) {
                if named.insert(rank) {
                    self.name("thread_name", rank, LATE, "who started last");
                }
                let args = json!({"call": name, "of": of, "sequence": sequence});
                let text = format!("rank {last} had not started");
                self.span((rank, LATE), "late", &text, (begin, began.min(end)), &args);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(rank: u32, machine: &str, lines: &[Line]) -> Part {
        let first = Line::Rank { rank, device: "device".to_owned(), machine: machine.to_owned() };
        Part::parse(&Line::text(&[&[first], lines].concat()).unwrap()).unwrap()
    }

    /// Rank 1's clock is 5000 ahead. A message takes 100 to one side, and 300 to the other.
    #[test]
    fn exchanges_bound_the_clock_of_another_machine() {
        let round = |sent, received| Line::Round { sent, received };
        let here = part(0, "a", &[round(1000, 1350), round(2000, 2310)]);
        let there = part(1, "b", &[round(6050, 6120), round(7010, 7100)]);
        let (ahead, error) = there.ahead_of(&here);
        assert_eq!((ahead, error), (4900, 200));
        assert!((ahead - 5000).abs() <= error);
        let same = part(1, "a", &[round(6050, 6120)]);
        assert_eq!(same.ahead_of(&here), (0, 0));
    }

    #[test]
    fn threads_of_one_name_share_a_track_while_their_calls_do_not_overlap() {
        let call = |thread, begin, end| {
            let (name, of, sequence, bytes) = ("exchange".to_owned(), None, None, None);
            Line::Call(Call { id: 0, name, of, sequence, bytes, thread, begin, end })
        };
        let thread = |thread, name: &str| Line::Thread { thread, name: Some(name.to_owned()) };
        let named = [thread(0, "a"), thread(1, "a"), thread(2, "a"), thread(3, "b")];
        let calls = [call(0, 0, 10), call(1, 5, 20), call(2, 10, 30), call(3, 50, 60)];
        let tracks = part(0, "", &[&named[..], &calls].concat()).thread_tracks();
        assert_eq!(tracks, BTreeMap::from([(0, 0), (1, 1), (2, 0), (3, 2)]));
    }

    #[test]
    fn waits_of_the_threads_of_a_kernel_are_one() {
        let wait = |peer, epoch, begin, end| {
            let (operation, phase) = ("ep dispatch".to_owned(), "rows".to_owned());
            Line::Wait(Wait { operation, phase, epoch, peer, begin, end })
        };
        let waits = [
            wait(1, 7, 10, 20),
            wait(2, 7, 10, 30),
            wait(1, 7, 12, 25),
            wait(1, 7, 40, 50),
            wait(1, 8, 12, 25),
        ];
        let whole = part(0, "a", &waits).whole_waits();
        let found: Vec<_> = whole.iter().map(|wait| (wait.peer, wait.epoch, wait.begin, wait.end)).collect();
        assert_eq!(found, [(1, 7, 10, 25), (1, 7, 40, 50), (1, 8, 12, 25), (2, 7, 10, 30)]);
    }

    #[test]
    fn device_times_are_interpolated_between_looks_at_both_clocks() {
        let look = |device, host| Line::Clocks { device, host, error: 3 };
        let second = 1_000_000_000;
        let bad = Line::Clocks { device: 5, host: 9000, error: 4000 };
        let drifting = part(0, "a", &[look(0, 1000), bad, look(second, 3000 + second as u64)]);
        let found = [-10, 0, second / 2, second, second + 10].map(|at| Part::on_host(&drifting.clocks, at));
        assert_eq!(found, [990, 1000, second / 2 + 2000, second + 3000, second + 3010]);
    }
}
