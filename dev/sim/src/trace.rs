//! A run as a trace that Perfetto and Chrome (`chrome://tracing`) show.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use anabranch_weakmem::{Action, Event};
use serde_json::{Value, json};

/// The track of what the fabric did with a device's stores.
const FABRIC: u32 = 0;

/// A wave of a launch, from its first event to its last.
struct Span<'a> {
    first: usize,
    last: usize,
    event: &'a Event,
    /// Threads that have ended: when one is there again, it is another launch.
    ended: BTreeSet<u32>,
    /// Which of the launches that overlap on this wave's place.
    slot: u32,
}

/// Device, block, wave, slot.
type Track = (u32, u32, u32, u32);

impl Span<'_> {
    fn track(&self) -> Track {
        (self.event.device, self.event.block, self.event.wave, self.slot)
    }
}

/// Writes a run as Chrome's trace format: a process a device, a track a wave, launches as spans, events as instants in them;
/// what the fabric did on a track of its own. One primitive is one microsecond.
///
/// # Errors
/// What `out` fails with.
pub fn write_trace(events: &[Event], out: &mut dyn Write) -> io::Result<()> {
    let (spans, span_of) = spans(events);
    let tracks: BTreeSet<Track> = spans.iter().map(Span::track).collect();
    // Numbered within the device, behind the fabric's.
    let mut numbers: BTreeMap<Track, u32> = BTreeMap::new();
    let mut used: BTreeMap<u32, u32> = BTreeMap::new();
    for track in &tracks {
        let last = used.entry(track.0).or_insert(FABRIC);
        *last += 1;
        numbers.insert(*track, *last);
    }
    let mut rows = names(events, &numbers);
    for (position, event) in events.iter().enumerate() {
        let span = span_of[position].map(|span| &spans[span]);
        let tid = span.map_or(FABRIC, |span| numbers[&span.track()]);
        let edge = |phase: &str| {
            let Event { device, step, kernel, .. } = event;
            json!({ "ph": phase, "pid": device, "tid": tid, "ts": step, "name": &**kernel })
        };
        rows.extend(span.filter(|span| span.first == position).map(|_| edge("B")));
        rows.push(instant(event, tid));
        rows.extend(span.filter(|span| span.last == position).map(|_| edge("E")));
    }
    out.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
    for (index, row) in rows.iter().enumerate() {
        out.write_all(if index == 0 { b"\n" } else { b",\n" })?;
        serde_json::to_writer(&mut *out, row)?;
    }
    out.write_all(b"\n]}\n")?;
    out.flush()
}

/// The waves of launches, and which of them each event is of; none for what the fabric did.
fn spans(events: &[Event]) -> (Vec<Span<'_>>, Vec<Option<usize>>) {
    let mut spans: Vec<Span<'_>> = Vec::new();
    let mut span_of = vec![None; events.len()];
    let mut open: BTreeMap<(u32, u32, u32, &str), usize> = BTreeMap::new();
    for (position, event) in events.iter().enumerate() {
        let Some(thread) = event.thread else { continue };
        let key = (event.device, event.block, event.wave, &*event.kernel);
        let found = open.get(&key).copied().filter(|span| !spans[*span].ended.contains(&thread));
        let index = found.unwrap_or_else(|| {
            spans.push(Span { first: position, last: position, event, ended: BTreeSet::new(), slot: 0 });
            spans.len() - 1
        });
        open.insert(key, index);
        span_of[position] = Some(index);
        spans[index].last = position;
        if event.action == Action::Sync("ends") {
            spans[index].ended.insert(thread);
        }
    }
    // Spans of a track must not overlap: each takes the first slot that is free. They are in the order of their begin.
    let mut busy_until: BTreeMap<(u32, u32, u32), Vec<usize>> = BTreeMap::new();
    for span in &mut spans {
        let slots = busy_until.entry((span.event.device, span.event.block, span.event.wave)).or_default();
        let slot = slots.iter().position(|last| *last < span.first).unwrap_or(slots.len());
        match slots.get_mut(slot) {
            Some(last) => *last = span.last,
            None => slots.push(span.last),
        }
        span.slot = slot as u32;
    }
    (spans, span_of)
}

/// What processes and tracks are called.
fn names(events: &[Event], numbers: &BTreeMap<Track, u32>) -> Vec<Value> {
    let devices: BTreeSet<u32> = events.iter().map(|event| event.device).collect();
    let name = |what: &str, pid: u32, tid: u32, name: String| json!({ "ph": "M", "name": what, "pid": pid, "tid": tid, "args": { "name": name } });
    let mut rows = Vec::new();
    for device in devices {
        rows.push(name("process_name", device, FABRIC, format!("device {device}")));
        rows.push(name("thread_name", device, FABRIC, "fabric".to_owned()));
    }
    for ((device, block, wave, slot), number) in numbers {
        let again = if *slot == 0 { String::new() } else { format!(" ({})", slot + 1) };
        rows.push(name("thread_name", *device, *number, format!("block {block} wave {wave}{again}")));
    }
    rows
}

