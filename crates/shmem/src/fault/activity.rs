//! What a rank is doing, kept in its own memory for reports: the calls that it launched last, and the calls of the host that it is in.
//!
//! Nothing of it leaves the rank until a report needs it: its own, when a wait of its kernels has failed, or that of a rank which waits for
//! this one and asks (`answers.rs`). Captures and replays of graphs are not seen, nor are kernels of the user that no note was made of.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anabranch_clock::Moment;
use anabranch_ranks::Group;

use crate::fault::names::OperationCode;

/// So many launches are remembered.
const REMEMBERED: usize = 64;
/// So many members are named.
const NAMED_MEMBERS: usize = 8;

/// What was put on a stream with a team's view, for reports.
#[derive(Clone, Debug)]
pub struct LaunchNote {
    /// Whose call it is: `communicator 2 of ranks 0, 1`. The same on all members.
    pub of: Arc<str>,
    /// What is counted there: `call`, or `message`.
    pub kind: &'static str,
    /// Its number among those, from 1.
    pub number: u64,
    /// What it is: `all_reduce of 1024 bf16`.
    pub what: NoteText,
    /// The operations that its kernels report.
    pub operations: &'static [OperationCode],
}

/// The text of a note, made without an allocation.
#[derive(Clone, Debug)]
pub enum NoteText {
    /// One that is always the same.
    Fixed(&'static str),
    /// One that was made before.
    Shared(Arc<str>),
}

impl fmt::Display for NoteText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(text) => f.write_str(text),
            Self::Shared(text) => f.write_str(text),
        }
    }
}

#[derive(Debug)]
struct Launched {
    id: u64,
    team: u64,
    stream: usize,
    note: LaunchNote,
    at: Moment,
    is_done: bool,
}

impl Launched {
    fn words(&self) -> String {
        let LaunchNote { of, kind, number, what, .. } = &self.note;
        format!("{kind} {number} of {of}, {what}")
    }
}

/// Which launch is forgotten first: one that is done, else one that follows another of its team with the same operations. So of each the
/// oldest that is not known to be done is kept, as reports name it.
fn first_forgotten(launched: &VecDeque<Launched>) -> usize {
    let done = launched.iter().position(|one| one.is_done);
    let kind = |one: &Launched| (one.team, one.note.operations);
    let follows = |(at, one): (usize, &Launched)| launched.range(..at).any(|other| kind(other) == kind(one));
    done.or_else(|| launched.iter().enumerate().position(follows)).unwrap_or(0)
}

#[derive(Debug, Default)]
struct State {
    launched: VecDeque<Launched>,
    /// Calls of the host that wait, by number.
    calls: Vec<(u64, Cow<'static, str>, Moment)>,
    next: u64,
    /// How many of a kind were made over a group.
    made: Vec<(&'static str, u64, u64)>,
}

#[derive(Debug, Default)]
pub(crate) struct Activity {
    state: Mutex<State>,
}

/// A call of the host, while it lives.
#[derive(Debug)]
pub(crate) struct InCall<'a> {
    activity: &'a Activity,
    id: u64,
}

impl Drop for InCall<'_> {
    fn drop(&mut self) {
        self.activity.lock().calls.retain(|(id, ..)| *id != self.id);
    }
}

impl Activity {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the object being created, among objects of its kind over the group: equal on all members, which create them in one order.
    pub(crate) fn count(&self, kind: &'static str, group: u64) -> u64 {
        let mut state = self.lock();
        if let Some((.., count)) = state.made.iter_mut().find(|(of, over, _)| (*of, *over) == (kind, group)) {
            *count += 1;
            return *count;
        }
        state.made.push((kind, group, 1));
        1
    }

    pub(crate) fn launched(&self, team: u64, stream: usize, note: LaunchNote) -> u64 {
        let mut state = self.lock();
        state.next += 1;
        let id = state.next;
        if state.launched.len() == REMEMBERED {
            let index = first_forgotten(&state.launched);
            state.launched.remove(index);
        }
        state.launched.push_back(Launched { id, team, stream, note, at: Moment::now(), is_done: false });
        id
    }

    /// What was launched with this number is done, and what its team launched before.
    pub(crate) fn is_done(&self, launch: u64) {
        let mut state = self.lock();
        let Some(team) = state.launched.iter().find(|one| one.id == launch).map(|one| one.team) else {
            return;
        };
        state
            .launched
            .iter_mut()
            .filter(|one| one.team == team && one.id <= launch)
            .for_each(|one| one.is_done = true);
    }

    /// The number of the newest launch, for [`Self::stream_is_done`].
    pub(crate) fn newest(&self) -> u64 {
        self.lock().next
    }

    /// What was launched on this stream is done, up to this number: another thread may launch between the look at the stream and this.
    pub(crate) fn stream_is_done(&self, stream: usize, newest: u64) {
        let mut state = self.lock();
        let done = state.launched.iter_mut().filter(|one| one.stream == stream && one.id <= newest);
        done.for_each(|one| one.is_done = true);
    }

