//! The native part of the Python module `anabranch`.
//!
//! It knows tensors by DLPack and the array interfaces, and no framework; what knows torch or JAX is Python.
#![warn(missing_docs)]

mod array;
mod communicator;
mod config;
mod dlpack;
mod ep;
mod errors;
mod joining;
mod logs;
mod memory;
mod norm;
mod operator;
mod raw;
mod state;
mod unlocked;
mod work;
mod world;
mod xla;

use std::ffi::OsString;

use pyo3::prelude::*;

/// The module. `python/anabranch/__init__.py` names what users see of it.
#[pymodule]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::communicator::Communicator;
    #[pymodule_export]
    use super::config::Config;
    #[pymodule_export]
    use super::ep::{
        CombineSent, ContiguousExperts, DispatchSent, Dispatched, EpConfig, ExpertMajor, ExpertParallel,
        LaunchOrder, Routing, RowUnpacker,
    };
    #[pymodule_export]
    use super::joining::{init, join_threads, spawn_threads};
    #[pymodule_export]
    use super::memory::Memory;
    #[pymodule_export]
    use super::raw::{raw_call, raw_hold, raw_order, raw_type};
    #[pymodule_export]
    use super::work::Work;
    #[pymodule_export]
    use super::world::{Profile, World, profile};
    #[pymodule_export]
    use super::xla::{
        xla_collective_handler, xla_combine_handler, xla_dispatch_handler, xla_operator, xla_register,
        xla_register_plans, xla_start_handler, xla_start_state, xla_unregister, xla_unregister_plans,
    };

    #[pymodule_export]
    use super::{flush_logs, run_command};

    #[pymodule_init]
    fn start(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let flush = module.getattr("flush_logs")?;
        module.py().import("atexit")?.call_method1("register", (flush,))?;
        Ok(())
    }
}

/// Hands the library's waiting log records to `logging`. Calls that launch or wait do; a program that makes none may do it itself.
#[pyfunction]
fn flush_logs(py: Python<'_>) {
    logs::flush(py);
}

/// Runs the `anabranch` command and returns its exit code. `program` starts it again, for ranks.
#[pyfunction]
fn run_command(py: Python<'_>, program: Vec<OsString>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| anabranch_cli::run(program, arguments))
}
