//! The library's log on standard error.

use tracing_subscriber::EnvFilter;

/// Sends the log to standard error; `ANABRANCH_LOG` chooses what is in it, warnings and errors where it is not set.
pub(crate) fn start() {
    let wanted = anabranch::Environment::of_process();
    let filter = EnvFilter::new(wanted.get("ANABRANCH_LOG").unwrap_or("warn"));
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A second start, or a program in Rust that has a subscriber of its own.
    let _ = subscriber.without_time().with_ansi(false).try_init();
}
