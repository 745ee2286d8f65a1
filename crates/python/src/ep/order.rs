//! The order of the launches of several plans.

use anabranch::shmem;
use pyo3::prelude::*;

/// Plans whose launches run one after the other, whatever streams and graphs they are in, so that they share the part of the device that
/// one needs.
///
/// Made by `World.launch_order` and given to `World.expert_parallel`. All members make the calls of the order's plans, and launch graphs that
/// hold some, in the same order. No thread launches such a graph while another makes a call or launches a graph. The order lives as long as
/// the graphs are launched. On AMD GPUs graphs and calls are on one stream.
#[pyclass(frozen, module = "anabranch", name = "LaunchOrder")]
#[derive(Debug)]
pub(crate) struct LaunchOrder(pub(crate) shmem::LaunchOrder);