fn instant(event: &Event, tid: u32) -> Value {
    let Event { step, device, kernel, block, wave, thread, action } = event;
    let mut args = json!({ "kernel": &**kernel, "block": block, "wave": wave });
    if let Some(thread) = thread {
        args["thread"] = json!(thread);
    }
    let name = match action {
        Action::Access(what, name, byte, bytes) => {
            args["allocation"] = json!(&**name);
            args["byte"] = json!(byte);
            args["bytes"] = json!(bytes);
            format!("{what} {name}+{byte}")
        }
        Action::Sync(what) => (*what).to_owned(),
    };
    json!({ "ph": "i", "s": "t", "pid": device, "tid": tid, "ts": step, "name": name, "args": args })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{access, sync};

    fn rows(events: &[Event]) -> Vec<Value> {
        let mut out = Vec::new();
        write_trace(events, &mut out).unwrap();
        let trace: Value = serde_json::from_slice(&out).unwrap();
        trace["traceEvents"].as_array().unwrap().clone()
    }

    fn phase(row: &Value) -> &str {
        row["ph"].as_str().unwrap()
    }

    /// Two launches of one kernel after each other, one of another kernel that overlaps both, and the fabric.
    fn events() -> Vec<Event> {
        vec![
            access(1, 0, "send", Some(0), "store", ("heap1", 64)),
            access(2, 0, "other", Some(0), "store", ("heap1", 0)),
            access(3, 0, "send", None, "lands", ("heap1", 64)),
            sync(3, 0, "send", 0, "ends"),
            access(4, 0, "send", Some(0), "store", ("heap1", 72)),
            sync(5, 0, "send", 0, "ends"),
            sync(6, 0, "other", 0, "ends"),
            access(6, 1, "receive", Some(5), "load", ("heap1", 64)),
        ]
    }

    #[test]
    fn every_event_is_there_in_its_own_time() {
        let events = events();
        let rows = rows(&events);
        let instants: Vec<&Value> = rows.iter().filter(|row| phase(row) == "i").collect();
        assert_eq!(instants.len(), events.len());
        for (row, event) in instants.iter().zip(&events) {
            assert_eq!(
                (row["ts"].as_u64(), row["pid"].as_u64()),
                (Some(event.step), Some(event.device.into()))
            );
            assert_eq!(row["args"]["kernel"], *event.kernel);
            assert_eq!(row["args"]["thread"].as_u64(), event.thread.map(u64::from));
            assert_eq!(row["tid"] == FABRIC, event.thread.is_none());
        }
        assert_eq!(
            (instants[2]["name"].as_str(), &instants[2]["args"]["bytes"]),
            (Some("lands heap1+64"), &json!(8))
        );
    }

    #[test]
    fn time_never_goes_back_on_a_track_and_spans_nest() {
        let mut last: BTreeMap<(u64, u64), u64> = BTreeMap::new();
        let mut open: BTreeMap<(u64, u64), Vec<String>> = BTreeMap::new();
        let mut spans = Vec::new();
        for row in rows(&events()).iter().filter(|row| phase(row) != "M") {
            let track = (row["pid"].as_u64().unwrap(), row["tid"].as_u64().unwrap());
            let ts = row["ts"].as_u64().unwrap();
            assert!(last.insert(track, ts).is_none_or(|before| before <= ts), "{row}");
            let open = open.entry(track).or_default();
            let name = row["name"].as_str().unwrap().to_owned();
            match phase(row) {
                "B" => {
                    spans.push((track, name.clone()));
                    open.push(name);
                    assert_eq!(open.len(), 1, "launches do not overlap on a track");
                }
                "E" => assert_eq!(open.pop(), Some(name)),
                _ => assert_eq!(open.is_empty(), track.1 == 0, "an event of a wave is in its launch: {row}"),
            }
        }
        assert!(open.values().all(Vec::is_empty), "each span ends");
        let spans: Vec<_> = spans.iter().map(|(track, name)| (*track, name.as_str())).collect();
        assert_eq!(spans, [((0, 1), "send"), ((0, 2), "other"), ((0, 1), "send"), ((1, 1), "receive")]);
    }

    #[test]
    fn tracks_have_names() {
        let rows = rows(&events());
        let names: Vec<String> = rows
            .iter()
            .filter(|row| phase(row) == "M")
            .map(|row| format!("{}.{} {}", row["pid"], row["tid"], row["args"]["name"].as_str().unwrap()))
            .collect();
        let expected = [
            "0.0 device 0",
            "0.0 fabric",
            "1.0 device 1",
            "1.0 fabric",
            "0.1 block 0 wave 0",
            "0.2 block 0 wave 0 (2)",
            "1.1 block 0 wave 1",
        ];
        assert_eq!(names, expected);
    }
}
