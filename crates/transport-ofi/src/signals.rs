//! Keeps the signal handlers of this process.
//!
//! Opening libfabric and what it finds puts handlers in the place of the ones that are there: `libpsm2`, which Debian's library is linked with,
//! takes `SIGSEGV`, `SIGBUS`, `SIGILL`, `SIGABRT`, `SIGINT` and `SIGTERM` when it is loaded, to write a file `*.btr` into the working folder
//! and `exit(1)`; the provider `shm` takes some for its files in `/dev/shm`. A program's own handlers, and Rust's, which tells of a stack that
//! overflowed, would be gone. So each call that may do that has a [`Kept`] around it, which puts back what was there. The providers' handlers
//! are lost with that: a process that a signal ends leaves files of `shm` behind.

use core::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Signals that end a process unless they are handled, which libraries intercept.
const SIGNALS: [c_int; 16] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGUSR1,
    libc::SIGSEGV,
    libc::SIGUSR2,
    libc::SIGPIPE,
    libc::SIGALRM,
    libc::SIGTERM,
    libc::SIGXCPU,
    libc::SIGSYS,
];

/// Two threads that keep handlers at once would each take the other's for what was there before.
static KEEPING: Mutex<()> = Mutex::new(());

/// Puts back, when it is dropped, how signals were handled when it was made.
#[must_use = "what it keeps is put back when it is dropped"]
pub(crate) struct Kept {
    before: Vec<(c_int, libc::sigaction)>,
    _one: MutexGuard<'static, ()>,
}

/// Keeps how signals are handled until the value is dropped. A thread that holds one asks for no other.
pub(crate) fn keep() -> Kept {
    let one = KEEPING.lock().unwrap_or_else(PoisonError::into_inner);
    let before = SIGNALS.into_iter().filter_map(|signal| Some((signal, handling(signal)?))).collect();
    Kept { before, _one: one }
}

/// How a signal is handled.
fn handling(signal: c_int) -> Option<libc::sigaction> {
    // SAFETY: all bits zero are a value of this plain struct.
    let mut found: libc::sigaction = unsafe { core::mem::zeroed() };
    // SAFETY: the call changes nothing, and writes one struct.
    let code = unsafe { libc::sigaction(signal, core::ptr::null(), &raw mut found) };
    (code == 0).then_some(found)
}

impl Drop for Kept {
    fn drop(&mut self) {
        for (signal, before) in &self.before {
            // SAFETY: the struct is one that the system gave for this signal, so its handler was this process's.
            let code = unsafe { libc::sigaction(*signal, before, core::ptr::null_mut()) };
            if code != 0 {
                tracing::error!(
                    "the handler of signal {signal} stays as libfabric left it: {}",
                    std::io::Error::last_os_error()
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn of_a_library(_: c_int) {}

    #[test]
    fn a_handler_that_a_library_puts_in_place_is_gone_afterwards() {
        // A signal that nothing sends here, and no other test looks at.
        let signal = libc::SIGXCPU;
        let before = handling(signal).unwrap().sa_sigaction;
        let kept = keep();
        let mut theirs = handling(signal).unwrap();
        theirs.sa_sigaction = of_a_library as extern "C" fn(c_int) as usize;
        // SAFETY: the handler does nothing.
        assert_eq!(unsafe { libc::sigaction(signal, &raw const theirs, core::ptr::null_mut()) }, 0);
        assert_ne!(handling(signal).unwrap().sa_sigaction, before);
        drop(kept);
        assert_eq!(handling(signal).unwrap().sa_sigaction, before);
    }
}
