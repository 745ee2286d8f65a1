//! The ranks' output: lines passed on whole, and the last of them remembered.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};

/// How many lines of each rank are remembered.
const REMEMBERED: usize = 20;
/// A line longer than this is passed on in pieces, so that a rank without newlines fills no memory.
const LONGEST: u64 = 1 << 16;

/// The last lines of one rank, of both its streams in the order they came.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tail {
    lines: Arc<Mutex<VecDeque<String>>>,
}

impl Tail {
    fn push(&self, line: &[u8]) {
        let text = String::from_utf8_lossy(line).trim_end().to_owned();
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == REMEMBERED {
            lines.pop_front();
        }
        lines.push_back(text);
    }

    /// The lines so far, oldest first.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// Which of the launcher's streams a rank's stream goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sink {
    Stdout,
    Stderr,
    Nowhere,
}

/// Reads one stream to its end: remembers its last lines, and writes them with `prefix`. A closed sink
/// (`| head`) ends the writing, not the rank.
pub(crate) fn pump(stream: impl Read, prefix: &str, tail: &Tail, mut sink: Sink) {
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut reader).take(LONGEST).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        tail.push(&line);
        if !prefix.is_empty() && line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        // One write a line, under the stream's lock, so that ranks do not cut into each other's lines.
        let whole = [prefix.as_bytes(), &line].concat();
        let written = match sink {
            Sink::Stdout => write_all(io::stdout().lock(), &whole),
            Sink::Stderr => write_all(io::stderr().lock(), &whole),
            Sink::Nowhere => Ok(()),
        };
        if written.is_err() {
            sink = Sink::Nowhere;
        }
    }
}

fn write_all(mut stream: impl Write, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes)?;
    stream.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept() {
        let tail = Tail::default();
        let lines: Vec<String> = (0..30).map(|line| format!("line {line}")).collect();
        pump((lines.join("\n") + "\n").as_bytes(), "", &tail, Sink::Nowhere);
        pump(&b"no newline"[..], "", &tail, Sink::Nowhere);
        let lines = tail.lines();
        assert_eq!(lines.len(), REMEMBERED);
        assert_eq!((lines[0].as_str(), lines[19].as_str()), ("line 11", "no newline"));
    }
}
