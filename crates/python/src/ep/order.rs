//! The order of the launches of several plans.

use anabranch::ep;
use pyo3::prelude::*;

/// Plans whose launches run one after the other, whatever streams they are on, so that they share the part of the device that one needs.
///
/// Made by `World.launch_order` and given to `World.expert_parallel`. All members make the calls of the order's plans in the same order.
/// Within one CUDA-graph capture the order holds as well; the caller orders replays.
#[pyclass(frozen, module = "anabranch", name = "LaunchOrder")]
#[derive(Debug)]
pub(crate) struct LaunchOrder(pub(crate) ep::LaunchOrder);
