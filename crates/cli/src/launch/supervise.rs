//! Watches the ranks until all have ended.
#![expect(clippy::disallowed_methods, reason = "processes are supervised in the machine's time")]

use std::io::{self, IsTerminal, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Signal, WaitId, WaitIdOptions, waitid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::blame::{self, Witness};
use super::child::{Meeting, RankProcess};
use super::output::{Sink, Tail, pump};
use super::{Ended, Failure, Launch, Output};

/// What the supervisor waits for.
#[derive(Debug)]
enum Event {
    /// A rank's process has ended and can be reaped.
    Ended(u32),
    /// One of the streams is at its end.
    StreamClosed,
    /// The launcher was sent a signal.
    Signal(i32),
}

/// How long the streams of ended ranks may stay open, held by their child processes.
const DRAIN: Duration = Duration::from_secs(1);

/// How long the last output of a failed rank may take to arrive.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// How long to wait for the causing rank after a rank ended as a consequence. Longer than rank 0 answers the others.
const CAUSE: Duration = Duration::from_millis(1500);

/// Starts the ranks and returns when none is left. Must be called on the main thread (see
/// [`RankProcess::start`]).
///
/// # Errors
/// A rank that cannot be started; those started before it have been ended.
pub(crate) fn supervise(launch: &Launch, meeting: &Meeting) -> anyhow::Result<Ended> {
    let (sender, events) = channel();
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot watch for signals")?;
    let handle = signals.handle();
    let watcher = {
        let sender = sender.clone();
        thread::spawn(move || {
            for signal in signals.forever() {
                if sender.send(Event::Signal(signal)).is_err() {
                    return;
                }
            }
        })
    };
    let mut supervisor = Supervisor {
        events,
        sender,
        ranks: Vec::new(),
        streams: 0,
        kill_at: None,
        stopping: false,
        failed: Vec::new(),
        blame_at: None,
        ended: Ended::Well,
        grace: launch.grace,
        is_ours: launch.output == Output::RootOnly,
    };
    let result = match supervisor.start(launch, meeting) {
        Ok(()) => {
            supervisor.run();
            Ok(supervisor.ended)
        }
        Err(error) => {
            supervisor.stopping = true;
            supervisor.signal_all(Signal::KILL);
            supervisor.run();
            Err(error)
        }
    };
    handle.close();
    // The iterator ends with its handle; the thread holds nothing else.
    let _ = watcher.join();
    result
}

struct Supervised {
    process: RankProcess,
    tail: Tail,
    status: Option<ExitStatus>,
}

struct Supervisor {
    events: Receiver<Event>,
    sender: Sender<Event>,
    ranks: Vec<Supervised>,
    /// Streams still open.
    streams: usize,
    /// When ranks that got SIGTERM get SIGKILL.
    kill_at: Option<Instant>,
    /// Whether the ranks got SIGTERM. Later failures are not the cause.
    stopping: bool,
    /// Failed ranks with their exit, in order of arrival.
    failed: Vec<(u32, i32, String)>,
    /// When the first of them is blamed unless it names another rank, and when it is blamed anyway.
    blame_at: Option<(Instant, Instant)>,
    ended: Ended,
    grace: Duration,
    /// Whether the ranks run this program, whose exit codes are known.
    is_ours: bool,
}

impl Supervisor {
    fn start(&mut self, launch: &Launch, meeting: &Meeting) -> anyhow::Result<()> {
        for rank in 0..launch.ranks {
            let mut process = RankProcess::start(launch, rank, meeting)
                .with_context(|| format!("rank {rank}: cannot start {}", launch.program.display()))?;
            let tail = Tail::default();
            let prefix = match launch.output {
                Output::Forward { prefix: true } => format!("[{rank}] "),
                _ => String::new(),
            };
            let forward = |sink| if launch.output == Output::RootOnly { Sink::Nowhere } else { sink };
            if let Some(stream) = process.child.stdout.take() {
                self.pump(stream, prefix.clone(), &tail, forward(Sink::Stdout));
            }
            if let Some(stream) = process.child.stderr.take() {
                self.pump(stream, prefix, &tail, forward(Sink::Stderr));
            }
            self.watch(&process);
            self.ranks.push(Supervised { process, tail, status: None });
        }
        Ok(())
    }

    fn pump(&mut self, stream: impl io::Read + Send + 'static, prefix: String, tail: &Tail, sink: Sink) {
        self.streams += 1;
        let (sender, tail) = (self.sender.clone(), tail.clone());
        thread::spawn(move || {
            pump(stream, &prefix, &tail, sink);
            let _ = sender.send(Event::StreamClosed);
        });
    }

    /// Reports the end of a process without reaping it: its number stays taken until the supervisor, which is
    /// the one that sends signals to it, has done so.
    fn watch(&self, process: &RankProcess) {
        let (sender, rank, pid) = (self.sender.clone(), process.rank, process.pid());
        thread::spawn(move || {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            while let Some(pid) = pid
                && matches!(waitid(WaitId::Pid(pid), options), Err(rustix::io::Errno::INTR))
            {}
            let _ = sender.send(Event::Ended(rank));
        });
    }

    fn run(&mut self) {
        while self.ranks.iter().any(|rank| rank.status.is_none()) {
            let at = [self.kill_at, self.blame_at.map(|(soon, _)| soon)].into_iter().flatten().min();
            let event = match at {
                Some(at) => self.events.recv_timeout(at.saturating_duration_since(Instant::now())),
                None => self.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match event {
                Ok(Event::Ended(rank)) => self.reap(rank),
                Ok(Event::StreamClosed) => self.streams -= 1,
                Ok(Event::Signal(signal)) => self.interrupted(signal),
                Err(RecvTimeoutError::Timeout) if self.kill_at.is_some_and(|at| at <= Instant::now()) => {
                    self.kill_at = None;
                    self.signal_all(Signal::KILL);
                }
                Err(RecvTimeoutError::Timeout) => {}
                // The supervisor holds a sender itself.
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.blame();
        }
        self.drain();
        // With all last lines, which may have arrived after the decision to stop the others.
        let witnesses = self.witnesses();
        if let Some(rank) = blame::cause(&witnesses)
            && !matches!(self.ended, Ended::Interrupted { .. })
            && let Some((_, code, how)) = self.failed.iter().find(|(failed, ..)| *failed == rank).cloned()
        {
            let last_lines = self.ranks.get(rank as usize).map(|rank| rank.tail.lines()).unwrap_or_default();
            let named = witnesses.iter().find(|one| one.rank == rank).and_then(Witness::names);
            self.ended = Ended::Failed(Failure { rank, code, how, named, last_lines });
        }
    }

    fn witnesses(&self) -> Vec<Witness> {
        let witness = |(rank, code, how): &(u32, i32, String)| Witness {
            rank: *rank,
            is_ours: self.is_ours,
            code: *code,
            was_killed: how.starts_with("was killed"),
            lines: self.ranks.get(*rank as usize).map(|rank| rank.tail.lines()).unwrap_or_default(),
        };
        self.failed.iter().map(witness).collect()
    }

    fn reap(&mut self, rank: u32) {
        let Some(supervised) = self.ranks.get_mut(rank as usize) else { return };
        // The rank's child processes end with it.
        supervised.process.signal(Signal::KILL);
        let Ok(status) = supervised.process.child.wait() else { return };
        supervised.status = Some(status);
        if status.success() || self.stopping {
            return;
        }
        let (code, how) = describe(status);
        self.failed.push((rank, code, how));
        let now = Instant::now();
        self.blame_at.get_or_insert((now + LAST_WORDS, now + CAUSE));
    }

    /// Stops the others once the cause of a failure is known, or the wait for it has expired.
    fn blame(&mut self) {
        let Some((soon, late)) = self.blame_at else { return };
        let now = Instant::now();
        if now < soon {
            return;
        }
        let witnesses = self.witnesses();
        let is_open = witnesses.iter().all(Witness::may_be_consequence);
        if is_open && now < late {
            self.blame_at = Some((now + LAST_WORDS, late));
            return;
        }
        self.blame_at = None;
        self.stop(Signal::TERM);
    }

    fn interrupted(&mut self, signal: i32) {
        // A failure before the signal stays the outcome.
        if self.ended == Ended::Well && self.failed.is_empty() {
            self.ended = Ended::Interrupted { signal };
        }
        self.blame_at = None;
        if self.stopping {
            // A second signal ends the grace period.
            self.signal_all(Signal::KILL);
            return;
        }
        self.stop(Signal::from_named_raw(signal).unwrap_or(Signal::TERM));
    }

    /// Sends SIGTERM to the ranks that still run.
    fn stop(&mut self, signal: Signal) {
        self.stopping = true;
        self.signal_all(signal);
        self.kill_at = Some(Instant::now() + self.grace);
    }

    fn signal_all(&self, signal: Signal) {
        for rank in self.ranks.iter().filter(|rank| rank.status.is_none()) {
            rank.process.signal(signal);
        }
    }

    fn drain(&mut self) {
        let until = Instant::now() + DRAIN;
        while self.streams > 0 {
            match self.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Event::StreamClosed) => self.streams -= 1,
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }
}

fn describe(status: ExitStatus) -> (i32, String) {
    match (status.code(), status.signal()) {
        (Some(code), _) => (code, format!("exited with code {code}")),
        (None, Some(signal)) => {
            let name = signal_hook::low_level::signal_name(signal).unwrap_or("an unknown signal");
            (128 + signal, format!("was killed by {name}"))
        }
        (None, None) => (1, status.to_string()),
    }
}

/// Writes to standard error which rank failed first, with its last lines.
pub(crate) fn report(failure: &Failure, ranks: u32) {
    let others = if ranks > 1 { "; the other ranks were stopped" } else { "" };
    let named = failure.named.map_or_else(String::new, |rank| format!("; it names rank {rank} as the cause"));
    let mut lines =
        vec![format!("anabranch: rank {} of {ranks} {}{others}{named}", failure.rank, failure.how)];
    if !failure.last_lines.is_empty() {
        lines.push("its last lines:".to_owned());
        lines.extend(failure.last_lines.iter().map(|line| format!("  [{}] {line}", failure.rank)));
    }
    lines.push(String::new());
    // A closed standard error cannot be reported anywhere.
    let _ = io::stderr().lock().write_all(lines.join("\n").as_bytes());
}

/// Whether standard output and standard error are terminals.
pub(crate) fn is_terminal() -> bool {
    io::stdout().is_terminal() && io::stderr().is_terminal()
}
