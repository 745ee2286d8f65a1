//! A progress line on the terminal; nothing in a pipe.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anabranch_hip_jit::{JitObserver, Outcome, Target};

/// One line on standard error that is written over again. Clones write the same line.
#[derive(Clone, Debug)]
pub struct Progress {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    enabled: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Columns to wipe before the next text.
    shown: usize,
    compiling: BTreeSet<String>,
    compiled: u64,
}

impl Progress {
    /// Shows something only when standard error is a terminal.
    pub fn to_terminal() -> Self {
        Self::with(io::stderr().is_terminal())
    }

    /// Shows nothing.
    pub fn silent() -> Self {
        Self::with(false)
    }

    fn with(enabled: bool) -> Self {
        Self { shared: Arc::new(Shared { enabled, state: Mutex::default() }) }
    }

    /// Replaces the line.
    pub fn say(&self, text: &str) {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.write(&mut state, text);
    }

    /// Wipes the line; to be called before anything else is written.
    pub fn clear(&self) {
        self.say("");
    }

    fn write(&self, state: &mut State, text: &str) {
        if !self.shared.enabled {
            return;
        }
        // Cut, as a line that wraps cannot be wiped.
        let text: String = text.chars().take(100).collect();
        let width = text.chars().count();
        let wipe = " ".repeat(state.shown.saturating_sub(width));
        let back = "\u{8}".repeat(wipe.len());
        // A terminal that is gone needs no progress.
        let _ = write!(io::stderr().lock(), "\r{text}{wipe}{back}");
        let _ = io::stderr().flush();
        state.shown = width;
        if width == 0 {
            let _ = write!(io::stderr().lock(), "\r");
        }
    }
}

impl JitObserver for Progress {
    fn compiling(&self, label: &str, target: &Target) {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.compiling.insert(format!("{label} for {target}"));
        let text = compile_text(&state);
        self.write(&mut state, &text);
    }

    fn still_compiling(&self, label: &str, target: &Target, so_far: Duration) {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        let text = format!("{} (for {} s: {label} for {target})", compile_text(&state), so_far.as_secs());
        self.write(&mut state, &text);
    }

    fn waiting(&self, label: &str, target: &Target, owner: &str, so_far: Duration) {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        let text =
            format!("waiting for {owner}, which compiles {label} for {target} ({} s)", so_far.as_secs());
        self.write(&mut state, &text);
    }

    fn finished(&self, label: &str, target: &Target, outcome: Outcome, _took: Duration) {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.compiling.remove(&format!("{label} for {target}"));
        state.compiled += u64::from(outcome == Outcome::Compiled);
        let text = compile_text(&state);
        self.write(&mut state, &text);
    }
}

fn compile_text(state: &State) -> String {
    let Some(first) = state.compiling.first() else { return String::new() };
    let more = match state.compiling.len() {
        1 => String::new(),
        n => format!(" and {} more", n - 1),
    };
    format!("compiling {first}{more} ({} done)", state.compiled)
}
