//! Dispatch and combine of expert parallelism over tensors of any library.

mod config;
mod contiguous;
mod dispatched;
mod expert_major;
mod order;
mod parallel;
mod tensors;
mod unpacker;

use std::sync::{Arc, Mutex, PoisonError};

use anabranch::ep;
use pyo3::prelude::*;

use crate::errors::usage;
use crate::state::State;

pub(crate) use config::EpConfig;
pub(crate) use contiguous::ContiguousExperts;
pub(crate) use dispatched::{CombineSent, DispatchSent, Dispatched, Routing};
pub(crate) use expert_major::{ExpertMajor, Layout};
pub(crate) use order::LaunchOrder;
pub(crate) use parallel::ExpertParallel;
pub(crate) use unpacker::RowUnpacker;

/// What windows keep.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) state: Arc<State>,
    pub(crate) ep: ep::ExpertParallel,
}

/// Takes what a handle holds.
fn taken<T>(handle: &Mutex<Option<T>>, what: &str) -> PyResult<T> {
    let value = handle.lock().unwrap_or_else(PoisonError::into_inner).take();
    value.ok_or_else(|| usage(format!("this {what} was used already")))
}
