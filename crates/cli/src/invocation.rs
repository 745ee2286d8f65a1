//! How this process was started, so that ranks can be started as processes of the same command.

use std::ffi::OsString;
use std::sync::OnceLock;

/// The program with what comes before the command's arguments, and these arguments.
#[derive(Debug)]
pub(crate) struct Invocation {
    pub(crate) program: Vec<OsString>,
    pub(crate) arguments: Vec<OsString>,
}

static INVOCATION: OnceLock<Invocation> = OnceLock::new();

/// Keeps how the process was started; a second call changes nothing.
pub(crate) fn set(program: Vec<OsString>, arguments: Vec<OsString>) {
    let _ = INVOCATION.set(Invocation { program, arguments });
}

/// What [`set`] was given.
pub(crate) fn get() -> Option<&'static Invocation> {
    INVOCATION.get()
}
