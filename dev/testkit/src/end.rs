//! Ranks that end in the middle of a test, and what ranks report of it.
#![expect(clippy::disallowed_methods, reason = "processes end in the machine's time")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::{Signal, getpid, kill_process};

/// Ends this process now: kills it, or stops it (`stalls`) as a process that hangs. Returns only in a stopped process that is
/// continued.
pub fn end(stalls: bool) {
    let signal = if stalls { Signal::STOP } else { Signal::KILL };
    // A process may always signal itself.
    let _ = kill_process(getpid(), signal);
    // The signal may reach another thread first.
    std::thread::sleep(Duration::from_secs(60));
}

/// Ends this process after a pause, whatever it does then: `last` is called before.
pub fn end_behind(pause: Duration, stalls: bool, last: impl FnOnce() + Send + 'static) {
    std::thread::spawn(move || {
        std::thread::sleep(pause);
        last();
        end(stalls);
    });
}

/// A line with the time, which all processes of a machine share.
#[expect(clippy::print_stdout, reason = "how a rank reports to the test")]
pub fn say(word: &str, text: &str) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    println!("@{word} {now} {text}");
}

/// The time and the text that were printed after a word. The test's own name may stand before it on the line.
pub fn said<'a>(output: &'a str, word: &str) -> Option<(Duration, &'a str)> {
    let mark = format!("@{word} ");
    let (_, line) = output.lines().find_map(|line| line.split_once(&mark))?;
    let (time, text) = line.split_once(' ')?;
    Some((Duration::from_micros(time.parse().ok()?), text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_found_after_other_output() {
        let output = "running\ntest it ... @gone 12 \n@failed 30 rank 1 died\n";
        assert_eq!(said(output, "gone"), Some((Duration::from_micros(12), "")));
        assert_eq!(said(output, "failed"), Some((Duration::from_micros(30), "rank 1 died")));
        assert_eq!(said(output, "well"), None);
        assert_eq!(said("@gone soon", "gone"), None);
    }
}
