//! Errors of the library as Python's exceptions.

use anabranch::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;

static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// The `kind` of the exceptions' classes.
fn word(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Config => "config",
        ErrorKind::Environment => "environment",
        ErrorKind::Compile => "compile",
        ErrorKind::Peer => "peer",
        ErrorKind::Device => "device",
        ErrorKind::Usage => "usage",
        // A kind that this version of the module does not know: `_make` takes the base class.
        _ => "unknown",
    }
}

fn exception(kind: ErrorKind, message: &str, ranks: &[u32], timed_out: bool) -> PyErr {
    Python::attach(|py| {
        let make = MAKE
            .get_or_try_init(py, || PyResult::Ok(py.import("anabranch._errors")?.getattr("_make")?.unbind()));
        let made = make
            .and_then(|make| make.bind(py).call1((word(kind), message, PyTuple::new(py, ranks)?, timed_out)));
        // An error of importing our own module is the better report.
        made.map_or_else(|error| error, PyErr::from_value)
    })
}

/// The exception for an error, with the whole chain of causes as its text.
pub(crate) fn raise(error: impl Into<Error>) -> PyErr {
    let error = error.into();
    let ranks = error.ranks().into_iter().map(anabranch::GlobalRank::get).collect::<Vec<_>>();
    exception(error.kind(), &format!("{error:?}"), &ranks, error.is_timeout())
}

/// A wrong argument: `UsageError`.
pub(crate) fn usage(message: impl AsRef<str>) -> PyErr {
    exception(ErrorKind::Usage, message.as_ref(), &[], false)
}

/// A wrong setting: `ConfigError`.
pub(crate) fn config(message: impl AsRef<str>) -> PyErr {
    exception(ErrorKind::Config, message.as_ref(), &[], false)
}

/// The end of a wait's own timeout: `WaitTimeout`. The work goes on.
pub(crate) fn expired(message: &str) -> PyErr {
    Python::attach(|py| {
        let class = py.import("anabranch._errors").and_then(|module| module.getattr("WaitTimeout"));
        class.and_then(|class| class.call1((message,))).map_or_else(|error| error, PyErr::from_value)
    })
}
