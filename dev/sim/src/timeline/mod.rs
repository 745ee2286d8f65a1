//! The last events of each device for people: a column a device, time runs down.

mod entry;
mod layout;
mod place;

use std::collections::BTreeMap;

use anabranch_weakmem::{Action, Event};

/// How a timeline is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimelineOptions {
    /// Columns of text that a line may take.
    pub width: usize,
    /// Entries of each device, counted from its end. Repeats are one entry.
    pub last: usize,
}

impl Default for TimelineOptions {
    fn default() -> Self {
        Self { width: 120, last: 40 }
    }
}

/// The lines of a timeline. Those that touch a place that `problem` names (`heap0+64`) begin with `>`.
///
/// Shown are the last entries of each device, and every earlier touch of a place that the problem names. When all threads ran
/// to their end, the problem was found in what they left: then the last entries are those up to the last touch of the place,
/// as what happened behind it came too late to matter.
///
/// An entry is `b0 w1 t4 store heap0+64..72`: block, wave and thread, the primitive, the allocation and the bytes in it. What
/// the fabric did with a store of the wave has `~` for the thread. Above an entry stands its kernel, where it changes.
pub fn timeline(events: &[Event], problem: &str, options: TimelineOptions) -> Vec<String> {
    let mut devices: Vec<u32> = events.iter().map(|event| event.device).collect();
    devices.sort_unstable();
    devices.dedup();
    let entries = entry::entries(events);
    let places = place::places(problem, events);
    let touches: Vec<bool> = entries
        .iter()
        .map(|entry| places.iter().any(|place| entry.accesses().any(|access| place.meets(access))))
        .collect();
    let last_touch = touches.iter().rposition(|touches| *touches).filter(|_| is_over(events));
    let end = last_touch.map_or(entries.len(), |last| last + 1);
    let mut rows = Vec::new();
    let mut below = end;
    let mut left: BTreeMap<u32, usize> = devices.iter().map(|device| (*device, options.last)).collect();
    for (index, entry) in entries[..end].iter().enumerate().rev() {
        let Some(left) = left.get_mut(&entry.event().device) else { continue };
        let in_window = *left > 0;
        *left = left.saturating_sub(1);
        if in_window || touches[index] {
            let alone = !in_window && below != index + 1;
            rows.push(layout::Row { entry, touches: touches[index], alone });
            below = index;
        }
    }
    rows.reverse();
    let mut lines = layout::lines(&rows, &devices, options.width);
    let hidden = end - rows.len();
    if hidden > 0 {
        lines.insert(0, format!("(earlier entries that are not shown: {hidden})"));
    }
    if end < entries.len() {
        lines.push(format!("(later entries that are not shown: {})", entries.len() - end));
    }
    lines
}

/// Whether every thread ran to its end.
fn is_over(events: &[Event]) -> bool {
    let mut last = BTreeMap::new();
    for event in events.iter().filter(|event| event.thread.is_some()) {
        last.insert((event.device, &event.kernel, event.block, event.thread), &event.action);
    }
    last.values().all(|action| **action == Action::Sync("ends"))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::fake::{access, sync};

    /// Device 1 polls a flag that device 0 stores behind its data, which arrives too late.
    fn story() -> Vec<Event> {
        let mut events = Vec::new();
        for thread in 0..4 {
            let at = ("heap1", 64 + thread * 8);
            events.push(access(u64::from(thread) + 1, 0, "send", Some(thread), "store", at));
        }
        for look in 0..37 {
            events.push(access(5 + look * 2, 1, "receive", Some(0), "flag load", ("heap1", 0)));
            events.push(sync(6 + look * 2, 1, "receive", 0, "looks again"));
            if look == 20 {
                events.push(access(5 + look * 2, 0, "send", None, "lands", ("heap1", 0)));
            }
        }
        events.push(access(80, 1, "receive", Some(0), "flag load", ("heap1", 0)));
        for thread in 0..4 {
            events.push(sync(81 + u64::from(thread), 1, "receive", thread, "wave exchange"));
        }
        events.push(access(85, 1, "check", Some(5), "load", ("heap1", 64)));
        events.push(access(86, 0, "send", None, "lands", ("heap1", 64)));
        events
    }

    fn text(width: usize, last: usize) -> String {
        timeline(&story(), "rank 1 read 0 at heap1+64", TimelineOptions { width, last }).join("\n")
    }

    #[test]
    fn a_column_a_device() {
        expect![[r"
              step  device 0                                       device 1
                    [send]
            >    4  b0 w0 t0-3 store heap1+64..96
                45  b0 w0 ~ lands heap1+0..8
                                                                   [receive]
                78                                                 b0 w0 t0 flag load heap1+0..8, looks again x
                                                                     37, since 5
                80                                                 b0 w0 t0 flag load heap1+0..8
                84                                                 b0 w0 t0-3 wave exchange
                                                                   [check]
            >   85                                                 b0 w1 t5 load heap1+64..72
            >   86  b0 w0 ~ lands heap1+64..72"]].assert_eq(&text(100, 40));
    }

    #[test]
    fn one_column_when_it_is_narrow_and_the_last_entries_only() {
        expect![[r"
            (earlier entries that are not shown: 1)
              step  device and event
                    d0 [send]
            >    4  d0 b0 w0 t0-3 store heap1+64..96
                45  d0 b0 w0 ~ lands heap1+0..8
                    d1 [receive]
                80  d1 b0 w0 t0 flag load heap1+0..8
                84  d1 b0 w0 t0-3 wave exchange
                    d1 [check]
            >   85  d1 b0 w1 t5 load heap1+64..72
            >   86  d0 b0 w0 ~ lands heap1+64..72"]]
        .assert_eq(&text(50, 3));
    }

    #[test]
    fn the_last_entries_are_those_before_the_place_was_touched_last() {
        let mut events = story();
        events.extend((0..4).map(|thread| sync(90 + u64::from(thread), 1, "receive", thread, "ends")));
        events.push(sync(95, 1, "check", 5, "ends"));
        let options = TimelineOptions { width: 100, last: 1 };
        let problem = "rank 1 read 0 at heap1+64";
        let text = |events: &[Event]| timeline(events, problem, options).join("\n");
        assert!(text(&events).contains("t5 ends"), "threads of device 0 are stopped: how it ends matters");
        events.extend((0..4).map(|thread| sync(96 + u64::from(thread), 0, "send", thread, "ends")));
        expect![[r"
            (earlier entries that are not shown: 4)
              step  device 0                                       device 1
                    [send]
            >    4  b0 w0 t0-3 store heap1+64..96
               ...
                                                                   [check]
            >   85                                                 b0 w1 t5 load heap1+64..72
            >   86  b0 w0 ~ lands heap1+64..72
            (later entries that are not shown: 3)"]]
        .assert_eq(&text(&events));
    }

    #[test]
    fn nothing_is_wider_than_asked_for() {
        for width in [40, 60, 100, 120] {
            for line in text(width, 100).lines() {
                assert!(line.chars().count() <= width, "{line:?} at {width}");
            }
        }
    }

    #[test]
    fn no_event_is_lost_in_an_entry() {
        let events = story();
        let counted: usize = entry::entries(&events).iter().map(entry::Entry::events).sum();
        assert_eq!(counted, events.len());
    }
}