    /// Begins a call of the host that waits for others.
    pub(crate) fn call(&self, what: impl Into<Cow<'static, str>>) -> InCall<'_> {
        let mut state = self.lock();
        state.next += 1;
        let id = state.next;
        state.calls.push((id, what.into(), Moment::now()));
        InCall { activity: self, id }
    }

    /// The calls of a team that a kernel of it may be in that reports this operation: those that are not known to be done. The newest is
    /// named, as older ones may have ended unobserved.
    pub(crate) fn of_team(&self, team: u64, operation: OperationCode) -> Option<String> {
        let state = self.lock();
        let is_meant =
            |one: &&Launched| one.team == team && !one.is_done && one.note.operations.contains(&operation);
        let mut open = state.launched.iter().rev().filter(is_meant);
        let newest = open.next()?.words();
        Some(match open.next_back() {
            None => newest,
            Some(oldest) => format!(
                "{newest}, at the latest, and {} {} at the earliest that is not known to be done",
                oldest.note.kind, oldest.note.number
            ),
        })
    }

    /// What the rank does now, as the rest of a sentence that begins with the rank.
    pub(crate) fn doing(&self) -> String {
        let state = self.lock();
        let since = |at: &Moment| rounded(at.elapsed());
        let calls: Vec<_> =
            state.calls.iter().map(|(_, what, at)| format!("{what} for {:?}", since(at))).collect();
        let now = if calls.is_empty() {
            "waits in no call on the host".to_owned()
        } else {
            format!("is in {}", calls.join(" and "))
        };
        let open: Vec<_> = state.launched.iter().filter(|one| !one.is_done).collect();
        let last = match (open.first(), state.launched.back()) {
            (Some(first), _) => {
                let at_least = if state.launched.len() == REMEMBERED { "at least " } else { "" };
                let more = match &open[1..] {
                    [] => String::new(),
                    [.., newest] => {
                        format!(
                            ", and {at_least}{} more after it, at last {}",
                            open.len() - 1,
                            newest.words()
                        )
                    }
                };
                format!("it launched {} {:?} ago{more}", first.words(), since(&first.at))
            }
            (None, Some(last)) => format!("the last that it launched, {}, is done", last.words()),
            (None, None) => {
                "no call of a communicator, of expert parallelism or barrier is under way there".to_owned()
            }
        };
        format!("{now}; {last}")
    }
}

fn rounded(time: Duration) -> Duration {
    Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// `ranks 0, 1`, of a group that is not too large for it.
pub(crate) fn members_in_words(group: &Group) -> String {
    let members: Vec<_> =
        group.members().iter().take(NAMED_MEMBERS).map(|rank| rank.get().to_string()).collect();
    let more = if group.members().len() > NAMED_MEMBERS { ", ..." } else { "" };
    format!("ranks {}{more}", members.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPERATION: OperationCode = OperationCode(0x200);

    fn note(of: &str, number: u64) -> LaunchNote {
        let what = NoteText::Shared("all_reduce of 4 f32".into());
        LaunchNote { of: of.into(), kind: "call", number, what, operations: &[OPERATION] }
    }

    #[test]
    fn oldest_open_launch_of_each_team_is_remembered() {
        let activity = Activity::default();
        let barrier = LaunchNote { operations: &[OperationCode::TEAM_BARRIER], ..note("communicator 2", 1) };
        activity.launched(2, 11, note("communicator 2", 2));
        activity.launched(2, 11, barrier);
        for number in 1..=200 {
            activity.launched(1, 10, note("communicator 1", number));
        }
        let barrier = activity.of_team(2, OperationCode::TEAM_BARRIER).unwrap();
        assert!(barrier.starts_with("call 1 of communicator 2"), "{barrier}");
        let text = activity.of_team(1, OPERATION).unwrap();
        assert!(
            text.contains("call 200 of communicator 1") && text.contains("and call 1 at the earliest"),
            "{text}"
        );
        assert_eq!(activity.of_team(2, OPERATION).unwrap(), "call 2 of communicator 2, all_reduce of 4 f32");
        let doing = activity.doing();
        assert!(
            doing.contains("and at least 63 more after it, at last call 200 of communicator 1"),
            "{doing}"
        );
        activity.stream_is_done(10, u64::MAX);
        activity.launched(1, 10, note("communicator 1", 201));
        assert_eq!(
            activity.of_team(1, OPERATION).unwrap(),
            "call 201 of communicator 1, all_reduce of 4 f32"
        );
    }

    #[test]
    fn what_is_not_known_to_be_done_is_named_by_team() {
        let activity = Activity::default();
        assert_eq!((activity.of_team(1, OPERATION), activity.count("team", 5)), (None, 1));
        assert!(activity.doing().starts_with("waits in no call on the host; no call of a"));
        let first = activity.launched(1, 10, note("communicator 1", 1));
        activity.launched(2, 10, note("communicator 2", 1));
        activity.launched(1, 11, note("communicator 1", 2));
        let text = activity.of_team(1, OPERATION).unwrap();
        assert_eq!(
            text,
            "call 2 of communicator 1, all_reduce of 4 f32, at the latest, and call 1 at the earliest that is not known to be done"
        );
        assert_eq!(activity.of_team(1, OperationCode::TEAM_BARRIER), None, "no barrier was noted");
        activity.is_done(first);
        assert_eq!(activity.of_team(1, OPERATION).unwrap(), "call 2 of communicator 1, all_reduce of 4 f32");
        let newest = activity.newest();
        activity.launched(3, 10, note("communicator 3", 1));
        activity.stream_is_done(10, newest);
        assert_eq!(activity.of_team(2, OPERATION), None);
        assert!(activity.of_team(3, OPERATION).is_some(), "it was launched after the look at the stream");
        let call = activity.call("barrier");
        assert!(activity.doing().starts_with("is in barrier for"), "{}", activity.doing());
        drop(call);
        activity.stream_is_done(10, u64::MAX);
        activity.stream_is_done(11, u64::MAX);
        assert!(activity.doing().ends_with("is done"), "{}", activity.doing());
        assert_eq!((activity.count("team", 5), activity.count("team", 6)), (2, 1));
    }
}
